"""Whether to move experts now, which, and what that gains.

The load of the next steps is forecast; for each layer there are several placements: as it is, what
our search finds from scratch (with a cost also where devices may be fuller than EPLB's fullest, if
only it is faster), and what it finds by changing what is there. A layer takes the one whose gain
over the horizon, less what its moves cost, is greatest.

A gain is expected over the loads that may come: forecasts missed as they were in the back-test.
So it already pays for forecast errors, and is less than the gain at the forecast itself, which the
placement was made for. Its interval is the 5 % to 95 % of those loads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import polars as pl

from npuscope.errors import UsageError
from npuscope.messages import Message

from .eplb import is_hierarchical
from .forecast import QUANTILES, BackTest, checked_loads
from .placement import (
    Floats,
    Placement,
    align_devices,
    checked_sizes,
    experts_to_send,
    max_over_mean,
    twins,
)
from .placement_search import Limits, improve, search
from .plan_inputs import checked_memory, forecast_loads, placed_now
from .step_time import TOKENS_ONLY, Cost, break_even_steps, is_worth, layer_times, migration_ns

HORIZON = 50  # steps; as often as MindSpeed's planner looks again


@dataclass(frozen=True, slots=True)
class Total:
    """All layers of a plan together; times in ns per step, None where no cost is known.

    before_ns, after_ns: layers of a pipeline stage one after the other, in the slowest stage.
    gain_low_ns, gain_high_ns: 5 % and 95 % of one step's gain, None without a back-test.
    migration_ns: to move once, None where bytes or link are unknown. trigger: whether moving pays
    over the horizon, None where that cannot be said.
    """

    before_ns: float | None
    after_ns: float | None
    gain_ns: float | None
    gain_low_ns: float | None
    gain_high_ns: float | None
    moved_experts_count: int
    migration_bytes: int | None
    migration_ns: float | None
    break_even_steps: float | None
    trigger: bool | None


@dataclass(frozen=True, slots=True)
class Plan:
    """A placement and what is expected of it.

    rows: layer, max_over_mean_before, max_over_mean_after, predicted_gain_ns (null without a cost),
    moved_experts_count, migration_bytes (null where unknown); one per layer. placement, before:
    [layers, devices, slots]. method: the forecast that was used; tested: its back-test, None where
    steps are too few; error_ratio: its error (`forecast`). load: forecast [layers, experts].
    """

    rows: pl.DataFrame
    total: Total
    placement: Placement
    before: Placement
    layers: tuple[int, ...]
    horizon: int
    method: str
    error_ratio: float | None
    back_test: BackTest | None
    load: Floats
    notes: tuple[str, ...]


def plan(
    loads: npt.ArrayLike,
    *,
    devices: int,
    nodes: int = 1,
    slots: int | None = None,
    groups: int = 1,
    layers: Sequence[int] | None = None,
    stages: Sequence[int] | None = None,
    expert_bytes: int | None = None,
    memory_bytes: int | None = None,
    cost: Cost | None = None,
    current: npt.ArrayLike | None = None,
    horizon: int = HORIZON,
    max_replicas: int | None = None,
    max_moved: int | None = None,
) -> Plan:
    """Plan for loads [steps, layers, experts], tokens, oldest step first.

    slots: of a device (None: as many as experts need, without replicas). layers: their numbers
    (None: 0, 1, ...). stages: the pipeline stage of each layer (None: one): stages work at the same
    time. expert_bytes: one expert's weights and optimizer state; memory_bytes: what a device has
    for all its experts. current: placement [layers, devices, slots] (None: experts in their order).
    max_moved: experts a layer may send. Raises UsageError, with the numbers, for what cannot be.
    """
    counts = checked_loads(loads)
    _, count, experts = counts.shape
    named = tuple(range(count)) if layers is None else tuple(int(one) for one in layers)
    of_stage = np.zeros(count, dtype=np.int64) if stages is None else np.asarray(stages)
    if len(named) != count or len(of_stage) != count:
        raise UsageError(
            f"loads have {count} layers, {len(named)} were named and {len(of_stage)} have a stage"
        )
    if horizon < 1 or (max_moved is not None and max_moved < 0):
        raise UsageError(f"horizon must be 1 or more, moves 0 or more: {horizon}, {max_moved}")
    slot_count = -(-experts // devices) if slots is None and devices > 0 else (slots or 0)
    checked_sizes(experts, devices, slot_count, nodes)
    if slots is None and current is None and max_replicas is None:
        if devices > experts:
            raise UsageError(
                Message(
                    "{devices} devices hold the {experts} experts of a layer that are known only"
                    " with replicas: give --slots, or --devices {experts} at most",
                    devices=devices,
                    experts=experts,
                )
            )
        max_replicas = 1
    checked_memory(count, experts, devices, slot_count, expert_bytes, memory_bytes)
    notes: list[str] = []
    before = placed_now(current, count, experts, devices, slot_count, notes)
    method, tested, load, may_come = forecast_loads(counts, horizon, notes)
    priced = TOKENS_ONLY if cost is None else cost
    if cost is None:
        notes.append(
            "the cost per token is unknown: the plan balances tokens, and its gains are not"
            " converted to time"
        )
    link = (priced.far_bytes_per_s if nodes > 1 else None) or priced.near_bytes_per_s
    migration = None
    if cost is None or expert_bytes is None or link is None:
        notes.append(
            "the cost of moving experts is unknown: expert bytes, token cost or link bandwidth"
            " are missing"
        )
    else:
        migration = partial(
            migration_ns, experts=experts, expert_bytes=expert_bytes, bytes_per_s=link
        )

    limits = Limits(
        stays_on_node=is_hierarchical(experts, groups, nodes), max_replicas=max_replicas
    )
    changes = []
    if migration is not None or max_moved is not None:
        few = replace(limits, origin=before, max_moved=max_moved)
        changes.append(improve(before, load, priced, nodes, few))
    if max_moved is None:
        fresh = search(
            load, devices=devices, slots=slot_count, nodes=nodes, groups=groups, cost=priced,
            max_replicas=max_replicas,
        )  # fmt: skip
        changes.append(align_devices(before, fresh, nodes))
        if cost is not None:
            free = improve(fresh, load, cost, nodes, limits)
            changes.append(align_devices(before, free, nodes))
    was = layer_times(before, may_come, priced, nodes)
    placement = before.copy()
    best = np.zeros(count)
    for change in changes:
        net = (was - layer_times(change, may_come, priced, nodes)).mean(axis=0) * horizon
        if migration is not None:  # of each layer, were it moved alone
            pairs = zip(before[:, None], change[:, None], strict=True)
            net -= np.array([migration(*pair) for pair in pairs])
        better = net > best
        if cost is None:  # what is told of a layer is how even the forecast would be
            better &= max_over_mean(change, load) <= max_over_mean(before, load)
        placement[better], best = change[better], np.maximum(best, net)

    gains = was - layer_times(placement, may_come, priced, nodes)  # [cases, layers]
    sent = experts_to_send(before, placement)
    rows = pl.DataFrame(
        {
            "layer": named,
            "max_over_mean_before": max_over_mean(before, load),
            "max_over_mean_after": max_over_mean(placement, load),
            "predicted_gain_ns": gains.mean(axis=0) if cost else [None] * count,
            "moved_experts_count": sent,
            "migration_bytes": [None] * count if expert_bytes is None else sent * expert_bytes,
        },
        schema=_ROWS,
    ).with_columns(pl.col("max_over_mean_before", "max_over_mean_after").fill_nan(None))
    notes += _layer_notes(rows, placement)
    paid = None if migration is None else migration(before, placement)
    stage_of = of_stage == np.unique(of_stage)[:, None]
    times = [(one @ stage_of.T.astype(np.float64)).max(axis=1) for one in (was, was - gains)]
    total = _total(times, sent, expert_bytes, paid, cost is not None, tested, horizon)
    return Plan(
        rows, total, placement, before, named, horizon, method,
        None if tested is None else tested.errors[method], tested, load, tuple(notes),
    )  # fmt: skip


_ROWS = {
    "layer": pl.Int64,
    "max_over_mean_before": pl.Float64,
    "max_over_mean_after": pl.Float64,
    "predicted_gain_ns": pl.Float64,
    "moved_experts_count": pl.Int64,
    "migration_bytes": pl.Int64,
}


def _layer_notes(rows: pl.DataFrame, placement: Placement) -> list[str]:
    """What to know of layers without tokens, and of those with a device that holds twins."""
    notes: list[str] = []
    empty = rows["max_over_mean_before"].null_count()
    if empty:
        notes.append(Message("{count} layers have no tokens and keep their placement", count=empty))
    twice = int(twins(placement).any(axis=(1, 2)).sum())
    if twice:
        notes.append(
            Message(
                "in {count} layers a device holds two copies of one expert, which serving and "
                "training engines may not support",
                count=twice,
            )
        )
    return notes


def _total(
    times: list[Floats], sent: npt.NDArray[np.int64], expert_bytes: int | None,
    paid: float | None, is_priced: bool, tested: BackTest | None, horizon: int,
) -> Total:  # fmt: skip
    each = times[0] - times[1]
    before, gain = float(times[0].mean()), float(each.mean())
    low, high = (float(one) for one in np.quantile(each, (QUANTILES[0], QUANTILES[-1])))
    has_range = is_priced and tested is not None
    count = int(sent.sum())
    return Total(
        before_ns=before if is_priced else None,
        after_ns=before - gain if is_priced else None,
        gain_ns=gain if is_priced else None,
        gain_low_ns=low if has_range else None,
        gain_high_ns=high if has_range else None,
        moved_experts_count=count,
        migration_bytes=None if expert_bytes is None else count * expert_bytes,
        migration_ns=paid,
        break_even_steps=None if paid is None else break_even_steps(paid, gain),
        trigger=None if paid is None else count > 0 and is_worth(paid, gain, horizon),
    )
