"""How long each step took: the denominator of every MFU."""

from __future__ import annotations

import duckdb
import polars as pl

from npuscope.analysis.views import frame, open_views, where

TO_NEXT = "step from its recorded start to the next one's"
WINDOW = "step as recorded, start to end"
ACTIVITY = "step from first to last device activity"

_QUERY = """
with _all as (
    select run, capture, rank, step, window_start_ns, window_end_ns, start_ns, end_ns,
        lead(step) over _later as next_step, lead(window_start_ns) over _later as next_start_ns
    from step_summary
    window _later as (partition by run, capture, rank order by step nulls last)
),
_lengths as (
    select run, capture, rank, step,
        case when next_step = step + 1 then next_start_ns - window_start_ns end as to_next_ns,
        window_end_ns - window_start_ns as window_ns,
        end_ns - start_ns as activity_ns
    from _all
)
select run, capture, rank, step,
    case when to_next_ns > 0 then to_next_ns when window_ns > 0 then window_ns
        when activity_ns > 0 then activity_ns end as step_ns,
    case when to_next_ns > 0 then ? when window_ns > 0 then ? when activity_ns > 0 then ? end
        as length_basis
from _lengths {clause}
order by run, capture, rank, step nulls last
"""


def step_lengths(
    con: duckdb.DuckDBPyConnection,
    *,
    run: str | None = None,
    capture: str | None = None,
    rank: int | None = None,
    step: int | None = None,
) -> pl.DataFrame:
    """run, capture, rank, step, step_ns and length_basis of every step with figures.

    Start to next start where the next step is recorded too, else the recorded window, else from
    first to last kernel or operation; NULL where none is known.
    """
    open_views(con, ["steps"])
    clause, values = where({"run": run, "capture": capture, "rank": rank, "step": step})
    return frame(con, _QUERY.format(clause=clause), [TO_NEXT, WINDOW, ACTIVITY, *values])
