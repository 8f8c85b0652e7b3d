"""Commands that fill and tidy stores: `ingest`, `compact`, `store list|rm`; and `sample`."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from npuscope.analysis.scope import Scope
from npuscope.commands.command import (
    ExpertLoad,
    Json,
    Memory,
    Out,
    Request,
    command,
    leave_where_partial,
    list_failures,
)
from npuscope.console import print_json, say, show
from npuscope.errors import StoreError, UsageError

Force = Annotated[bool, typer.Option("--force", help="Re-read unchanged files too.")]
Shard = Annotated[
    str | None,
    typer.Option(
        "--shard", metavar="I/N", help="Read shard I of N only, from 0: for mpirun and the like."
    ),
]
Engine = Annotated[
    str, typer.Option("--engine", metavar="NAME", help="Run readers as local processes or on ray.")
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="HOST:PORT",
        help=("Address of the Ray cluster.  [default: this node's]"),
    ),
]
Ranks = Annotated[
    str | None, typer.Option("--ranks", metavar="LIST", help="Read these ranks only: 0,7,8-15.")
]
Steps = Annotated[
    str | None, typer.Option("--steps", metavar="LIST", help="Keep these steps only: 12-14.")
]
Tables = Annotated[
    str | None,
    typer.Option("--tables", metavar="LIST", help=("Keep these tables only: kernels,comm_ops.")),
]
Light = Annotated[
    bool,
    typer.Option(
        "--light", help=("Read small files of every rank, and representative ranks in full.")
    ),
]
TrainLog = Annotated[
    Path | None,
    typer.Option("--train-log", metavar="FILE", help="Training log: step times, tokens/s, MFU."),
]
Stacks = Annotated[bool, typer.Option("--stacks", help="Also keep host call stacks.")]


@command("run", json=False)
def ingest(
    request: Request,
    *,
    out: Out = None,
    force: Force = False,
    shard: Shard = None,
    engine: Engine = "local",
    address: Address = None,
    ranks: Ranks = None,
    steps: Steps = None,
    tables: Tables = None,
    light: Light = False,
    stacks: Stacks = False,
    train_log: TrainLog = None,
    expert_load: ExpertLoad = None,
) -> None:
    """Read profiles into a store: parallel, resumable; unchanged ranks are not read again.

    What a rank lacks of what is asked for is added to it; nothing is taken away.
    A trainer's log stands in the table train_log, once for each capture; tokens per expert stand
    in expert_load (a folder tokens_per_expert in PATH is found by itself).

    \b
    Examples:
      npuscope ingest ./profiles --store /data/npuscope
      npuscope ingest ./profiles -o monday.duckdb
      npuscope ingest ./10000_ranks --store /data/npuscope --light
      npuscope ingest ./profiles --ranks 0,7 --steps 12-14 --tables kernels,comm_ops
      srun -n 16 sh -c 'npuscope ingest /share/p --store /share/s --shard $SLURM_PROCID/16'
      npuscope ingest /data/profiles --store /share/s --engine ray
      npuscope ingest ./profiles --train-log ./train_rank7.log
      npuscope ingest ./profiles --expert-load ./dumps
    """
    from npuscope.collector.selection import parse_selection
    from npuscope.collector.store.compact import compact as merge
    from npuscope.collector.store.mirror import url_behind
    from npuscope.profile import (
        Source,
        bring_up_to_date,
        open_tables,
        reading_warnings,
        spread,
        summary_versions,
    )

    selection = parse_selection(ranks=ranks, steps=steps, tables=tables, light=light, stacks=stacks)
    source = replace(
        spread(request.source, shard, engine, address),
        force=force, selection=selection, train_log=train_log, expert_load=expert_load,
    )  # fmt: skip
    if source.shard and out:
        raise UsageError("-o with --shard: export when the last shard is done (`npuscope export`)")
    target, result, messages = bring_up_to_date(source)
    for message in messages:
        say(message)
    read, same = len(result.publications), len(result.unchanged)
    for warning in reading_warnings(target, scope=Scope(result.run)):
        say(f"warning: {warning}")
    share = f"shard {source.shard}: " if source.shard else ""
    where = url_behind(target) or target
    say(f"{share}{where}: run {result.run}, {read} rank(s) read, {same} unchanged")
    for one in result.representatives:
        say(f"read in full: rank {one.rank} ({one.reason})")
    if result.representatives:
        merge(target)  # so many ranks are so many small files
    if out:
        from npuscope.analysis.views import open_views
        from npuscope.collector.store.export import export as write

        with open_tables(Source(target)) as data:
            for message in data.left_out:
                say(message)
            open_views(data.con)
            write(data.con, "duckdb", out, summaries=summary_versions())
        say(f"written: {out}")
        leave_where_partial(replace(data, result=result))
    list_failures(result)
    if not result.is_complete:
        raise typer.Exit(4)


def compact(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="A store that ingest made.")],
    keep_days: Annotated[
        float | None,
        typer.Option("--keep-days", metavar="DAYS", min=0, help="Drop captures older than this."),
    ] = None,
    keep_size: Annotated[
        str | None,
        typer.Option("--keep-size", metavar="SIZE", help="Drop the oldest captures beyond this."),
    ] = None,
    grace_minutes: Annotated[
        float,
        typer.Option(
            "--grace-minutes",
            metavar="MINUTES",
            min=1,
            help="Delete what was replaced or dropped so long ago; 1 where the disk is full.",
        ),
    ] = 1440,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help=("List what would be removed, change nothing."))
    ] = False,
    memory: Memory = None,
) -> None:
    """Merge the small files of many ranks into large ones; drop old captures where asked to.

    Safe at any time: beside readers, beside an ingest, and killed. Files that were replaced stay
    for a day, for who still reads them. The newest capture always stays.

    Where the disk is full, drop captures and a minute later repeat the command with
    --grace-minutes 1. Who opened the store before and still reads what goes then looks once more,
    as pages do, or ends with 3 and has to be repeated: no answer is wrong. It is never less than a
    minute, as what an ingest is about to publish looks like what was replaced.

    \b
    Examples:
      npuscope compact /data/npuscope
      npuscope compact /data/npuscope --keep-days 30 --keep-size 200GB --dry-run
      npuscope compact /data/npuscope --grace-minutes 1
    """
    import time

    from npuscope.collector.store.compact import MEMORY_BYTES
    from npuscope.collector.store.compact import compact as merge
    from npuscope.collector.store.manifest import is_store
    from npuscope.collector.store.retention import (
        drop_capture,
        remember_dropped,
        stored_captures,
        superfluous,
    )
    from npuscope.collector.store.sweep import sweep
    from npuscope.dashboard.units import size_text
    from npuscope.profile import parse_size, read_from

    store = read_from(store)
    if not is_store(store):
        raise StoreError(f"{store}: not a store: give the folder that `ingest --store` filled")
    keep_bytes = parse_size(keep_size, "--keep-size") if keep_size is not None else None
    captures = stored_captures(store)
    going = superfluous(captures, now_ns=time.time_ns(), keep_days=keep_days, keep_bytes=keep_bytes)
    if not dry_run:
        remember_dropped(store, going)
    for one in going:
        text = f"{one.run}, {one.capture}: {one.rank_count} rank(s), {size_text(one.size_bytes)}"
        if not dry_run:
            drop_capture(one)
        say(f"{'would drop' if dry_run else 'dropped'} {text}")
    if dry_run:
        return
    try:
        merged = merge(
            store,
            memory_bytes=parse_size(memory) if memory else MEMORY_BYTES,
            done=lambda one: say(
                f"{one.run}, {one.capture}: {one.files_before} files of {one.rank_count} rank(s)"
                f" merged into {one.files_after} ({size_text(one.size_bytes)})"
            ),
        )
        if not merged and not going:
            say(f"{store}: nothing to merge")
    finally:  # what is damaged must not keep a full disk full
        freed_bytes = sweep(store, grace_s=grace_minutes * 60)
        if freed_bytes:
            say(f"{store}: {size_text(freed_bytes)} of unused files removed")


def store_list(json: Json = False) -> None:
    """Stores of the user cache: what they were made from, their size, when they were used."""
    from npuscope.collector.store import cache
    from npuscope.dashboard import results

    stores = cache.cached_stores()
    if json:
        print_json("stores", results.records(stores), [])
    elif stores:
        show(results.stores_table(stores))
    else:
        say(f"no stores in {cache.cache_folder()}")


def store_rm(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Store or profile path.")],
) -> None:
    """Delete stores of the user cache (never profiles)."""
    from npuscope.collector.store import cache
    from npuscope.dashboard.units import size_text

    for name in names:
        removed = cache.remove(name)
        say(f"removed {removed.name} ({removed.source}, {size_text(removed.size_bytes)})")


def sample(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="New or empty folder.")],
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="Seed of a different job.")
    ] = None,
) -> None:
    """Write a small sample MoE training job with known truths, to try things on.

    \b
    Example:
      npuscope sample demo && npuscope report demo
    """
    from npuscope.sample_traces.generate import write_sample

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out}: exists and is not empty")
    try:
        write_sample(out, seed=seed)
    except OSError as error:
        shutil.rmtree(out, ignore_errors=True)  # half a sample would look like a whole one
        raise StoreError(f"{out}: cannot be written ({error.strerror})") from error
    say(f"written: {out} (ground truth: {out / 'truth.json'})")
