"""Placements of experts: integers [layers, devices, slots], a logical expert each, -1 where empty.

An expert may sit in several slots: its replicas share its tokens evenly. Device d of `nodes` nodes
is on node d // (devices / nodes).

A placement as other programs take it: deployment JSON, and a permutation of experts.

MindIE and vllm-ascend (`expert_map_path`) read one JSON:

    {"moe_layer_count": 58, "layer_list": [{"layer_id": 0, "device_count": 64, "device_list": [
        {"device_id": 0, "device_expert": [5, 17, 203, 9, 40]}, ...]}, ...]}

device_id is the position in the expert-parallel group, device_expert the logical expert of each
slot. Empty slots are not written, so a device's list may be shorter. The collector's reader of
expert deployments reads it back.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from npuscope.errors import UsageError
from npuscope.messages import Message

Floats = npt.NDArray[np.float64]
Placement = npt.NDArray[np.int64]
EMPTY = -1
_SPENT_SLOT = -2


def replicas(placement: Placement, experts: int) -> npt.NDArray[np.int64]:
    """How many slots hold each expert, [layers, experts]."""
    layers = len(placement)
    row, flat = np.arange(layers)[:, None], placement.reshape(layers, -1)
    cells = np.where(flat == EMPTY, layers * experts, row * experts + flat).ravel()
    counted = np.bincount(cells, minlength=layers * experts + 1)[: layers * experts]
    return counted.reshape(layers, experts)


def twins(placement: Placement) -> npt.NDArray[np.bool_]:
    """Slots whose expert an earlier slot of the device holds, [layers, devices, slots]."""
    order = np.argsort(placement, axis=2, kind="stable")
    ordered = np.take_along_axis(placement, order, axis=2)
    same: npt.NDArray[np.bool_] = np.zeros(placement.shape, dtype=np.bool_)
    same[..., 1:] = np.logical_and(ordered[..., 1:] == ordered[..., :-1], ordered[..., 1:] != EMPTY)
    is_twin: npt.NDArray[np.bool_] = np.zeros(placement.shape, dtype=np.bool_)
    np.put_along_axis(is_twin, order, same, axis=2)
    return is_twin


def fill_slots(
    placement: Placement,
    load: Floats,
    max_replicas: int | None = None,
    home_nodes: int = 1,
) -> Placement:
    """The same with a replica in empty slots: of the expert that brings the fewest tokens.

    Left out are experts that the device holds, that have max_replicas, and that none of its node
    (of home_nodes) holds. Where nobody is left the slot stays empty. load: [layers, experts].
    """
    layers, devices, slots = placement.shape
    per_node, experts = devices // home_nodes, load.shape[1]
    limit = devices * slots if max_replicas is None else max_replicas
    result, empty = placement.copy(), placement == EMPTY
    at = np.arange(layers)
    while empty.any():
        rows = at[empty.any(axis=(1, 2))]
        row, now, tokens = np.arange(len(rows)), result[rows], load[rows]
        device, slot = np.divmod(empty[rows].reshape(len(rows), -1).argmax(axis=1), slots)
        copies, held = replicas(now, experts), held_by(now, experts)
        mine = held[row, device]
        on_node = np.asarray(held.reshape(len(rows), home_nodes, per_node, -1).any(axis=2))
        brings = tokens / (copies + 1)
        shut = mine | (copies >= limit)
        if home_nodes > 1:
            shut |= ~on_node[row, device // per_node]
        brings[shut] = np.inf
        is_one = np.isfinite(brings.min(axis=1))
        result[rows, device, slot] = np.where(is_one, brings.argmin(axis=1), EMPTY)
        empty[rows, device, slot] = False
    return result


def slot_tokens(placement: Placement, load: Floats) -> Floats:
    """Tokens of each slot, [..., layers, devices, slots]; load is [..., layers, experts]."""
    layers, devices, slots = placement.shape
    each = load / np.maximum(replicas(placement, load.shape[-1]), 1)
    flat = placement.reshape(layers, -1)
    slot_shares = each[..., np.arange(layers)[:, None], np.maximum(flat, 0)]
    tokens: Floats = np.where(flat == EMPTY, 0.0, slot_shares)
    return tokens.reshape(*load.shape[:-1], devices, slots)


def device_tokens(placement: Placement, load: Floats) -> Floats:
    """Tokens of each device, [..., layers, devices]."""
    summed: Floats = slot_tokens(placement, load).sum(axis=-1)
    return summed


def max_over_mean(placement: Placement, load: Floats) -> Floats:
    """Tokens of the fullest device by those of the mean one, [..., layers]; NaN without tokens."""
    tokens = device_tokens(placement, load)
    mean = tokens.mean(axis=-1)
    unknown = np.full_like(mean, np.nan)
    ratio: Floats = np.divide(tokens.max(axis=-1), mean, out=unknown, where=mean > 0)
    return ratio


def contiguous(layers: int, experts: int, devices: int, slots: int) -> Placement:
    """Experts in their order, as many on each device, none twice: how training starts."""
    each = -(-experts // devices)
    ids = np.full(devices * each, EMPTY, dtype=np.int64)
    ids[:experts] = np.arange(experts)
    one = np.full((devices, slots), EMPTY, dtype=np.int64)
    one[:, :each] = ids.reshape(devices, each)
    return np.repeat(one[None], layers, axis=0)


def equal_count(load: Floats, *, devices: int, slots: int) -> Placement:
    """Largest first, each to the least loaded device with room; no replicas.

    load: [layers, experts]. A device takes ceil(experts / devices) experts at most (source of the
    rule: MindSpeed's planner); slots beyond stay empty.
    """
    layers, experts = load.shape
    each = -(-experts // devices)
    at = np.arange(layers)
    held = np.zeros((layers, devices))
    filled = np.zeros((layers, devices), dtype=np.int64)
    placement = np.full((layers, devices, slots), EMPTY, dtype=np.int64)
    for expert in np.argsort(-load, axis=1, kind="stable").T:
        device = np.where(filled < each, held, np.inf).argmin(axis=1)
        placement[at, device, filled[at, device]] = expert
        held[at, device] += load[at, expert]
        filled[at, device] += 1
    return placement


def checked_sizes(experts: int, devices: int, slots: int, nodes: int = 1) -> None:
    """Raises UsageError, with the numbers, where so many experts cannot be placed."""
    if min(devices, slots, nodes) < 1:
        raise UsageError(
            Message(
                "devices, slots and nodes must be 1 or more: got {devices}, {slots} and {nodes}",
                devices=devices,
                slots=slots,
                nodes=nodes,
            )
        )
    if devices % nodes:
        reason = "{devices} devices cannot be shared evenly by {nodes} nodes"
        raise UsageError(Message(reason, devices=devices, nodes=nodes))
    if devices * slots < experts:
        raise UsageError(
            Message(
                "{devices} devices x {slots} slots = {all} hold fewer than the {experts} experts of"
                " a layer: {needed} slots are needed",
                devices=devices,
                slots=slots,
                all=devices * slots,
                experts=experts,
                needed=-(-experts // devices),
            )
        )


def checked_placement(placement: npt.ArrayLike, layers: int, experts: int) -> Placement:
    """The placement [layers, devices, slots] of experts, EMPTY where a slot has none, as int64.

    Raises UsageError where it has another shape or lacks one of the experts.
    """
    array = np.asarray(placement)
    if array.ndim != 3 or len(array) != layers or not np.issubdtype(array.dtype, np.integer):
        raise UsageError(
            f"a placement must be integers [{layers} layers, devices, slots]: got {array.dtype}"
            f" {array.shape}"
        )
    whole = array.astype(np.int64)
    if whole.min() < EMPTY or whole.max() >= experts:
        raise UsageError(
            f"the placement names experts {whole.min()} to {whole.max()}; there are {experts}"
        )
    lost = np.argwhere(replicas(whole, experts) == 0)
    if len(lost):
        layer, expert = lost[0]
        raise UsageError(
            f"the placement has no slot for {len(lost)} experts, the first expert {expert} of"
            f" layer row {layer}"
        )
    return whole


def with_slots(placement: Placement, slots: int) -> Placement:
    """The same with empty slots added to each device; UsageError where it has more than `slots`."""
    missing = slots - placement.shape[2]
    if missing < 0:
        raise UsageError(
            Message(
                "the current placement has {count} slots per device, the plan {slots}: give {count}"
                " or more",
                count=placement.shape[2],
                slots=slots,
            )
        )
    return np.pad(placement, ((0, 0), (0, 0), (0, missing)), constant_values=EMPTY)


def held_by(placement: Placement, experts: int) -> npt.NDArray[np.bool_]:
    """Whether a device holds an expert, [layers, devices, experts]."""
    layers, devices, _ = placement.shape
    held = np.zeros((layers, devices, experts + 1), dtype=np.bool_)
    row, device = np.ogrid[:layers, :devices]
    held[row[..., None], device[..., None], placement] = True  # -1 is the last, cut off below
    return held[..., :experts]


def arrivals(old: Placement, new: Placement, experts: int) -> npt.NDArray[np.bool_]:
    """Experts a device holds in `new` and did not in `old`, [layers, devices, experts]."""
    return held_by(new, experts) & ~held_by(old, experts)


def experts_to_send(old: Placement, new: Placement) -> npt.NDArray[np.int64]:
    """Experts that devices must be sent, per layer: those they hold now and did not hold before."""
    experts = int(max(old.max(), new.max())) + 1
    sent: npt.NDArray[np.int64] = arrivals(old, new, experts).sum(axis=(1, 2))
    return sent


def align_devices(old: Placement, new: Placement, nodes: int = 1) -> Placement:
    """`new` with its nodes, devices and slots renamed so that more stays where it is in `old`.

    Devices of a node are alike, and so are nodes: no balance changes. Nodes, then the devices of
    matched nodes are matched greedily, most shared experts first. Experts that stay keep their
    slot. Both [layers, devices, slots].
    """
    experts = int(max(old.max(), new.max())) + 1
    layers, devices, _ = new.shape
    per_node = devices // nodes
    shared = np.matmul(
        held_by(old, experts).astype(np.float32),
        held_by(new, experts).astype(np.float32).transpose(0, 2, 1),
    )  # [layers, old device, new device]
    split = shared.reshape(layers, nodes, per_node, nodes, per_node)
    node_of = _match(split.sum(axis=(2, 4)))
    inside = split.transpose(0, 1, 3, 2, 4)[np.arange(layers)[:, None], np.arange(nodes), node_of]
    within = _match(inside.reshape(-1, per_node, per_node)).reshape(layers, nodes, per_node)
    device_of = (node_of[..., None] * per_node + within).reshape(layers, devices)
    return _same_slots(old, new[np.arange(layers)[:, None], device_of])


def _match(shared: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """For each row of shared [X, n, n] a column of its own, greatest entries first."""
    left = shared.copy()
    count, size, _ = left.shape
    at = np.arange(count)
    matches = np.zeros((count, size), dtype=np.int64)
    for _ in range(size):
        row, column = np.divmod(left.reshape(count, -1).argmax(axis=1), size)
        matches[at, row] = column
        left[at, row, :] = -1
        left[at, :, column] = -1
    return matches


def _same_slots(old: Placement, new: Placement) -> Placement:
    """The experts of each device in `new`, those also in `old` in the slots they had."""
    rest = np.where(new == EMPTY, _SPENT_SLOT, new)
    result = np.full_like(new, _SPENT_SLOT)
    for slot in range(old.shape[2]):
        was = old[..., slot]
        hit = (rest == was[..., None]) & (was[..., None] != EMPTY)
        is_there = hit.any(axis=-1)
        result[..., slot] = np.where(is_there, was, _SPENT_SLOT)
        rest[is_there, hit.argmax(axis=-1)[is_there]] = _SPENT_SLOT
    order = np.argsort(rest == _SPENT_SLOT, axis=-1, kind="stable")
    queue = np.take_along_axis(rest, order, axis=-1)
    free = result == _SPENT_SLOT
    result = np.where(free, np.take_along_axis(queue, np.cumsum(free, axis=-1) - free, -1), result)
    return np.where(result == _SPENT_SLOT, EMPTY, result)


def deployment_json(placement: Placement, layers: Sequence[int]) -> str:
    """Deployment JSON of a placement [layers, devices, slots]; layers are the layer_ids."""
    _checked_layers(placement, layers)
    content = {
        "moe_layer_count": len(layers),
        "layer_list": [
            {
                "layer_id": int(layer),
                "device_count": len(devices),
                "device_list": [
                    {"device_id": at, "device_expert": [one for one in held if one != EMPTY]}
                    for at, held in enumerate(devices)
                ],
            }
            for layer, devices in zip(layers, placement.tolist(), strict=True)
        ],
    }
    return json.dumps(content, indent=1) + "\n"


def permutation_json(placement: Placement, layers: Sequence[int], experts: int) -> str:
    """The placement as lists of slots: which expert each holds, and where each expert is.

    Slots count through the devices: slot s of device d is d x slots + s. `physical_to_logical` has
    -1 for an empty slot; `logical_to_physical` lists every replica. Without replicas and empty
    slots the first is a permutation of the experts and the second its inverse.
    """
    _checked_layers(placement, layers)
    content: dict[str, Any] = {"experts_count": experts, "layers": []}
    for layer, flat in zip(layers, placement.reshape(len(layers), -1), strict=True):
        order = np.argsort(flat, kind="stable")
        edges = np.searchsorted(flat[order], np.arange(experts + 1))
        content["layers"].append({
            "layer_id": int(layer),
            "physical_to_logical": flat.tolist(),
            "logical_to_physical": [
                one.tolist() for one in np.split(order, edges)[1:-1]
            ],
        })  # fmt: skip
    return json.dumps(content) + "\n"


def _checked_layers(placement: Placement, layers: Sequence[int]) -> None:
    if len(layers) != len(placement):
        raise UsageError(f"the placement has {len(placement)} layers, {len(layers)} were named")
