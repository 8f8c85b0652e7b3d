"""Processes that work on one task after the other, each within its time.

A task whose process dies (a damaged file may kill it, in a library) or takes too long costs itself
alone: its process is ended, and every other one goes on. One that died is tried once more, after
the others: what they took of the memory may have been the reason. Starting a process takes longer
than a small profile, so they stay.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Generic, TypeVar

from .worker import begin_worker

Task = TypeVar("Task")
Result = TypeVar("Result")
Advance = Callable[[int], None]

# A process is replaced after so many tasks: libraries keep some of what they once needed.
_TASKS_OF_ONE = 100
# What runs when it is told to stop has so long to end.
STOPS_WITHIN_S = 5.0
# A task that knows its limit gives up by itself; after so much more its process is ended.
_MORE_S = 10.0
_LOOKS_EACH_S = 0.5
_GONE_WITHIN_S = 2.0
# A message for every piece of a file that was read would take a tenth of all that reading takes.
_TELLS_EACH_S = 0.1
# Planning a statement makes thousands of small objects, and forgets them when it is done. GNU's
# allocator keeps 7 of a size at hand and looks for every other one: a tenth of reading small ranks.
_ALLOCATOR = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=1000"}

# What is set aside while a process starts belongs to all threads: one of them at a time.
_start_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class LostWorker:
    """A task without a result: its process died, or, where `limit_s` is given, took longer."""

    limit_s: float | None = None


@dataclass(slots=True)
class _Worker:
    """A process; what it works on since it was told, until when."""

    process: SpawnProcess
    pipe: Connection
    task: Any = None
    is_busy: bool = False
    is_urgent: bool = False
    limit_s: float | None = None
    end_s: float | None = None
    count: int = 0


class Processes(Generic[Task, Result]):
    """Up to `width` processes that run `function` on tasks; started when there is work.

    `limit_s` is the time that a task may take, None for any.
    """

    def __init__(
        self,
        function: Callable[[Task, Advance], Result],
        width: int,
        *,
        limit_s: Callable[[Task], float | None] = lambda task: None,
        advance: Advance | None = None,
    ) -> None:
        self.width = width
        self._function, self._limit_s, self._advance = function, limit_s, advance
        self._workers: list[_Worker] = []
        self._waiting: deque[Task] = deque()
        self._urgent: deque[Task] = deque()
        self._deaths = set[int]()
        self._results: list[tuple[Task, Result | LostWorker]] = []
        self._stopped_s: float | None = None

    def add(self, tasks: Iterable[Task]) -> None:
        """Tasks for `results`."""
        self._waiting.extend(tasks)

    @property
    def pending(self) -> list[Task]:
        """What was added and is without a result."""
        return [*self._waiting, *(w.task for w in self._workers if w.is_busy and not w.is_urgent)]

    def results(
        self,
        go_on: Callable[[], bool] = lambda: True,
        ends: Callable[[], bool] = lambda: False,
        patience_s: float | None = None,
    ) -> Iterator[tuple[Task, Result | LostWorker]]:
        """What was added, with its result as it comes.

        `go_on` is asked before a task starts; what was never started is forgotten. When it `ends`,
        what runs has some seconds. Nothing more comes of what takes longer. After `patience_s`
        without any result the rest is left to the next call.
        """
        since_s = time.monotonic()
        while True:
            while self._results:
                yield self._results.pop(0)
                since_s = time.monotonic()
            if not go_on():
                self._waiting.clear()
            if not self.pending or self._is_over(ends):
                return
            if patience_s is not None and time.monotonic() - since_s > patience_s:
                return
            self._turn()

    def map(
        self,
        tasks: Iterable[Task],
        go_on: Callable[[], bool] = lambda: True,
        ends: Callable[[], bool] = lambda: False,
    ) -> Iterator[tuple[Task, Result | LostWorker]]:
        """Each of these tasks with its result, before those that were added."""
        mine = list(tasks)
        left = {id(task) for task in mine}
        self._urgent.extend(mine)
        while True:
            came = [pair for pair in self._results if id(pair[0]) in left]
            self._results = [pair for pair in self._results if id(pair[0]) not in left]
            left -= {id(task) for task, _ in came}
            yield from came
            if not go_on():
                left -= {id(task) for task in self._urgent}
                self._urgent.clear()
            if not left or self._is_over(ends):
                return
            self._turn()

    def close(self) -> None:
        """End the processes, whatever they do; the next task starts new ones."""
        for worker in self._workers:
            _end(worker)
        self._workers.clear()

    def _is_over(self, ends: Callable[[], bool]) -> bool:
        if not ends():
            self._stopped_s = None
            return False
        self._waiting.clear()
        self._urgent.clear()
        self._deaths.clear()
        if self._stopped_s is None:
            self._stopped_s = time.monotonic()
        if time.monotonic() - self._stopped_s < STOPS_WITHIN_S:
            return False
        self.close()
        return True

    def _turn(self) -> None:
        """Start what can be started, and wait a while for what runs."""
        self._start()
        busy = [worker for worker in self._workers if worker.is_busy]
        ends_s = [worker.end_s for worker in busy if worker.end_s is not None]
        longest_s = min([_LOOKS_EACH_S, *(end_s - time.monotonic() for end_s in ends_s)])
        wait([w.pipe for w in busy], max(0.0, longest_s))
        for worker in busy:
            self._listen(worker)

    def _start(self) -> None:
        while self._urgent or self._waiting:
            busy = [worker for worker in self._workers if worker.is_busy]
            # What is urgent never waits for all of what is not.
            is_first = bool(self._urgent) and not any(worker.is_urgent for worker in busy)
            if len(busy) >= self.width and not is_first:
                return
            worker = self._idle()
            is_urgent = bool(self._urgent)
            task = self._urgent.popleft() if is_urgent else self._waiting.popleft()
            try:
                worker.pipe.send(task)
            except OSError:  # it died while it had nothing to do
                (self._urgent if is_urgent else self._waiting).appendleft(task)
                self._remove(worker)
                continue
            limit_s = self._limit_s(task)
            worker.task, worker.is_busy, worker.is_urgent = task, True, is_urgent
            worker.limit_s = limit_s
            worker.end_s = None if limit_s is None else time.monotonic() + limit_s + _MORE_S

    def _idle(self) -> _Worker:
        for worker in self._workers:
            if not worker.is_busy:
                return worker
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        with _start_lock, _without_script(), _allocator_set():
            process = context.Process(
                target=_serve, args=(self._function, theirs, self._advance is not None)
            )
            process.start()
        theirs.close()  # so that its end is noticed
        worker = _Worker(process, ours)
        self._workers.append(worker)
        return worker

    def _listen(self, worker: _Worker) -> None:
        try:
            while worker.is_busy and worker.pipe.poll():
                message = worker.pipe.recv()
                if isinstance(message, int):
                    if self._advance is not None:
                        self._advance(message)
                else:
                    self._results.append((worker.task, message[0]))
                    self._deaths.discard(id(worker.task))
                    worker.task, worker.is_busy = None, False
                    worker.count += 1
                    if worker.count >= _TASKS_OF_ONE:
                        self._remove(worker)
        except (EOFError, OSError):
            if id(worker.task) in self._deaths:
                self._deaths.discard(id(worker.task))
                self._results.append((worker.task, LostWorker()))
            else:
                self._deaths.add(id(worker.task))
                (self._urgent if worker.is_urgent else self._waiting).append(worker.task)
            self._remove(worker)
            return
        if worker.is_busy and worker.end_s is not None and time.monotonic() >= worker.end_s:
            self._deaths.discard(id(worker.task))
            self._results.append((worker.task, LostWorker(worker.limit_s)))
            self._remove(worker)

    def _remove(self, worker: _Worker) -> None:
        _end(worker)
        self._workers.remove(worker)


@contextlib.contextmanager
def _without_script() -> Iterator[None]:
    """What is started meanwhile does not run the script again that this process runs: it would
    open the same profile, if the script has no guard against that. And it can be started by a
    process of a pool, which usually may start none: what is ours leaves with that by itself."""
    script, here = sys.modules["__main__"], multiprocessing.current_process()
    is_of_pool = here.daemon
    sys.modules["__main__"], here.daemon = types.ModuleType("__main__"), False
    try:
        yield
    finally:
        sys.modules["__main__"], here.daemon = script, is_of_pool


@contextlib.contextmanager
def _allocator_set() -> Iterator[None]:
    """What is started meanwhile keeps small blocks at hand, unless the user tunes it otherwise: it
    is read when a process begins."""
    added = {name: value for name, value in _ALLOCATOR.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def end_all() -> None:
    """End every process that this one started, and theirs."""
    for process in multiprocessing.active_children():
        _kill(process.pid)


def _end(worker: _Worker) -> None:
    worker.pipe.close()  # one that has nothing to do leaves by itself
    if worker.is_busy or worker.process.is_alive():
        _kill(worker.process.pid)
    worker.process.join(_GONE_WITHIN_S)
    if not worker.process.is_alive():  # else a file system holds it, and it goes when that lets go
        worker.process.close()


def _kill(pid: int | None) -> None:
    if pid is None:
        return
    for kill in (os.killpg, os.kill):  # before it is a group of its own there is but itself
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def _serve(function: Callable[[Any, Advance], object], pipe: Connection, is_told: bool) -> None:
    # Ctrl-C is for who started us, and ends us and what we start, or lets us end what we began.
    os.setsid()
    begin_worker()
    lock = threading.Lock()
    untold, told_s = 0, 0.0

    def advance(n_bytes: int) -> None:
        nonlocal untold, told_s
        if not is_told:
            return
        with lock:
            untold += n_bytes
            if time.monotonic() - told_s > _TELLS_EACH_S:
                pipe.send(untold)
                untold, told_s = 0, time.monotonic()

    with contextlib.suppress(EOFError, OSError):
        while True:
            result = function(pipe.recv(), advance)
            with lock:
                if untold:
                    pipe.send(untold)
                    untold = 0
                pipe.send((result,))
