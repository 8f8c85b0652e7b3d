"""Expert load as a store or an export holds it, and as matrices for forecasts and plans."""

from __future__ import annotations

from dataclasses import dataclass, field

import duckdb
import numpy as np
import numpy.typing as npt
import polars as pl

from npuscope.collector.readers.expert_load.routed_detail import COUNTS_SCHEMA

from ...scope import ALL, JOB, Scope
from ...views import frame

# The kinds of groups that experts are spread over, the likelier first.
_EXPERT_KINDS = ("ep", "tp_ep")
_RANKS = {
    "run": pl.String, "capture": pl.String, "rank": pl.Int32, "host": pl.String,
    "world_size": pl.Int32, "pp_size": pl.Int32, "ep_size": pl.Int32, "pp_rank": pl.Int32,
    "ep_group": pl.String, "device": pl.Int64,
}  # fmt: skip
_COUNTS = {"run": pl.String(), "capture": pl.String(), **COUNTS_SCHEMA}
_STAGES = {
    "run": pl.String(), "capture": pl.String(), "layer": pl.Int32(), "counted_stage": pl.Int32(),
}  # fmt: skip
# The stage that tells a layer's counts, where each of those who counted is known to be of it.
_STAGES_SQL = """
    select run, capture, layer, any_value(pp_rank) as counted_stage
    from (select distinct run, capture, layer, counted_by as rank from expert_counts {where})
    left join (select distinct run, capture, rank, pp_rank from ranks) using (run, capture, rank)
    group by run, capture, layer
    having count(pp_rank) = count(*) and count(distinct pp_rank) = 1"""
MEMBERS = {
    "run": pl.String(), "capture": pl.String(), "scope": pl.String(), "scope_index": pl.Int64(),
    "counted_by": pl.Int32(), "size": pl.Int64(),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ExpertTables:
    """Rows as the store holds them, and what is known of the ranks.

    load: columns of `expert_load`; placement: columns of `expert_placement`; ranks: run, capture,
    rank, host, world_size, pp_size, ep_size, pp_rank, ep_group (a name of the rank's
    expert-parallel group), device (its position there); NULL where not told. counts: columns of
    `expert_counts` but rank, and members: who is in which group, both empty until
    `scopes.with_counts` fills them. of_ranks: of a dump alone, how many ranks it is of, and how
    many there are; None where not told. stages: run, capture, layer, counted_stage (the pipeline
    stage whose ranks alone counted it).
    """

    load: pl.DataFrame
    placement: pl.DataFrame
    ranks: pl.DataFrame
    counts: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=_COUNTS))
    members: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=MEMBERS))
    of_ranks: tuple[int | None, int | None] = (None, None)
    stages: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=_STAGES))


@dataclass(frozen=True, slots=True)
class LoadMatrix:
    """Tokens as float64 [steps, layers, experts], NaN where not told, and what the axes are."""

    tokens: npt.NDArray[np.float64]
    steps: list[int | None]
    layers: list[int]
    experts: list[int]


