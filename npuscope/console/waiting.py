"""A word on stderr about whatever takes longer than a moment, so that nobody wonders; a bar for
reading.

On a terminal it stands until something else is printed; into a file or pipe it is one line.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from .printable import one_line

if TYPE_CHECKING:
    from rich.status import Status

    from npuscope.collector.ingest.ingest import Progress as Told
    from npuscope.collector.ingest.plan import Plan
    from npuscope.collector.ingest.read_rank import RankOutcome

PATIENCE_S = 1.4  # of two seconds: the rest is for starting up

_change = threading.Condition(threading.RLock())
_tasks: list[str] = []
_since_s = 0.0
_is_told = False
_status: Status | None = None


@contextlib.contextmanager
def waiting(what: str) -> Iterator[None]:
    """Say what is being done where it takes long; within another, in its place."""
    with _change:
        _tasks.append(what)
        _renew()
        if len(_tasks) == 1:
            threading.Thread(target=_tell_in_time, daemon=True).start()
    try:
        yield
    finally:
        with _change:
            _tasks.pop()
            _renew() if _tasks else quiet()
            _change.notify_all()


def now(what: str) -> None:
    """From here on this is being done."""
    with _change:
        if _tasks:
            _tasks[-1] = what
            _renew()


def quiet() -> None:
    """Make room for what is about to be printed; until something else is done, nothing is said."""
    global _status, _is_told
    with _change:
        _is_told = True
        if _status is not None:
            _status.stop()
            _status = None


def tell(text: str) -> None:
    """Write to stderr. Where that cannot be, the command goes on and ends as it would have."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:  # its reader left, its disk is full; nor is Python to flush it at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _renew() -> None:
    global _since_s, _is_told
    _since_s, _is_told = time.monotonic(), False
    if _status is not None:
        _tell()
    _change.notify_all()


def _tell_in_time() -> None:
    with _change:
        while _tasks:
            left_s = _since_s + PATIENCE_S - time.monotonic()
            if _is_told:
                _change.wait()
            elif left_s > 0:
                _change.wait(left_s)
            else:
                with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
                    _tell()


def _tell() -> None:
    global _status, _is_told
    _is_told = True
    line = one_line(_tasks[-1])
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        tell(f"{line} ...\n")
        return
    from rich.text import Text

    from .screen import Screen

    text = Text(line, overflow="ellipsis", no_wrap=True)
    if _status is None:
        _status = Screen(stderr=True).status(text)
        _status.start()
    else:
        _status.update(text)


@contextlib.contextmanager
def reading(began: Callable[[Plan], None]) -> Iterator[Told]:
    """Callbacks for `ingest` that draw a bar; it appears once there is something to read.

    `began` is called when it is known what there is to read, and before any of it is.
    """
    # Here, because most of what is waited for is not a reading.
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    from npuscope.collector.ingest.ingest import Progress as Told

    from .screen import Screen

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
        yield Told(planned, advanced, finished)
    finally:
        if console.is_terminal:  # elsewhere rich before 14.3 writes an empty line
            bar.stop()
