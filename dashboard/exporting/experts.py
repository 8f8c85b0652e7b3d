"""Gauges of expert load: how uneven each layer is, and its most loaded experts by position."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import polars as pl

from npuscope.analysis.experts.metrics import PLACE, expert_loads, expert_metrics
from npuscope.analysis.views import frame

from .steps import Frames

TOP = 8
# Added up before they leave the engine: a large job has a row per rank, layer and expert. What is
# left are rows of the same meaning, from which `expert_loads` tells the same. What ranks counted
# themselves is added without a group for each rank, of which there would be millions; where each
# has the whole job's, the largest counts.
_LOADS = """
with _told as (
    from expert_load where layer is not null and expert is not null and tokens is not null
), _of_rank as (
    select run, capture, step, phase, layer, expert, sum(tokens) as tokens
    from _told where ep_rank is null group by run, capture, rank, step, phase, layer, expert
)
select run, capture, cast(0 as integer) as rank, step, phase, layer, expert,
    cast(0 as integer) as ep_rank, cast(sum(tokens) as bigint) as tokens
from _told where ep_rank is not null group by run, capture, step, phase, layer, expert
union all
select run, capture, cast(0 as integer), step, phase, layer, expert, cast(null as integer),
    cast(max(tokens) as bigint)
from _of_rank group by run, capture, step, phase, layer, expert
order by all
"""
_FIGURES = {
    "npuscope_expert_load_max_over_mean": "max_over_mean",
    "npuscope_expert_load_cv": "cv",
    "npuscope_expert_load_gini": "gini",
    "npuscope_expert_cold_experts": "cold_count",
}


def expert_gauges(
    con: duckdb.DuckDBPyConnection, keys: Sequence[str], *, with_experts: bool = False
) -> Frames:
    """Values of each of `keys` by metric; `with_experts`: those of every expert too."""
    loads = expert_loads(frame(con, _LOADS))
    if loads.is_empty():
        return {}
    loads = loads.with_columns(pl.col("phase").fill_null(""))
    layer = [*keys, "phase", "layer"]
    figures = expert_metrics(loads).group_by(layer, maintain_order=True)
    means = figures.agg(pl.col(_FIGURES.values()).mean())
    frames = {
        name: means.select(*layer, pl.col(column).alias("value")).drop_nulls("value")
        for name, column in _FIGURES.items()
    }
    steps = loads.select(PLACE).unique().group_by(layer).agg(pl.len().alias("steps"))
    experts = (
        loads.group_by([*layer, "expert"])
        .agg(pl.col("tokens").sum())
        .join(steps, on=layer, nulls_equal=True)
        .select(*layer, "expert", (pl.col("tokens") / pl.col("steps")).alias("value"))
        .sort(*layer, "value", "expert", descending=[False] * len(layer) + [True, False])
    )
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
