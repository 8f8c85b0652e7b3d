"""`doctor`: what a capture is, what it lacks, and how to record it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from npuscope.analysis.scope import Scope
from npuscope.commands.command import Request, command
from npuscope.console import print_json, say, show
from npuscope.errors import TraceNotFound, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from npuscope.analysis.doctor.compared_steps import StepComparison
    from npuscope.analysis.doctor.doctor import CaptureReport
    from npuscope.collector.store.manifest import Manifest
    from npuscope.profile import OpenTables


Files = Annotated[
    bool,
    typer.Option("--files", help="Also read every file of the store and compare its checksum."),
]


@command("run", "capture", "rank")
def doctor(request: Request, *, files: Files = False) -> None:
    """What was recorded, what is missing, which analyses that allows, what to record next time.

    Other commands compare sizes of a store's files only: with --files what a disk or a copy changed
    in them is found, too, at the speed of the disk.

    \b
    Examples:
      npuscope doctor ./profiles
      npuscope doctor ./profiles --rank 3 --json
      npuscope doctor ./store --files
    """
    from npuscope.analysis.doctor.doctor import examine
    from npuscope.collector.store.compact_files import without_torn
    from npuscope.collector.store.manifest import is_store
    from npuscope.collector.store.store import opened_over
    from npuscope.dashboard.terminal.doctor.doctor_rows import Disk, doctor_notes, doctor_rows
    from npuscope.dashboard.terminal.doctor.doctor_tables import doctor as parts
    from npuscope.profile import open_tables

    with open_tables(request.source, scope=request.scope) as data:
        scope = request.scope_of(data)
        read = opened_over(data.con, data.target) if is_store(data.target) else []
        damage = (
            list(without_torn(data.target, read, with_content=True)[1].values()) if files else []
        )
        for remark in damage:
            say(remark)
        reports = examine(data.con, read, scope)
        if not reports:
            _refuse(examine(data.con, read), scope)
        disk = Disk()
        if data.result is not None:
            from npuscope.collector.discover.unread_files import unread

            problems = data.result.problems
            sources = [file.path for one in read for file in one.sources]
            beside = unread(
                request.source.path,
                sources,
                [*(one.path for one in problems), *(one.root for one in data.result.failures)],
            )
            disk = Disk(
                data.result.failures, problems, beside, _comparison(request.source.path, data, read)
            )
        if request.json:
            print_json(
                "doctor",
                doctor_rows(reports, disk),
                [*data.left_out, *damage, *doctor_notes(reports, disk)],
            )
        else:
            for part in parts(reports, disk):
                show(part)
    is_whole = (data.result is None or data.result.is_complete) and not data.is_partial
    if damage or not is_whole or any(one.loss.is_any for report in reports for one in report.ranks):
        raise typer.Exit(4)


def _comparison(path: Path, data: OpenTables, read: list[Manifest]) -> list[StepComparison]:
    """Our steps beside those of msprof-analyze, where its results lie beside the profiles."""
    from npuscope.analysis.doctor.compared_steps import compared_steps
    from npuscope.collector.readers.cluster.cluster_steps import results_near

    run = data.result.run if data.result else None
    results = results_near(path, {one.source_root for one in read if one.run == run})
    return compared_steps(data.con, read, results, run=run)


def _refuse(everything: list[CaptureReport], scope: Scope) -> NoReturn:
    """Say why nothing was chosen: by what there is instead."""
    from npuscope.analysis.wording import ranks_named

    if not everything:
        raise TraceNotFound("no data is ingested here: give the folder the profiler wrote to")
    there = "; ".join(
        f"{one.run}, {one.capture}: {ranks_named(r.rank for r in one.ranks)}" for one in everything
    )
    raise UsageError(f"nothing here is {scope}: there is {there}")
