"""What `npuscope operators` answers with, by key."""

from __future__ import annotations

from typing import Literal

import duckdb
import polars as pl

from ..scope import ALL, Scope
from .causes import operator_cause_rows, operator_causes
from .classes import operator_classes, operator_steps
from .headroom import operator_headroom, operator_pmu

OperatorKey = Literal["shape", "class", "step", "pmu", "cause", "evidence"]
_ANSWERS = {
    "class": operator_classes, "step": operator_steps, "pmu": operator_pmu,
    "cause": operator_causes, "evidence": operator_cause_rows,
}  # fmt: skip


def operators(
    con: duckdb.DuckDBPyConnection,
    scope: Scope = ALL,
    *,
    by: OperatorKey = "shape",
    reference: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """Rows of the metric of that key; `reference` is a table of `learnt`, for shapes."""
    if by == "shape":
        return operator_headroom(con, scope, reference=reference)
    return _ANSWERS[by](con, scope)
