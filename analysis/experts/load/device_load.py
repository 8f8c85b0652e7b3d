"""Tokens on devices and nodes: measured where the holder is told, else by the placement.

A device is a position in the expert-parallel group. Several such groups (data parallel) add up.
"""

from __future__ import annotations

import polars as pl

from .imbalance import PLACE, expert_loads

MEASURED, PLACEMENT, CONTIGUOUS = "measured", "placement", "contiguous"


def device_loads(
    rows: pl.DataFrame,
    placement: pl.DataFrame | None = None,
    *,
    devices: int | pl.DataFrame | None = None,
    loads: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """Tokens of each device: PLACE, device, tokens (Float64), basis; sorted.

    `rows` are of `expert_load`, `placement` of `expert_placement`, `loads` what
    `imbalance.expert_loads` makes of the rows, computed where they are not given. A layer whose
    rows all tell `ep_rank` is measured: device = ep_rank; the expert may be unknown, and the layer
    (NULL: all of them). Any other layer goes by where its experts are (`expert_places`). Layers
    with none of these are left out.
    """
    rows_with_tokens = rows.filter(pl.col("tokens").is_not_null())
    is_told = pl.col("ep_rank").is_not_null().all().over(*PLACE)
    measured = (
        rows_with_tokens.filter(is_told)
        .group_by(*PLACE, pl.col("ep_rank").cast(pl.Int64).alias("device"))
        .agg(pl.col("tokens").sum().cast(pl.Float64))
        .with_columns(basis=pl.lit(MEASURED))
    )
    rest = (expert_loads(rows_with_tokens) if loads is None else loads).join(
        measured.select(PLACE).unique(), on=PLACE, how="anti", nulls_equal=True
    )
    return pl.concat([measured, expert_places(rest, placement, devices)]).sort(
        *PLACE, "device", nulls_last=True
    )


def expert_places(
    loads: pl.DataFrame, placement: pl.DataFrame | None, devices: int | pl.DataFrame | None
) -> pl.DataFrame:
    """PLACE, device, tokens (Float64), basis, from loads of experts and where they are: by the
    `placement` (see `placed_loads`), or, where that does not have a layer and `devices` are given,
    in equal blocks in their order, as Megatron lays them out (`contiguous_placement`)."""
    nowhere = loads.clear().with_columns(
        device=pl.lit(0, pl.Int64), tokens=pl.lit(0.0), basis=pl.lit(PLACEMENT)
    )
    places = [nowhere.select(*PLACE, "device", "tokens", "basis")]
    if placement is not None and not placement.is_empty():
        rows = placed_loads(loads, placement)
        places.append(rows.with_columns(basis=pl.lit(PLACEMENT)))
        loads = loads.join(rows.select(PLACE).unique(), on=PLACE, how="anti", nulls_equal=True)
    if devices is not None:
        layout = contiguous_placement(loads, devices)
        places.append(placed_loads(loads, layout).with_columns(basis=pl.lit(CONTIGUOUS)))
    return pl.concat(places)


def placed_loads(loads: pl.DataFrame, placement: pl.DataFrame) -> pl.DataFrame:
    """What a placement makes of loads: PLACE, device, tokens (Float64).

    Replicas of a logical expert share its tokens evenly; two on one device count twice. Ranks that
    tell the same slot tell it once. Devices without tokens stand with 0; a layer of which the
    placement lacks a loaded expert is left out, as its tokens would be too few.
    """
    keys = [name for name in ("run", "capture") if name in placement.columns]
    held = placement.select(*keys, "layer", "device", "slot", "expert").unique()
    held = held.filter(pl.col("expert") >= 0).with_columns(
        share=1.0 / pl.len().over(*keys, "layer", "expert"), device=pl.col("device").cast(pl.Int64)
    )
    loads_of_experts = loads.join(held, on=[*keys, "layer", "expert"], how="left", nulls_equal=True)
    lost = (
        loads_of_experts.filter(pl.col("device").is_null(), pl.col("tokens") > 0)
        .select(PLACE)
        .unique()
    )
    places = loads.select(PLACE).unique().join(lost, on=PLACE, how="anti", nulls_equal=True)
    everywhere = places.join(
        held.select(*keys, "layer", "device").unique(), on=[*keys, "layer"], nulls_equal=True
    )
    on_device = (
        loads_of_experts.filter(pl.col("device").is_not_null())
        .group_by(*PLACE, "device")
        .agg((pl.col("tokens") * pl.col("share")).sum())
    )
    return (
        everywhere.join(on_device, on=[*PLACE, "device"], how="left", nulls_equal=True)
        .with_columns(pl.col("tokens").fill_null(0.0))
        .select(*PLACE, "device", "tokens")
        .sort(*PLACE, "device", nulls_last=True)
    )


def contiguous_placement(loads: pl.DataFrame, devices: int | pl.DataFrame) -> pl.DataFrame:
    """Experts 0..E-1 in equal blocks on `devices`: run, capture, layer, device, slot, expert.

    `devices`: how many, of all captures, or run, capture, devices. E is the highest expert of any
    layer of the capture and one; captures whose E the devices do not divide have no rows.
    """
    experts = loads.group_by("run", "capture").agg((pl.col("expert").max() + 1).alias("experts"))
    if isinstance(devices, int):
        counted = experts.with_columns(devices=pl.lit(devices))
    else:
        counted = experts.join(devices, on=["run", "capture"])
    blocks = counted.with_columns(held=pl.col("experts") // pl.col("devices"))
    return (
        loads.select("run", "capture", "layer")
        .unique()
        .join(blocks.filter(pl.col("experts") % pl.col("devices") == 0), on=["run", "capture"])
        .with_columns(expert=pl.int_ranges(0, "experts"))
        .explode("expert")
        .select(
            "run", "capture", "layer",
            (pl.col("expert") // pl.col("held")).alias("device"),
            (pl.col("expert") % pl.col("held")).alias("slot"),
            "expert",
        )
    )  # fmt: skip


def with_imbalance(loads: pl.DataFrame, item: str = "device") -> pl.DataFrame:
    """Loads of devices or nodes with `{item}_max_over_mean` of their layer.

    NULL without tokens, and where only one is told: there is nothing to compare it with.
    """
    over = pl.col("tokens").max().over(*PLACE) / pl.col("tokens").mean().over(*PLACE)
    some = (pl.col("tokens").sum().over(*PLACE) > 0) & (pl.len().over(*PLACE) > 1)
    return loads.with_columns(pl.when(some).then(over).alias(f"{item}_max_over_mean"))


def node_loads(loads: pl.DataFrame, nodes: pl.DataFrame) -> pl.DataFrame:
    """Tokens of each node: PLACE, node, devices_count, tokens, basis.

    `loads` is from `device_loads`; `nodes` says of each device its node: run, capture, device,
    node. A layer with a device whose node is not known is left out.
    """
    rows = loads.join(nodes, on=["run", "capture", "device"], how="left")
    whole = rows.filter(pl.col("node").is_not_null().all().over(*PLACE))
    return (
        whole.group_by(*PLACE, "node")
        .agg(
            pl.len().cast(pl.Int64).alias("devices_count"),
            pl.col("tokens").sum(),
            pl.col("basis").first(),
        )
        .sort(*PLACE, "node", nulls_last=True)
    )
