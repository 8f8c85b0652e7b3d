"""The overview of a capture's expert load, as its store keeps it."""

from __future__ import annotations

import duckdb

from ...memo import memoize
from .load_overview import Overview


@memoize
def overview(
    con: duckdb.DuckDBPyConnection, *, run: str, capture: str, step: int | None = None
) -> Overview | None:
    """What is known of one capture's expert load; None where nothing is, or no layer is told."""
    from .worst_layers import overview_of  # who reads a kept answer computes none

    return overview_of(con, run, capture, step)
