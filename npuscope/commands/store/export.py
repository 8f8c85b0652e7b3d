"""Tables and traces for other tools: `npuscope export`, and `npuscope sql` in DuckDB's words."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from npuscope.analysis.scope import Scope
from npuscope.commands.command import (
    Jobs,
    Json,
    Memory,
    Out,
    Request,
    Run,
    Store,
    command,
    source_of,
)
from npuscope.commands.explain.model_options import (
    Again,
    AutoTokens,
    Counting,
    Length,
    ModelName,
    PeakText,
    use_of,
)
from npuscope.console import reader_may_leave, say, show
from npuscope.errors import UsageError

if TYPE_CHECKING:
    from npuscope.analysis.flops.mfu import ModelUse
    from npuscope.dashboard.perfetto.choice import Choice
    from npuscope.profile import OpenTables

TRACES = ("perfetto", "chrome")
OTHERS = (*TRACES, "openmetrics")


@command("run", "capture", json=False)
def export(
    request: Request,
    form: Annotated[
        str,
        typer.Argument(
            metavar="FORMAT", help="duckdb, parquet, csv; perfetto, chrome; openmetrics."
        ),
    ],
    *,
    out: Out = None,
    ranks: Annotated[
        str | None,
        typer.Option("--ranks", metavar="LIST", help="Traces: these ranks, as in 0,7,8-15."),
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option("--steps", metavar="A-B", help="Traces: the time of these steps."),
    ] = None,
    window: Annotated[
        str | None,
        typer.Option("--window", metavar="A-B", help="Traces: ms from the capture's start."),
    ] = None,
    tracks: Annotated[
        str | None,
        typer.Option(
            "--tracks",
            metavar="LIST",
            help="Traces: of steps,overlap,kernels,communication,marks,host,memory,counters.",
        ),
    ] = None,
    model: ModelName = None,
    sequence_length: Length = None,
    tokens_per_step: AutoTokens = None,
    attention: Counting = "causal",
    recompute: Again = None,
    peak: PeakText = None,
) -> None:
    """Write all tables as one DuckDB file or as Parquet or CSV files; or one capture as a trace.

    Tables have all that is in PATH, or what --run and --capture name.

    In CSV, a text that a spreadsheet would run as a formula (= + - @ in front) begins with '.

    perfetto and chrome write the same JSON, which ui.perfetto.dev and chrome://tracing open;
    compressed where OUT ends in .gz (chrome://tracing and Perfetto open that too). A trace has a
    process per rank: steps, overlap (computing, exposed and masked communication, free), kernels
    by stream, communication by group, marks, host calls with arrows to what they launched, memory
    and counters. What crosses the edge of --steps or --window is cut there.

    openmetrics writes what `npuscope exporter` serves, for every step with its time, as promtool
    takes it to fill in the past: promtool tsdb create-blocks-from openmetrics OUT DATA. --model and
    the options that go with it are for openmetrics, as `npuscope exporter` takes them.

    \b
    Examples:
      npuscope export duckdb ./profiles -o monday.duckdb
      npuscope export csv ./profiles -o tables/
      npuscope export parquet ./store --run monday --capture 20251127T123437.000Z -o tables/
      npuscope export openmetrics ./store --model qwen3-8b -o history.om
      npuscope export perfetto ./profiles -o all.json.gz
      npuscope export perfetto ./profiles --ranks 0,4 --steps 12 -o step12.json
    """
    from npuscope.analysis.flops.peaks import parse_peaks
    from npuscope.analysis.views import open_views
    from npuscope.collector.store.export import FORMATS
    from npuscope.collector.store.export import export as write
    from npuscope.dashboard.perfetto.choice import parse_choice
    from npuscope.profile import summary_versions

    if form not in (*FORMATS, *OTHERS):
        names = ", ".join((*FORMATS, *OTHERS))
        raise UsageError(f"unknown export format {form}: one of {names}")
    if out is None:
        raise UsageError("no output given: give -o OUT")
    of_traces = {
        "--ranks": ranks,
        "--steps": steps,
        "--window": window,
        "--tracks": tracks,
    }
    options = [option for option, value in of_traces.items() if value is not None]
    if form not in TRACES and options:
        raise UsageError(
            f"{options[0]} is for traces (perfetto, chrome): {form} exports everything"
        )
    of_model = {
        "--model": model,
        "--sequence-length": sequence_length,
        "--tokens-per-step": tokens_per_step,
        "--recompute": recompute,
        "--peak": peak,
    }
    options = [option for option, value in of_model.items() if value is not None]
    if form != "openmetrics" and options:
        raise UsageError(f"{options[0]} is for openmetrics: {form} has no MFU in it")
    use = use_of(model, sequence_length, tokens_per_step, attention, recompute, is_auto=True)
    peaks = parse_peaks(peak) if peak is not None else None
    choice = parse_choice(
        run=request.scope.run, capture=request.scope.capture,
        ranks=ranks, steps=steps, window=window, tracks=tracks,
    )  # fmt: skip
    request = replace(request, source=replace(request.source, writable=out.parent))
    with request.tables(need_steps=False) as (data, scope):
        if form in TRACES:
            _write_trace(data, replace(choice, run=scope.run), out)
        elif form == "openmetrics":
            _require_data(data, request.scope)
            _write_history(data, scope, use, peaks, out)
        else:
            _require_data(data, request.scope)
            open_views(data.con)
            rows = write(
                data.con, form, out, summaries=summary_versions(),
                run=request.scope.run, capture=request.scope.capture,
            )  # fmt: skip
            say(f"{out}: {len(rows)} tables, {sum(rows.values())} rows")


def _require_data(data: OpenTables, scope: Scope) -> None:
    """Raises UsageError where the run or capture asked for is not there."""
    from npuscope.analysis import query

    if (reason := query.no_such_rank(data.con, scope)) is not None:
        raise UsageError(reason)


def _require_only(data: OpenTables, scope: Scope) -> None:
    """Raises UsageError where one run was asked for, and what reads all would read others too; of
    a folder that was just ingested, --run was the name to give."""
    if scope.run is None or data.result is not None:
        return
    _require_data(data, scope)
    if len(runs := _runs(data)) > 1:
        raise UsageError(
            f"--run {scope.run}: a query without `where run = ...` reads all runs here:"
            f" {', '.join(runs)}"
        )


def _runs(data: OpenTables) -> list[str]:
    runs = data.con.sql("select distinct run from ranks order by 1").fetchall()
    return [run for (run,) in runs]


def _write_trace(data: OpenTables, choice: Choice, out: Path) -> None:
    """Say what comes, write it, say what it is."""
    from npuscope.dashboard.perfetto.rank_tables import expected_of, trace_of
    from npuscope.dashboard.perfetto.trace_file import before, write, written_line

    trace = trace_of(data, choice)
    expected = expected_of(trace)
    for message in before(trace, expected):
        say(message)
    written = write(trace, out, expected)
    say(written_line(trace, expected, written, out))


def _write_history(
    data: OpenTables,
    scope: Scope,
    use: ModelUse | None,
    peaks: Mapping[str, float] | None,
    out: Path,
) -> None:
    """Write all steps as samples, say how many."""
    from npuscope.dashboard.exporter.history import write_history
    from npuscope.profile import compare_ranks

    before = len(data.warnings)
    compare_ranks(data, is_needed=False)  # as the exporter does: waits and kinds are theirs to tell
    for warning in data.warnings[before:]:
        say(f"warning: {warning}")
    stored = write_history(
        data.con,
        out,
        scope,
        use=use,
        given_peaks=peaks,
        tell=lambda note: say(f"note: {note}"),
    )
    say(f"{out}: {stored.sample_count} samples of {stored.steps_count} steps")
    if stored.steps_left_out:
        say(f"note: left out {stored.steps_left_out} steps without a wall-clock time on any rank")


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
    from npuscope.analysis.views import open_views, view_names
    from npuscope.dashboard import results
    from npuscope.selects import lock_down, run_select

    if json + csv + parquet > 1:
        raise UsageError("one of --json, --csv, --parquet")
    form = "json" if json else "parquet" if parquet else "csv" if csv or out else "table"
    if form == "parquet" and out is None and sys.stdout.isatty():
        raise UsageError("Parquet is binary: give -o FILE or redirect stdout")
    request = Request(source_of(path, None, store, run, jobs, memory), Scope(run))
    with request.tables(need_steps=False) as (data, _):
        _require_only(data, request.scope)
        if data.result is not None and len(runs := _runs(data)) > 1:
            say(
                f"note: this was read as runs {' and '.join(runs)}: a query without"
                " `where run = ...` reads all of them"
            )
        open_views(data.con, view_names(data.con, query))
        lock_down(data.con, data.target)
        reader = run_select(data.con, query)
        if out is not None:
            results.write(reader, form, out)
        elif form == "table":
            show(results.sql_table(reader))
        else:
            with reader_may_leave():
                results.stream(reader, form, sys.stdout.buffer, shown_in=sys.stdout.encoding)
