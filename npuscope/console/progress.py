"""Progress of reading on stderr: a bar for those who watch, a line for a file or pipe."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from npuscope.collector.ingest import ingest
from npuscope.collector.ingest.plan import Plan
from npuscope.collector.ingest.read_rank import RankOutcome

from .screen import Screen
from .waiting import now, quiet


@contextlib.contextmanager
def shown(began: Callable[[Plan], None]) -> Iterator[ingest.Progress]:
    """Callbacks for `ingest` that draw a bar; it appears once there is something to read.

    `began` is called when it is known what there is to read, and before any of it is.
    """
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
        began(plan)
        if not plan.tasks:
            now("checking whether the stored data is up to date")
            return
        ranks = f"{len(plan.tasks)} rank{'s' * (len(plan.tasks) > 1)}"
        now(f"reading {ranks}, {plan.size_bytes / 1e6:,.1f} MB")
        if console.is_terminal:
            quiet()
            bar.start()
        bar.update(task, total=plan.size_bytes, ranks=len(plan.tasks), visible=True)

    def advanced(n_bytes: int) -> None:
        bar.advance(task, n_bytes)

    def finished(outcome: RankOutcome) -> None:
        bar.update(task, done=bar.tasks[0].fields["done"] + 1)

    try:
        yield ingest.Progress(planned, advanced, finished)
    finally:
        bar.stop()
