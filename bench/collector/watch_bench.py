"""Whether a watcher stays as small and as quick as it was, however many captures came.

    .venv/bin/python -m bench.collector.watch_bench [--full]

Small finished profiles land, some at a time, beside a watcher that runs as the command does, with
one reading process: 1,000 captures with --full (about 330 CPU seconds), 60 without. Its resident
memory (the watcher's own, and that of the process that reads) and its CPU time for each capture are
taken after the first tenth and at the end. Limits: 16 MiB more memory in the watcher, and 1.5 times
the CPU time for each capture.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.measure import BUILD, arguments, report, table, verdict
from npuscope.collector.watch.watch_state import WatchState, read_watch_state

MORE_MIB, CPU_RATIO = 16.0, 1.5
START_S = 1_764_246_877
_EACH_S = 10
_HEADER = "Step Id,Device_id,Name,Type,Accelerator Core,Start Time(us),Duration(us),Input Shapes\n"
# So many land together, and wait while the watcher reads those before.
_TOGETHER = 25
_WAIT_S = 600.0
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class At:
    """What the watcher had used when so many captures were in: CPU seconds since it began, and the
    most that a reading process had until then."""

    captures: int
    watcher_mib: float
    reader_mib: float
    cpu_s: float


def write_capture(folder: Path, number: int) -> None:
    """A profile of one rank with a few kernels, finished."""
    output = folder / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    start_s = START_S + number * _EACH_S
    kernels = "".join(
        f'7,0,matmul,MatMulV3,AI_CORE,{start_s}0000{n:02}.250,10.500,"""4,8;8,16"""\n'
        for n in range(5)
    )
    (output / "kernel_details.csv").write_text(_HEADER + kernels)
    (folder / "profiler_info_0.json").write_text(json.dumps({"rank_id": 0}))
    (output / "analyse.done").touch()


def watch(root: Path, target: Path, log: Path, captures: int) -> list[At]:
    """Lets captures land, and takes measure at a tenth of them and at all."""
    command = [sys.executable, "-m", "npuscope", "watch", str(root), "--store", str(target)]
    command += ["--poll", "0.2", "--jobs", "1"]
    found: list[At] = []
    reader_mib = 0.0
    with log.open("w") as said, subprocess.Popen(command, stderr=said) as process:
        try:
            watcher = psutil.Process(process.pid)
            for number in range(captures):
                write_capture(root / f"host_{number}_ascend_pt", number)
                if number % _TOGETHER == 0:
                    _await(process, target, number - _TOGETHER, log)
                    reader_mib = max(reader_mib, _reader_mib(watcher))
                if number + 1 in (captures // 10, captures):
                    _await(process, target, number + 1, log)
                    found.append(_take(watcher, number + 1, reader_mib))
        finally:
            process.terminate()
            process.wait()
    return found


def _await(process: subprocess.Popen[bytes], target: Path, captures: int, log: Path) -> None:
    until = time.monotonic() + _WAIT_S
    while (read_watch_state(target) or WatchState()).captures_ingested_total < captures:
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"the watcher stopped reading: {log.read_text()[-500:]}")
        time.sleep(0.2)


def _take(watcher: psutil.Process, captures: int, reader_mib: float) -> At:
    cpu_s = 0.0
    for one in (watcher, *watcher.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            # With what processes used that have ended: readers are replaced now and then.
            cpu_s += sum(one.cpu_times()[:4])
    return At(captures, watcher.memory_info().rss / _MIB, reader_mib, cpu_s)


def _reader_mib(watcher: psutil.Process) -> float:
    sizes = [0.0]
    for one in watcher.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            sizes.append(one.memory_info().rss / _MIB)
    return max(sizes)


def main() -> int:
    """Measures, prints the table."""
    chosen = arguments(__doc__)
    captures = 1000 if chosen.full else 60
    place = BUILD / f"watch_{os.getpid()}"
    place.mkdir(parents=True)
    try:
        first, last = watch(place / "job", place / "store", place / "said.log", captures)
        state = read_watch_state(place / "store")
    finally:
        shutil.rmtree(place)
    if state is None or (state.ranks_ingested_total, state.errors_total) != (captures, 0):
        print(f"WRONG: of {captures} captures the watcher says {state}")
        return 1
    each = [first.cpu_s / first.captures, (last.cpu_s - first.cpu_s) / (captures - first.captures)]
    rows = [
        (
            f"{at.captures:,}", f"{at.watcher_mib:.1f}", f"{at.reader_mib:.1f}", f"{at.cpu_s:.1f}",
            f"{cpu_s:.3f}",
        )
        for at, cpu_s in zip((first, last), each, strict=True)
    ]  # fmt: skip
    header = ("captures", "watcher MiB", "reader MiB", "CPU s", "CPU s each since")
    more_mib, ratio = last.watcher_mib - first.watcher_mib, each[1] / each[0]
    said = table(header, rows)
    said += f"\n\nmemory more, MiB: {more_mib:.1f}, {verdict(more_mib, MORE_MIB, at_least=False)}"
    said += f"\nCPU each, ratio: {ratio:.2f}, {verdict(ratio, CPU_RATIO, at_least=False)}"
    report(f"A watcher of {captures:,} captures", said)
    return 0 if more_mib <= MORE_MIB and ratio <= CPU_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
