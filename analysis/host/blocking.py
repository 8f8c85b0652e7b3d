"""Calls that keep the host from launching, of a mean rank and step, and the words that end them."""

from __future__ import annotations

import duckdb
import polars as pl

from ..means import without_warm_up
from ..memo import memoize
from ..scope import PLACE, Scope
from ..views import select


def host_calls(con: duckdb.DuckDBPyConnection, scope: Scope) -> pl.DataFrame:
    """Rows of the metric `host_calls`, of each rank and step the most time first."""
    return select(con, "host_calls", scope, "total_ns desc, cause, operator, location")


@memoize
def blocking_calls(con: duckdb.DuckDBPyConnection, scope: Scope) -> pl.DataFrame:
    """cause, operator (of a wait for the device), location, count, total_ns (both of a mean rank
    and step, as other means) and longest_ns, the most time first. Calls before and after all steps
    count in none."""
    steps = without_warm_up(con, select(con, "step_summary", scope, columns=", ".join(PLACE)))
    calls = host_calls(con, scope).join(steps, on=PLACE, how="semi", nulls_equal=True)
    is_wait = pl.col("cause") == "synchronisation"
    return (
        calls.with_columns(operator=pl.when(is_wait).then("operator"))
        .group_by("cause", "operator", "location")
        .agg(pl.col("count", "total_ns").sum() / steps.height, pl.col("longest_ns").max())
        .sort("total_ns", "location", descending=[True, False], nulls_last=True)
        .group_by("cause", "operator", maintain_order=True)
        .agg(
            pl.col("location").drop_nulls().first(),
            pl.col("count", "total_ns").sum(),
            pl.col("longest_ns").max(),
        )
        .sort("total_ns", "cause", "operator", descending=[True, False, False], nulls_last=True)
    )


def word_of(cause: str, operator: str | None = None) -> str:
    """What `npuscope whatif` calls the end of a cause."""
    return f"cause:{cause}{f'/{operator}' if operator else ''}=0"
