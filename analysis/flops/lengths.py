"""How long each step took: the denominator of every MFU."""

from __future__ import annotations

import duckdb
import polars as pl

from ..memo import memoize
from ..scope import ALL, Scope
from ..views import open_views, select

TO_NEXT = "step from its first device activity to the next one's"
WINDOW = "step as the host recorded it"
ACTIVITY = "step from first to last device activity"

_WORDS = {"to_next": TO_NEXT, "window": WINDOW, "activity": ACTIVITY}


@memoize
def step_lengths(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> pl.DataFrame:
    """Length of every step with figures: columns of the metric `step_lengths`, the basis in words
    for conventions."""
    open_views(con, ["steps", "step_lengths"])
    lengths = select(con, "step_lengths", scope)
    return lengths.with_columns(pl.col("length_basis").replace_strict(_WORDS))
