"""How long `comm` and `ranks` take to answer from the summaries of many ranks.

    .venv/bin/python -m bench.analysis.ranks_bench [--full] [--runs N]

A planted job of two steps, one of whose chips runs slow, stands in a compacted store, as an ingest
leaves it. What all ranks together tell is computed by the first command that needs it, and kept:
both are measured. `ranks` must name the slow chip and nobody else. Limit: 2 s for 1,000 ranks.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import duckdb

from bench.inputs.new_store import in_two_processes, publish_rank, store_once
from bench.measure import Command, arguments, failures, interleave, report, run, table, verdict
from npuscope.collector.store.compact import compact
from npuscope.sample_traces.frames import canonical_frames
from npuscope.sample_traces.job import Job

LIMIT_S = 2.0
JOBS = {
    64: Job(name="ranks", layers=2, tp=2, pp=2, dp=16, ep=4),
    1000: Job(name="ranks", layers=5, tp=2, pp=5, dp=100, ep=10, experts=10),
}
SLOW = 37
_CAPTURE = "made"
_TABLES = ("ranks", "groups", "steps", "kernels", "comm_ops", "launches", "counters")


def store_it(ranks: int) -> Path:
    """The store of a job of so many ranks; kept for the next time."""

    def write(path: Path) -> None:
        in_two_processes(partial(_publish, path, ranks), range(2))
        compact(path)

    return store_once(f"ranks_{ranks}", write, [])


def _publish(path: Path, ranks: int, half: int) -> None:
    """Every second rank, from `half` on."""
    job = JOBS[ranks]
    planted = {
        **{name: getattr(job, name) for name in ("layers", "tp", "pp", "dp", "ep", "experts")},
        "steps": 2, "micro_batches": 1, "noise": 0.03, "expert_skew": 0.0, "slow_clock": SLOW,
        "memory": False, "comm_tasks": False, "seed": 7,
    }  # fmt: skip
    frames = canonical_frames(Job(name="ranks", **planted), tables=_TABLES, capture=_CAPTURE)
    by_rank = {
        name: frame.drop("pmu", strict=False).partition_by("rank", as_dict=True)
        for name, frame in frames.items()
    }
    for rank in range(half, ranks, 2):

        def fill(con: duckdb.DuckDBPyConnection, rank: int = rank) -> None:
            for name, parts in by_rank.items():
                if (rank,) in parts:
                    rows = parts[(rank,)].drop("run", "capture", "rank")
                    con.register("_rows", rows.to_arrow())
                    con.execute(f'insert into "{name}" by name select * from _rows')
                    con.unregister("_rows")

        publish_rank(path, ("ranks", _CAPTURE, rank), fill, window_ns=(0, 0))


def _name(path: Path) -> set[tuple[int, str]]:
    """Ranks with a verdict, by the command itself."""
    command = [sys.executable, "-m", "npuscope", "ranks", str(path), "--json"]
    done = subprocess.run(command, capture_output=True, check=True)
    return {(r["rank"], r["verdict"]) for r in json.loads(done.stdout)["rows"] if r["verdict"]}


def main() -> int:
    """Checks and measures every size, prints the table."""
    chosen = arguments(__doc__)
    rows, failed, slowest = [], "", 0.0
    for ranks in [64, 1000] if chosen.full else [64]:
        path = store_it(ranks)
        for derived in path.glob("run=*/capture=*/derived"):
            shutil.rmtree(derived)

        def asked(*words: str, path: Path = path) -> Command:
            return Command([sys.executable, "-m", "npuscope", words[0], str(path), *words[1:]])

        first = run(asked("ranks", "--json"))
        failed += failures({"ranks, first": first})
        if first.failed:
            continue
        named = _name(path)
        if named != {(SLOW, "frequency")}:
            print(f"ranks of {ranks}: WRONG, it names {sorted(named)}")
            return 1
        found = interleave(
            {
                "comm": asked("comm", "--by", "kind", "--top", "1", "--json"),
                "comm, table": asked("comm"),
                "ranks": asked("ranks", "--json"),
                "ranks, table": asked("ranks"),
            },
            chosen.runs,
        )
        failed += failures(found)
        for name, taken in {"ranks, first": first, **found}.items():
            rows.append((
                f"{ranks:,}", name, f"{taken.wall_s:.2f}", f"{taken.cpu_s:.2f}",
                f"{taken.peak_mib:.0f}", f"{taken.wall_s / LIMIT_S:.2f}",
            ))  # fmt: skip
            if name != "ranks, first":
                slowest = max(slowest, taken.wall_s / LIMIT_S)
    header = ("ranks", "command", "wall s", "CPU s", "peak MiB", f"wall / {LIMIT_S:g} s")
    said = table(header, rows)
    if rows:
        said += f"\n\nslowest answer over its limit {verdict(slowest, 1, at_least=False)}"
    report("Answers of many ranks", said + failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
