"""The `export` command: everything as tables, or a stretch of time as a trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from npuscope.commands.explain.model_options import (
    Again,
    AutoTokens,
    Counting,
    Length,
    ModelName,
    PeakText,
    use_of,
)
from npuscope.commands.inputs import leave, source_of
from npuscope.commands.options import Capture, Folder, Jobs, Memory, Out, Profile, Run, Store
from npuscope.console import say
from npuscope.errors import UsageError

if TYPE_CHECKING:
    from npuscope.analysis.flops.mfu import ModelUse
    from npuscope.dashboard.perfetto.choice import Choice
    from npuscope.profile import Opened

TRACES = ("perfetto", "chrome")


def export(
    form: Annotated[
        str,
        typer.Argument(
            metavar="FORMAT", help="duckdb, parquet, csv; perfetto, chrome; openmetrics."
        ),
    ],
    path: Profile = None,
    folder: Folder = None,
    out: Out = None,
    store: Store = None,
    run: Run = None,
    capture: Capture = None,
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
    jobs: Jobs = None,
    memory: Memory = None,
) -> None:
    """Write all tables as one DuckDB file or as Parquet or CSV files; or one capture as a trace.

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
      npuscope export openmetrics ./store --model qwen3-8b -o history.om
      npuscope export perfetto ./profiles -o all.json.gz
      npuscope export perfetto ./profiles --ranks 0,4 --steps 12 -o step12.json
    """
    from npuscope.analysis.flops.peaks import parse_peaks
    from npuscope.analysis.views import open_views
    from npuscope.collector.store.export import export as write
    from npuscope.dashboard.perfetto.choice import parse_choice
    from npuscope.profile import opened, summary_versions

    if out is None:
        raise UsageError("no output given: give -o OUT")
    asked = {
        "--capture": capture,
        "--ranks": ranks,
        "--steps": steps,
        "--window": window,
        "--tracks": tracks,
    }
    given = [option for option, value in asked.items() if value is not None]
    if form == "openmetrics" and given == ["--capture"]:
        given = []
    if form not in TRACES and given:
        raise UsageError(f"{given[0]} is for traces (perfetto, chrome): {form} exports everything")
    of_model = {
        "--model": model,
        "--sequence-length": sequence_length,
        "--tokens-per-step": tokens_per_step,
        "--recompute": recompute,
        "--peak": peak,
    }
    given = [option for option, value in of_model.items() if value is not None]
    if form != "openmetrics" and given:
        raise UsageError(f"{given[0]} is for openmetrics: {form} has no MFU in it")
    use = use_of(model, sequence_length, tokens_per_step, attention, recompute, is_auto=True)
    peaks = parse_peaks(peak) if peak is not None else None
    choice = parse_choice(
        run=run, capture=capture, ranks=ranks, steps=steps, window=window, tracks=tracks
    )
    source = source_of(path, folder, store, run, jobs, memory)
    with opened(replace(source, writable=out.parent)) as data:
        if form in TRACES:
            _write_trace(data, choice, out)
        elif form == "openmetrics":
            _write_history(data, run, capture, use, peaks, out)
        else:
            open_views(data.con)
            rows = write(data.con, form, out, summaries=summary_versions())
            say(f"{out}: {len(rows)} tables, {sum(rows.values())} rows")
    leave(data)


def _write_trace(data: Opened, choice: Choice, out: Path) -> None:
    """Say what comes, write it, say what it is."""
    from npuscope.dashboard.perfetto.rank_tables import expected_of, trace_of
    from npuscope.dashboard.perfetto.trace_file import before, write, written_line

    for message in data.messages:
        say(message)
    if data.result:
        choice = replace(choice, run=data.result.run)
    trace = trace_of(data, choice)
    expected = expected_of(trace)
    for message in before(trace, expected):
        say(message)
    written = write(trace, out, expected)
    say(written_line(trace, expected, written, out))


def _write_history(
    data: Opened,
    run: str | None,
    capture: str | None,
    use: ModelUse | None,
    peaks: Mapping[str, float] | None,
    out: Path,
) -> None:
    """Write all steps as samples, say how many."""
    from npuscope.dashboard.exporter.history import write_history

    for message in data.messages:
        say(message)
    found = write_history(
        data.con,
        out,
        run=data.result.run if data.result else run,
        capture=capture,
        use=use,
        given_peaks=peaks,
        tell=lambda note: say(f"note: {note}"),
    )
    say(f"{out}: {found.sample_count} samples of {found.steps_count} steps")
    if found.steps_left_out:
        say(f"note: left out {found.steps_left_out} steps without a wall-clock time on any rank")
