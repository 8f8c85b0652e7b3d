"""`npuscope whatif`: what a step would take, were some of its work faster or all workers alike."""

from __future__ import annotations

from typing import Annotated

import typer

from npuscope.commands.command import Asked, command

Changes = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CHANGE",
        help="TARGET=VALUE: 0.5 is half the time, 0 none; or median, ideal.",
        show_default=False,
    ),
]


@command()
def whatif(asked: Asked, *, changes: Changes = None) -> None:
    """What a step would take with other durations, and what slows it: phase-level traces.

    \b
    Examples:
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
    from npuscope.errors import TraceNotFound

    wanted = [parse_change(word) for word in changes or ()]
    path = asked.source.path
    if not is_parquet(path):
        raise TraceNotFound(
            f"{path}: not a phase-level trace (.parquet): replay of profiler traces is not there"
            " yet"
        )
    job = phase_job(read_phases(path))
    found = what_if(job, wanted)
    asked.answer("whatif", found, trust_notes(found.row(0, named=True), job), what_if_tables)
