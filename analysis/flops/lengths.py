"""How long each step took: the denominator of every MFU."""

from __future__ import annotations

import duckdb
import polars as pl

from npuscope.analysis.views import frame, open_views, where

TO_NEXT = "step from its recorded start to the next one's"
WINDOW = "step as recorded, start to end"
ACTIVITY = "step from first to last device activity"

_WORDS = {"to_next": TO_NEXT, "window": WINDOW, "activity": ACTIVITY}


def step_lengths(
    con: duckdb.DuckDBPyConnection,
    *,
    run: str | None = None,
    capture: str | None = None,
    rank: int | None = None,
    step: int | None = None,
) -> pl.DataFrame:
    """Length of every step with figures: columns of the metric `step_lengths`, the basis in words
    for conventions."""
    open_views(con, ["steps", "step_lengths"])
    clause, values = where({"run": run, "capture": capture, "rank": rank, "step": step})
    order = "order by run, capture, rank, step nulls last"
    found = frame(con, f"select * from step_lengths {clause} {order}", values)
    return found.with_columns(pl.col("length_basis").replace_strict(_WORDS))
