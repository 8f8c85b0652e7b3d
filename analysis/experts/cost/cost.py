"""What imbalance costs: tokens too many on the fullest device, times what a token takes.

    kernels' shapes and times ─ fit ─ ns per token of each product ─┐ x passes of a routed token
    all-to-alls' bytes and times ─ fit ─ ns per byte ───────────────┤ x bytes of a routed token
    tokens of each device ─ max - mean of each layer and EP group ──┴─ ns too long, share of step

A routed token passes every product of its layer: forward, backward, once more where recomputed. How
often is counted: tokens in the shapes of all kernels, by tokens of the load. So are its bytes.
"""

from __future__ import annotations

import polars as pl

from ..load.imbalance import PLACE, expert_loads
from ..load.load import ExpertTables, layer_stages
from ..load.load_rows import devices_of
from .activations import activation_cost
from .exchanges import exchange_times, rank_bytes
from .hidden_share import SHARES
from .token_times import CAPTURE, PRODUCT, fit_times

# A standard error beyond this share of the figure: noise, which tells no cost.
_MOST_ERROR_RATIO = 0.5
_RANK = (*CAPTURE, "rank")
_LENGTHS: dict[str, type[pl.DataType]] = {
    "run": pl.String, "capture": pl.String, "step": pl.Int64, "stage": pl.Int32,
    "step_ns": pl.Int64,
}  # fmt: skip
_WAITS: dict[str, type[pl.DataType]] = {
    "run": pl.String, "capture": pl.String, "step": pl.Int64, "stage": pl.Int32,
    "ep_wait_min_duration_ns": pl.Float64, "ep_wait_last_arrival_ns": pl.Float64,
}  # fmt: skip
_ACTIVATIONS: dict[str, type[pl.DataType]] = {
    "run": pl.String, "capture": pl.String, "activation_ns_per_token": pl.Float64,
    "activation_error_ns_per_token": pl.Float64,
}  # fmt: skip
_EXCHANGE: dict[str, type[pl.DataType]] = {
    "run": pl.String, "capture": pl.String, "exchange_ns_per_token": pl.Float64,
    "exchange_error_ns_per_token": pl.Float64, "token_bytes": pl.Float64,
    "operations_count": pl.Int64, "basis": pl.String,
}  # fmt: skip
LAYER = (
    *PLACE, "stage", "groups_count", "device_max_over_mean", "excess_tokens", "ns_per_token",
    "grouped_excess_ns", "activation_excess_ns", "exchange_ns_per_token",
    "exchange_excess_ns", "exchange_exposed_ns", "excess_ns", "excess_error_ns", "step_ns",
    "grouped_excess_share_ratio", "exchange_excess_share_ratio", "excess_share_ratio",
    "ep_wait_min_duration_ns", "ep_wait_last_arrival_ns",
)  # fmt: skip


