"""The command line: subcommands as thin calls; the only place that prints and sets exit codes.

Exit codes: 0 ok; 2 usage; 3 input missing or unreadable; 4 partly ingested (what failed is listed,
the rest is published). Tables and JSON go to stdout, progress and messages to stderr.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from npuscope import __version__
from npuscope.console import answer, leave, leave_with, print_json, reader_may_leave, say, show
from npuscope.errors import NpuscopeError, TraceNotFound, UsageError
from npuscope.options import (
    Capture,
    Folder,
    Jobs,
    Json,
    Memory,
    Out,
    Profile,
    Rank,
    Run,
    Step,
    Store,
    Top,
    TopOrAll,
)

if TYPE_CHECKING:
    from npuscope.dashboard.opening import Opened, Source

_PLAIN: dict[str, Any] = {
    "no_args_is_help": True,
    "rich_markup_mode": None,  # plain help: a third of the start-up time
    "context_settings": {"help_option_names": ["-h", "--help"], "max_content_width": 100},
}
app = typer.Typer(name="npuscope", pretty_exceptions_enable=False, **_PLAIN)
store_app = typer.Typer(help="Stores that profile folders got of their own.", **_PLAIN)
app.add_typer(store_app, name="store")


def main() -> NoReturn:
    """Entry point of the `npuscope` command."""
    try:
        app()
    except NpuscopeError as error:
        say(f"npuscope: {error}")
        sys.exit(2 if isinstance(error, UsageError) else 3)
    except OSError as error:
        say(f"npuscope: {error.filename or ''}: {error.strerror or error}")
        sys.exit(3)
    except Exception as error:
        if not type(error).__module__.startswith(("duckdb", "_duckdb")):
            raise  # a bug: its traceback is what we need
        say(f"npuscope: the query engine gave up: {error}")
        sys.exit(3)
    sys.exit(0)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"npuscope {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Where each training step's time goes on Ascend NPUs, what it costs, what to change.

    \b
    Start here:
      npuscope report PATH      PATH is the folder your training job's profiler wrote
    """


@app.command()
def report(
    path: Profile = None,
    folder: Folder = None,
    store: Store = None,
    run: Run = None,
    capture: Capture = None,
    rank: Rank = None,
    step: Step = None,
    top: Top = 10,
    json: Json = False,
    jobs: Jobs = None,
    memory: Memory = "2GB",
) -> None:
    """Where does the step go? The main report, in the terminal.

    \b
    Examples:
      npuscope report ./profiles
      npuscope report ./profiles --rank 0 --step 13 --top 20
    """
    from npuscope.dashboard.opening import opened
    from npuscope.dashboard.report import report as parts
    from npuscope.dashboard.report import report_rows

    with opened(_source(path, folder, store, run, jobs, memory)) as data:
        chosen = _chosen(data, run, capture, rank, step)
        if json:
            rows = report_rows(data.con, chosen, top=top)
            print_json("report", rows, _notes(data, chosen))
        else:
            for part in parts(data.con, chosen, top=top, warnings=data.warnings):
                show(part)
    leave(data)


@app.command()
def steps(
    path: Profile = None,
    folder: Folder = None,
    store: Store = None,
    run: Run = None,
    capture: Capture = None,
    rank: Rank = None,
    step: Step = None,
    json: Json = False,
    jobs: Jobs = None,
    memory: Memory = "2GB",
) -> None:
    """Each step of each rank: computing, communication, what of it is masked, free time, bubbles.

    \b
    Examples:
      npuscope steps ./profiles
      npuscope steps ./profiles --rank 0 --json
    """
    from npuscope.analysis import query
    from npuscope.dashboard.opening import opened
    from npuscope.dashboard.tables import steps_table

    with opened(_source(path, folder, store, run, jobs, memory)) as data:
        chosen = _chosen(data, run, capture, rank, step)
        frame = query.steps(data.con, **chosen)
        answer("steps", frame, _notes(data, chosen), json=json, table=steps_table)
    leave(data)


