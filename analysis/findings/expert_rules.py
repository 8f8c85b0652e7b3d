"""Findings about expert load: devices that get more tokens than others."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from npuscope.messages import Message, joined

from ..wording import ms, percent
from .finding import Finding
from .material import Material
from .weigh import is_worth, share, stated

_PLAN = (
    "Rebalance experts or replicate the hottest ones: the plan gives the placement and its gain;"
)
_COLLECT = (
    "Record tokens per expert with the training hook: a plan then gives the moves and their gain;"
)
_BALANCE = " in training, see whether the balance loss or bias is strong enough."


def expert_imbalance(seen: Material) -> Iterator[Finding]:
    """Devices whose experts get more tokens than others' make the others of their group wait."""
    experts = seen.experts
    if experts is None or experts.cost is None:
        return
    stake_ns = experts.cost["excess_ns"]
    if stake_ns is None or not is_worth(stake_ns, seen):
        return
    layers = experts.layers.filter(pl.col("excess_ns").is_not_null())
    worst = layers.row(0, named=True)
    parts = [
        Message("{what} {ms} ms", what=name, ms=ms(value))
        for name, value in (
            (Message("grouped matmuls"), experts.cost["grouped_excess_ns"]),
            (Message("activations"), experts.cost["activation_excess_ns"]),
            (Message("all-to-alls"), experts.cost["exchange_exposed_ns"]),
        )
        if value is not None
    ]
    evidence = [
        name
        for name in ("layer", "device_max_over_mean", "max_over_mean", "hottest_expert",
                     "hottest_device", "excess_ns")
        if name in layers.columns
    ]  # fmt: skip
    where = Message("all layers together")
    if worst["layer"] is not None:
        where = Message("layer {layer}", layer=worst["layer"])
    is_planned = experts.item == "expert" and experts.devices_count is not None
    yield stated(
        seen,
        "expert_imbalance",
        Message(
            "Expert load is imbalanced, which costs {cost} ms per step ({share} of it); most in"
            " {where}, whose most loaded device has {over} times the mean.",
            cost=ms(stake_ns),
            share=percent(share(stake_ns, seen)),
            where=where,
            over=f"{worst['device_max_over_mean']:.2f}",
        ),
        stake_ns,
        "estimated",
        Message(
            "Time of the most loaded devices above the mean ({parts}), from kernel times fitted "
            "to tokens; for the pipeline stage with the largest cost.",
            parts=joined(parts),
        ),
        (_PLAN if is_planned else _COLLECT) + _BALANCE,
        layers.select(evidence),
        f"npuscope experts plan PATH --devices {experts.devices_count}"
        if is_planned
        else "npuscope experts PATH --by cost",
    )
