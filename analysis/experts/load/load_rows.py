"""Expert load by layer, expert, device, node or time: the rows of `npuscope experts`.

Whether the same experts stay hot from one step to the next: what a forecast can build on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import polars as pl

from npuscope.messages import Message

from ...catalog import column_names
from .device_load import device_loads, expert_places, node_loads, with_imbalance
from .dropped_tokens import RoutedBy, with_dropped
from .imbalance import PLACE, expert_loads, expert_metrics
from .load import ExpertTables, even_nodes, nodes_of
from .scopes import PartName, loads_at

By = Literal["layer", "expert", "device", "node", "time"]
_CAPTURE = ("run", "capture")
_UNIT = ("run", "capture", "part")
_STEP = ("run", "capture", "step", "phase")
_PHASE = ("run", "capture", "phase")


# metric: experts_layer
# How unevenly do tokens fall on the experts of each layer?
#
# With the loads L_1 <= ... <= L_n of the n experts that the source shows, and their mean m. All
# ratios are NULL where no expert got a token. Of a scope other than global there is a row per
# group, or per rank and micro-batch.
#
# title: Imbalance of layers
# meaning: How unevenly tokens fall on the experts of each layer.
# by: run, capture, step, phase, layer
# command: experts --by layer
# table: experts_layer
#
#   experts_count         bigint   experts
#   tokens                bigint   tokens of all of them
#   max_over_mean         double   L_n / m
#   max_vio               double   L_n / m - 1
#   cv                    double   population standard deviation / m
#   gini                  double   sum of (2 i - n - 1) L_i / (n sum L); 0 is even
#   entropy_ratio         double   -sum of p_i ln p_i / ln n with p_i = L_i / sum L; 1 is even
#   cold_count            bigint   experts with less than a tenth of m, or with nothing
#   hottest_expert        bigint   the first of those with most tokens
#   balance_loss          double   1 + cv^2: Switch's balance loss without its factor
#   dropped_tokens        bigint   tokens that capacity refused; NULL where unknown
#   dropped_ratio         double   these of all routed
#   scope                 varchar  global, group or rank
#   scope_index           bigint   which group or rank; NULL: global
#   micro_batch           bigint   which one; NULL: all
#   dead_count            bigint   experts without a token
#   device_max_over_mean  double   most tokens of a device over their mean; NULL where the
#     placement is unknown
#   node_max_over_mean    double   most tokens of a node over their mean, likewise
def by_layer(
    tables: ExpertTables,
    scope: PartName = "global",
    routing: RoutedBy | None = None,
    nodes: int | None = None,
) -> pl.DataFrame:
    """Rows of the metric: see `imbalance.expert_metrics`, `scopes` and `dropped_tokens` (of scope
    global); `nodes` as in `by_node`."""
    layers = _layers(tables, scope, nodes)
    by_rule = routing if routing is not None and scope == "global" else {}
    return (
        with_dropped(layers, by_rule)
        .with_columns(scope=pl.lit(scope))
        .select(column_names("experts_layer"))
    )


def _layers(tables: ExpertTables, scope: PartName, nodes: int | None) -> pl.DataFrame:
    """Figures of `expert_metrics` and _spreads with scope_index and micro_batch, sorted."""
    frames: list[pl.DataFrame] = []
    for loads, units in loads_at(tables, scope):
        if scope == "global":
            spreads = _spreads(tables, devices_of(tables, loads), nodes)
            spreads = spreads.join(_apart(tables), on=PLACE, how="anti", nulls_equal=True)
        else:
            held = expert_places(loads, tables.placement, _sizes(tables))
            spreads = _spreads(tables, held, nodes)
        figures = expert_metrics(loads).join(spreads, on=PLACE, how="left", nulls_equal=True)
        frames.append(_of_step(figures, units))
    if not frames:
        nothing = ExpertTables(tables.load.clear(), tables.placement, tables.ranks)
        return _layers(nothing, "global", None)
    return pl.concat(frames).sort(*PLACE, "scope_index", "micro_batch", nulls_last=True)


def _spreads(tables: ExpertTables, devices: pl.DataFrame, nodes: int | None) -> pl.DataFrame:
    """PLACE, device_max_over_mean, node_max_over_mean of loads of devices."""
    held = node_loads(devices, _nodes(tables, devices, nodes))
    each, together = (
        with_imbalance(loads, item).select(*PLACE, f"{item}_max_over_mean").unique()
        for loads, item in ((devices, "device"), (held, "node"))
    )
    return each.join(together, on=PLACE, how="left", nulls_equal=True)


def _of_step(rows: pl.DataFrame, units: pl.DataFrame) -> pl.DataFrame:
    """Rows by part with their own step, scope_index and micro_batch."""
    loads = rows.rename({"step": "part"}).join(units, on=_UNIT, nulls_equal=True).drop("part")
    return loads.select(*(name for name in rows.columns), "scope_index", "micro_batch")


# metric: experts_expert
# How many tokens does each expert get?
#
# Ratios are NULL where no expert of the layer got a token.
#
# title: Load of experts
# meaning: Tokens of each expert, and their share of the layer's.
# by: run, capture, step, phase, layer
# command: experts --by expert
# table: experts_expert
# figure: load
#
#   expert       bigint  logical expert
#   tokens       bigint  its tokens
#   share_ratio  double  of the layer's
#   over_mean    double  over the mean of the layer's experts
def by_expert(tables: ExpertTables) -> pl.DataFrame:
    """Rows of the metric."""
    tokens = pl.col("tokens")
    some = tokens.sum().over(PLACE) > 0
    return expert_loads(tables.load).with_columns(
        share_ratio=pl.when(some).then(tokens / tokens.sum().over(PLACE)),
        over_mean=pl.when(some).then(tokens / tokens.mean().over(PLACE)),
    )


# metric: experts_device
# How many tokens does each device get?
#
# By the recorded placement, else in equal blocks of experts. The imbalance is NULL where ranks of
# several expert-parallel groups tell different devices.
#
# title: Load of devices
# meaning: Tokens of each device by the experts that it holds.
# by: run, capture, step, phase, layer
# command: experts --by device
# table: experts_device
# figure: devices, device_tokens
#
#   device                bigint  place in the expert-parallel group
#   tokens                double  its tokens; replicas share an expert's evenly
#   device_max_over_mean  double  most tokens of a device of the layer over their mean
def by_device(tables: ExpertTables) -> pl.DataFrame:
    """Rows of the metric, and basis: see `devices_of`."""
    return _comparable(tables, devices_of(tables), "device").select(
        *PLACE, "device", "tokens", "device_max_over_mean", "basis"
    )


# metric: experts_node
# How many tokens does each node get?
#
# Nodes are the hosts that ranks tell, or as many equal blocks of devices as asked for. Nodes of
# fewer devices have fewer tokens for that alone.
#
# title: Load of nodes
# meaning: Tokens of each node by the devices that it holds.
# by: run, capture, step, phase, layer
# command: experts --by node
#
#   node                bigint  node
#   devices_count       bigint  its devices
#   tokens              double  their tokens
#   node_max_over_mean  double  most tokens of a node of the layer over their mean
def by_node(tables: ExpertTables, nodes: int | None = None) -> pl.DataFrame:
    """Rows of the metric, and basis; `nodes` equal blocks of devices where it is given."""
    loads = devices_of(tables)
    return _comparable(tables, node_loads(loads, _nodes(tables, loads, nodes)), "node").select(
        *PLACE, "node", "devices_count", "tokens", "node_max_over_mean", "basis"
    )


def _nodes(tables: ExpertTables, devices: pl.DataFrame, nodes: int | None) -> pl.DataFrame:
    return nodes_of(tables.ranks) if nodes is None else even_nodes(devices, nodes)


def _comparable(tables: ExpertTables, loads: pl.DataFrame, item: str) -> pl.DataFrame:
    """Loads of devices or nodes with their imbalance where their sums can be compared."""
    compared, apart = with_imbalance(loads, item), _apart(tables)
    if apart.is_empty():
        return compared
    marked = compared.join(
        apart.with_columns(is_apart=True), on=PLACE, how="left", nulls_equal=True,
        maintain_order="left",
    )  # fmt: skip
    return marked.with_columns(pl.when(pl.col("is_apart").is_null()).then(f"{item}_max_over_mean"))


def _own_counts(tables: ExpertTables) -> pl.DataFrame:
    """What ranks tell of what their own experts got."""
    return tables.load.filter(pl.col("ep_rank").is_not_null(), pl.col("tokens").is_not_null())


def _apart(tables: ExpertTables) -> pl.DataFrame:
    """PLACE where sums over groups are not of the same groups for all devices: ranks are missing,
    or did not count."""
    groups = (
        _own_counts(tables)
        .join(
            tables.ranks.select(*_CAPTURE, "rank", "ep_group"), on=[*_CAPTURE, "rank"], how="left"
        )
        .group_by(PLACE)
    )
    counts = groups.agg(
        pairs=pl.struct("ep_group", "ep_rank").n_unique(),
        groups=pl.col("ep_group").n_unique(), devices=pl.col("ep_rank").n_unique(),
    )  # fmt: skip
    return counts.filter(pl.col("pairs") < pl.col("groups") * pl.col("devices")).select(PLACE)


# metric: experts_time
# Does the imbalance change over time, and are the hot experts the same?
#
# Means over layers and, of a scope other than global, over its parts.
#
# title: Imbalance over time
# meaning: The imbalance of each step over its layers, and how steady the load is.
# by: run, capture, step, phase
# command: experts --by time
# table: experts_time
# figure: times
#
#   layers_count          bigint   layers
#   tokens                bigint   tokens of all of them
#   mean_max_over_mean    double   mean over the layers
#   worst_max_over_mean   double   of the layer with the most
#   worst_layer           bigint   the first such layer
#   device_max_over_mean  double   mean over the layers; NULL where devices are not known
#   balance_loss          double   mean over the layers
#   previous_step         bigint   step that this one is compared with
#   rank_correlation      double   of the loads of both steps, mean over the layers
#   hot_overlap_ratio     double   share of hot experts that stay hot
#   scope                 varchar  global, group or rank
#   parts_count           bigint   parts of that scope
#   node_max_over_mean    double   mean over the layers; NULL where nodes are not known
def by_time(
    tables: ExpertTables, scope: PartName = "global", nodes: int | None = None
) -> pl.DataFrame:
    """Rows of the metric; rank_correlation and hot_overlap_ratio (see `steadiness`) are of the
    whole step at every scope, `nodes` as in `by_node`."""
    worst = pl.col("max_over_mean").max()
    parts = pl.struct("scope_index", "micro_batch").n_unique().cast(pl.Int64)
    layers = (
        _layers(tables, scope, nodes)
        .group_by(_STEP)
        .agg(
            pl.col("layer").n_unique().cast(pl.Int64).alias("layers_count"),
            pl.col("tokens").sum(),
            pl.col("max_over_mean").mean().alias("mean_max_over_mean"),
            worst.alias("worst_max_over_mean"),
            pl.col("layer").filter(pl.col("max_over_mean") == worst).min().alias("worst_layer"),
            pl.col("balance_loss", "device_max_over_mean", "node_max_over_mean").mean(),
            parts_count=parts,
        )
    )
    before = steadiness(expert_loads(tables.load)).group_by(_STEP)
    return (
        layers.join(
            before.agg(
                pl.col("previous_step").min(),
                pl.col("rank_correlation", "hot_overlap_ratio").mean(),
            ),
            on=_STEP, how="left", nulls_equal=True,
        )
        .select(
            *_STEP, "layers_count", "tokens", "mean_max_over_mean", "worst_max_over_mean",
            "worst_layer", "device_max_over_mean", "balance_loss", "previous_step",
            "rank_correlation", "hot_overlap_ratio", pl.lit(scope).alias("scope"), "parts_count",
            "node_max_over_mean",
        )
        .sort(_STEP, nulls_last=True)
    )  # fmt: skip


def devices_of(tables: ExpertTables, loads: pl.DataFrame | None = None) -> pl.DataFrame:
    """`device_loads` of the tables: global counts by the placement, else by the ranks' ep_size."""
    return device_loads(tables.load, tables.placement, devices=_sizes(tables), loads=loads)


