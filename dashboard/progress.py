"""Progress of long work on stderr. Silent where nobody watches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from npuscope.collector import ingest
from npuscope.collector.plan import Plan
from npuscope.collector.read_rank import RankOutcome

from .screen import Screen


@contextlib.contextmanager
def shown() -> Iterator[ingest.Progress]:
    """Callbacks for `ingest` that draw a bar; it appears once there is something to read."""
    console = Screen(stderr=True)
    bar = Progress(
        TextColumn("reading {task.fields[done]}/{task.fields[ranks]} ranks"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = bar.add_task("", total=None, done=0, ranks=0, visible=False)

    def planned(plan: Plan) -> None:
        bar.update(task, total=plan.size_bytes, ranks=len(plan.tasks), visible=bool(plan.tasks))

    def advanced(n_bytes: int) -> None:
        bar.advance(task, n_bytes)

    def finished(outcome: RankOutcome) -> None:
        bar.update(task, done=bar.tasks[0].fields["done"] + 1)

    with bar:
        yield ingest.Progress(planned, advanced, finished)


@contextlib.contextmanager
def waiting(what: str) -> Iterator[None]:
    """Say what is being done for as long as it takes."""
    console = Screen(stderr=True)
    with console.status(what) if console.is_terminal else contextlib.nullcontext():
        yield