def token_cost(
    tables: ExpertTables,
    kernels: pl.DataFrame,
    exchanges: pl.DataFrame | None = None,
    activations: pl.DataFrame | None = None,
    times: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """What one routed token takes in its layer, a row per capture.

    `kernels` are of `token_times.grouped_kernels`, `exchanges` of `exchanges.exchanges`,
    `times` (computed where they are not given) of `exchanges.exchange_times`. Columns:
    run, capture, ns_per_token (of all grouped matmuls, each as often as a token passes it),
    error_ns_per_token (standard error), passes (how often, all products together), off_ratio (how
    far passes are from whole numbers), timed_ratio (share of the kernels' tokens in products with a
    slope; the others cost nothing here), shared_weight (see `fit_times`), fixed_ns and floor_ns
    (of a device in one layer and step: what is beside tokens, and the least; floor_ns is 0 where no
    kernel has a floor, both NULL where layers are not told), then _EXCHANGED: what its all-to-alls
    take, with the bytes that they move of a routed token in all, then _ACTIVATIONS: what the
    `activations` (of `activations.activation_times`) take. What is not told, or by noise
    alone, is NULL; captures of which nothing is told have no row.

    Both tokens are means over ranks: of those that tell parts of the load and have kernels, or of
    all ranks of the job for global counts.
    """
    grouped = _grouped_cost(tables, kernels)
    exchanged = _exchange_cost(tables, exchanges, times)
    between = pl.DataFrame(schema=_ACTIVATIONS)
    if activations is not None and not activations.is_empty():
        between = activation_cost(activations, grouped)
    return (
        grouped.join(between, on=CAPTURE, how="left")
        .join(exchanged, on=CAPTURE, how="full", coalesce=True)
        .sort(CAPTURE)
    )


def _grouped_cost(tables: ExpertTables, kernels: pl.DataFrame) -> pl.DataFrame:
    routed, mine = _tokens_in_steps(tables, kernels)
    passed = pl.col("tokens") * pl.col("count")
    passes = pl.col("pass_count")
    own, common = (passes * pl.col(n) for n in ("error_ns_per_token", "common_error_ns_per_token"))
    layer_steps = pl.col("held") * pl.col("layers")
    return (
        mine.with_columns(held=pl.struct("rank", "step").n_unique().over(CAPTURE))
        .with_columns(ranks=pl.col("rank").n_unique().over(CAPTURE))
        .group_by(*CAPTURE, *PRODUCT)
        .agg(
            passed=passed.sum() / pl.col("ranks").first(),
            calls=pl.col("count").sum(),
            held=pl.col("held").first(),
        )
        .join(fit_times(kernels), on=(*CAPTURE, *PRODUCT), nulls_equal=True)
        .join(routed, on=CAPTURE)
        .with_columns(pass_count=pl.col("passed") / pl.col("routed"))
        .with_columns(calls=pl.col("calls") / layer_steps)
        .group_by(CAPTURE)
        .agg(
            ns_per_token=(passes * pl.col("ns_per_token")).sum(),
            error_ns_per_token=(own.pow(2).sum() + common.sum().pow(2)).sqrt(),
            passes=passes.sum(),
            off_ratio=(passes - passes.round()).abs().sum() / passes.sum(),
            timed_ratio=pl.col("passed").filter(pl.col("ns_per_token").is_not_null()).sum()
            / pl.col("passed").sum(),
            shared_weight=pl.col("shared_weight").mean(),
            fixed_ns=pl.when(pl.col("layers").first().is_not_null()).then(
                (pl.col("calls") * pl.col("base_ns")).sum()
            ),
            floor_ns=pl.when(pl.col("layers").first().is_not_null()).then(
                pl.when((pl.col("floor_tokens") > 0).any())
                .then((pl.col("calls") * pl.col("floor_ns")).sum())
                .otherwise(0.0)
            ),
        )
        .filter(
            pl.col("timed_ratio") > 0,
            pl.col("error_ns_per_token") <= _MOST_ERROR_RATIO * pl.col("ns_per_token"),
        )
    )


def _exchange_cost(
    tables: ExpertTables, exchanges: pl.DataFrame | None, times: pl.DataFrame | None
) -> pl.DataFrame:
    """_EXCHANGED."""
    if exchanges is None or exchanges.is_empty():
        return pl.DataFrame(schema=_EXCHANGE)
    times = exchange_times(exchanges) if times is None else times
    routed, mine = _tokens_in_steps(tables, rank_bytes(exchanges))
    each = (
        mine.group_by(CAPTURE)
        .agg(moved=pl.col("size_bytes").sum() / pl.col("rank").n_unique())
        .join(routed, on=CAPTURE)
        .with_columns(token_bytes=pl.col("moved") / pl.col("routed"))
        .join(times, on=CAPTURE)
    )
    return each.with_columns(
        exchange_ns_per_token=pl.col("token_bytes") * pl.col("ns_per_byte"),
        exchange_error_ns_per_token=pl.col("token_bytes") * pl.col("error_ns_per_byte"),
    ).select(pl.col(name).cast(kind) for name, kind in _EXCHANGE.items())


def _tokens_in_steps(
    tables: ExpertTables, events: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Tokens of the load in the steps of events: run, capture, routed (mean of a rank), layers (of
    a rank; NULL where not told); and the events of those ranks and steps."""
    step = (*CAPTURE, "step")
    counts = tables.load.filter(pl.col("tokens").is_not_null())
    load = counts.join(events.select(step).unique(), on=step, how="semi", nulls_equal=True)
    timed = events.join(load.select(step).unique(), on=step, how="semi", nulls_equal=True)
    parts = load.filter(pl.col("ep_rank").is_not_null()).join(timed, on=_RANK, how="semi")
    is_global = load.filter(pl.col("ep_rank").is_null()).select(CAPTURE).unique()
    whole = expert_loads(load.join(is_global, on=CAPTURE, how="semi"))
    world = tables.ranks.group_by(CAPTURE).agg(
        ranks=pl.coalesce(pl.col("world_size").max(), pl.len()),
        stages=pl.col("pp_size").max().fill_null(1),
    )
    is_told = pl.col("layer").is_not_null().all()
    layers = pl.struct("rank", "layer").n_unique() / pl.col("rank").n_unique()
    routed = pl.concat(
        [
            parts.join(is_global, on=CAPTURE, how="anti").group_by(CAPTURE).agg(
                routed=pl.col("tokens").sum() / pl.col("rank").n_unique(),
                layers=pl.when(is_told).then(layers),
            ),
            whole.group_by(CAPTURE).agg(
                pl.col("tokens").sum(), layers=pl.when(is_told).then(pl.col("layer").n_unique())
            )
            .join(world, on=CAPTURE)
            .select(
                *CAPTURE, routed=pl.col("tokens") / pl.col("ranks"),
                layers=pl.col("layers") / pl.col("stages"),
            ),
        ]
    )  # fmt: skip
    numbered = parts.select(_RANK).unique()
    mine = pl.concat(
        [timed.join(numbered, on=_RANK, how="semi").join(is_global, on=CAPTURE, how="anti"),
         timed.join(is_global, on=CAPTURE, how="semi")]
    )  # fmt: skip
    return routed.filter(pl.col("routed") > 0), mine


def imbalance_cost(
    tables: ExpertTables,
    costs: pl.DataFrame,
    lengths: pl.DataFrame | None = None,
    waits: pl.DataFrame | None = None,
    hidden: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """Columns LAYER, a row per step, phase and layer.

    `costs` are of `token_cost`, `lengths` of `flops.lengths.step_lengths`, `waits` of
    `exchanges.waits`, `hidden` of `hidden_share.exposed_ratios`. excess_tokens: those of the
    fullest device of an expert-parallel group beyond the group's mean, mean over the groups_count
    groups that hold the layer. grouped_excess_ns: how much longer the layer's grouped matmuls take
    on the fullest device than if tokens were even: times ns_per_token, less where a floor makes
    them as long anyway; activation_excess_ns: the same of the activations between them;
    exchange_excess_ns: how much longer its all-to-alls take; exchange_exposed_ns: the part of that
    which compute does not hide, all of it where that is not known; excess_ns: what is known of
    grouped_excess_ns and exchange_exposed_ns; excess_error_ns: its standard error. By totals of a
    step: devices that are fullest in turns, one micro-batch after the other, cost more. stage:
    pipeline stage of the ranks that tell or counted the layer; NULL where they are several or
    unknown. step_ns: the stage's longest; ep_wait_...: what the stage's ranks really waited in
    their all-to-alls, on average, in all layers of the step together. What compares devices is NULL
    where no group tells more than one of them: of one alone nothing is too many.
    """
    tokens = pl.col("tokens")
    line = {
        name: pl.max_horizontal(
            pl.col("fixed_ns").fill_null(0) + pl.col("ns_per_token") * pl.col(name),
            pl.col("floor_ns").fill_null(0),
        )
        for name in ("fullest", "even")
    }
    alone = tables.ranks.group_by(CAPTURE).agg(is_only=pl.col("ep_size").max() == 1)
    layers = (
        _tokens_of_devices(tables)
        .group_by(*PLACE, "ep_group", "groups")
        .agg(fullest=tokens.max(), even=tokens.mean(), is_alone=pl.len() == 1)
        .join(alone, on=CAPTURE, how="left")
        .join(costs, on=CAPTURE)
        .with_columns(is_known=~pl.col("is_alone") | pl.col("is_only").fill_null(False))
        .with_columns(
            excess=pl.when("is_known").then(pl.col("fullest") - pl.col("even")),
            over=pl.when("is_known").then(pl.col("fullest") / pl.col("even")),
            grouped=pl.when("is_known", pl.col("ns_per_token").is_not_null()).then(
                line["fullest"] - line["even"]
            ),
        )
        .group_by(PLACE)
        .agg(
            groups_count=(pl.len() * pl.col("groups").first()).cast(pl.Int64),
            device_max_over_mean=pl.col("over").mean().fill_nan(None),
            excess_tokens=pl.col("excess").mean(),
            grouped_excess_ns=pl.col("grouped").mean(),
        )
    )
    at = (*CAPTURE, "step", "stage")
    waited = pl.DataFrame(schema=_WAITS) if waits is None else waits.select(list(_WAITS))
    masked = pl.DataFrame(schema=SHARES) if hidden is None else hidden.select(list(SHARES))
    exposed = pl.col("exchange_exposed_ratio").fill_null(1.0)
    parts = ("grouped_excess_ns", "exchange_excess_ns", "excess_ns")
    added = ("grouped_excess_ns", "activation_excess_ns", "exchange_exposed_ns")
    errors = pl.sum_horizontal(
        pl.col("error_ns_per_token").pow(2),
        pl.col("activation_error_ns_per_token").pow(2),
        (pl.col("exchange_error_ns_per_token") * exposed).pow(2),
    )
    return (
        layers.join(layer_stages(tables), on=[*CAPTURE, "layer"], how="left", nulls_equal=True)
        .join(costs, on=CAPTURE)
        .join(masked, on=at, how="left", nulls_equal=True)
        .with_columns(
            activation_excess_ns=pl.col("excess_tokens") * pl.col("activation_ns_per_token"),
            exchange_excess_ns=pl.col("excess_tokens") * pl.col("exchange_ns_per_token"),
            excess_error_ns=pl.col("excess_tokens") * errors.sqrt(),
        )
        .with_columns(exchange_exposed_ns=pl.col("exchange_excess_ns") * exposed)
        .with_columns(
            excess_ns=pl.when(pl.any_horizontal(pl.col(added).is_not_null())).then(
                pl.sum_horizontal(added)
            )
        )
        .join(_lengths(tables, lengths), on=at, how="left", nulls_equal=True)
        .join(waited, on=at, how="left", nulls_equal=True)
        .with_columns(
            (pl.col(name) / pl.col("step_ns")).alias(name.replace("_ns", "_share_ratio"))
            for name in parts
        )
        .select(LAYER)
        .sort(PLACE, nulls_last=True)
    )


def step_cost(layers: pl.DataFrame) -> pl.DataFrame:
    """Layers of `imbalance_cost` added up: run, capture, step, phase, stage, layers_count,
    grouped_excess_ns, activation_excess_ns, exchange_excess_ns, exchange_exposed_ns, excess_ns,
    excess_error_ns, step_ns, excess_share_ratio, ep_wait_min_duration_ns, ep_wait_last_arrival_ns,
    grouped_over_wait (grouped_excess_ns by ep_wait_min_duration_ns).

    Stages work at the same time: that with most excess delays the step. Where stages are not known,
    all layers count as one after the other.
    """
    sums = ("grouped_excess_ns", "activation_excess_ns", "exchange_excess_ns",
            "exchange_exposed_ns", "excess_ns", "excess_error_ns")  # fmt: skip
    once = ("step_ns", "ep_wait_min_duration_ns", "ep_wait_last_arrival_ns")
    waited = pl.col("ep_wait_min_duration_ns")
    return (
        layers.group_by(*CAPTURE, "step", "phase", "stage")
        .agg(
            pl.len().cast(pl.Int64).alias("layers_count"),
            *(pl.when(pl.col(n).is_not_null().any()).then(pl.col(n).sum()).alias(n) for n in sums),
            *(pl.col(name).max() for name in once),
        )
        .with_columns(
            excess_share_ratio=pl.col("excess_ns") / pl.col("step_ns"),
            grouped_over_wait=pl.when(waited > 0).then(pl.col("grouped_excess_ns") / waited),
        )
        .sort(*CAPTURE, "step", "phase", "stage", nulls_last=True)
    )


def _tokens_of_devices(tables: ExpertTables) -> pl.DataFrame:
    """Tokens of devices by group: PLACE, ep_group, device, tokens, groups (that share a row)."""
    load = tables.load.filter(pl.col("tokens").is_not_null()).join(
        tables.ranks.select(*_RANK, "ep_group"), on=_RANK, how="left"
    )
    is_whole = (
        (pl.col("ep_rank").is_not_null() & pl.col("ep_group").is_not_null()).all().over(PLACE)
    )
    by_group = (
        load.filter(is_whole)
        .group_by(*PLACE, "ep_group", device=pl.col("ep_rank").cast(pl.Int64))
        .agg(pl.col("tokens").sum().cast(pl.Float64), groups=pl.lit(1.0))
    )
    size = pl.col("pp_size").max().fill_null(1) * pl.col("ep_size").max()
    world = pl.coalesce(pl.col("world_size").max(), pl.len())
    groups = tables.ranks.group_by(CAPTURE).agg(
        groups=(world / size).clip(lower_bound=1.0).fill_null(1.0)
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


def _lengths(tables: ExpertTables, lengths: pl.DataFrame | None) -> pl.DataFrame:
    """The longest step of each stage, of all ranks where stage is NULL: _LENGTHS."""
    if lengths is None:
        return pl.DataFrame(schema=_LENGTHS)
    longest = pl.col("step_ns").max()
    rows = lengths.join(tables.ranks.select(*_RANK, stage="pp_rank"), on=_RANK, how="left")
    of_stages = rows.filter(pl.col("stage").is_not_null())
    frames = [
        of_stages.group_by(*CAPTURE, "step", "stage").agg(longest),
        rows.with_columns(stage=pl.lit(None, pl.Int32))
        .group_by(*CAPTURE, "step", "stage")
        .agg(longest),
    ]
    return pl.concat([one.select(pl.col(n).cast(t) for n, t in _LENGTHS.items()) for one in frames])
