"""Generated jobs as tables, and what is computed over their ranks."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import duckdb
import numpy as np
import polars as pl

from npuscope.analysis.ranks.derive import derive
from npuscope.sample_traces.generate import Job, canonical_frames
from tests.analysis.tables import connect, put, select

TABLES = ("ranks", "groups", "steps", "kernels", "comm_ops", "comm_tasks")


@lru_cache(maxsize=8)
def _frames(job: Job) -> dict[str, pl.DataFrame]:
    return canonical_frames(job, tables=TABLES, pipes=False)


def job_tables(job: Job, *, jitter_ns: int = 0, seed: int = 1) -> duckdb.DuckDBPyConnection:
    """Canonical tables of a job; ends of operations up to `jitter_ns` later than they were."""
    con = connect()
    put(con, _frames(job))
    if jitter_ns:
        late = f"hash(rank, op_id, {seed}) % {jitter_ns}"
        con.execute(f"update comm_ops set dur_ns = dur_ns + cast({late} as bigint)")
    return con


def across(con: duckdb.DuckDBPyConnection, name: str, order: str = "all") -> list[dict[str, Any]]:
    """Rows of one of the tables over all ranks of the only capture in `con`."""
    query = next(table.query for table in derive(con) if table.name == name)
    return select(con, f"select * from ({query}) order by {order}")


def planted_clock(job: Job, host: int, reference_host: int, at_ns: int) -> tuple[float, float]:
    """Offset of a host's clock against another's, and its drift, when that one reads `at_ns`."""
    offsets, drifts = [], []
    for one in (host, reference_host):
        ppm = job.clock_drift_ppm[one] if one < len(job.clock_drift_ppm) else 0.0
        offsets.append(job.offset_ns(one * job.ranks_per_host))
        drifts.append(ppm * 1e-6)
    passed = (at_ns - job.start_ns - offsets[1]) / (1 + drifts[1])
    offset = offsets[0] - offsets[1] + (drifts[0] - drifts[1]) * passed
    return float(offset), float(np.float64(drifts[0] - drifts[1]) * 1e6)


def beside(job: Job, other: Job) -> duckdb.DuckDBPyConnection:
    """Canonical tables of two jobs in one capture, ranks of the other after those of the first: as
    training beside what generates for it."""
    con = connect()
    put(con, _frames(job))
    by = job.world_size
    shifted = {
        name: rows.with_columns(
            *(pl.col(end) + by for end in ("rank", "src_rank", "dst_rank") if end in rows.columns),
            *(pl.col(of).list.eval(pl.element() + by) for of in ("global_ranks",)
              if of in rows.columns),
            *(pl.concat_str(of, pl.lit("_2")) for of in ("group_hash",) if of in rows.columns),
        )
        for name, rows in _frames(other).items()
    }  # fmt: skip
    put(con, shifted)
    con.execute("update ranks set world_size = ?", [by + other.world_size])
    return con
