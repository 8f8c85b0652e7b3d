"""Gauges of expert load: how uneven each layer is, and its most loaded experts by position."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import polars as pl

from npuscope.analysis.experts.load.mean_layers import mean_layers

from .gauges import Frames, gauges_of

TOP = 8


def expert_gauges(
    con: duckdb.DuckDBPyConnection, keys: Sequence[str], *, with_experts: bool = False
) -> Frames:
    """Values of each of `keys` by metric; `with_experts`: those of every expert too."""
    figures, loads = mean_layers(con, keys)
    if loads.is_empty():
        return {}
    layer = [*keys, "phase", "layer"]
    frames = gauges_of("mean_layers", figures, keys)
    experts = loads.rename({"tokens": "value"})
    top = experts.with_columns(position=pl.int_range(1, pl.len() + 1).over(layer)).filter(
        pl.col("position") <= TOP
    )
    named = [*layer, "position"]
    frames["npuscope_expert_top_tokens"] = top.select(*named, "value")
    frames["npuscope_expert_top_expert"] = top.select(
        *named, pl.col("expert").cast(pl.Float64).alias("value")
    )
    if with_experts:
        frames["npuscope_expert_tokens"] = experts
    return frames
