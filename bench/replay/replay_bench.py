"""How long the graph of a capture takes, and one what-if on it.

    .venv/bin/python -m bench.replay.replay_bench [--full]

Ranks run one program of kernels with an all-reduce in groups of eight every 20 operations, which
the third kernel after it waits for; the two before that run beside it and take 1.3 times as long.
The host launches ahead of the device. With all kernels half as long the replay must give the step
that such a program takes. A what-if is the whole answer: the step as replayed and as predicted,
and its range with contention. Limits for 1,000 ranks x 20,000 operations (--full), in seconds of
CPU: the graph, with the replay of what was measured, in 60 s; then one what-if in 10 s, with at
most 4 GB held at any time. The operations are made in memory: reading them from a store is
measured elsewhere.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from bench.measure import arguments, report, table, verdict
from npuscope.analysis.replay.capture_what_if import predicted_steps
from npuscope.analysis.replay.captures import Other, job_of
from npuscope.analysis.replay.operations import Operations

GRAPH_S, WHAT_IF_S, LIMIT_GB = 60.0, 10.0, 4.0
EVERY, MEMBERS = 20, 8
BESIDE, STRETCH = 2, 1.3  # kernels beside a transfer


def ran(ranks: int, count: int, factor: float) -> Operations:
    """What every rank ran, kernels `factor` times as long; ranks are columns while it is made."""
    chance = np.random.default_rng(7)
    spread = chance.integers(8_000, 20_000, (count, ranks))
    start, dur = (np.empty((count, ranks), np.int64) for _ in range(2))
    free, arrived = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)
    for at in range(count):
        if at % EVERY == EVERY - 1:
            start[at] = np.maximum(free + 1_000, arrived)
            met = np.repeat(start[at].reshape(-1, MEMBERS).max(axis=1), MEMBERS)
            arrived = met + 60_000
            dur[at] = arrived - start[at]
        else:
            begins = np.maximum(free + 1_000, 5_000 + 3_000 * at)
            start[at] = np.maximum(begins, arrived + 500) if at % EVERY == BESIDE else begins
            dur[at] = np.round(spread[at] * (STRETCH if at % EVERY < BESIDE else 1) * factor)
            free = start[at] + dur[at]
    is_comm = np.arange(count) % EVERY == EVERY - 1
    number = np.cumsum(is_comm) - 1
    groups = ranks // MEMBERS
    group = np.repeat(np.arange(groups), MEMBERS)
    instance = np.where(is_comm[:, None], number[:, None] * groups + group, -1)
    launch = np.broadcast_to(3_000 * np.arange(count)[:, None] - 1_000, start.shape)
    kind = np.where(is_comm, 0, -1)
    types = np.where(is_comm, 6, np.arange(count) % 6)

    def flat(value: np.ndarray) -> np.ndarray:
        whole = np.broadcast_to(value if value.ndim > 1 else value[:, None], start.shape)
        return np.ascontiguousarray(whole.T).ravel()

    rank = np.repeat(np.arange(ranks, dtype=np.int32), count)
    kinds = pl.Series([*"abcdefC"], dtype=pl.String).gather(flat(types))
    names = pl.DataFrame({"name": kinds, "core": kinds, "shapes": kinds})
    return Operations(
        rank, np.zeros(ranks * count, np.int32), flat(start), flat(dur), flat(launch),
        2 * rank + flat(is_comm.astype(np.int32)), flat(types.astype(np.int32)),
        flat(kind.astype(np.int32)), flat(instance.astype(np.int32)),
        np.zeros(ranks * count, bool), np.ones(ranks * count, bool),
        np.zeros(ranks * count, np.int8),
        [*range(ranks)], [1], [*"abcdefC"], ["dp"], names=names,
    )  # fmt: skip


@contextmanager
def peak_gb() -> Iterator[list[float]]:
    """The most memory that this process holds at any time within."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forgets the peak so far
    found: list[float] = []
    yield found
    told = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert told is not None
    found.append(int(told[1]) * 1024 / 1e9)


def main() -> int:
    """Checks and measures captures of growing size, prints the table."""
    chosen = arguments(__doc__)
    rows, worst = [], 0.0
    largest = (1_000, 20_000) if chosen.full else (200, 8_000)
    for ranks, count in ((8, 2_000), (8, 200_000), (64, 5_000), largest):
        faster = ran(ranks, count, 0.5)
        truth = int((faster.start + faster.dur).max() - faster.start.min())
        del faster
        ops = ran(ranks, count, 1.0)
        began = time.process_time()
        job = job_of("run", "capture", ops)
        made = job.waits
        graph_s = time.process_time() - began
        assert job.contention.lost_ratio is not None
        with peak_gb() as peak:
            began = time.process_time()
            durations = made.transfer.copy()
            durations[:-1][ops.is_kernel] //= 2
            other = Other(replace(made, transfer=durations), durations, np.ones(len(durations) - 1))
            row = predicted_steps(job, other).row(-1, named=True)
            what_if_s = time.process_time() - began
        gb = peak[0]
        error = row["predicted_step_ns"] / truth - 1
        if abs(error) > 0.005:
            print(f"{ranks} ranks: WRONG by {error:.2%}")
            return 1
        limits = (graph_s / GRAPH_S, what_if_s / WHAT_IF_S, gb / LIMIT_GB)
        worst = max(worst, *limits)
        rows.append((
            f"{ranks:,}", f"{count:,}", f"{len(made.points.bounds):,}", f"{graph_s:.2f}",
            f"{what_if_s:.2f}", f"{gb:.2f}", f"{error:+.3%}", *(f"{one:.2f}" for one in limits),
        ))  # fmt: skip
        del ops, made, job, other, durations
    header = ("ranks", "operations", "levels", "graph CPU s", "what-if CPU s", "peak GB", "off",
              "/ 60 s", "/ 10 s", "/ 4 GB")  # fmt: skip
    told = f"{table(header, rows)}\n\nworst ratio to a limit: {worst:.2f}, "
    report("What if: captures", told + verdict(worst, 1, at_least=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