def _sizes(tables: ExpertTables) -> pl.DataFrame:
    """run, capture, devices: how many share the experts, where ranks tell the same number."""
    size = pl.col("ep_size").drop_nulls()
    sizes = tables.ranks.group_by(_CAPTURE).agg(devices=size.max(), count=size.n_unique())
    return sizes.filter(pl.col("count") == 1).drop("count")


_MEASURES: dict[By, str] = {
    "layer": "max_over_mean", "expert": "over_mean", "device": "tokens", "node": "tokens",
    "time": "worst_max_over_mean",
}  # fmt: skip


def view(
    tables: ExpertTables,
    by: By,
    *,
    top: int | None = None,
    nodes: int | None = None,
    scope: PartName = "global",
    routing: RoutedBy | None = None,
) -> pl.DataFrame:
    """Rows by one key; `top` keeps that many of each step (by time: of each phase). `scope` is for
    layers and time, `nodes` for these and nodes, `routing` for layers."""
    rows_of: dict[By, Callable[[], pl.DataFrame]] = {
        "layer": lambda: by_layer(tables, scope, routing, nodes),
        "expert": lambda: by_expert(tables),
        "device": lambda: by_device(tables),
        "node": lambda: by_node(tables, nodes),
        "time": lambda: by_time(tables, scope, nodes),
    }
    return fullest(rows_of[by](), by, top)