def expert_rows(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> ExpertTables:
    """What the tables behind `con` tell of experts; `rank` and `step` choose rows of the load."""
    clause, values = scope.where()
    order = "order by run, capture, rank, step nulls last, phase, layer, expert, ep_rank"
    load = frame(con, f"select * from expert_load {clause} {order}", values)
    clause, values = scope.where(JOB)
    placement = frame(con, f"select * from expert_placement {clause} order by all", values)
    ranks = frame(
        con,
        "select run, capture, rank, coalesce(host_name, host_uid) as host, world_size, pp_size,"
        f" ep_size, pp_rank from ranks {clause} order by run, capture, rank",
        values,
    )
    kinds = ", ".join(f"'{kind}'" for kind in _EXPERT_KINDS)
    groups = frame(
        con,
        "select run, capture, rank, parallel_kind, group_rank, global_ranks,"
        f" concat(group_hash, ' ', array_to_string(global_ranks, ',')) as ep_group from groups"
        f" {clause} {'and' if clause else 'where'} parallel_kind in ({kinds})",
        values,
    )
    stages = frame(con, _STAGES_SQL.format(where=clause), values)
    return ExpertTables(load, placement, _with_groups(ranks, groups), stages=stages)


def tables_of(load: pl.DataFrame, placement: pl.DataFrame | None = None) -> ExpertTables:
    """Frames of a dump alone, of whose ranks nothing is known."""
    held = pl.DataFrame() if placement is None else placement
    return ExpertTables(load, held, pl.DataFrame(schema=_RANKS))


def with_trace(tables: ExpertTables, trace_rows: pl.DataFrame) -> ExpertTables:
    """The tables with the load of devices that the trace tells: rows without an expert.

    `trace_rows` is from `from_trace.trace_load`. A rank's device is its place in its
    expert-parallel group; ranks whose place is not known are left out. So are tokens of no certain
    layer, but where the job has one stage: there they are those of all layers, the layer is NULL.
    """
    rank = ["run", "capture", "rank"]
    rows_with_places = trace_rows.join(
        tables.ranks.select(*rank, "device", "pp_size"), on=rank
    ).filter(
        pl.col("device").is_not_null(),
        pl.col("layer").is_not_null() | (pl.col("pp_size") == 1),
    )
    rows = rows_with_places.select(
        *rank, "step", pl.lit("train").alias("phase"), "layer",
        pl.lit(None, pl.Int32).alias("expert"), pl.col("device").cast(pl.Int32).alias("ep_rank"),
        "tokens",
    )  # fmt: skip
    return ExpertTables(rows, tables.placement, tables.ranks)


def _with_groups(ranks: pl.DataFrame, groups: pl.DataFrame) -> pl.DataFrame:
    """Each rank's group: of ep_size members if one is, else the likelier kind."""
    key = ["run", "capture", "rank"]
    best = (
        groups.join(ranks.select(*key, "ep_size"), on=key)
        .with_columns(
            is_other_size=(pl.col("global_ranks").list.len() != pl.col("ep_size")).fill_null(True),
            is_other_kind=pl.col("parallel_kind") != _EXPERT_KINDS[0],
            device=pl.col("group_rank").cast(pl.Int64),
        )
        .sort(*key, "is_other_size", "is_other_kind", "ep_group")
        .unique(key, keep="first", maintain_order=True)
    )
    return ranks.join(best.select(*key, "ep_group", "device"), on=key, how="left")


def layer_stages(tables: ExpertTables) -> pl.DataFrame:
    """The pipeline stage of each layer: run, capture, layer, stage; NULL where not known.

    It is that of the ranks that tell the layer's devices. Global counts tell none, but who counted
    them does.
    """
    layer, rank = ["run", "capture", "layer"], ["run", "capture", "rank"]
    told = pl.col("pp_rank").first()
    is_one = (pl.col("pp_rank").n_unique() == 1) & pl.col("ep_rank").is_not_null().all()
    is_only = (pl.col("pp_size").max() == 1).fill_null(False)
    rows = tables.load.join(tables.ranks.select(*rank, "pp_rank", "pp_size"), on=rank, how="left")
    rows = rows.join(tables.stages, on=layer, how="left")
    stage = pl.when(is_one).then(told).otherwise(pl.col("counted_stage").first())
    return rows.group_by(layer).agg(stage=pl.when(is_only).then(0).otherwise(stage).cast(pl.Int32))


def nodes_of(ranks: pl.DataFrame) -> pl.DataFrame:
    """The node of each device of an expert-parallel group: run, capture, device, node.

    `ranks` as in ExpertTables. Nodes are the hosts of a group, numbered by their first device.
    Captures whose groups lie differently over hosts, or whose hosts are not known, have no rows.
    """
    group = ["run", "capture", "ep_group"]
    members = ranks.filter(pl.col("ep_group").is_not_null(), pl.col("device").is_not_null())
    first = pl.col("device").min().over(*group, "host")
    nodes = (
        members.with_columns(first=first)
        .with_columns(node=pl.col("first").rank("dense").over(group).cast(pl.Int64) - 1)
        .select("run", "capture", "device", "node", "host")
    )
    capture = ["run", "capture"]
    unclear = (
        nodes.group_by(*capture, "device")
        .agg(pl.col("node").n_unique() != 1, pl.col("host").is_null().any())
        .filter(pl.col("node") | pl.col("host"))
    )
    clear = nodes.join(unclear, on=capture, how="anti")
    return clear.select(*capture, "device", "node").unique().sort(*capture, "device")


def even_nodes(loads: pl.DataFrame, nodes: int) -> pl.DataFrame:
    """Devices of `device_loads` in equal blocks on `nodes`: run, capture, device, node."""
    count = (pl.col("device").max() + 1).over("run", "capture")
    devices = loads.select("run", "capture", "device", count.alias("devices")).unique()
    each = (pl.col("devices") / nodes).ceil().cast(pl.Int64)
    with_nodes = devices.with_columns(node=pl.col("device") // each)
    return with_nodes.drop("devices").sort("run", "capture", "device")


def load_matrix(loads: pl.DataFrame) -> LoadMatrix:
    """Loads of one run, capture and phase as a matrix; `loads` is from `imbalance.expert_loads`."""
    axes = [loads[name].unique().sort(nulls_last=True) for name in ("step", "layer", "expert")]
    tokens = np.full([len(axis) for axis in axes], np.nan)
    at = [
        loads.select(name)
        .join(
            pl.DataFrame({name: axis}).with_row_index("at"),
            on=name, how="left", nulls_equal=True, maintain_order="left",
        )["at"]
        .to_numpy()
        for name, axis in zip(("step", "layer", "expert"), axes, strict=True)
    ]  # fmt: skip
    tokens[at[0], at[1], at[2]] = loads["tokens"].to_numpy()
    steps, layers, experts = (axis.to_list() for axis in axes)
    return LoadMatrix(tokens, steps, layers, experts)
