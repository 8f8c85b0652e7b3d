"""Scaled captures for benchmarks: the sample job's steps repeated until a file has its size.

    .venv/bin/python -m bench.inputs.captures text OUT --mb 200 --ranks 2 [--stacks]
    .venv/bin/python -m bench.inputs.captures db OUT --mb 1000 --ranks 8 [--no-pmu]

Without OUT it goes below build/bench. `--mb` is the size of each rank's trace_view.json, or of its
main database. Equal arguments give equal bytes; what is there already is kept. A repetition has its
own instants, ids and names, and the figures of the first: capture.json says what was planted.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from bench.inputs.tiled_db import db_repetitions, write_scaled_db
from bench.inputs.tiled_text import growths, trace_tiles, write_scaled_text
from npuscope import sample_traces
from npuscope.sample_traces.capture import Capture, captures
from npuscope.sample_traces.forms.metadata import folder_name, profiler_info, profiler_metadata
from npuscope.sample_traces.job import Job
from npuscope.sample_traces.truth import truth

Kind = Literal["text", "db"]
Counts = tuple[int, int, int, int]  # events, tasks, rows, bytes
BUILD = Path(__file__).resolve().parents[2] / "build" / "bench"
_RECORD = "capture.json"
_PAUSE_NS = 250_000  # between the last event of a repetition and the first of the next


@dataclass(frozen=True, slots=True)
class CaptureSpec:
    """What a scaled capture is made from."""

    kind: Kind
    mb: float
    ranks: int
    stacks: bool = False
    pmu: bool = True  # a database's counters per task: most of its rows where they were recorded

    @property
    def name(self) -> str:
        more = ("_stacks" if self.stacks else "") + ("" if self.pmu else "_no_pmu")
        return f"{self.kind}_{self.mb:g}mb_{self.ranks}ranks{more}"


@dataclass(frozen=True, slots=True)
class CaptureFiles:
    """A scaled capture on disk, over all ranks: `events` of traces; `tasks` and `rows` of main
    databases, in TASK and in all tables; `size_bytes` of traces or main databases."""

    folder: Path
    repetitions: int
    steps_per_repetition: int
    events: int
    tasks: int
    rows: int
    size_bytes: int

    def files(self) -> list[Path]:
        """Each rank's trace or main database, by name."""
        found = sorted(self.folder.glob("*/ASCEND_PROFILER_OUTPUT/trace_view.json"))
        return found or sorted(self.folder.glob("*/*/ascend_pytorch_profiler_*.db"))


def job_of(ranks: int) -> Job:
    """A MoE job of so many ranks, at least two, two steps long: pipelines of expert-parallel
    pairs."""
    ranks = max(ranks, 2)
    pp = 1 if ranks < 4 else 2 if ranks < 32 else ranks // 8
    dp = ranks // pp
    if dp % 2 or pp * dp != ranks:
        raise ValueError(f"{ranks} ranks cannot be laid out: take 1, 2, 4, 8, 16, 32 or 64")
    return Job(name="bench", layers=max(4, pp), pp=pp, dp=dp, ep=2, seed=20_251_127)


def build(
    wanted: CaptureSpec, folder: Path | None = None, *, jobs: int | None = None
) -> CaptureFiles:
    """The capture, from disk where it was made before from the same, else made now."""
    folder = folder or BUILD / wanted.name
    recorded = {"wanted": asdict(wanted), "generator": _generator()}
    record = folder / _RECORD
    if record.is_file():
        known: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
        if {key: known.get(key) for key in recorded} == recorded:
            return CaptureFiles(folder, **known["built"])
        shutil.rmtree(folder)
    elif folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty and holds no capture of ours")
    folder.mkdir(parents=True, exist_ok=True)
    job = job_of(wanted.ranks)
    seen = captures(job)[: wanted.ranks]  # of one rank, what it wrote in a job of two
    period_ns = period_ns_of(seen)
    first = growths(seen[0], period_ns)
    size_bytes = round(wanted.mb * 1e6)
    if wanted.kind == "text":
        trace = trace_tiles(seen[0], first, stacks=wanted.stacks)
        repetitions = trace.repetitions(size_bytes)
    else:
        repetitions = db_repetitions(seen[0], first, size_bytes, pmu=wanted.pmu)
    write = partial(_write_rank, folder, period_ns, wanted, repetitions)
    counts = _each(write, seen, jobs or os.cpu_count() or 1)
    made = CaptureFiles(
        folder, repetitions, job.steps,
        *(sum(counted) for counted in zip(*counts, strict=True)),
    )  # fmt: skip
    facts = {key: value for key, value in asdict(made).items() if key != "folder"}
    planted = {"period_ns": period_ns, **truth(job, seen)}
    record.write_text(json.dumps({**recorded, "built": facts, "planted": planted}, indent=1))
    return made


