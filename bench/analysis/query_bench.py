"""Questions to a store of 64 ranks: a scan of all kernels, and a window of one rank.

Limits: 1.5 s and 50 ms at 1 M kernels a rank; a connection is open already, as in a dashboard.

    .venv/bin/python -m bench.analysis.query_bench [--full] [--runs N]
"""

from __future__ import annotations

import statistics
import sys
import time

from bench.inputs.stores import START_NS, open_store, publish, window_ns
from bench.measure import arguments, report, table, verdict

RANKS = 64
RANK = 17


def main() -> int:
    """Times each query on one connection; the first run of each is shown beside the median."""
    chosen = arguments(__doc__)
    kernels = 1_000_000 if chosen.full else 100_000
    path = publish(RANKS, kernels, kernels // 10)
    middle_ns = START_NS + window_ns(kernels) // 2
    window = f"start_ns >= {middle_ns} and start_ns < {middle_ns + 10_000_000}"
    queries = {
        "full scan: time by type": (
            "select type, count(*), sum(dur_ns), max(dur_ns) from kernels where is_compute"
            " group by type order by type",
            1.5,
        ),
        "full scan: longest of each rank": (
            "select rank, max(dur_ns), arg_max(name, dur_ns) from kernels group by rank"
            " order by rank",
            1.5,
        ),
        "10 ms of one rank": (
            f"select name, start_ns, dur_ns from kernels where rank = {RANK} and {window}"
            " order by start_ns",
            0.05,
        ),
    }
    rows = []
    con = open_store(path)
    for name, (query, limit_s) in queries.items():
        times_s, answer = list[float](), list[tuple[object, ...]]()
        for _ in range(max(chosen.runs, 3) + 1):
            began = time.perf_counter()
            answer = con.execute(query).fetchall()
            times_s.append(time.perf_counter() - began)
        middle_s = statistics.median(times_s[1:])
        limit = verdict(middle_s, limit_s, at_least=False) if chosen.full else f"≤ {limit_s}"
        rows.append((name, len(answer), f"{times_s[0] * 1e3:.0f}", f"{middle_s * 1e3:.0f}", limit))
    (count,) = con.execute("select count(*) from kernels").fetchall()
    con.close()
    if count != (RANKS * kernels,):
        print(f"queries: WRONG, {count} kernels instead of {RANKS * kernels}")
        return 1
    header = (f"{RANKS} ranks x {kernels:,} kernels", "rows", "first ms", "median ms", "limit, s")
    report("Queries over 64 ranks", table(header, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
