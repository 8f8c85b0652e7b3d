"""What communication operations of a capture moved between which ranks, and how long that took."""

from __future__ import annotations

import duckdb
import numpy as np
import polars as pl

from npuscope.collector.store import store

from ..captures import CaptureJob, Other
from ..changes import Change

_TASKS = """
    select rank, op_id, src_rank, dst_rank, link, sum(dur_ns) as payload_ns,
        cast(sum(size_bytes) as bigint) as moved_bytes
    from comm_tasks
    where size_bytes > 0 and dur_ns > 0 and src_rank <> dst_rank
        and task_type not ilike 'notify%' and run = $run and capture = $capture
    group by all"""


def payloads(
    con: duckdb.DuckDBPyConnection, job: CaptureJob, own: Other, change: Change
) -> pl.DataFrame:
    """A row per operation, pair of ranks and link: at (position of the operation), instance,
    src_rank, dst_rank, link, payload_ns, moved_bytes; as changes before this one left them. Raises
    CannotAnswer where there is none."""
    if own.payloads is not None:
        return own.payloads
    ops = job.ops
    tasks = store.frame(con.sql(_TASKS, params={"run": job.run, "capture": job.capture}))
    if tasks.is_empty():
        raise change.refusal(
            "no tasks of communication with peers were recorded, so which link an"
            " operation waits for is not known: record profiler level 1 or higher"
        )
    at = np.flatnonzero(ops.is_communication)
    places = ops.names[at].select("op_id").with_columns(
        at=at, rank=np.array(ops.ranks)[ops.rank[at]], instance=ops.instance[at]
    )  # fmt: skip
    return places.join(tasks.cast({"rank": places.schema["rank"]}), on=["rank", "op_id"])
