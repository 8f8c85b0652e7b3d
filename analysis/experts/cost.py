"""What imbalance costs: tokens too many on the fullest device, times what a token takes.

    kernels' shapes and times ─ fit ─ ns per token of each product ─┐ x passes of a routed token
    tokens of each device ─ max - mean of each layer and EP group ──┴─ ns too long, share of step

A routed token passes every product of its layer: forward, backward, once more where recomputed. How
often is counted: tokens in the shapes of all kernels, by tokens of the load.
"""

from __future__ import annotations

import polars as pl

from .load import ExpertTables
from .metrics import PLACE, expert_loads
from .rows_by import devices_of
from .token_times import CAPTURE, PRODUCT, fitted

# Passes that are further from whole numbers, as a share, say that layers or ranks are missing.
_PASSES_NEAR = 0.05
_LEAST_TIMED_RATIO = 0.9
_RANK = (*CAPTURE, "rank")
_LENGTHS: dict[str, type[pl.DataType]] = {
    "run": pl.String, "capture": pl.String, "step": pl.Int64, "stage": pl.Int32,
    "step_ns": pl.Int64,
}  # fmt: skip
LAYER = (
    *PLACE, "stage", "groups_count", "device_max_over_mean", "excess_tokens", "ns_per_token",
    "excess_ns", "step_ns", "excess_share_ratio",
)  # fmt: skip


def token_cost(tables: ExpertTables, kernels: pl.DataFrame) -> pl.DataFrame:
    """What one routed token takes in the grouped matmuls of its layer, a row per capture.

    `kernels` are of `token_times.grouped_kernels`. Columns: run, capture, ns_per_token (of all
    products, each as often as a token passes it), error_ns_per_token (standard error), passes (how
    often, all products together), off_ratio (how far passes are from whole numbers), timed_ratio
    (share of the kernels' tokens in products with a slope; the others cost nothing here). Captures
    without kernels or load have no row.

    Both tokens are means over ranks: of those that tell parts of the load and have kernels, or of
    all ranks of the job for global counts.
    """
    load = tables.load.filter(pl.col("tokens").is_not_null()).join(
        kernels.select(*CAPTURE, "step").unique(), on=(*CAPTURE, "step"), how="semi",
        nulls_equal=True,
    )  # fmt: skip
    steps = load.select(*CAPTURE, "step").unique()
    timed = kernels.join(steps, on=(*CAPTURE, "step"), how="semi", nulls_equal=True)
    parts = load.filter(pl.col("ep_rank").is_not_null()).join(timed, on=_RANK, how="semi")
    is_global = load.filter(pl.col("ep_rank").is_null()).select(CAPTURE).unique()
    whole = expert_loads(load.join(is_global, on=CAPTURE, how="semi")).group_by(CAPTURE)
    world = tables.ranks.group_by(CAPTURE).agg(
        ranks=pl.coalesce(pl.col("world_size").max(), pl.len())
    )
    routed = pl.concat(
        [
            parts.join(is_global, on=CAPTURE, how="anti").group_by(CAPTURE).agg(
                routed=pl.col("tokens").sum() / pl.col("rank").n_unique()
            ),
            whole.agg(pl.col("tokens").sum()).join(world, on=CAPTURE).select(
                *CAPTURE, routed=pl.col("tokens") / pl.col("ranks")
            ),
        ]
    )  # fmt: skip
    told = parts.select(_RANK).unique()
    mine = pl.concat(
        [timed.join(told, on=_RANK, how="semi").join(is_global, on=CAPTURE, how="anti"),
         timed.join(is_global, on=CAPTURE, how="semi")]
    )  # fmt: skip
    passed = pl.col("tokens") * pl.col("count")
    return (
        mine.with_columns(held=pl.col("rank").n_unique().over(CAPTURE))
        .group_by(*CAPTURE, *PRODUCT)
        .agg(passed=passed.sum() / pl.col("held").first())
        .join(fitted(kernels), on=(*CAPTURE, *PRODUCT), nulls_equal=True)
        .join(routed.filter(pl.col("routed") > 0), on=CAPTURE)
        .with_columns(pass_count=pl.col("passed") / pl.col("routed"))
        .group_by(CAPTURE)
        .agg(
            ns_per_token=(pl.col("pass_count") * pl.col("ns_per_token")).sum(),
            error_ns_per_token=(pl.col("pass_count") * pl.col("error_ns_per_token"))
            .pow(2)
            .sum()
            .sqrt(),
            passes=pl.col("pass_count").sum(),
            off_ratio=(pl.col("pass_count") - pl.col("pass_count").round()).abs().sum()
            / pl.col("pass_count").sum(),
            timed_ratio=pl.col("passed").filter(pl.col("ns_per_token").is_not_null()).sum()
            / pl.col("passed").sum(),
        )
        .filter(pl.col("timed_ratio") > 0)
        .sort(CAPTURE)
    )