def _each(write: Callable[[Capture], Counts], seen: Sequence[Capture], jobs: int) -> list[Counts]:
    if jobs == 1 or len(seen) == 1:
        return [write(c) for c in seen]
    with ProcessPoolExecutor(min(jobs, len(seen))) as pool:
        return list(pool.map(write, seen))


def period_ns_of(seen: Sequence[Capture]) -> int:
    """One for all ranks, so that they stay together; whole microseconds, so that ns digits stay."""
    begin_ns = min(c.steps[0].window_start_ns for c in seen)
    ends = [kernel.start_ns + kernel.dur_ns for c in seen for kernel in c.kernels]
    ends += [op.start_ns + op.dur_ns for c in seen for op in c.comm_ops]
    end_ns = max(*ends, *(c.steps[-1].device_end_ns for c in seen))
    return (end_ns - begin_ns + _PAUSE_NS) // 1000 * 1000


def _write_rank(
    out: Path, period_ns: int, wanted: CaptureSpec, repetitions: int, c: Capture
) -> Counts:
    """One rank's folder; returns what it holds, as `Built` counts."""
    root = out / folder_name(c)
    output = root / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    grow = growths(c, period_ns)
    longer = replace(
        c,
        session_end_ns=c.session_end_ns + (repetitions - 1) * period_ns,
        job=replace(c.job, steps=c.job.steps * repetitions),
    )
    info = json.dumps(profiler_info(longer, [wanted.kind]), indent=4)
    (root / f"profiler_info_{c.rank}.json").write_text(info)
    (root / "profiler_metadata.json").write_text(json.dumps(profiler_metadata(c)))
    if wanted.kind == "text":
        trace = trace_tiles(c, grow, stacks=wanted.stacks)
        write_scaled_text(c, output, grow, trace, repetitions)
        file, counts = output / "trace_view.json", (trace.event_count(repetitions), 0, 0)
    else:
        tasks, rows = write_scaled_db(c, output, grow, repetitions, pmu=wanted.pmu)
        file, counts = output / f"ascend_pytorch_profiler_{c.rank}.db", (0, tasks, rows)
    return *counts, file.stat().st_size


def _generator() -> str:
    """A digest of the code that makes captures: other code, other captures."""
    here = Path(__file__).resolve().parent
    sample = Path(sample_traces.__file__).resolve().parent
    names = ("captures.py", "tiling.py", "tiled_text.py", "tiled_db.py", "trace_detail.py")
    state = hashlib.blake2b(digest_size=8)
    for path in (*(here / name for name in names), *sorted(sample.glob("*.py"))):
        state.update(path.read_bytes())
    return state.hexdigest()


def main(arguments: list[str]) -> int:
    """Builds the capture that the command line describes and says where it is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("kind", choices=("text", "db"))
    parser.add_argument("out", nargs="?", type=Path)
    parser.add_argument("--mb", type=float, default=200)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--stacks", action="store_true")
    parser.add_argument("--no-pmu", action="store_true", help="a database without TASK_PMU_INFO")
    parser.add_argument("--jobs", type=int)
    chosen = parser.parse_args(arguments)
    wanted = CaptureSpec(chosen.kind, chosen.mb, chosen.ranks, chosen.stacks, not chosen.no_pmu)
    made = build(wanted, chosen.out, jobs=chosen.jobs)
    steps = made.repetitions * made.steps_per_repetition
    print(f"{made.folder}: {wanted.ranks} ranks x {steps} steps, {made.size_bytes / 1e6:,.0f} MB,"
          f" {made.events or made.tasks:,} {'events' if made.events else 'tasks'}")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
