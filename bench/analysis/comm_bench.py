"""How long masking by parallel kind takes on one rank with many kernels and operations.

    .venv/bin/python -m bench.analysis.comm_bench [--full] [--runs N]

Operations lie on eight groups of six kinds, overlap each other and cross kernels and steps. Lengths
are checked against another algorithm, shares against the steps, before anything is timed. Limits:
10 M kernels and 1 M operations under 8 s and 2 GiB on 2 cores. Beside other load CPU seconds tell
more than wall seconds: an idle machine takes no longer than these.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import duckdb
import polars as pl

from bench.analysis.steps_bench import cover, disjoint, fill, intervals, length
from bench.measure import BUILD, Command, arguments, failures, interleave, report, table, verdict
from npuscope.analysis.catalog import metric
from npuscope.collector.store import store

KINDS = ("tp", "pp", "dp", "ep", "cp", "dp_ep", "tp", "pp")
LIMIT_S, LIMIT_MIB = 8, 2048
_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "threads": 2, "memory_limit": "1536MiB"
}  # fmt: skip


def make(kernels: int, ops: int) -> Path:
    """A database with the rank; kept for the next time."""
    path = BUILD / f"comm_{kernels}x{ops}.duckdb"
    if path.exists():
        return path
    BUILD.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    unfinished.unlink(missing_ok=True)
    with duckdb.connect(str(unfinished)) as con:
        fill(con, kernels, ops)
        con.execute(f"update comm_ops set group_hash = (hash(start_ns, 7) % {len(KINDS)})::varchar")
        named = ", ".join(f"('{group}', '{kind}')" for group, kind in enumerate(KINDS))
        con.execute(
            "insert into groups by name select 'job' as run, 'c' as capture, 0 as rank, *"
            f" from (values {named}) as t(group_hash, parallel_kind)"
        )
    unfinished.rename(path)
    return path


def is_right(path: Path) -> bool:
    """Lengths as another algorithm finds them; shares that add up to the steps' exposed time."""
    with duckdb.connect(str(path), read_only=True, config=_CONFIG) as con:
        union = disjoint(intervals(con, "kernels").select("start_ns", "end_ns"))
        rows = store.frame(con.sql(f"from ({metric('comm').sql})"))
        for kind in set(KINDS):
            groups = ", ".join(f"'{g}'" for g, name in enumerate(KINDS) if name == kind)
            ops = store.frame(con.sql(
                "select step, start_ns, start_ns + dur_ns as end_ns from comm_ops"
                f" where group_hash in ({groups})"
            ))  # fmt: skip
            for (step,), own in ops.group_by("step"):
                pieces = disjoint(own)
                hidden = cover(union, pieces["end_ns"]) - cover(union, pieces["start_ns"])
                [found] = rows.filter(by_key="kind", kind=kind, step=step).to_dicts()
                if (found["union_ns"], found["masked_ns"]) != (length(pieces), hidden.sum()):
                    return False
        steps = store.frame(con.sql(
            f"select step, exposed_communication_ns from ({metric('steps').sql})"
        ))  # fmt: skip
    sums = rows.group_by("by_key", "step").agg(pl.col("exposed_attributed_ns").sum())
    both = sums.join(steps, on="step")
    return both.height == 3 * steps.height and bool(
        (both["exposed_attributed_ns"] == both["exposed_communication_ns"]).all()
    )


def ask(path: Path) -> None:
    """Answers the question in this process; prints its wall and CPU seconds."""
    with duckdb.connect(str(path), read_only=True, config=_CONFIG) as con:
        began, cpu_began = time.perf_counter(), time.process_time()
        con.execute(metric("comm").sql).fetchall()
        print(f"{time.perf_counter() - began:.4f} {time.process_time() - cpu_began:.4f}")


def main() -> int:
    """Checks and measures every size, prints the table."""
    if sys.argv[1:2] == ["ask"]:
        ask(Path(sys.argv[2]))
        return 0
    chosen = arguments(__doc__)
    sizes = [100_000, 1_000_000, 10_000_000] if chosen.full else [100_000, 1_000_000]
    rows, failed = [], ""
    for kernels in sizes:
        path = make(kernels, kernels // 10)
        if not is_right(path):
            print(f"comm of {kernels:,} kernels: WRONG, another algorithm gives other figures")
            return 1
        command = Command([sys.executable, "-m", "bench.analysis.comm_bench", "ask", str(path)])
        found = interleave({"comm": command}, chosen.runs)
        failed += failures(found)
        taken = found["comm"]
        if not taken.failed:
            wall_s, cpu_s = map(float, taken.said.split()[-2:])
            rows.append((
                f"{kernels / 1e6:g}", f"{kernels / 1e7:g}", f"{wall_s:.2f}", f"{cpu_s:.2f}",
                f"{taken.peak_mib:.0f}", f"{wall_s / LIMIT_S:.2f}", f"{cpu_s / LIMIT_S:.2f}",
                f"{taken.peak_mib / LIMIT_MIB:.2f}",
            ))  # fmt: skip
    header = ("M kernels", "M operations", "wall s", "CPU s", "peak MiB",
              f"wall / {LIMIT_S} s", f"CPU / {LIMIT_S} s", f"peak / {LIMIT_MIB} MiB")  # fmt: skip
    said = table(header, rows)
    if chosen.full and rows:
        ratio, room = float(rows[-1][5]), float(rows[-1][7])
        said += (
            f"\n\n10 M kernels, 1 M operations: time over its limit"
            f" {verdict(ratio, 1, at_least=False)}, memory {verdict(room, 1, at_least=False)}"
        )
    report("Masking by parallel kind", said + failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
