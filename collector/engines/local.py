"""Ranks read by processes of this machine; a small profile by this process itself."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ..ctrl_c import run_interruptible
from ..discover.search import Discovery, discover, job_name
from ..ingest.deadline import over_time
from ..ingest.read_batch import batch_limit, in_batches
from ..ingest.read_rank import RankOutcome, RankTask
from ..readers.trust import Advance
from .engine import Engine, GoOn, Read, lost_rank
from .processes import LostWorker, Processes

# Below this, starting processes costs more than it saves.
_SMALL_BYTES = 48 << 20
_DEATH = "its reading process died (out of memory?): try again with --jobs 1 or less --memory"


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
    discovery = discover(path)
    return discovery, next((job_name(source) for source in discovery.ranks[:1]), None)


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
    in_processes = total >= _SMALL_BYTES or (workers > 1 and jobs is not None)
    batches = in_batches(tasks, workers if in_processes else 1)
    if in_processes:
        yield from _map_in_processes(function, batches, advance, go_on, workers)
        return
    is_stopped = threading.Event()

    def advance_until_stopped(n_bytes: int) -> None:
        if is_stopped.is_set():
            raise KeyboardInterrupt
        advance(n_bytes)

    for batch in batches:
        if not go_on():
            return
        yield from run_interruptible(
            partial(function, batch, advance_until_stopped), is_stopped.set
        )


def _map_in_processes(
    function: Read,
    batches: Sequence[tuple[RankTask, ...]],
    advance: Advance,
    go_on: GoOn,
    workers: int,
) -> Iterator[RankOutcome]:
    """Read ranks in spawned processes; one that dies or takes too long fails its rank alone."""
    processes: Processes[tuple[RankTask, ...], Sequence[RankOutcome]] = Processes(
        function, workers, limit_s=batch_limit, advance=advance
    )
    with contextlib.closing(processes):
        alone: list[tuple[RankTask, ...]] = []
        for batch, outcomes in processes.map(batches, go_on):
            if not isinstance(outcomes, LostWorker):
                yield from outcomes
            elif len(batch) > 1:
                alone += [(task,) for task in batch]
            else:
                yield _lost(batch[0], outcomes)
        for (task,), outcomes in processes.map(alone, go_on):
            if isinstance(outcomes, LostWorker):
                yield _lost(task, outcomes)
            else:
                yield from outcomes


def _lost(task: RankTask, lost: LostWorker) -> RankOutcome:
    return lost_rank(task, over_time(lost.limit_s) if lost.limit_s else _DEATH)
