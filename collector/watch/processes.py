"""Reading processes that stay for the next profile: starting one takes longer than a small profile.

A profile that kills its reader (a damaged file may, in a library) costs that profile alone: all
that was under way is tried again one by one, so that the guilty one is known.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Generic, TypeVar

from ..worker import begin_worker

Task = TypeVar("Task")
Result = TypeVar("Result")

# A process is replaced after so many tasks: libraries keep some of what they once needed.
_TASKS_OF_ONE = 100


class Processes(Generic[Task, Result]):
    """Up to `width` processes that run `function` on tasks; started when there is work."""

    def __init__(self, function: Callable[[Task], Result], width: int) -> None:
        self._function = function
        self.width = width
        self._pool: ProcessPoolExecutor | None = None
        self._given = 0

    def map(
        self, tasks: Iterable[Task], go_on: Callable[[], bool] = lambda: True
    ) -> Iterator[tuple[Task, Result | None]]:
        """Each task with its result as they come; None of one whose process died.

        `go_on` is asked before a task starts; what was never started does not come.
        """
        waiting, suspects = deque(tasks), deque[Task]()
        running: dict[Future[Result], tuple[Task, bool]] = {}
        while running or ((waiting or suspects) and go_on()):
            while (waiting or suspects) and go_on() and self._has_room(len(running), suspects):
                is_suspect = bool(suspects)
                task = suspects.popleft() if is_suspect else waiting.popleft()
                future = self._submit(task)
                if future is None:  # a process died just now
                    suspects.append(task)
                    break
                running[future] = (task, is_suspect)
                if is_suspect:
                    break  # it runs alone
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                task, is_suspect = running.pop(future)
                try:
                    yield task, future.result()
                except BrokenProcessPool:
                    self.close()
                    if is_suspect:
                        yield task, None
                    else:
                        suspects.append(task)
            if not running and self._given >= self.width * _TASKS_OF_ONE:
                self.close()

    def close(self) -> None:
        """End the processes; the next task starts new ones."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
            self._given = 0

    def _has_room(self, n_running: int, suspects: deque[Task]) -> bool:
        if suspects:
            return n_running == 0
        return n_running < self.width and self._given < self.width * _TASKS_OF_ONE

    def _submit(self, task: Task) -> Future[Result] | None:
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self.width, context, initializer=_begin)
        self._given += 1
        try:
            return self._pool.submit(self._function, task)
        except BrokenProcessPool:
            self.close()
            return None


def _begin() -> None:
    # Ctrl-C is for the watcher, which lets us end what we began.
    os.setsid()
    begin_worker()
