"""Ranks read by processes of this machine; a small profile by this process itself."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ..discover import Discovery, discover, job_name
from ..read_rank import RankOutcome, RankTask
from ..reader_table import Advance
from ..worker import begin_worker
from .engine import Engine, GoOn, Read, largest_first, lost

# Below this, starting processes costs more than it saves.
_SMALL_BYTES = 48 << 20
_DIED = "its reading process died (out of memory?): try again with --jobs 1 or less --memory"


def local_engine(jobs: int | None) -> Engine:
    """This machine: `jobs` processes, by default one per CPU and none extra for small profiles."""

    def sharing(n_ranks: int) -> int:
        return max(1, min(jobs or cpu_count(), n_ranks))

    return Engine(
        look=_look,
        reach=lambda store: None,
        map=partial(_map, jobs=jobs),
        sharing=sharing,
        sees_all=True,
    )


def cpu_count() -> int:
    """CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _look(path: Path) -> tuple[Discovery, str | None]:
    found = discover(path)
    return found, next((job_name(source) for source in found.ranks[:1]), None)


def _map(
    function: Read,
    tasks: Sequence[RankTask],
    advance: Advance,
    go_on: GoOn,
    *,
    jobs: int | None,
) -> Iterator[RankOutcome]:
    workers = max(1, min(jobs or cpu_count(), len(tasks)))
    spare = (jobs or cpu_count()) // workers
    tasks = [replace(task, source=replace(task.source, processes=spare)) for task in tasks]
    total = sum(task.source.size_bytes for task in tasks)
    if workers > 1 and (jobs is not None or total >= _SMALL_BYTES):
        yield from _map_in_processes(function, largest_first(tasks), advance, go_on, workers)
        return
    for task in tasks:
        if not go_on():
            return
        yield function(task, advance)


def _map_in_processes(
    function: Read, tasks: Sequence[RankTask], advance: Advance, go_on: GoOn, workers: int
) -> Iterator[RankOutcome]:
    """Read ranks in spawned processes; one that dies fails its rank alone."""
    waiting, suspects = deque(tasks), deque[RankTask]()
    context = multiprocessing.get_context("spawn")
    bytes_read: multiprocessing.Queue[int] = context.Queue()
    with _drained(bytes_read, advance):
        while (waiting or suspects) and go_on():
            # After a crash its suspects run one at a time, so that the guilty one is known.
            alone = bool(suspects)
            batch = deque([suspects.popleft()]) if alone else waiting
            width = 1 if alone else min(workers, len(batch))
            with ProcessPoolExecutor(
                width, context, initializer=_begin_worker, initargs=(bytes_read,)
            ) as pool:
                crashed = yield from _run(pool, width, function, batch, go_on)
            if alone and crashed:
                yield lost(crashed[0], _DIED)
            else:
                suspects += crashed


def _run(
    pool: ProcessPoolExecutor, width: int, function: Read, batch: deque[RankTask], go_on: GoOn
) -> Generator[RankOutcome, None, list[RankTask]]:
    """Keep `width` processes busy; returns the tasks under way when one died, if one did."""
    running: dict[Future[RankOutcome], RankTask] = {}
    crashed: list[RankTask] = []
    while running or batch:
        while batch and len(running) < width and not crashed and go_on():
            task = batch.popleft()
            try:
                running[pool.submit(_work, function, task)] = task
            except BrokenProcessPool:
                crashed.append(task)
        if not running:
            break
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            task = running.pop(future)
            try:
                yield future.result()
            except BrokenProcessPool:
                crashed.append(task)
    return crashed


_progress_queue: Any = None


def _begin_worker(bytes_read: Any) -> None:
    global _progress_queue
    _progress_queue = bytes_read
    begin_worker()


def _work(function: Read, task: RankTask) -> RankOutcome:
    return function(task, _progress_queue.put)


@contextlib.contextmanager
def _drained(bytes_read: Any, advance: Advance) -> Iterator[None]:
    """Pass workers' progress on from a thread of this process."""
    stop = threading.Event()

    def drain() -> None:
        while not stop.is_set():
            try:
                advance(bytes_read.get(timeout=0.1))
            except queue.Empty:
                continue

    thread = threading.Thread(target=drain, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        bytes_read.close()
        bytes_read.cancel_join_thread()