@app.command()
def kernels(
    path: Profile = None,
    folder: Folder = None,
    by: Annotated[str, typer.Option("--by", metavar="KEY", help="type|name|core|shape")] = "type",
    store: Store = None,
    run: Run = None,
    capture: Capture = None,
    rank: Rank = None,
    step: Step = None,
    top: TopOrAll = None,
    json: Json = False,
    jobs: Jobs = None,
    memory: Memory = "2GB",
) -> None:
    """Compute kernels by type, name, core or shape: count, total, mean, p50, p99, max, share.

    \b
    Examples:
      npuscope kernels ./profiles --by type --rank 0 --step 13
      npuscope kernels ./profiles --by shape --top 20 --json
    """
    from npuscope.analysis import query
    from npuscope.dashboard.opening import opened
    from npuscope.dashboard.tables import kernels_table

    key = query.kernel_key(by)
    with opened(_source(path, folder, store, run, jobs, memory)) as data:
        chosen = _chosen(data, run, capture, rank, step)
        frame = query.kernels(data.con, by=key, top=top, **chosen)
        notes = _notes(data, chosen)
        if frame.is_empty():
            notes.append("no kernels were recorded here: see `npuscope steps`")
        answer("kernels", frame, notes, json=json, table=kernels_table)
    leave(data)


@app.command()
def ingest(
    path: Profile = None,
    folder: Folder = None,
    store: Store = None,
    out: Out = None,
    run: Run = None,
    jobs: Jobs = None,
    memory: Memory = "2GB",
    force: Annotated[bool, typer.Option("--force", help="Read again what did not change.")] = False,
) -> None:
    """Read profiles into a store: parallel, resumable; unchanged ranks are not read again.

    \b
    Examples:
      npuscope ingest ./profiles --store /data/npuscope
      npuscope ingest ./profiles -o monday.duckdb
    """
    from npuscope.collector.export import export as write
    from npuscope.dashboard.opening import (
        Source,
        bring_up_to_date,
        opened,
        reading_warnings,
        summary_versions,
    )

    source = _source(path, folder, store, run, jobs, memory, force=force)
    target, result, messages = bring_up_to_date(source)
    for message in messages:
        say(message)
    read, same = len(result.published), len(result.unchanged)
    for warning in reading_warnings(target):
        say(f"warning: {warning}")
    say(f"{target}: run {result.run}, {read} rank(s) read, {same} unchanged")
    if out:
        with opened(Source(target)) as data:
            write(data.con, "duckdb", out, summaries=summary_versions())
        say(f"written: {out}")
    leave_with(result)


@app.command()
def export(
    form: Annotated[str, typer.Argument(metavar="FORMAT", help="duckdb, parquet or csv")],
    path: Profile = None,
    folder: Folder = None,
    out: Out = None,
    store: Store = None,
    run: Run = None,
    jobs: Jobs = None,
    memory: Memory = "2GB",
) -> None:
    """Write everything as one DuckDB file, or as Parquet or CSV files.

    \b
    Examples:
      npuscope export duckdb ./profiles -o monday.duckdb
      npuscope export csv ./profiles -o tables/
    """
    from npuscope.collector.export import export as write
    from npuscope.dashboard.opening import opened, summary_versions

    if out is None:
        raise UsageError("where to? give -o OUT")
    with opened(_source(path, folder, store, run, jobs, memory)) as data:
        rows = write(data.con, form, out, summaries=summary_versions())
    say(f"{out}: {len(rows)} tables, {sum(rows.values())} rows")
    leave(data)


