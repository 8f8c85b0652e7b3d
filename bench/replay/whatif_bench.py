"""How long `npuscope whatif` takes for phase-level traces of many workers.

    .venv/bin/python -m bench.replay.whatif_bench [--full] [--runs N]

A simulated step of a pipeline (8 stages, 2 chunks, 16 micro-batches; --full: 32) is repeated for DP
ranks and steps, each step stretched by a factor of its own. Replays must give each step's length,
half of everything half of it. Limit: 10 s and 4 GiB for 1,024 workers, with every contribution.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq

from bench.measure import (
    BUILD,
    NPUSCOPE,
    Command,
    arguments,
    failures,
    interleave,
    report,
    table,
    verdict,
)
from tests.analysis.replay.phase_traces import Plan, simulate

LIMIT_S, LIMIT_MIB = 10.0, 4096.0
STAGES, STEPS = 8, 4


def trace(workers: int, micro_batches: int) -> Path:
    """A trace of so many workers; kept for the next time."""
    path = BUILD / f"phases-{workers}-{micro_batches}.parquet"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        plan = Plan(STAGES, 1, micro_batches, chunks=2, steps=1)
        one = simulate(plan).drop("dp_rank", "step", "rank")
        steps = pl.DataFrame({"step": range(STEPS)}).with_columns(stretch=1 + pl.col("step") / 100)
        peers = pl.DataFrame({"dp_rank": range(workers // STAGES)})
        times = pl.col("start_ts", "duration") * pl.col("stretch")
        every = one.join(peers, how="cross").join(steps, how="cross").with_columns(times)
        every.drop("stretch").write_parquet(path)
    return path


def is_right(path: Path) -> bool:
    """Whether each step is found back, and half of everything is half of it."""
    asked = [sys.executable, "-m", "npuscope", "whatif", str(path), "rank:all=0.5", "--json"]
    (row,) = json.loads(subprocess.run(asked, capture_output=True, check=True).stdout)["rows"]
    lengths = [(one["measured_ns"], one["replayed_ns"]) for one in row["steps"]]
    half = row["replayed_ns"] - 2 * row["predicted_ns"]
    return all(abs(one - other) <= 2 for one, other in lengths) and abs(half) <= 2


def main() -> int:
    """Checks and measures traces of growing size, prints the table."""
    chosen = arguments(__doc__)
    micro_batches = 32 if chosen.full else 16
    rows, worst, said = [], 0.0, ""
    for workers in (8, 64, 256, 1024):
        path = trace(workers, micro_batches)
        if not is_right(path):
            print(f"{workers} workers: WRONG, a step is not found back")
            return 1
        asked = Command((NPUSCOPE, "whatif", str(path), "comm:pp=0.5", "--json"))
        found = interleave({"whatif": asked}, chosen.runs)
        said += failures(found)
        taken = found["whatif"]
        limits = (taken.wall_s / LIMIT_S, taken.peak_mib / LIMIT_MIB)
        worst = max(worst, *limits)
        count = pq.ParquetFile(path).metadata.num_rows
        rows.append((
            workers, f"{count:,}", f"{taken.wall_s:.2f}", f"{taken.cpu_s:.2f}",
            f"{taken.peak_mib:.0f}", *(f"{one:.2f}" for one in limits),
        ))  # fmt: skip
    header = ("workers", "phases", "wall s", "CPU s", "peak MiB", f"/ {LIMIT_S:g} s", "/ 4 GiB")
    told = f"{table(header, rows)}\n\nworst ratio to a limit: {worst:.2f}, "
    report(
        "What if: phase-level traces",
        told + verdict(worst, 1, at_least=False) + (f"\n{said}" if said else ""),
    )
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