def imbalance_cost(
    tables: ExpertTables, costs: pl.DataFrame, steps: pl.DataFrame | None = None
) -> pl.DataFrame:
    """Columns LAYER, a row per step, phase and layer.

    `costs` are of `token_cost`, `steps` of the metric `steps`. excess_tokens: those of the fullest
    device of an expert-parallel group beyond the group's mean, mean over the groups_count groups
    that hold the layer; excess_ns: times ns_per_token, how much longer the layer's grouped matmuls
    take on the fullest device than if tokens were even. By totals of a step: devices that are
    fullest in turns, one micro-batch after the other, cost more. stage: pipeline stage of the ranks
    that tell the layer; NULL where they tell several or none. step_ns: the stage's longest.
    """
    held = _held(tables)
    tokens = pl.col("tokens")
    layers = (
        held.group_by(*PLACE, "ep_group", "groups")
        .agg(excess=tokens.max() - tokens.mean(), over=tokens.max() / tokens.mean())
        .group_by(PLACE)
        .agg(
            groups_count=(pl.len() * pl.col("groups").first()).cast(pl.Int64),
            device_max_over_mean=pl.col("over").mean().fill_nan(None),
            excess_tokens=pl.col("excess").mean(),
        )
    )
    placed = tables.load.join(
        tables.ranks.select(*_RANK, "pp_rank", "pp_size"), on=_RANK, how="left"
    )
    is_one = (pl.col("pp_rank").n_unique() == 1) & pl.col("ep_rank").is_not_null().all()
    is_only = (pl.col("pp_size").max() == 1).fill_null(False)
    stages = placed.group_by(PLACE).agg(
        stage=pl.when(is_only).then(0).when(is_one).then(pl.col("pp_rank").first()).cast(pl.Int32)
    )
    return (
        layers.join(stages, on=PLACE, how="left", nulls_equal=True)
        .join(costs.select(*CAPTURE, "ns_per_token"), on=CAPTURE)
        .with_columns(excess_ns=pl.col("excess_tokens") * pl.col("ns_per_token"))
        .join(_lengths(tables, steps), on=(*CAPTURE, "step", "stage"), how="left", nulls_equal=True)
        .with_columns(excess_share_ratio=pl.col("excess_ns") / pl.col("step_ns"))
        .select(LAYER)
        .sort(PLACE, nulls_last=True)
    )


def step_cost(layers: pl.DataFrame) -> pl.DataFrame:
    """Layers of `imbalance_cost` added up: run, capture, step, phase, stage, layers_count,
    excess_ns, step_ns, excess_share_ratio.

    Stages work at the same time: that with most excess delays the step. Where stages are not known,
    all layers count as one after the other.
    """
    return (
        layers.group_by(*CAPTURE, "step", "phase", "stage")
        .agg(
            layers_count=pl.len().cast(pl.Int64),
            excess_ns=pl.col("excess_ns").sum(),
            step_ns=pl.col("step_ns").max(),
        )
        .with_columns(excess_share_ratio=pl.col("excess_ns") / pl.col("step_ns"))
        .sort(*CAPTURE, "step", "phase", "stage", nulls_last=True)
    )


