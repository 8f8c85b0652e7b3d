"""Activations between an expert layer's grouped matmuls: they take as long as there are tokens.

    tokens of a rank and step, by its grouped matmuls   x / calls ─┐
    time of its SwiGlu, SwiGluGrad, ...                 y / calls ─┴─ line: ns per token

Kernels of vector cores are kept by type alone, without shapes: so by ranks and steps as a whole.
What a shared expert has of them takes the same time everywhere, and is no part of the slope.
"""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import polars as pl

from ...scope import ALL, Scope
from ...views import frame, open_views
from .token_times import CAPTURE, curve

# Between two grouped matmuls, by the names of their types.
_NAMES = ("glu", "gelu", "silu", "swish", "relu")
_LEAST_COUNT = 6  # ranks and steps, for a line
_TIMES: dict[str, type[pl.DataType]] = {
    "run": pl.String, "capture": pl.String, "type": pl.String, "ns_per_passed_token": pl.Float64,
    "error_ns_per_passed_token": pl.Float64,
}  # fmt: skip


def activation_times(
    con: duckdb.DuckDBPyConnection, grouped: pl.DataFrame, scope: Scope = ALL
) -> pl.DataFrame:
    """Time of each type of activation by tokens that pass a grouped matmul, _TIMES.

    `grouped` are of `token_times.grouped_kernels`. No row where ranks and steps are few, or their
    tokens do not tell the time.
    """
    if grouped.is_empty():
        return pl.DataFrame(schema=_TIMES)
    open_views(con, ["shapes"])
    clause, values = scope.all_ranks.where()
    named = " or ".join(f"type ilike '%{name}%'" for name in _NAMES)
    clause += f" {'and' if clause else 'where'} ({named}) and type not ilike '%matmul%'"
    rows = frame(
        con,
        "select run, capture, rank, step, type, cast(sum(count) as bigint) as count,"
        f" cast(sum(total_ns) as bigint) as total_ns from shape_summary {clause}"
        " group by all order by all",
        values,
    )
    place = (*CAPTURE, "rank", "step")
    passed = grouped.group_by(place).agg(passed=(pl.col("tokens") * pl.col("count")).sum())
    times: list[dict[str, Any]] = []
    met = rows.join(passed, on=place, nulls_equal=True, maintain_order="left")
    for key, some in met.group_by(*CAPTURE, "type", maintain_order=True):
        if some.height < _LEAST_COUNT:
            continue
        calls, total_ns, tokens = some.select(
            pl.col("count", "total_ns", "passed").cast(pl.Float64)
        ).to_numpy().T  # fmt: skip
        line = curve(tokens / calls, total_ns / calls, np.ones_like(calls))
        slope, error = line["ns_per_token"], line["error_ns_per_token"]
        if slope is not None and error is not None and slope > 2 * error:
            times.append(dict(zip(_TIMES, (*key, slope, error), strict=True)))
    return pl.DataFrame(times, schema=_TIMES)


def activation_cost(times: pl.DataFrame, costs: pl.DataFrame) -> pl.DataFrame:
    """run, capture, activation_ns_per_token, activation_error_ns_per_token: of a routed token.

    `times` are of `activation_times`; `costs` has run, capture and passes: how many grouped matmuls
    a routed token passes.
    """
    passes = pl.col("passes").first()
    return (
        times.join(costs.select(*CAPTURE, "passes"), on=CAPTURE)
        .group_by(CAPTURE)
        .agg(
            activation_ns_per_token=passes * pl.col("ns_per_passed_token").sum(),
            activation_error_ns_per_token=passes
            * pl.col("error_ns_per_passed_token").pow(2).sum().sqrt(),
        )
    )
