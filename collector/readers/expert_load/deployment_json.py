"""Which logical expert sits in which slot of which device, as deployment JSON tells it.

    {"moe_layer_count": 58, "layer_list": [{"layer_id": 0, "device_count": 64, "device_list": [
        {"device_id": 0, "device_expert": [12, 0, 7, 201, 12]}, ...]}, ...]}

Written by MindIE's and vllm-ascend's load balancers and by MindSpeed-RL. One expert may sit in
several slots: replicas. A device is a position in the expert-parallel group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import polars as pl

from npuscope.errors import TraceFormatError, TraceNotFound
from npuscope.messages import Message

from ...small_files import decode, read_small
from .load_frames import PLACEMENT_SCHEMA, few_numbers


@dataclass(frozen=True, slots=True)
class Deployment:
    """`placement`: rows of `expert_placement` in order of layer, device and slot.

    `experts_count`: logical experts of a layer; `slots_count` of all its devices together, of the
    layer with most. `notes`: what does not fit.
    """

    placement: pl.DataFrame
    experts_count: int
    slots_count: int
    notes: tuple[str, ...] = ()


class _Device(msgspec.Struct):
    device_id: int
    device_expert: list[int]


class _Layer(msgspec.Struct):
    layer_id: int
    device_list: list[_Device]
    device_count: int | None = None


class _Map(msgspec.Struct):
    layer_list: list[_Layer]
    moe_layer_count: int | None = None


def read_deployment(path: str | Path) -> Deployment:
    """Read a deployment. An expert below 0 is an empty slot.

    Raises TraceNotFound where there is no such file, TraceFormatError where it is none, or names
    a layer or a device twice.
    """
    path = Path(path)
    try:
        content = decode(read_small(path), _Map)
    except FileNotFoundError as error:
        raise TraceNotFound(f"{path}: no such deployment file") from error
    except msgspec.DecodeError as error:
        raise TraceFormatError(path, "expert deployment", str(error)) from error
    _require_once(path, "layer_list", [layer.layer_id for layer in content.layer_list])
    rows: list[tuple[int, int, int, int]] = []
    for layer in content.layer_list:
        _require_once(path, f"layer {layer.layer_id}", [d.device_id for d in layer.device_list])
        rows += [
            (layer.layer_id, device.device_id, slot, expert)
            for device in layer.device_list
            for slot, expert in enumerate(device.device_expert)
            if expert >= 0
        ]
    if not rows:
        raise TraceFormatError(path, "expert deployment", "no device has an expert")
    try:
        placement = pl.DataFrame(rows, schema=PLACEMENT_SCHEMA, orient="row")
    except (TypeError, OverflowError, pl.exceptions.PolarsError) as error:
        raise TraceFormatError(path, "expert deployment", "numbers beyond 32 bits") from error
    placement = placement.sort("layer", "device", "slot")
    experts_count = int(placement["expert"].n_unique())
    notes = [f"{path.name}: {note}" for note in _misfits(content, placement)]
    slots = placement.group_by("layer").len()["len"].to_list()
    return Deployment(placement, experts_count, max(slots), tuple(notes))


def _require_once(path: Path, where: str, numbers: Sequence[int]) -> None:
    twice = {number for number in numbers if numbers.count(number) > 1}
    if twice:
        what = "layers" if where == "layer_list" else "devices"
        raise TraceFormatError(path, where, f"{what} given twice: {few_numbers(sorted(twice))}")
    if any(number < 0 for number in numbers):
        raise TraceFormatError(path, where, "a number below 0")


def _misfits(content: _Map, placement: pl.DataFrame) -> list[str]:
    notes: list[str] = []
    if content.moe_layer_count not in (None, len(content.layer_list)):
        notes.append(
            Message(
                "{count} layers, but the header says {moe_layer_count}",
                count=len(content.layer_list),
                moe_layer_count=content.moe_layer_count,
            )
        )
    short = [
        layer.layer_id
        for layer in content.layer_list
        if layer.device_count not in (None, len(layer.device_list))
    ]
    if short:
        notes.append(
            Message("other devices than it counts in layers {short}", short=few_numbers(short))
        )
    last = placement.select(pl.col("expert").max()).item()
    per_layer = placement.group_by("layer").agg(pl.col("expert").n_unique().alias("count"))
    lacking = per_layer.filter(pl.col("count") < last + 1)["layer"].sort().to_list()
    if lacking:
        notes.append(
            Message(
                "not all of {last} experts have a slot in layers {lacking}",
                last=last + 1,
                lacking=few_numbers(lacking),
            )
        )
    return notes
