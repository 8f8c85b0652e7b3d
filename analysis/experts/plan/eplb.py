"""The placement EPLB publishes: replicas for the heaviest experts, packed largest first.

Where the router picks groups of experts, and groups share nodes evenly (source of the algorithm:
the description of deepseek-ai/EPLB):

    1. groups go to nodes, as many to each: the heaviest first, to the lightest node with room
    2. in each node spare slots become replicas, one at a time, of the expert whose single
       replicas are heaviest
    3. what a node holds goes to its devices as groups went to nodes

Otherwise all is one node and one group.
"""

from __future__ import annotations

import numpy as np

from npuscope.errors import UsageError
from npuscope.messages import Message

from .placement import EMPTY, Floats, Placement, checked_sizes


def is_hierarchical(experts: int, groups: int, nodes: int) -> bool:
    """Whether groups of experts stay on their nodes: nodes share groups evenly, and are several."""
    if groups < 1 or experts % groups:
        raise UsageError(
            Message(
                "{experts} experts do not make {groups} groups of equal size",
                experts=experts,
                groups=groups,
            )
        )
    return nodes > 1 and groups % nodes == 0


def eplb(
    load: Floats,
    *,
    devices: int,
    slots: int,
    nodes: int = 1,
    groups: int = 1,
    max_replicas: int | None = None,
) -> Placement:
    """Placement [layers, devices, slots] for load [layers, experts], tokens.

    max_replicas limits the slots of one expert (not in EPLB; None: no limit): slots that nobody may
    fill stay empty. Raises UsageError where slots are too few, and groups or nodes uneven.
    """
    layers, experts = load.shape
    checked_sizes(experts, devices, slots, nodes)
    limit = devices * slots if max_replicas is None else max_replicas
    if limit < 1:
        raise UsageError(f"an expert needs a slot: replicas were limited to {limit}")
    if not is_hierarchical(experts, groups, nodes):
        nodes = groups = 1
    size, per_node = experts // groups, devices // nodes
    if nodes == 1:
        members = np.broadcast_to(np.arange(experts), (layers, 1, experts))
    else:
        weight = load.reshape(layers, groups, size).sum(axis=2)
        node_groups = pack(weight, nodes)
        members = (node_groups[..., None] * size + np.arange(size)).reshape(layers, nodes, -1)
    inside = np.take_along_axis(load[:, None], members, axis=2).reshape(layers * nodes, -1)
    local, each = _replicate(inside, per_node * slots, limit)
    slots_of = pack(each, per_node)
    rows = np.arange(layers * nodes)[:, None, None]
    owner = local[rows, slots_of].reshape(layers, nodes, per_node * slots)
    named = np.take_along_axis(members, np.maximum(owner, 0), axis=2)
    return np.where(owner == EMPTY, EMPTY, named).reshape(layers, devices, slots)


def pack(weights: Floats, packs: int) -> Placement:
    """Items of each pack, [X, packs, n / packs], for weights [X, n].

    Heaviest first, each to the lightest pack with room. UsageError where n is no multiple of packs.
    """
    count, items = weights.shape
    if items % packs:
        raise UsageError(f"{items} items cannot be shared evenly by {packs} packs")
    room = items // packs
    at = np.arange(count)
    held = np.zeros((count, packs))
    filled = np.zeros((count, packs), dtype=np.int64)
    result = np.empty((count, packs, room), dtype=np.int64)
    for item in np.argsort(-weights, axis=1, kind="stable").T:
        pack = np.where(filled < room, held, np.inf).argmin(axis=1)
        result[at, pack, filled[at, pack]] = item
        held[at, pack] += weights[at, item]
        filled[at, pack] += 1
    return result


def _replicate(weights: Floats, slots: int, limit: int) -> tuple[Placement, Floats]:
    """Owner of each slot [X, slots] and its weight, for weights [X, n]; EMPTY beyond the limit."""
    count, items = weights.shape
    at = np.arange(count)
    copies = np.ones((count, items), dtype=np.int64)
    owner = np.full((count, slots), EMPTY, dtype=np.int64)
    owner[:, :items] = np.arange(items)
    for slot in range(items, min(slots, items * limit)):
        heaviest = np.where(copies < limit, weights / copies, -1.0).argmax(axis=1)
        owner[:, slot] = heaviest
        copies[at, heaviest] += 1
    each = np.take_along_axis(weights / copies, np.maximum(owner, 0), axis=1)
    return owner, np.where(owner == EMPTY, 0.0, each)
