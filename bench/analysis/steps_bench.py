"""How long the breakdown of steps takes on one rank with many kernels and operations.

The limit it is held against is sorting the same intervals once, which no exact method does without:

    .venv/bin/python -m bench.analysis.steps_bench [--full] [--runs N]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import duckdb
import polars as pl

from bench.measure import arguments, report
from npuscope.analysis.catalog import metric
from npuscope.collector import schema

STEPS = 20
START_NS = 1_736_405_443_862_052_130
KERNEL_PERIOD_NS = 20_000


def fill(con: duckdb.DuckDBPyConnection, kernels: int, ops: int) -> None:
    """One rank's kernels and operations in random order, overlapping and across steps."""
    for table in schema.tables().values():
        con.execute(schema.create_sql(table, keys=True))
    keys = "'job' as run, 'c' as capture, 0 as rank"
    op_period_ns = KERNEL_PERIOD_NS * kernels // ops
    con.execute(
        f"insert into kernels by name select {keys}, i * {STEPS} // {kernels} as step,"
        f" true as is_compute, {START_NS} + i * {KERNEL_PERIOD_NS} + hash(i) % 15000 as start_ns,"
        f" 3000 + hash(i, 1) % 20000 as dur_ns from range({kernels}) t(i) order by hash(i, 2)"
    )
    con.execute(
        f"insert into comm_ops by name select {keys}, i * {STEPS} // {ops} as step,"
        f" case when i % 5 = 0 then 'receive' else 'allToAllV' end as op_type,"
        f" {START_NS} + i * {op_period_ns} + hash(i) % 15000 as start_ns,"
        f" 30000 + hash(i, 1) % {2 * op_period_ns} as dur_ns"
        f" from range({ops}) t(i) order by hash(i, 2)"
    )


def intervals(con: duckdb.DuckDBPyConnection, table: str) -> pl.DataFrame:
    """step, start_ns, end_ns of a table."""
    query = f'select step, start_ns, start_ns + dur_ns as end_ns from "{table}"'
    return pl.DataFrame(con.sql(query).pl())


def disjoint(rows: pl.DataFrame) -> pl.DataFrame:
    """The union of intervals as sorted pieces that do not overlap."""
    ordered = rows.sort("start_ns")
    reach = pl.col("end_ns").cum_max().shift(1)
    return ordered.with_columns(start_ns=pl.max_horizontal("start_ns", reach)).filter(
        pl.col("end_ns") > pl.col("start_ns")
    )


def length(rows: pl.DataFrame) -> int:
    """Total length of disjoint pieces."""
    return int((rows["end_ns"] - rows["start_ns"]).sum())


def cover(union: pl.DataFrame, instants: pl.Series) -> pl.Series:
    """How much of a union of disjoint pieces lies before each instant."""
    lengths = union["end_ns"] - union["start_ns"]
    before = lengths.cum_sum() - lengths
    at = (union["start_ns"].search_sorted(instants, side="right").cast(pl.Int64) - 1).clip(0)
    into = (instants - union["start_ns"].gather(at)).clip(0)
    return before.gather(at) + pl.select(pl.min_horizontal(into, lengths.gather(at))).to_series()


def expected(kernels: pl.DataFrame, ops: pl.DataFrame) -> list[tuple[int, int, int]]:
    """Computing, communication and overlapped ns per step, by another road than SQL."""
    union = disjoint(kernels.select("start_ns", "end_ns"))
    found = []
    for step in range(STEPS):
        computing = disjoint(kernels.filter(pl.col("step") == step))
        communication = disjoint(ops.filter(pl.col("step") == step))
        inside = cover(union, communication["end_ns"]) - cover(union, communication["start_ns"])
        found.append((length(computing), length(communication), int(inside.sum())))
    return found


def best_s(run: Callable[[], object], runs: int) -> float:
    """Seconds of the fastest of several runs."""
    times = []
    for _ in range(runs):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times)


def main() -> int:
    """Check the answer, time it, print its ratio to the limit."""
    chosen = arguments(__doc__)
    kernel_count, op_count = (10_000_000, 1_000_000) if chosen.full else (1_000_000, 100_000)
    con = duckdb.connect()
    fill(con, kernel_count, op_count)
    sql = metric("steps").sql
    kernels, ops = intervals(con, "kernels"), intervals(con, "comm_ops")
    figures = f"select computing_ns, communication_ns, overlapped_ns from ({sql}) order by step"
    if con.execute(figures).fetchall() != expected(kernels, ops):
        print("steps: WRONG, another algorithm gives other figures")
        return 1
    both = pl.concat([kernels, ops])
    ours_s = best_s(lambda: con.execute(sql).fetchall(), chosen.runs)
    limit_s = best_s(lambda: both.sort("start_ns"), chosen.runs)
    report(
        "The breakdown of steps against one sort",
        f"steps of {kernel_count:,} kernels x {op_count:,} operations: {ours_s:.2f} s,"
        f" {(kernel_count + op_count) / ours_s / 1e6:.2f} M intervals/s;"
        f" limit, polars sorting them once on {pl.thread_pool_size()} threads: {limit_s:.2f} s;"
        f" ratio {ours_s / limit_s:.1f}",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
