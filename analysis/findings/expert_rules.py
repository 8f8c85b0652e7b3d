"""Findings about expert load: devices that get more tokens than others."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

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
        f"{name} {ms(value)} ms"
        for name, value in (
            ("grouped matmuls", experts.cost["grouped_excess_ns"]),
            ("activations", experts.cost["activation_excess_ns"]),
            ("all-to-alls", experts.cost["exchange_exposed_ns"]),
        )
        if value is not None
    ]
    evidence = [
        name
        for name in ("layer", "device_max_over_mean", "max_over_mean", "hottest_expert",
                     "hottest_device", "excess_ns")
        if name in layers.columns
    ]  # fmt: skip
    where = "all layers together" if worst["layer"] is None else f"layer {worst['layer']}"
    is_planned = experts.item == "expert" and experts.devices_count is not None
    yield stated(
        seen,
        "expert_imbalance",
        f"Expert load is imbalanced, which costs {ms(stake_ns)} ms per step"
        f" ({percent(share(stake_ns, seen))} of it); most in {where}, whose most loaded device has"
        f" {worst['device_max_over_mean']:.2f} times the mean.",
        stake_ns,
        "estimated",
        f"Time of the most loaded devices above the mean ({', '.join(parts)}), from kernel times"
        " fitted to tokens; for the pipeline stage with the largest cost.",
        (_PLAN if is_planned else _COLLECT) + _BALANCE,
        layers.select(evidence),
        f"npuscope experts plan PATH --devices {experts.devices_count}"
        if is_planned
        else "npuscope experts PATH --by cost",
    )
