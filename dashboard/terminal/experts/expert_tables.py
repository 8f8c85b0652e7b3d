"""Expert load as terminal tables."""

from __future__ import annotations

import polars as pl

from npuscope.analysis.wording import UNKNOWN, ms, number, percent, plain

from ..tables import Column, FittedTable


def layer_table(frame: pl.DataFrame) -> FittedTable:
    """Unevenness of each layer's experts."""
    columns = [
        *_place(frame),
        Column("layer", "layer", plain),
        *_parts(frame),
        Column("experts", "experts_count", number, 2),
        Column("tokens", "tokens", number, 3),
        Column("max/mean", "max_over_mean", ratio),
        Column("MaxVio", "max_vio", ratio, 6),
        Column("CV", "cv", ratio, 1),
        Column("Gini", "gini", ratio, 4),
        Column("entropy", "entropy_ratio", ratio, 5),
        Column("cold", "cold_count", number),
        Column("hottest", "hottest_expert", plain),
        *_known(frame, Column("balance loss", "balance_loss", ratio, 7)),
        *_known(frame, Column("dropped", "dropped_ratio", percent, 8)),
        *_known(frame, Column("devices", "device_max_over_mean", ratio, 9)),
        *_known(frame, Column("nodes", "node_max_over_mean", ratio, 10)),
    ]
    caption = "of the experts in the source; cold: under a tenth of the mean"
    if {"devices", "nodes"} & {column.heading for column in columns}:
        caption += "; devices, nodes: their max/mean"
    return FittedTable(columns, frame.to_dicts(), "Tokens on experts", caption)


def expert_table(frame: pl.DataFrame) -> FittedTable:
    """Each expert's tokens."""
    columns = [
        *_place(frame),
        Column("layer", "layer", plain),
        Column("expert", "expert", plain),
        Column("tokens", "tokens", number),
        Column("of the layer", "share_ratio", percent, 1),
        Column("times the mean", "over_mean", ratio),
    ]
    return FittedTable(columns, frame.to_dicts(), "Experts")


def device_table(frame: pl.DataFrame) -> FittedTable:
    """Each device's tokens."""
    columns = [
        *_place(frame),
        Column("layer", "layer", plain),
        Column("device", "device", plain),
        Column("tokens", "tokens", _tokens),
        Column("layer's max/mean", "device_max_over_mean", ratio),
    ]
    caption = "device: position in the expert-parallel group; such groups are summed"
    return FittedTable(columns, frame.to_dicts(), "Tokens on devices", caption)


def node_table(frame: pl.DataFrame) -> FittedTable:
    """Each node's tokens."""
    columns = [
        *_place(frame),
        Column("layer", "layer", plain),
        Column("node", "node", plain),
        Column("devices", "devices_count", number, 1),
        Column("tokens", "tokens", _tokens),
        Column("layer's max/mean", "node_max_over_mean", ratio),
    ]
    return FittedTable(columns, frame.to_dicts(), "Tokens on nodes")


def time_table(frame: pl.DataFrame) -> FittedTable:
    """Steps one after the other."""
    columns = [
        *_place(frame),
        Column("layers", "layers_count", number, 5),
        *([Column("parts", "parts_count", number)] if _scope_of(frame) != "global" else []),
        Column("tokens", "tokens", number, 4),
        Column("mean max/mean", "mean_max_over_mean", ratio),
        Column("worst", "worst_max_over_mean", ratio),
        Column("in layer", "worst_layer", plain),
        Column("devices", "device_max_over_mean", ratio, 1),
        *_known(frame, Column("nodes", "node_max_over_mean", ratio, 6)),
        Column("balance loss", "balance_loss", ratio, 3),
        Column("order kept", "rank_correlation", ratio, 2),
        Column("hot stay hot", "hot_overlap_ratio", percent),
    ]
    caption = "order kept: rank correlation with the previous step; balance loss: 1 is even"
    return FittedTable(columns, frame.to_dicts(), "Expert load over time", caption)


def cost_table(frame: pl.DataFrame) -> FittedTable:
    """What imbalance costs in each layer."""
    columns = [
        *_place(frame),
        Column("stage", "stage", plain, 2),
        Column("layer", "layer", plain),
        Column("max/mean", "device_max_over_mean", ratio),
        Column("excess tokens", "excess_tokens", _tokens, 3),
        Column("ns per token", "ns_per_token", _tenths, 5),
        Column("matmuls ms", "grouped_excess_ns", ms),
        Column("activations ms", "activation_excess_ns", ms, 2),
        Column("all-to-alls ms", "exchange_exposed_ns", ms, 1),
        Column("sum ms", "excess_ns", ms),
        Column("±", "excess_error_ns", ms, 4),
        Column("of the step", "excess_share_ratio", percent),
    ]
    caption = (
        "excess tokens: on the most loaded device of a group, above the mean; all-to-alls: their"
        " exposed part; ±: standard error"
    )
    return FittedTable(columns, frame.to_dicts(), "Cost of the imbalance", caption)


def ratio(value: float | None) -> str:
    """A figure around 1."""
    return UNKNOWN if value is None else f"{value:.3f}"


_PARTS = {"ep_group": "EP group of rank", "dp_group": "DP group of rank", "micro_batch": "rank"}


def _parts(frame: pl.DataFrame) -> list[Column]:
    """Which part of the step a row is of, where it is not of the whole."""
    scope = _scope_of(frame)
    if scope == "global":
        return []
    found = [Column(_PARTS[scope], "scope_index", plain)]
    return found + [Column("micro-batch", "micro_batch", plain)] * (scope == "micro_batch")


def _scope_of(frame: pl.DataFrame) -> str:
    if "scope" not in frame.columns or frame.is_empty():
        return "global"
    return str(frame["scope"][0])


def _known(frame: pl.DataFrame, column: Column) -> list[Column]:
    """A column that some rows have a figure in."""
    has = column.key in frame.columns and frame[column.key].is_not_null().any()
    return [column] if has else []


def _tokens(value: float | None) -> str:
    """Tokens, of which replicas may share one."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def _tenths(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.1f}"


def _place(frame: pl.DataFrame) -> list[Column]:
    """Run, capture and phase where there are several, then the step where there are steps."""
    several = ("run", "capture", "phase")
    named = [Column(key, key) for key in several if frame[key].n_unique() > 1]
    has_steps = frame["step"].is_not_null().any()
    return [*named, *([Column("step", "step", plain)] if has_steps else [])]