def fullest(rows: pl.DataFrame, by: By, top: int | None) -> pl.DataFrame:
    """The `top` rows of `view` of each step (by time: of each phase) with most load."""
    return largest(rows, _MEASURES[by], top, of=_PHASE if by == "time" else _STEP)


def largest(
    rows: pl.DataFrame, measure: str, top: int | None, of: Sequence[str] = _STEP
) -> pl.DataFrame:
    """The `top` rows of each of `of` with the largest measure, these first; None keeps all."""
    if top is None:
        return rows
    order = rows.sort(measure, descending=True, nulls_last=True, maintain_order=True)
    largest_rows = order.filter(pl.int_range(pl.len()).over(of) < top)
    return largest_rows.sort(of, nulls_last=True, maintain_order=True)


def view_notes(tables: ExpertTables, by: By, rows: pl.DataFrame) -> list[str]:
    """What rows by device and node rest on, or why there are none."""
    if by not in ("device", "node"):
        return []
    if rows.is_empty() and by == "node" and not devices_of(tables).is_empty():
        return ["the node of each device is unknown or inconsistent: give --nodes N"]
    if rows.is_empty():
        return ["the expert placement is not recorded: no load by device"]
    sentences = {
        "placement": "devices by the recorded placement: replicas share an expert's tokens evenly",
        "contiguous": "devices hold equal blocks of experts in order: no placement is recorded",
    }
    visited = set(rows["basis"])
    notes = [sentence for basis, sentence in sentences.items() if basis in visited]
    return notes + unseen_notes(tables)