def cost_notes(costs: pl.DataFrame, layers: pl.DataFrame) -> list[str]:
    """What to know beside the cost: its sum by step, and what it leaves out."""
    told: list[str] = []
    if costs.is_empty():
        return [
            "what a token takes is not known: no grouped matmul with shapes in the steps of the"
            " load, or their tokens hardly differ"
        ]
    steps = step_cost(layers).filter(pl.col("excess_share_ratio").is_not_null())
    worst = steps.sort("excess_ns", descending=True).unique(
        (*CAPTURE, "step", "phase"), keep="first", maintain_order=True
    )
    if not worst.is_empty():
        excess_ns, share = worst.select(pl.col("excess_ns", "excess_share_ratio").mean()).row(0)
        errors = (costs["error_ns_per_token"] / costs["ns_per_token"]).to_list()
        told.append(
            f"uneven devices cost {excess_ns / 1e6:,.3f} ms of a step, {share * 100:.1f} % of it"
            " (grouped matmuls of the costliest stage, mean over steps; standard error"
            f" {max(errors) * 100:.1f} %)"
        )
    if layers["stage"].is_null().any():
        told.append("stages of layers are not told: all layers count as one after the other")
    for row in costs.iter_rows(named=True):
        if row["timed_ratio"] < _LEAST_TIMED_RATIO:
            told.append(
                f"{row['capture']}: products without a slope have"
                f" {(1 - row['timed_ratio']) * 100:.0f} % of the grouped matmuls' tokens: the cost"
                " is larger"
            )
        if row["off_ratio"] > _PASSES_NEAR:
            told.append(
                f"{row['capture']}: a routed token passes {row['passes']:.2f} grouped matmuls, not"
                " each a whole number of times: layers or ranks are missing, or tokens count twice"
            )
    return told


def _held(tables: ExpertTables) -> pl.DataFrame:
    """Tokens of devices by group: PLACE, ep_group, device, tokens, groups (that share a row)."""
    load = tables.load.filter(pl.col("tokens").is_not_null()).join(
        tables.ranks.select(*_RANK, "ep_group"), on=_RANK, how="left"
    )
    known = (pl.col("ep_rank").is_not_null() & pl.col("ep_group").is_not_null()).all().over(PLACE)
    by_group = (
        load.filter(known)
        .group_by(*PLACE, "ep_group", device=pl.col("ep_rank").cast(pl.Int64))
        .agg(pl.col("tokens").sum().cast(pl.Float64), groups=pl.lit(1.0))
    )
    size = pl.col("pp_size").max().fill_null(1) * pl.col("ep_size").max()
    groups = tables.ranks.group_by(CAPTURE).agg(
        groups=(pl.col("world_size").max() / size).fill_null(1.0)
    )
    together = (
        devices_of(tables)
        .join(by_group.select(PLACE).unique(), on=PLACE, how="anti", nulls_equal=True)
        .join(groups, on=CAPTURE, how="left")
        .with_columns(pl.col("groups").fill_null(1.0), ep_group=pl.lit(None, pl.String))
        .with_columns(tokens=pl.col("tokens") / pl.col("groups"))
        .select(*PLACE, "ep_group", "device", "tokens", "groups")
    )
    return pl.concat([by_group, together])


def _lengths(tables: ExpertTables, steps: pl.DataFrame | None) -> pl.DataFrame:
    """The longest step of each stage, of all ranks where stage is NULL: _LENGTHS."""
    if steps is None:
        return pl.DataFrame(schema=_LENGTHS)
    length = (pl.col("end_ns") - pl.col("start_ns")).max().alias("step_ns")
    placed = steps.join(tables.ranks.select(*_RANK, stage="pp_rank"), on=_RANK, how="left")
    of_stages = placed.filter(pl.col("stage").is_not_null())
    found = [
        of_stages.group_by(*CAPTURE, "step", "stage").agg(length),
        placed.with_columns(stage=pl.lit(None, pl.Int32))
        .group_by(*CAPTURE, "step", "stage")
        .agg(length),
    ]
    return pl.concat([one.select(pl.col(n).cast(t) for n, t in _LENGTHS.items()) for one in found])
