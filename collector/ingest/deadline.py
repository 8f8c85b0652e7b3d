"""How long reading a rank may take: in proportion to its files, so that none holds up the others.

Whoever reads gives up by itself as soon as it can: between two pieces of a file, and in the middle
of a statement. One that cannot is ended with its process, see `processes`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import duckdb

from npuscope.errors import NpuscopeError, UsageError

# Seconds for any rank, instead of those that follow from its bytes; 0: no limit.
ENVIRONMENT = "NPUSCOPE_RANK_SECONDS"
_LEAST_S = 60.0
_S_PER_BYTE = 1e-6
_INTERRUPTS_EACH_S = 0.2


class OverTime(NpuscopeError):
    """A rank that took longer than it may."""


def time_limit_s(size_bytes: int) -> float | None:
    """How long files of this size may take; None: as long as they like. Raises UsageError."""
    text = os.environ.get(ENVIRONMENT, "").strip()
    if not text:
        return _LEAST_S + size_bytes * _S_PER_BYTE
    try:
        given_s = float(text)
    except ValueError:
        given_s = -1.0
    if not 0 <= given_s < float("inf"):
        raise UsageError(f"{ENVIRONMENT}={text}: give seconds, or 0 for no limit")
    return given_s or None


def over_time(limit_s: float) -> str:
    """What is said of a rank that took longer."""
    return (
        f"not read in {limit_s:.0f} s, which is long for its size: damaged, or a very slow disk;"
        f" {ENVIRONMENT}=N allows N seconds"
    )


class Deadline:
    """The end of a rank's time."""

    def __init__(self, limit_s: float | None) -> None:
        self.limit_s = limit_s
        self._end_s = None if limit_s is None else time.monotonic() + limit_s

    def check(self) -> None:
        """Raises OverTime when the time is over."""
        if self._end_s is not None and time.monotonic() > self._end_s:
            raise OverTime(over_time(self.limit_s or 0.0))

    @contextmanager
    def interrupts(self, con: duckdb.DuckDBPyConnection) -> Iterator[None]:
        """Statements in the block fail when the time is over."""
        if self._end_s is None:
            yield
            return
        is_done = threading.Event()

        def interrupt(end_s: float) -> None:
            wait_s = max(0.0, end_s - time.monotonic())
            while not is_done.wait(wait_s):
                con.interrupt()
                wait_s = _INTERRUPTS_EACH_S

        thread = threading.Thread(target=interrupt, args=(self._end_s,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_done.set()
            thread.join()
