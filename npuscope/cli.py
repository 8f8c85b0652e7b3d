"""The command line: subcommands as thin calls; the only place that prints and sets exit codes.

Exit codes: 0 ok; 2 usage; 3 input missing or unreadable; 4 partly ingested (what failed is listed,
the rest is published). Tables and JSON go to stdout, progress and messages to stderr.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from io import StringIO, TextIOWrapper
from pathlib import Path
from traceback import format_exc
from types import MethodType
from typing import Annotated, Any, NoReturn

import typer

from npuscope import __version__
from npuscope.commands.explain import clocks, comm, mfu, model, ranks
from npuscope.commands.explain import memory as memory_command
from npuscope.commands.help_groups import Grouped, name_pages
from npuscope.commands.inputs import answer, chosen_rows, leave, notes_of, source_of
from npuscope.commands.options import (
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
    TopOrAll,
)
from npuscope.commands.plan import experts, experts_plan
from npuscope.commands.serve import exporter, profile_config
from npuscope.commands.start import dashboard, doctor, report
from npuscope.commands.store import export, stores, watch
from npuscope.console import reader_may_leave, say, show
from npuscope.console.waiting import waiting
from npuscope.errors import NpuscopeError, UsageError
from npuscope.import_path import current_folder_last

_PLAIN: dict[str, Any] = {
    "no_args_is_help": True,
    "rich_markup_mode": None,  # plain help: a third of the start-up time
    "context_settings": {"help_option_names": ["-h", "--help"], "max_content_width": 100},
}
app = typer.Typer(name="npuscope", cls=Grouped, pretty_exceptions_enable=False, **_PLAIN)
store_app = typer.Typer(help="Stores in the user cache.", **_PLAIN)
store_app.command("list")(stores.store_list)
store_app.command("rm")(stores.store_rm)
app.add_typer(store_app, name="store")


def main() -> NoReturn:
    """Entry point of the `npuscope` command."""
    current_folder_last()
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # what its encoding lacks; stderr does so itself
    code = 0
    try:
        with waiting("working"):
            code = app(standalone_mode=False) or 0
    except NpuscopeError as error:
        say(f"npuscope: {error}")
        sys.exit(2 if isinstance(error, UsageError) else 3)
    except typer.Abort:
        say("aborted")
        code = 1
    except BrokenPipeError:
        with suppress(typer.Exit), reader_may_leave():
            raise
    except OSError as error:
        say(f"npuscope: {error.filename or ''}: {error.strerror or error}")
        sys.exit(3)
    except Exception as error:
        if isinstance(show := getattr(error, "show", None), MethodType):  # as typer tells of usage
            told = StringIO()
            show(file=told)
            say(told.getvalue().rstrip())
            sys.exit(getattr(error, "exit_code", 2))
        if not type(error).__module__.startswith(("duckdb", "_duckdb")):
            say(format_exc().rstrip())  # a bug: its traceback is what we need
            sys.exit(1)
        say(f"npuscope: the query engine failed: {error}")
        if ".parquet" in str(error):
            say(
                "a file of the store is damaged or missing: repeat the command; if that does not"
                " help, rebuild the store with `npuscope ingest PATH --store STORE --force`"
            )
        sys.exit(3)
    sys.exit(code)


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
    Example:
      npuscope report PATH      PATH is the folder your training job's profiler wrote
    """


app.command()(report.report)
app.command()(report.findings)


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
    memory: Memory = None,
) -> None:
    """Each step of each rank: computing, communication, what of it is masked, free time, bubbles.

    \b
    Examples:
      npuscope steps ./profiles
      npuscope steps ./profiles --rank 0 --json
    """
    from npuscope.analysis import query
    from npuscope.dashboard.terminal.tables import steps_table
    from npuscope.profile import opened

    with opened(source_of(path, folder, store, run, jobs, memory)) as data:
        chosen = chosen_rows(data, run, capture, rank, step)
        frame = query.steps(data.con, **chosen)
        answer("steps", frame, notes_of(data, chosen), json=json, table=steps_table)
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
    memory: Memory = None,
) -> None:
    """Compute kernels by type, name, core or shape: count, total, mean, p50, p99, max, share.

    \b
    Examples:
      npuscope kernels ./profiles --by type --rank 0 --step 13
      npuscope kernels ./profiles --by shape --top 20 --json
    """
    from npuscope.analysis import query
    from npuscope.dashboard.terminal.tables import kernels_table
    from npuscope.profile import opened

    key = query.kernel_key(by)
    with opened(source_of(path, folder, store, run, jobs, memory)) as data:
        chosen = chosen_rows(data, run, capture, rank, step)
        frame = query.kernels(data.con, by=key, top=top, **chosen)
        notes = notes_of(data, chosen)
        if frame.is_empty():
            notes.append(query.no_kernels(data.con, run=chosen["run"], capture=capture, rank=rank))
        answer("kernels", frame, notes, json=json, table=kernels_table)
    leave(data)


app.command()(comm.comm)
app.command()(clocks.clocks)
app.command()(ranks.ranks)
experts_app = typer.Typer(
    cls=experts.ShownUnlessNamed,
    help="Expert load and its cost; `plan` and `backtest`: the gain of moving experts.",
    **_PLAIN,
)
experts_app.command("show")(experts.experts)
experts_app.command("plan")(experts_plan.plan_command)
experts_app.command("backtest")(experts_plan.backtest_command)
app.add_typer(experts_app, name="experts")
app.command()(memory_command.memory)
app.command()(mfu.mfu)
app.command()(model.model)
app.command()(doctor.doctor)
app.command()(dashboard.dashboard)
app.command()(stores.ingest)
app.command()(export.export)
app.command()(exporter.exporter)
app.command()(stores.compact)
app.command()(watch.watch)
app.command()(profile_config.profile_config)


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
    memory: Memory = None,
) -> None:
    """Ask the tables themselves, in DuckDB's SQL. Read-only: no files, no settings, no writes.

    \b
    Examples:
      npuscope sql ./profiles "show tables"
      npuscope sql ./profiles "select rank, sum(dur_ns) from kernels where is_compute group by rank"
    """
    from npuscope.analysis.views import open_views
    from npuscope.collector.store.store import lock_down, run_select
    from npuscope.dashboard import results
    from npuscope.profile import opened

    if json + csv + parquet > 1:
        raise UsageError("one of --json, --csv, --parquet")
    form = "json" if json else "parquet" if parquet else "csv" if csv or out else "table"
    if form == "parquet" and out is None and sys.stdout.isatty():
        raise UsageError("Parquet is binary: give -o FILE or redirect stdout")
    with opened(source_of(path, None, store, run, jobs, memory)) as data:
        open_views(data.con)
        lock_down(data.con, data.target)
        reader = run_select(data.con, query)
        if out is not None:
            results.write(reader, form, out)
        elif form == "table":
            show(results.sql_table(reader))
        else:
            with reader_may_leave():
                results.stream(reader, form, sys.stdout.buffer, shown_in=sys.stdout.encoding)
    leave(data)


@app.command()
def sample(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="New or empty folder.")],
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of a different job.")] = None,
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
    say(f"written: {out} (ground truth: {out / 'truth.json'})")


name_pages(app)
