"""The part of a report on expert load: worst layers, hottest experts, what that costs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import polars as pl

from npuscope.analysis import query
from npuscope.analysis.experts.load.load_overview import Overview, hottest
from npuscope.analysis.wording import ms, plain

from ..terminal.experts.expert_tables import ratio
from ..terminal.tables import Column, FittedTable
from .blocks import Block, Chart, Sentence

_HOTTEST = 3
NO_LOAD = "Expert load: no tokens per expert were recorded, and no kernel shows them"
COLLECT = (
    "the trace gives tokens per device only: a plan needs tokens per expert, from the training"
    " hook (tokens_per_expert) or the server's dumps"
)


def experts_blocks(seen: Overview | None, *, top: int, path: str) -> Iterator[Block]:
    """What a report says of expert load."""
    if seen is None:
        yield Sentence(NO_LOAD)
        return
    if verdict := _verdict(seen):
        yield Sentence(*verdict)
    if hot := _hottest(seen):
        yield Sentence(hot)
    phase = seen.loads["phase"].drop_nulls()
    shown = seen.loads.filter(pl.col("phase") == phase[0]) if len(phase) else seen.loads
    known = shown.drop_nulls("layer")
    if known.height and known["layer"].n_unique() > 1:
        yield Chart("experts", known)
    more = seen.layers.height - top
    yield FittedTable(
        _columns(seen),
        seen.layers.head(top).to_dicts(),
        "Expert load by layer (mean of steps)",
        f"and {more} more: `npuscope experts`" if more > 0 else None,
    )
    for note in seen.notes:
        yield Sentence(note)
    if seen.item == "device":
        yield Sentence(COLLECT)
    elif seen.devices_count and seen.devices_count > 1:
        command = f"npuscope experts plan {shlex.quote(path)} --devices {seen.devices_count}"
        yield Sentence(f"a better placement and its gain: `{command}`")


def experts_rows(seen: Overview | None) -> dict[str, Any] | None:
    """The same for programs; None where it is not known."""
    if seen is None:
        return None
    return {
        "item": seen.item,
        "layers": query.rows(seen.layers),
        "hottest": query.rows(hottest(seen, _HOTTEST)),
        "cost": seen.cost,
        "devices_count": seen.devices_count,
        "notes": list(seen.notes),
    }


def _verdict(seen: Overview) -> tuple[str, str] | None:
    devices = seen.layers["device_max_over_mean"].drop_nulls()
    if seen.item == "device" and devices.is_empty():
        return None
    told = "experts: "
    if seen.item == "expert":
        told += (
            f"the most loaded expert of a layer has {_mean(seen, 'max_over_mean')} times the mean"
        )
        told += ", " if len(devices) else ""
    if len(devices):
        mean = _mean(seen, "device_max_over_mean")
        told += f"the most loaded device has {mean} times the mean of its group"
    if seen.cost is None or seen.cost["excess_ns"] is None:
        return told, ""
    return f"{told}; ", f"the imbalance costs {ms(seen.cost['excess_ns'])} ms per step"


def _mean(seen: Overview, column: str) -> str:
    mean = seen.mean_of(column)
    return "an unknown number of" if mean is None else f"{mean:.2f}"


def _hottest(seen: Overview) -> str:
    found = hottest(seen, _HOTTEST)
    if found.is_empty():
        return ""
    listed = ", ".join(
        f"expert {row['expert']} of layer {row['layer']} ({row['over_mean']:.2f})"
        for row in found.to_dicts()
    )
    return f"hottest, times the mean of the layer: {listed}"


def _columns(seen: Overview) -> list[Column]:
    of_experts = [
        Column("max/mean", "max_over_mean", ratio),
        Column("worst", "worst_max_over_mean", ratio, 3),
        Column("hottest expert", "hottest_expert", plain),
        Column("cold experts", "cold_count", _tenths, 2),
    ]
    columns = [
        Column("layer", "layer", plain),
        *(of_experts if seen.item == "expert" else []),
        Column("device max/mean", "device_max_over_mean", ratio),
        Column("fullest device", "hottest_device", plain, 1),
        Column("costs ms", "excess_ns", ms),
    ]
    if seen.layers["phase"].n_unique() > 1:
        columns.insert(0, Column("phase", "phase"))
    return [c for c in columns if c.key == "layer" or seen.layers[c.key].is_not_null().any()]


def _tenths(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
