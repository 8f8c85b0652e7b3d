"""The newest results for everybody who asks: gathered once for each version of the store.

Whoever asks while they are gathered waits for a while, and then gets those before.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from types import TracebackType

from npuscope.errors import NpuscopeError

from .shown_captures import Key
from .snapshot import Snapshot

RETRY_S = 10.0
# How long who asks waits for results: a scrape times out after ten seconds by default, should take
# less than half a second, and gains little by waiting where there are results of a moment ago.
PATIENCE_S = 5.0
_WITH_RESULTS_S = 0.1


@dataclass(frozen=True, slots=True)
class Status:
    """The last good results (`has_results`: whether there are any), and how gathering went.

    `is_good`: whether the last attempt succeeded and left nothing out, None before the first has
    ended; `problem` says why it did not succeed.
    """

    snapshot: Snapshot = field(default_factory=Snapshot)
    has_results: bool = False
    is_good: bool | None = None
    refreshes_total: int = 0
    errors_total: int = 0
    problem: str = ""


class CachedResults:
    """`version` tells when there is something new, `gather` gathers it: one at a time.

    `say` gets a line when gathering fails, or succeeds again. `patience_s` None: who asks waits
    until it is done. To be closed.
    """

    def __init__(
        self,
        version: Callable[[], Key],
        gather: Callable[[], Snapshot],
        *,
        say: Callable[[str], None],
        patience_s: float | None = PATIENCE_S,
        retry_s: float = RETRY_S,
    ) -> None:
        self._version, self._gather, self._say = version, gather, say
        self._patience_s, self._retry_s = patience_s, retry_s
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="gathering")
        self._pending: Future[None] | None = None
        self._key: Key | None = None
        self._retry_at = 0.0
        self._status = Status()

    def latest(self) -> Status:
        """The results of the store as it is, or, where that takes long, as it was."""
        with self._lock:
            if self._pending is None or self._pending.done():
                self._pending = self._begin()
            pending = self._pending
        if pending is not None:
            patience_s = self._patience_s
            if patience_s is not None and self._status.has_results:
                patience_s = min(patience_s, _WITH_RESULTS_S)
            wait([pending], timeout=patience_s)
        return self._status

    def close(self) -> None:
        """Begin nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> CachedResults:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()

    def _begin(self) -> Future[None] | None:
        """Gathering, if anything is new or it is time to try again."""
        if self._status.is_good is False and time.monotonic() < self._retry_at:
            return None
        try:
            key = self._version()
        except (NpuscopeError, OSError) as error:
            self._fail(error)
            return None
        if self._status.is_good and key == self._key:
            return None
        return self._pool.submit(self._refresh, key)

    def _refresh(self, key: Key) -> None:
        try:
            snapshot = self._gather()
        except Exception as error:  # whatever it is, who monitors must learn of it from here
            self._fail(error)
            return
        before = self._status
        # What was left out is looked for again, for no more than a tenth of the time.
        self._retry_at = time.monotonic() + self._retry_s * max(1.0, snapshot.took_s)
        self._key = key
        self._status = replace(
            before,
            snapshot=snapshot,
            has_results=True,
            is_good=snapshot.is_whole,
            refreshes_total=before.refreshes_total + 1,
            problem="",
        )
        if before.problem:
            self._say("the store can be read again")

    def _fail(self, error: BaseException) -> None:
        before, problem = self._status, str(error) or type(error).__name__
        self._retry_at = time.monotonic() + self._retry_s
        self._status = replace(
            before, is_good=False, errors_total=before.errors_total + 1, problem=problem
        )
        if problem != before.problem:
            remark = "the last results are kept" if before.has_results else "there are no results"
            self._say(f"{problem} ({remark})")
