"""Planted jobs as tables with matched operations, on clocks that are aligned with what was planted.

The matching of the store is not used: `arrivals` is made here from names and groups alone, and the
planted offsets are taken off (drift is left in).
"""

from __future__ import annotations

from collections.abc import Collection

import duckdb

from npuscope.analysis.catalog import metric
from npuscope.sample_traces.frames import canonical_frames
from npuscope.sample_traces.job import Job
from tests.analysis.tables import connect, put

TABLES = ("ranks", "groups", "steps", "kernels", "comm_ops", "comm_tasks", "launches", "counters")
SUMMARIES = ("steps", "kernels", "comm", "comm_progress", "rank_work", "link_transfers")
_ARRIVALS = """
create temp table arrivals as
with ops as (
    select o.*, g.parallel_kind as kind, r.host_name as host, f.offset_ns,
        case when op_type in ('send', 'receive') then 2 else len(g.global_ranks) end as members,
        case when op_type in ('send', 'receive') then '' else op_type end
            || split_part(name, '__', 2) as matched
    from comm_ops as o
    join groups as g using (run, capture, rank, group_hash)
    join ranks as r using (run, capture, rank)
    join offsets as f using (rank)
)
select run, capture, dense_rank() over (order by group_hash, matched) as instance, group_hash, kind,
    op_type, name, step, rank, host, start_ns, start_ns + dur_ns as end_ns,
    start_ns - offset_ns as aligned_start_ns, start_ns + dur_ns - offset_ns as aligned_end_ns,
    size_bytes, cast(count(*) over (partition by group_hash, matched) as integer) as rank_count,
    cast(members as integer) as group_size, true as is_complete,
    cast({error_ns} as bigint) as clock_error_ns
from ops"""


def planted_tables(job: Job, *, without: Collection[str] = ()) -> duckdb.DuckDBPyConnection:
    """The job's canonical tables, but for those named."""
    con = connect()
    chosen = [name for name in TABLES if name not in without]
    put(con, canonical_frames(job, tables=chosen, pipes=False))
    return con


def connection(
    job: Job, *, clock_error_ns: int = 0, without: Collection[str] = ()
) -> duckdb.DuckDBPyConnection:
    """The same with `arrivals`, and the summaries of each rank as tables."""
    con = planted_tables(job, without=without)
    con.execute("create temp table offsets (rank integer, offset_ns bigint)")
    offsets = [(rank, job.offset_ns(rank)) for rank in range(job.world_size)]
    con.executemany("insert into offsets values (?, ?)", offsets)
    con.execute(_ARRIVALS.format(error_ns=clock_error_ns))
    for name in SUMMARIES:
        con.execute(f'create temp table "{metric(name).view}" as {metric(name).sql}')
    return con