@app.command()
def sql(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="As everywhere.")],
    query: Annotated[str, typer.Argument(metavar="SQL", help="One SELECT, DESCRIBE or EXPLAIN.")],
    store: Store = None,
    run: Run = None,
    json: Json = False,
    csv: Annotated[bool, typer.Option("--csv", help="CSV on stdout or to -o.")] = False,
    parquet: Annotated[bool, typer.Option("--parquet", help="Parquet to -o or stdout.")] = False,
    out: Out = None,
    jobs: Jobs = None,
    memory: Memory = "2GB",
) -> None:
    """Ask the tables themselves, in DuckDB's SQL. Read-only: no files, no settings, no writes.

    \b
    Examples:
      npuscope sql ./profiles "show tables"
      npuscope sql ./profiles "select rank, sum(dur_ns) from kernels where is_compute group by rank"
    """
    from npuscope.collector import locked
    from npuscope.dashboard import results
    from npuscope.dashboard.opening import opened

    if json + csv + parquet > 1:
        raise UsageError("one of --json, --csv, --parquet")
    form = "json" if json else "parquet" if parquet else "csv" if csv or out else "table"
    if form == "parquet" and out is None and sys.stdout.isatty():
        raise UsageError("Parquet is no text: give -o FILE or redirect")
    with opened(_source(path, None, store, run, jobs, memory)) as data:
        locked.lock(data.con, data.target)
        reader = locked.run(data.con, query)
        if out is not None:
            results.write(reader, form, out)
        elif form == "table":
            show(results.sql_table(reader))
        else:
            with reader_may_leave():
                results.stream(reader, form, sys.stdout.buffer)
    leave(data)


@app.command()
def sample(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="New or empty folder.")],
    seed: Annotated[
        int | None, typer.Option("--seed", help="Another job of the same kind.")
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
    write_sample(out, seed=seed)
    say(f"written: {out} (what is true in it: {out / 'truth.json'})")


@store_app.command("list")
def store_list(json: Json = False) -> None:
    """Stores of the user cache: what they were made from, their size, when they were used."""
    from npuscope.collector import cache
    from npuscope.dashboard import results

    found = cache.cached_stores()
    if json:
        print_json("stores", results.records(found), [])
    elif found:
        show(results.stores_table(found))
    else:
        say(f"no stores in {cache.cache_folder()}")


@store_app.command("rm")
def store_rm(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Store or profile path.")],
) -> None:
    """Delete stores of the user cache (never profiles)."""
    from npuscope.collector import cache

    for name in names:
        removed = cache.remove(name)
        say(f"removed {removed.name} ({removed.source}, {removed.size_bytes / 1e6:.1f} MB)")


def _source(
    path: Path | None,
    folder: Path | None,
    store: Path | None,
    run: str | None,
    jobs: int | None,
    memory: str,
    *,
    force: bool = False,
) -> Source:
    """What the user points at."""
    from npuscope.dashboard.opening import Source, parse_size

    if path is not None and folder is not None and path != folder:
        raise UsageError("PATH and -d name two places: give one")
    place = path or folder
    if place is None:
        raise UsageError("which profile? give PATH, the folder the profiler wrote to")
    return Source(place, store, run, jobs, parse_size(memory), force)


def _notes(data: Opened, chosen: dict[str, Any]) -> list[str]:
    from npuscope.analysis import query

    told = query.notes(data.con, run=chosen["run"], capture=chosen["capture"])
    return told + data.warnings


def _chosen(
    data: Opened, run: str | None, capture: str | None, rank: int | None, step: int | None
) -> dict[str, Any]:
    """Filters for the analyses. Raises UsageError where they match nothing, TraceNotFound where
    nothing has figures."""
    from npuscope.analysis import query

    for message in data.messages:
        say(message)
    chosen: dict[str, Any] = {
        "run": data.result.run if data.result else run,
        "capture": capture,
        "rank": rank,
        "step": step,
    }
    if query.steps(data.con, **chosen).is_empty():
        reason = query.nothing_matches(data.con, **chosen)
        if all(value is None for value in (run, capture, rank, step)):
            raise TraceNotFound(reason)
        raise UsageError(reason)
    return chosen
