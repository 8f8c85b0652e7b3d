"""Plan, read ranks in parallel processes, publish each as it is done.

    discover -> plan -> [read_rank in a worker process] x ranks -> manifests -> index

Everything a rank needs is in its task, so ranks fail, finish and resume one by one: what was
published before a kill stays, and the next ingest reads only the rest.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npuscope.errors import TraceNotFound

from . import store as stores
from .discover import OUTPUT_FOLDER, Discovery, Problem, discover
from .manifest import Manifest, create_store, manifests, rank_folder, write_index
from .plan import Plan, make_plan
from .read_rank import RankOutcome, RankTask, read_rank
from .readers.profiler_info import read_metadata
from .segments import Summarise, rebuild_summaries

# Below this, starting processes costs more than it saves.
_SMALL_BYTES = 48 << 20
DEFAULT_MEMORY_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class IngestResult:
    """What an ingest did. `failed` ranks are not (newly) published."""

    store: str
    run: str
    published: tuple[RankOutcome, ...]
    failed: tuple[RankOutcome, ...]
    unchanged: tuple[Manifest, ...]
    dropped: tuple[Manifest, ...]
    problems: tuple[Problem, ...]

    @property
    def unread_files(self) -> tuple[tuple[int, str, str], ...]:
        """Rank, file and reason of what is missing from ranks that are published, old and new."""
        told = [(o.rank, *pair) for o in self.published for pair in o.failed_files]
        told += [(m.rank, *pair) for m in self.unchanged for pair in m.failed_files.items()]
        return tuple(told)

    @property
    def is_complete(self) -> bool:
        """Whether everything found was read."""
        return not (self.failed or self.unread_files or self.problems)


@dataclass(frozen=True, slots=True)
class Progress:
    """Callbacks of an ingest, in the calling process: the plan, bytes consumed, a rank done."""

    planned: Callable[[Plan], None] = lambda plan: None
    advanced: Callable[[int], None] = lambda n_bytes: None
    finished: Callable[[RankOutcome], None] = lambda outcome: None


def ingest(
    path: Path,
    store: Path,
    *,
    run: str | None = None,
    summarise: Summarise | None = None,
    jobs: int | None = None,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    progress: Progress | None = None,
    force: bool = False,
) -> IngestResult:
    """Bring `store` up to date with the profiles at or below `path`.

    `run` is the job's name: by default the one in its metadata, else the folder's.
    `jobs` processes (default: one per CPU, none extra for small profiles) share `memory_bytes`.
    A rank that cannot be read spoils nothing else. Raises TraceNotFound where nothing was found
    or nothing could be read and nothing is published; StoreError for an unusable store.
    """
    progress = progress or Progress()
    found = discover(path)
    run = run or _run_name(path, found)
    create_store(store)
    stores.sweep(store)
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = max(1, min(jobs or cpus, len(found.ranks) or 1))
    plan = make_plan(
        found, store, path=path, run=run, memory_bytes=memory_bytes // workers, force=force
    )
    progress.planned(plan)
    if summarise is not None:
        for manifest in plan.unchanged:
            rebuild_summaries(store, manifest, summarise, memory_bytes)
    outcomes: list[RankOutcome] = []
    in_process = workers == 1 or (jobs is None and plan.size_bytes < _SMALL_BYTES)
    read = _read_here if in_process or len(plan.tasks) < 2 else _read_in_processes
    for outcome in read(plan.tasks, summarise, min(workers, len(plan.tasks) or 1), progress):
        outcomes.append(outcome)
        progress.finished(outcome)
    vanished = tuple(m for m in plan.vanished if not _is_unread(m, outcomes, found))
    for manifest in vanished:
        stores.drop(store, manifest)
    published = tuple(o for o in outcomes if o.error is None)
    failed = tuple(o for o in outcomes if o.error is not None)
    for capture in {(t.run, t.capture) for t in plan.tasks}:
        folder = rank_folder(store, *capture, 0).parent
        if folder.is_dir():
            write_index(folder)
    result = IngestResult(
        str(store), run, published, failed, plan.unchanged, vanished, plan.problems
    )
    if not published and not plan.unchanged and not manifests(store, run=run):
        raise TraceNotFound(_nothing_readable(path, result))
    return result


def _is_unread(manifest: Manifest, outcomes: list[RankOutcome], found: Discovery) -> bool:
    """Whether a rank's folder is still there but could not be read: then what is published stays.

    Its files may have been the only ones to tell its rank, which seems gone then.
    """
    root = Path(manifest.source_root)
    if any(o.error is not None and Path(o.root) == root for o in outcomes):
        return True
    places = [Path(problem.path) for problem in found.problems]
    return any(root.is_relative_to(p) or p.is_relative_to(root) for p in places)


def _run_name(path: Path, found: Discovery) -> str:
    for source in found.ranks[:1]:
        metadata = source.path("profiler_metadata")
        name = read_metadata(metadata).job_name if metadata else None
        if name:
            return name
    real = path.resolve()
    real = real if real.is_dir() else real.parent
    return (real.parent if real.name == OUTPUT_FOLDER else real).name or "root"


def _nothing_readable(path: Path, result: IngestResult) -> str:
    reasons = [f"{o.root}: {o.error}" for o in result.failed]
    reasons += [f"{p.path}: {p.message}" for p in result.problems]
    shown = "\n  ".join(reasons[:10])
    more = f"\n  ... and {len(reasons) - 10} more" if len(reasons) > 10 else ""
    return f"{path}: nothing here could be read:\n  {shown}{more}"


def _read_here(
    tasks: tuple[RankTask, ...], summarise: Summarise | None, jobs: int, progress: Progress
) -> Iterator[RankOutcome]:
    for task in tasks:
        yield read_rank(task, summarise, progress.advanced)


def _read_in_processes(
    tasks: tuple[RankTask, ...], summarise: Summarise | None, jobs: int, progress: Progress
) -> Iterator[RankOutcome]:
    """Read ranks in spawned processes, largest first; one that dies fails its rank alone."""
    waiting = sorted(tasks, key=lambda task: task.source.size_bytes, reverse=True)
    context = multiprocessing.get_context("spawn")
    bytes_read: multiprocessing.Queue[int] = context.Queue()
    suspects: list[RankTask] = []
    with _drained(bytes_read, progress):
        while waiting or suspects:
            # After a crash its suspects run one at a time, so that the guilty one is known.
            batch, alone = (waiting, False) if waiting else ([suspects.pop()], True)
            waiting = []
            pool = ProcessPoolExecutor(
                1 if alone else jobs, context, initializer=_begin_worker, initargs=(bytes_read,)
            )
            with pool:
                running = {pool.submit(_work, task, summarise): task for task in batch}
                crashed = yield from _collect(running)
            if alone and crashed:
                yield _died(crashed[0])
            else:
                suspects += crashed


def _collect(
    running: dict[Future[RankOutcome], RankTask],
) -> Generator[RankOutcome, None, list[RankTask]]:
    """Yield outcomes as they come; returns the tasks whose process died."""
    crashed: list[RankTask] = []
    while running:
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            task = running.pop(future)
            try:
                yield future.result()
            except BrokenProcessPool:
                crashed.append(task)
    return crashed


def _died(task: RankTask) -> RankOutcome:
    return RankOutcome(
        task.run,
        task.capture,
        task.source.rank,
        task.source.root,
        error="its reading process died (out of memory?): try again with --jobs 1 or less --memory",
    )


_progress_queue: Any = None


def _begin_worker(bytes_read: Any) -> None:
    global _progress_queue
    _progress_queue = bytes_read
    parent = multiprocessing.parent_process()

    def leave_with_parent() -> None:
        # A killed parent cannot stop its workers; one that waits for tasks would wait for ever.
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=leave_with_parent, daemon=True).start()


def _work(task: RankTask, summarise: Summarise | None) -> RankOutcome:
    return read_rank(task, summarise, _progress_queue.put)


@contextlib.contextmanager
def _drained(bytes_read: Any, progress: Progress) -> Iterator[None]:
    """Pass workers' progress on from a thread of this process."""
    stop = threading.Event()

    def drain() -> None:
        while not stop.is_set():
            try:
                progress.advanced(bytes_read.get(timeout=0.1))
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