def unseen_notes(tables: ExpertTables) -> list[str]:
    """Which devices are not told, where ranks tell what their own experts got."""
    present = (
        _own_counts(tables)
        .join(tables.ranks, on=[*_CAPTURE, "rank"])
        .filter(pl.col("ep_group").is_not_null())
        .group_by(*_CAPTURE, "ep_group")
        .agg(pl.col("ep_rank").n_unique().alias("count"), pl.col("ep_size").max())
    )
    short = present.filter(pl.col("count") < pl.col("ep_size"))
    notes: list[str] = []
    if short.height:
        least, size = short.sort("count").select("count", "ep_size").row(0)
        notes.append(
            Message(
                "{count} of {all} expert-parallel groups are incomplete ({least} of {size} "
                "devices): figures cover the recorded devices",
                count=short.height,
                all=present.height,
                least=least,
                size=size,
            )
        )
    if apart := _apart(tables).height:
        notes.append(
            Message(
                "{count} layers and steps: different groups recorded different devices, so their "
                "sums are not compared",
                count=apart,
            )
        )
    return notes


# The hottest experts are this share of those there are, one at least.
HOT_SHARE_RATIO = 1 / 8
_SERIES = ("run", "capture", "phase", "layer")


def steadiness(loads: pl.DataFrame) -> pl.DataFrame:
    """Each step beside the one before it in its phase and layer, a row per pair.

    `loads` is from `imbalance.expert_loads`; rows without a step have no order and are left out.
    Over the experts of both steps: PLACE, previous_step, experts_count, rank_correlation (Spearman,
    ties share their mean rank; NULL where all loads of a step are equal), hot_count and
    hot_overlap_ratio (share of the hot_count hottest experts that were among the hottest before;
    of equals the first are the hotter ones).
    """
    steps = loads.filter(pl.col("step").is_not_null()).with_columns(
        position=pl.col("step").rank("dense").over(*_SERIES)
    )
    before = steps.select(
        *_SERIES, "expert", pl.col("position") + 1,
        pl.col("step").alias("previous_step"), pl.col("tokens").alias("before"),
    )  # fmt: skip
    pairs = steps.join(
        before, on=[*_SERIES, "expert", "position"], how="inner", nulls_equal=True
    ).sort(*PLACE, "expert", nulls_last=True)
    count = (pl.len().over(*PLACE) * HOT_SHARE_RATIO).ceil().cast(pl.Int64)
    hot = {
        f"{name}_is_hot": pl.col(name).rank("ordinal", descending=True).over(*PLACE) <= count
        for name in ("tokens", "before")
    }
    return (
        pairs.with_columns(**hot, hot_count=count)
        .group_by(PLACE)
        .agg(
            pl.col("previous_step").first(),
            pl.len().cast(pl.Int64).alias("experts_count"),
            pl.corr(pl.col("tokens").rank(), pl.col("before").rank())
            .fill_nan(None)
            .alias("rank_correlation"),
            pl.col("hot_count").first(),
            (pl.col("tokens_is_hot") & pl.col("before_is_hot")).sum().alias("both"),
        )
        .with_columns(hot_overlap_ratio=pl.col("both") / pl.col("hot_count"))
        .drop("both")
        .sort(PLACE, nulls_last=True)
    )
