"""From the arguments of a command to what it opens and which rows of it are asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from npuscope.console import print_json, say, show
from npuscope.errors import TraceNotFound, UsageError

if TYPE_CHECKING:
    import polars as pl
    from rich.console import RenderableType

    from npuscope.collector.ingest.ingest import IngestResult
    from npuscope.profile import Opened, Source


def source_of(
    path: Path | None,
    folder: Path | None,
    store: Path | None,
    run: str | None,
    jobs: int | None,
    memory: str | None,
    *,
    force: bool = False,
) -> Source:
    """What the user points at."""
    from npuscope.profile import Source, parse_size

    if path is not None and folder is not None and path != folder:
        raise UsageError("PATH and -d are two different inputs: give only one")
    place = path or folder
    if place is None:
        raise UsageError("no profile given: give PATH, the folder the profiler wrote to")
    return Source(place, store, run, jobs, parse_size(memory) if memory else None, force)


def notes_of(data: Opened, chosen: dict[str, Any]) -> list[str]:
    """What to know beside the figures of the chosen rows: limits of the capture, reading losses."""
    from npuscope.analysis import query

    told = query.notes(data.con, run=chosen["run"], capture=chosen["capture"])
    return told + data.warnings


def chosen_rows(
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


def answer(
    metric: str,
    frame: pl.DataFrame,
    notes: list[str],
    *,
    json: bool,
    table: Callable[[pl.DataFrame], RenderableType],
) -> None:
    """An analysis's answer: JSON, or a table with its notes."""
    from npuscope.analysis import query

    if json:
        print_json(metric, query.rows(frame), notes)
        return
    show(table(frame))
    for note in notes:
        say(f"note: {note}")


def leave(data: Opened) -> None:
    """End a command that read tables: with 4 where some of the profile was not read."""
    if data.result is not None:
        leave_with(data.result)


def leave_with(result: IngestResult) -> None:
    """List what was not read and leave with 4, where the ingest was partial."""
    if not result.is_complete:
        from npuscope.dashboard.results import failures_table

        show(failures_table(result), to_stderr=True)
        raise typer.Exit(4)
