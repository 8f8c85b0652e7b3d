"""Expert load by layer, expert, device, node or time: the rows of `npuscope experts`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import polars as pl

from .devices import device_loads, node_loads, with_imbalance
from .load import ExpertTables, even_nodes, nodes_of
from .metrics import PLACE, expert_loads, expert_metrics
from .steadiness import steadiness

By = Literal["layer", "expert", "device", "node", "time"]
LAYER_COLUMNS = (
    *PLACE, "experts_count", "tokens", "max_over_mean", "max_vio", "cv", "gini", "entropy_ratio",
    "cold_count", "hottest_expert",
)  # fmt: skip
_STEP = ("run", "capture", "step", "phase")
_PHASE = ("run", "capture", "phase")


def by_layer(tables: ExpertTables) -> pl.DataFrame:
    """LAYER_COLUMNS, a row per step, phase and layer: see `metrics.expert_metrics`."""
    return expert_metrics(expert_loads(tables.load)).select(LAYER_COLUMNS)


def by_expert(tables: ExpertTables) -> pl.DataFrame:
    """PLACE, expert, tokens, share_ratio (of the layer's), over_mean; NULL without any tokens."""
    tokens = pl.col("tokens")
    some = tokens.sum().over(PLACE) > 0
    return expert_loads(tables.load).with_columns(
        share_ratio=pl.when(some).then(tokens / tokens.sum().over(PLACE)),
        over_mean=pl.when(some).then(tokens / tokens.mean().over(PLACE)),
    )


def by_device(tables: ExpertTables) -> pl.DataFrame:
    """PLACE, device, tokens, device_max_over_mean of its layer, basis: see `devices`."""
    return with_imbalance(devices_of(tables)).select(
        *PLACE, "device", "tokens", "device_max_over_mean", "basis"
    )


def by_node(tables: ExpertTables, nodes: int | None = None) -> pl.DataFrame:
    """PLACE, node, devices_count, tokens, node_max_over_mean of its layer, basis.

    Nodes are the hosts that ranks tell, or `nodes` equal blocks of devices. Nodes of fewer devices
    have fewer tokens for that alone.
    """
    loads = devices_of(tables)
    places = nodes_of(tables.ranks) if nodes is None else even_nodes(loads, nodes)
    return with_imbalance(node_loads(loads, places), "node").select(
        *PLACE, "node", "devices_count", "tokens", "node_max_over_mean", "basis"
    )


def by_time(tables: ExpertTables) -> pl.DataFrame:
    """One row per step and phase, over its layers.

    run, capture, step, phase, layers_count, tokens (of all layers), mean_max_over_mean,
    worst_max_over_mean and worst_layer (the first with it), device_max_over_mean (mean; NULL where
    devices are not known), balance_loss (mean), previous_step, and the means of rank_correlation
    and hot_overlap_ratio to the step before (see `steadiness`).
    """
    loads = expert_loads(tables.load)
    worst = pl.col("max_over_mean").max()
    layers = (
        expert_metrics(loads)
        .group_by(_STEP)
        .agg(
            pl.len().cast(pl.Int64).alias("layers_count"),
            pl.col("tokens").sum(),
            pl.col("max_over_mean").mean().alias("mean_max_over_mean"),
            worst.alias("worst_max_over_mean"),
            pl.col("layer").filter(pl.col("max_over_mean") == worst).min().alias("worst_layer"),
            pl.col("balance_loss").mean(),
        )
    )
    each = [*PLACE, "device_max_over_mean"]
    devices = by_device(tables).select(each).unique().group_by(_STEP)
    before = steadiness(loads).group_by(_STEP)
    return (
        layers.join(
            devices.agg(pl.col("device_max_over_mean").mean()),
            on=_STEP, how="left", nulls_equal=True,
        )
        .join(
            before.agg(
                pl.col("previous_step").min(),
                pl.col("rank_correlation", "hot_overlap_ratio").mean(),
            ),
            on=_STEP, how="left", nulls_equal=True,
        )
        .select(
            *_STEP, "layers_count", "tokens", "mean_max_over_mean", "worst_max_over_mean",
            "worst_layer", "device_max_over_mean", "balance_loss", "previous_step",
            "rank_correlation", "hot_overlap_ratio",
        )
        .sort(_STEP, nulls_last=True)
    )  # fmt: skip


def devices_of(tables: ExpertTables) -> pl.DataFrame:
    """`device_loads` of the tables: global counts by the placement, else by the ranks' ep_size."""
    sizes = tables.ranks["ep_size"].drop_nulls().unique()
    devices = int(sizes[0]) if len(sizes) == 1 else None
    return device_loads(tables.load, tables.placement, devices=devices)


_MEASURES: dict[By, str] = {
    "layer": "max_over_mean", "expert": "over_mean", "device": "tokens", "node": "tokens",
    "time": "worst_max_over_mean",
}  # fmt: skip
_ROWS: dict[By, Callable[[ExpertTables], pl.DataFrame]] = {
    "layer": by_layer, "expert": by_expert, "device": by_device, "time": by_time,
}  # fmt: skip


def view(
    tables: ExpertTables, by: By, *, top: int | None = None, nodes: int | None = None
) -> pl.DataFrame:
    """Rows by one key; `top` keeps that many of each step (by time: of each phase)."""
    rows = by_node(tables, nodes) if by == "node" else _ROWS[by](tables)
    return largest(rows, _MEASURES[by], top, of=_STEP if by != "time" else _PHASE)


def largest(
    rows: pl.DataFrame, measure: str, top: int | None, of: Sequence[str] = _STEP
) -> pl.DataFrame:
    """The `top` rows of each of `of` with the largest measure, these first; None keeps all."""
    if top is None:
        return rows
    order = rows.sort(measure, descending=True, nulls_last=True, maintain_order=True)
    kept = order.filter(pl.int_range(pl.len()).over(of) < top)
    return kept.sort(of, nulls_last=True, maintain_order=True)


def view_notes(tables: ExpertTables, by: By, rows: pl.DataFrame) -> list[str]:
    """What rows by device and node rest on, or why there are none."""
    if by not in ("device", "node"):
        return []
    if rows.is_empty() and by == "node" and not devices_of(tables).is_empty():
        return ["on which node a device is, is not known or differs: give --nodes N"]
    if rows.is_empty():
        return ["who holds which expert is not told: no load of devices"]
    told = {
        "placement": "devices by the recorded placement: replicas share an expert's tokens evenly",
        "contiguous": "devices hold equal blocks of experts in their order: no placement is told",
    }
    seen = set(rows["basis"])
    return [sentence for basis, sentence in told.items() if basis in seen]
