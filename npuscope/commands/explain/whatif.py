"""`npuscope replay`, `critical-path` and `whatif`: steps as they were, and as they would be."""

from __future__ import annotations

from typing import Annotated

import typer

from npuscope.commands.command import Request, TopOrAll, command, notes_of

Changes = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CHANGE",
        help="TARGET=VALUE: 0.5 is half the time, 0 none; or median, ideal.",
        show_default=False,
    ),
]
Slack = Annotated[
    bool, typer.Option("--slack", help="How much longer each operation may take, least first.")
]
RunnerUp = Annotated[
    bool, typer.Option("--runner-up", help="The longest way but the critical path.")
]


@command("run", "capture")
def replay(request: Request) -> None:
    """How close a replay comes to the measured steps, with and without recorded gaps.

    \b
    Examples:
      npuscope replay ./profiles                          may a what-if be trusted here?
      npuscope replay ./profiles --json                   per rank and step
    """
    from npuscope.analysis.replay import captures
    from npuscope.dashboard.terminal.what_if_tables import replay_table
    from npuscope.profile import compare_ranks

    with request.tables() as (data, scope):
        compare_ranks(data)
        job = captures.capture_job(data.con, scope)
        rows = captures.replay(job)
        notes = captures.replay_notes(job, rows) + notes_of(data, scope)
        request.answer("replay", rows, notes, replay_table)


@command("run", "capture")
def critical_path(
    request: Request, *, top: TopOrAll = None, slack: Slack = False, runner_up: RunnerUp = False
) -> None:
    """Which operations of which rank make a step as long as it is; rows add up to the step.

    \b
    Examples:
      npuscope critical-path ./profiles
      npuscope critical-path ./profiles --top 20 --json
      npuscope critical-path ./profiles --slack           how much longer each operation may take
      npuscope critical-path ./profiles --runner-up       which way is the next to be the longest
    """
    from npuscope.analysis.replay import captures
    from npuscope.analysis.replay.critical_path import critical_path, gap_notes, runner_up_path
    from npuscope.analysis.replay.slack import operation_slack
    from npuscope.dashboard.terminal.what_if_tables import (
        critical_path_table,
        runner_up_table,
        slack_table,
    )
    from npuscope.errors import UsageError
    from npuscope.profile import compare_ranks

    with request.tables() as (data, scope):
        compare_ranks(data)
        job = captures.capture_job(data.con, scope)
        if slack and runner_up:
            raise UsageError("--slack and --runner-up: one at a time")
        ask = operation_slack if slack else runner_up_path if runner_up else critical_path
        rows = ask(job)
        if top is not None:
            rows = rows.group_by("step", maintain_order=True).head(top).select(rows.columns)
        notes = captures.replay_notes(job, captures.replay(job))
        if not slack and not runner_up:
            notes += gap_notes(job)
        notes += notes_of(data, scope)
        if slack:
            request.answer("operation_slack", rows, notes, slack_table)
        elif runner_up:
            request.answer("runner_up_path", rows, notes, runner_up_table)
        else:
            request.answer("critical_path", rows, notes, critical_path_table)


@command("run", "capture")
def whatif(request: Request, *, changes: Changes = None) -> None:
    """What a step would take with other durations, and what slows it.

    \b
    Examples, of a profile:
      npuscope whatif ./profiles rank:5=median            as fast as its peers
      npuscope whatif ./profiles comm:ep=0.5 'kernel:FlashAttention*=0.67'
      npuscope whatif ./profiles link:3-7=0.5 --json      host=0.5 host:free host:node01=0.5
      npuscope whatif ./profiles between_steps=0          schedule=zb-h1
      npuscope whatif ./profiles micro_batches=16         experts:balanced experts:plan=FILE ideal
      npuscope whatif ./profiles remove:rank=5 hide:ep 'fuse:RmsNorm' hierarchical:ep
    \b
    Of a phase-level trace:
      npuscope whatif trace.parquet                       slowdown by optype, stage and worker
      npuscope whatif trace.parquet comm:pp=0 comm:dp=0.5
      npuscope whatif trace.parquet stage:3=ideal worker:1,0=median
      npuscope whatif trace.parquet 'optype:*-compute=0.8' --json
    """
    from npuscope.analysis.replay.changes import parse_change
    from npuscope.analysis.replay.phases import phase_job
    from npuscope.analysis.replay.what_if import trust_notes, what_if
    from npuscope.collector.readers.phase_trace.phase_trace import is_parquet, read_phases
    from npuscope.dashboard.terminal.what_if_tables import what_if_tables

    words = changes or []
    parsed = [parse_change(word) for word in words]
    path = request.source.path
    if not is_parquet(path):
        _of_capture(request, words)
        return
    job = phase_job(read_phases(path))
    rows = what_if(job, parsed)
    request.answer("whatif", rows, trust_notes(rows.row(0, named=True), job), what_if_tables)


def _of_capture(request: Request, changes: list[str]) -> None:
    from npuscope.analysis.replay.capture_changes import TARGETS
    from npuscope.analysis.replay.capture_what_if import whatif_answer
    from npuscope.dashboard.terminal.what_if_tables import whatif_steps_table
    from npuscope.errors import UsageError
    from npuscope.profile import compare_ranks

    if not changes:
        named = ", ".join(TARGETS)
        raise UsageError(f"of a capture, say what changes, such as rank:5=median: one of {named}")
    with request.tables() as (data, scope):
        compare_ranks(data)
        rows, notes = whatif_answer(data.con, scope, changes)
        request.answer("whatif_steps", rows, notes + notes_of(data, scope), whatif_steps_table)
