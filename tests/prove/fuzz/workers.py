"""Mutants judged in processes of their own: a reader that hangs, dies or takes too much is seen."""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

import psutil

from tests.prove.fuzz import inputs
from tests.prove.fuzz.inputs import Input, Reader
from tests.prove.fuzz.judging import Judged, judge

BOUND_S = 10.0  # for one input of a few KB
_PATIENCE = 6
_MORE_BYTES = 400 << 20  # that one such input may take on top of what a process has
_ADDRESS_BYTES = 16 << 30  # beyond this a process gets no memory at all


Judging = Callable[[Input, Path, Judged], Judged]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a seed's mutant; `given` is the mutant where something is wrong."""

    reader: Reader
    seed: int
    given: Input | None
    judged: Judged


@dataclass(slots=True)
class _Worker:
    process: SpawnProcess
    pipe: Connection
    task: tuple[Reader, int] | None = None
    began_s: float = 0.0
    began_cpu_s: float = 0.0


def outcomes(
    tasks: Iterable[tuple[Reader, int]],
    folder: Path,
    *,
    processes: int,
    judging: Judging = judge,
    bound_s: float = BOUND_S,
) -> Iterator[Outcome]:
    """Judge the mutant of every (reader, seed), in no particular order; files go to `folder`."""

    def started(place: int) -> _Worker:
        return _start(folder / f"worker-{place}", seeds, judging)

    folder.mkdir(parents=True, exist_ok=True)
    seeds = inputs.write(folder / "whole")
    waiting = iter(tasks)
    workers = [started(place) for place in range(processes)]
    try:
        for worker in workers:
            _give(worker, waiting)
        while busy := [worker for worker in workers if worker.task is not None]:
            ready = wait([worker.pipe for worker in busy], timeout=0.2)
            for worker in busy:
                if worker.pipe not in ready and not _is_late(worker, bound_s):
                    continue
                reader, seed = worker.task or ("csv", 0)
                judged = _answer(worker) if worker.pipe in ready else None
                if judged is None:
                    judged = Judged((), {}, (_end(worker, late=worker.pipe not in ready),))
                    place = workers.index(worker)
                    worker = workers[place] = started(place)
                given = inputs.mutate(seeds, reader, seed) if judged.wrong else None
                _give(worker, waiting)
                yield Outcome(reader, seed, given, judged)
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.join()
        shutil.rmtree(folder, ignore_errors=True)


def _start(folder: Path, seeds: dict[Reader, list[Input]], judging: Judging) -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, folder, seeds, judging), daemon=True)
    process.start()
    theirs.close()
    worker = _Worker(process, ours)
    ours.recv()  # it is up: loading libraries is not the reader's time
    return worker


def _give(worker: _Worker, waiting: Iterator[tuple[Reader, int]]) -> None:
    worker.task = next(waiting, None)
    if worker.task is not None:
        worker.began_s, worker.began_cpu_s = time.monotonic(), _cpu_s(worker)
        worker.pipe.send(worker.task)


def _is_late(worker: _Worker, bound_s: float) -> bool:
    """Whether an input took more than the bound of a processor, or several times that of a clock:
    a busy machine is no fault of the reader."""
    waited_s = time.monotonic() - worker.began_s
    return waited_s > _PATIENCE * bound_s or (
        waited_s > bound_s and _cpu_s(worker) - worker.began_cpu_s > bound_s
    )


def _cpu_s(worker: _Worker) -> float:
    """Seconds of a processor that a worker took so far."""
    with suppress(psutil.Error):
        times = psutil.Process(worker.process.pid).cpu_times()
        return float(times.user + times.system)
    return 0.0


def _answer(worker: _Worker) -> Judged | None:
    try:
        judged: Judged = worker.pipe.recv()
    except (EOFError, OSError):
        return None
    return judged


def _end(worker: _Worker, *, late: bool) -> str:
    """Stop a worker that does not answer; what became of it."""
    if late:
        worker.process.kill()
    worker.process.join()
    if late:
        return "no answer in time"
    code = worker.process.exitcode or 0
    told = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return f"the process died: {told}"


def _serve(
    pipe: Connection, folder: Path, seeds: dict[Reader, list[Input]], judging: Judging
) -> None:
    """Judge what is asked for until nobody asks."""
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_BYTES, _ADDRESS_BYTES))
    origins = {given.origin: given for group in seeds.values() for given in group}
    wholes: dict[str, Judged] = {}
    shutil.rmtree(folder, ignore_errors=True)
    pipe.send(None)
    while True:
        try:
            reader, seed = pipe.recv()
        except EOFError:
            return
        given = inputs.mutate(seeds, reader, seed)
        if given.origin not in wholes:
            wholes[given.origin] = judge(origins[given.origin], folder)
            shutil.rmtree(folder)
        resident_bytes = _peak_bytes(reset=True)
        judged = judging(given, folder, wholes[given.origin])
        more_bytes = _peak_bytes() - resident_bytes
        if more_bytes > _MORE_BYTES:
            judged = replace(judged, wrong=(*judged.wrong, f"took {more_bytes >> 20} MiB more"))
        shutil.rmtree(folder, ignore_errors=True)
        pipe.send(judged)


def _peak_bytes(*, reset: bool = False) -> int:
    """The most this process had resident since the last reset."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    [peak] = [line.split()[1] for line in lines if line.startswith("VmHWM")]
    return int(peak) << 10
