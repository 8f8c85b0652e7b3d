"""What `compact` saves: questions to a store of many small ranks, before and after.

Each is asked on a connection of its own, as the command line does. CPU seconds of the process, the
median of the runs; ratios are before to after.

    .venv/bin/python -m bench.collector.compact_bench [--full] [--runs N]
"""

from __future__ import annotations

import shutil
import statistics
import sys
import time
from pathlib import Path

from bench.inputs.stores import open_store, publish
from bench.measure import BUILD, arguments, report, table
from npuscope.collector.store.compact import compact
from npuscope.collector.store.sweep import sweep

KERNELS = 2_000
QUERIES = {
    "opening the store": "select 1",
    "all kernels by type": "select type, sum(dur_ns) from kernels group by type order by type",
    "communication of each rank": "select rank, sum(dur_ns) from comm_ops group by rank order by 1",
    "kernels of one rank": "select name, sum(dur_ns) from kernels where rank = 17 group by name",
}


def main() -> int:
    """Compares answers and times of 64 and 512 ranks; 4096 with --full."""
    chosen = arguments(__doc__)
    rows = []
    for ranks in (64, 512, *([4096] if chosen.full else [])):
        path = _copy(publish(ranks, KERNELS, KERNELS // 10))
        before = {name: _ask(path, sql, chosen.runs) for name, sql in QUERIES.items()}
        began = time.process_time()
        (done,) = compact(path)
        merging_s = time.process_time() - began
        sweep(path, grace_s=-1)
        for name, sql in QUERIES.items():
            answer, before_s = before[name]
            again, after_s = _ask(path, sql, chosen.runs)
            if sorted(answer) != sorted(again):
                print(f"{ranks} ranks, {name}: WRONG, the answer changed")
                return 1
            ratio = f"{before_s / after_s:.1f}"
            rows.append((ranks, name, f"{before_s * 1e3:.0f}", f"{after_s * 1e3:.0f}", ratio))
        files = f"{done.files_before} -> {done.files_after} files"
        rows.append((ranks, f"compact: {files}", "", f"{merging_s * 1e3:.0f}", ""))
        shutil.rmtree(path)
    header = (f"ranks of {KERNELS:,} kernels", "", "before, CPU ms", "after, CPU ms", "ratio")
    report("Compaction", table(header, rows))
    return 0


def _copy(path: Path) -> Path:
    copy = BUILD / f"{path.name}_compacted"
    shutil.rmtree(copy, ignore_errors=True)
    return Path(shutil.copytree(path, copy))


def _ask(path: Path, sql: str, runs: int) -> tuple[list[tuple[object, ...]], float]:
    """The answer, and the median CPU seconds of opening the store and asking."""
    times_s, answer = list[float](), list[tuple[object, ...]]()
    for _ in range(max(runs, 3)):
        began = time.process_time()
        with open_store(path) as con:
            answer = con.execute(sql).fetchall()
        times_s.append(time.process_time() - began)
    return answer, statistics.median(times_s)


if __name__ == "__main__":
    sys.exit(main())
