"""Where our search begins: the better of EPLB's and largest first, and replicas spread over nodes.

A device that holds an expert twice has a slot for nothing: it gets an expert with few tokens.
"""

from __future__ import annotations

import numpy as np

from ..cost.step_time import Cost, compute_ns, predicted
from .placement import EMPTY, Floats, Placement, equal_count, filled, replicas, twins


def starts(
    theirs: Placement,
    load: Floats,
    cost: Cost,
    nodes: int,
    max_replicas: int | None,
    *,
    stays_on_node: bool,
) -> list[Placement]:
    """Placements to improve, `theirs` being EPLB's; one only where experts stay on their node."""

    def apart(placement: Placement) -> Placement:
        once = np.where(twins(placement), EMPTY, placement)
        return filled(once, load, max_replicas, nodes if stays_on_node else 1)

    if stays_on_node:
        return [apart(theirs)]
    _, devices, slots = theirs.shape
    plain = apart(equal_count(load, devices=devices, slots=slots))
    single = apart(theirs)
    is_plain = predicted(plain, load, cost, nodes) < predicted(single, load, cost, nodes)
    found = [np.where(is_plain[:, None, None], plain, single)]
    if nodes > 1 and cost.far_ns() > cost.near_ns():
        found.append(apart(spread(single, load, cost, nodes)))
    return found


def spread(placement: Placement, load: Floats, cost: Cost, nodes: int) -> Placement:
    """The same replicas, each where it is done first, heaviest first.

    A second replica on one node serves fewer tokens of that node than one on another node would:
    that is in its time, so replicas spread over nodes. See `step_time` for the times.
    """
    layers, devices, slots = placement.shape
    per_node = devices // nodes
    experts = load.shape[1]
    copies = replicas(placement, experts)
    inside = cost.near_ns() * (per_node - 1) / per_node
    flat = placement.reshape(layers, -1)
    row = np.arange(layers)
    expert = np.maximum(flat, 0)
    tokens = np.where(flat == EMPTY, 0.0, (load / np.maximum(copies, 1))[row[:, None], expert])
    on_node = np.zeros((layers, experts, nodes), dtype=np.int64)
    held = np.zeros((layers, devices))
    filled = np.zeros((layers, devices), dtype=np.int64)
    result = np.full_like(placement, EMPTY)
    for item in np.argsort(-tokens, axis=1, kind="stable").T:
        one, weight, is_one = expert[row, item], tokens[row, item], flat[row, item] != EMPTY
        here = on_node[row, one] + 1
        near = np.minimum(1.0, copies[row, one][:, None] / (nodes * here))
        sent = weight[:, None] * (near * inside + (1 - near) * cost.far_ns())
        takes = compute_ns(weight, cost)[:, None] + np.repeat(sent, per_node, axis=1)
        device = np.where(filled < slots, held + takes, np.inf).argmin(axis=1)
        result[row, device, filled[row, device]] = np.where(is_one, one, EMPTY)
        held[row, device] += takes[row, device]
        filled[row, device] += 1
        on_node[row, one, device // per_node] += is_one
    return result
