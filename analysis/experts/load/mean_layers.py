"""Expert load of a mean step: how uneven each layer is, and the tokens of each expert."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import polars as pl

from ...views import frame
from .imbalance import PLACE, expert_loads, expert_metrics

FIGURES = ("max_over_mean", "cv", "gini", "cold_count")
# Added up before they leave the engine: a large job has a row per rank, layer and expert. What is
# left are rows of the same meaning, from which `expert_loads` tells the same. What ranks counted
# themselves is added without a group for each rank, of which there would be millions; where each
# has the whole job's, the largest counts.
_LOADS = """
with _facts as (
    from expert_load where layer is not null and expert is not null and tokens is not null
), _of_rank as (
    select run, capture, step, phase, layer, expert, sum(tokens) as tokens
    from _facts where ep_rank is null group by run, capture, rank, step, phase, layer, expert
)
select run, capture, cast(0 as integer) as rank, step, phase, layer, expert,
    cast(0 as integer) as ep_rank, cast(sum(tokens) as bigint) as tokens
from _facts where ep_rank is not null group by run, capture, step, phase, layer, expert
union all
select run, capture, cast(0 as integer), step, phase, layer, expert, cast(null as integer),
    cast(max(tokens) as bigint)
from _of_rank group by run, capture, step, phase, layer, expert
order by all
"""


# metric: mean_layers
# How unevenly do tokens fall on the experts of a layer in a mean step?
#
# Means over steps of the figures of experts_layer, over all ranks. Step is there for single steps.
#
# title: Imbalance of layers in a mean step
# meaning: How unevenly tokens fall on the experts of each layer, mean of steps.
# by: run, capture, step, phase, layer
# gauge: npuscope_expert_load_max_over_mean{phase, layer} = max_over_mean: Tokens of a layer's
#     most loaded expert over the mean of its experts, mean of steps.
# gauge: npuscope_expert_load_cv{phase, layer} = cv: Standard deviation of a layer's expert loads
#     over their mean, mean of steps.
# gauge: npuscope_expert_load_gini{phase, layer} = gini: Gini coefficient of a layer's expert
#     loads.
# gauge: npuscope_expert_cold_experts{phase, layer} = cold_count: Experts of a layer with less
#     than a tenth of the mean load, mean of steps.
#
#   max_over_mean  double  as in experts_layer
#   cv             double  likewise
#   gini           double  likewise
#   cold_count     double  likewise


# metric: mean_experts
# How many tokens does each expert get in a mean step?
#
# Per step that told of the layer, over all ranks. Step is there for single steps.
#
# title: Load of experts in a mean step
# meaning: Tokens of each expert of a mean step, the most loaded of a layer first.
# by: run, capture, step, phase, layer
# gauge: npuscope_expert_top_tokens{phase, layer, position} = tokens: Tokens per step of the
#     expert at this position, 1 is the most loaded of its layer.
# gauge: npuscope_expert_top_expert{phase, layer, position} = expert: Number of the expert at this
#     position.
# gauge: npuscope_expert_tokens{phase, layer, expert} = tokens: Tokens per step of each expert
#     (--expert-detail).
#
#   expert  bigint  logical expert
#   tokens  double  its tokens
def mean_layers(
    con: duckdb.DuckDBPyConnection, keys: Sequence[str]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Means over steps of each of `keys` (run and capture, or these and step), phase ('': not
    told) and layer, over all ranks.

    The first: rows of the metric `mean_layers`; the second: of `mean_experts`.
    """
    loads = expert_loads(frame(con, _LOADS)).with_columns(pl.col("phase").fill_null(""))
    layer = [*keys, "phase", "layer"]
    figures = expert_metrics(loads).group_by(layer, maintain_order=True)
    steps = loads.select(PLACE).unique().group_by(layer).agg(pl.len().alias("steps"))
    experts = (
        loads.group_by([*layer, "expert"])
        .agg(pl.col("tokens").sum())
        .join(steps, on=layer, nulls_equal=True)
        .select(*layer, "expert", pl.col("tokens") / pl.col("steps"))
        .sort(*layer, "tokens", "expert", descending=[False] * len(layer) + [True, False])
    )
    return figures.agg(pl.col(FIGURES).mean()), experts


def over_mean(loads: pl.DataFrame, item: str) -> pl.DataFrame:
    """Loads added up over steps: layer, `item`, tokens, over_mean (of its layer), sorted.

    `loads`: rows by expert or by device, of one phase. over_mean is NULL without any token.
    """
    tokens = pl.col("tokens")
    return (
        loads.group_by("layer", item)
        .agg(tokens.sum())
        .with_columns(
            over_mean=pl.when(tokens.sum().over("layer") > 0).then(
                tokens / tokens.mean().over("layer")
            )
        )
        .sort("layer", item, nulls_last=True)
    )


def mean_costs(rows: pl.DataFrame) -> pl.DataFrame:
    """Costs by step, layer and stage as means over steps: layer, stage, device_max_over_mean and
    the excess of each part."""
    parts = ("grouped_excess_ns", "activation_excess_ns", "exchange_exposed_ns")
    means = pl.col("device_max_over_mean", *parts).mean()
    return rows.group_by("layer", "stage").agg(means).sort("layer", "stage", nulls_last=True)


def mean_devices(loads: pl.DataFrame) -> tuple[pl.DataFrame, float | None]:
    """Loads by device as those of a mean step, layers added up: device, tokens; and their mean."""
    steps = max(loads["step"].n_unique(), 1)
    devices = loads.group_by("device").agg(pl.col("tokens").sum() / steps).sort("device")
    return devices, devices.select(pl.col("tokens").mean().cast(pl.Float64)).item()
