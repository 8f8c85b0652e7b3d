"""Our own placement: a good start, then changes that make the slowest device of a layer faster.

From each start (`starts`), all layers at once, round after round, the layer's slowest device either

    swaps an expert with another device (with an empty slot: gives it away), or
    has one of its experts replicated elsewhere, in an empty slot or that of somebody's replica, or
    swaps two experts for two,

whichever leaves the slowest of all devices concerned the fastest. Changes are found by estimate,
tried, and kept only if the exact time of the layer falls (or fewer devices take it), so that no
change makes a layer slower. Each layer takes the fastest result whose fullest device is no fuller
than EPLB's, and of these one in which no device holds an expert twice, if there is one: that is a
slot for nothing, and engines that look up an expert's slot by device know one only.

Where our search begins: the better of EPLB's and largest first, and replicas spread over nodes.

A device that holds an expert twice has a slot for nothing: it gets an expert with few tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .eplb import eplb, is_hierarchical
from .placement import (
    EMPTY,
    Floats,
    Placement,
    device_tokens,
    equal_count,
    experts_to_send,
    fill_slots,
    held_by,
    replicas,
    twins,
)
from .step_time import TOKENS_ONLY, Cost, compute_ns, layer_times, slot_ns

Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_ROUNDS = 1500
_TRIES = 3  # of the best changes by estimate
_TIE = 1e-9
_PAIRS = 20_000  # exchanges of two for two that are estimated in a layer at once


@dataclass(frozen=True, slots=True)
class Limits:
    """What a change must keep to.

    ceiling: tokens of a layer's fullest device, [layers]; None: any. stays_on_node: experts keep
    their node. origin: what is placed now, and max_moved: how many experts of a layer may be sent
    to devices that do not hold them there; None: any.
    """

    ceiling: Floats | None = None
    stays_on_node: bool = False
    max_replicas: int | None = None
    origin: Placement | None = None
    max_moved: int | None = None

    def of(self, layers: Indices) -> Limits:
        """The same for some layers."""
        return Limits(
            None if self.ceiling is None else self.ceiling[layers], self.stays_on_node,
            self.max_replicas, None if self.origin is None else self.origin[layers], self.max_moved,
        )  # fmt: skip


def search(
    load: Floats,
    *,
    devices: int,
    slots: int,
    nodes: int = 1,
    groups: int = 1,
    cost: Cost = TOKENS_ONLY,
    max_replicas: int | None = None,
) -> Placement:
    """Placement [layers, devices, slots] for load [layers, experts], tokens of a step.

    No device holds more tokens than EPLB's fullest of the layer, and no layer takes longer than
    with EPLB's placement (of the same max_replicas). Raises UsageError as `eplb` does.
    """
    sizes = {"devices": devices, "slots": slots}
    theirs = eplb(load, **sizes, nodes=nodes, groups=groups, max_replicas=max_replicas)
    stays = is_hierarchical(load.shape[1], groups, nodes)
    ceiling = device_tokens(theirs, load).max(axis=1)
    slowest = layer_times(theirs, load, cost, nodes)
    best, fastest = theirs, np.full(len(load), np.inf)
    for start in _starts(theirs, load, cost, nodes, max_replicas, stays_on_node=stays):
        even = start
        if (device_tokens(start, load).max(axis=1) > ceiling).any():
            within = Limits(None, nodes > 1, max_replicas)
            even = improve(start, load, TOKENS_ONLY, nodes, within)
        is_even = device_tokens(even, load).max(axis=1) <= ceiling
        limits = Limits(np.where(is_even, ceiling, np.inf), stays, max_replicas)
        other = improve(even, load, cost, nodes, limits)
        times = layer_times(other, load, cost, nodes)
        good = _is_fine(other, load, cost, nodes, ceiling, slowest) & (times < fastest)
        best = np.where(good[:, None, None], other, best)
        fastest = np.where(good, times, fastest)
    # Layers that are only as good as EPLB's with an expert twice on a device.
    rest = np.flatnonzero(np.isinf(fastest))
    limits = Limits(ceiling[rest], stays, max_replicas)
    best[rest] = improve(theirs[rest], load[rest], cost, nodes, limits)
    return best


def _is_fine(
    placement: Placement, load: Floats, cost: Cost, nodes: int, ceiling: Floats, slowest: Floats
) -> Mask:
    """Layers that are no slower than `slowest`, and whose devices are no fuller than `ceiling`."""
    good: Mask = layer_times(placement, load, cost, nodes) <= slowest
    good &= device_tokens(placement, load).max(axis=1) <= ceiling
    return good


def improve(start: Placement, load: Floats, cost: Cost, nodes: int, limits: Limits) -> Placement:
    """`start` [layers, devices, slots], changed while that makes its layers faster."""
    placement = start.copy()
    alive = np.arange(len(placement))
    for _ in range(_ROUNDS):
        if not alive.size:
            break
        trial = _round(placement[alive], load[alive], cost, nodes, limits.of(alive))
        is_changed = (trial != placement[alive]).any(axis=(1, 2))
        alive = alive[is_changed]
        placement[alive] = trial[is_changed]
    return placement


@dataclass(frozen=True, slots=True)
class _State:
    """Layers as they are: placement flat [X, slots of all devices], and times by it."""

    flat: Placement
    load: Floats
    slot: Floats  # [X, slots of all devices], ns
    device: Floats  # [X, devices], ns
    hot: Indices  # [X], the slowest device
    copies: Indices  # [X, experts]
    devices: int
    nodes: int
    limits: Limits

    @property
    def slots(self) -> int:
        return int(self.flat.shape[1]) // self.devices

    def owner(self) -> Indices:
        """Device of each slot."""
        return np.arange(self.flat.shape[1]) // self.slots

    def hot_slots(self) -> Indices:
        """Slots of the slowest device, [X, slots]."""
        return self.hot[:, None] * self.slots + np.arange(self.slots)

    def forbidden(self) -> Mask:
        """Slots that the slowest device may not deal with, [X, 1, slots of all devices]."""
        owner = self.owner()
        shut: Mask = owner == self.hot[:, None]
        if self.limits.stays_on_node:
            per_node = self.devices // self.nodes
            shut = shut | (owner // per_node != self.hot[:, None] // per_node)
        return shut[:, None]

    def holders(self, experts: Placement) -> Mask:
        """Slots of devices that hold experts [X, n], [X, n, slots of all devices]."""
        held = self.flat.reshape(len(self.flat), 1, self.devices, -1) == experts[:, :, None, None]
        held &= experts[:, :, None, None] != EMPTY
        holders: Mask = np.repeat(held.any(axis=3), self.slots, axis=2)
        return holders

    def twins_count(self, flat: Placement) -> Indices:
        """Slots for nothing, [X]: their device holds the expert in another one."""
        ordered = np.sort(flat.reshape(len(flat), self.devices, -1), axis=2)
        same = (ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] != EMPTY)
        count: Indices = same.sum(axis=(1, 2))
        return count

    def foreign(self) -> Mask | None:
        """Experts a device would have to be sent, [X, devices, experts + 1]; the last is empty."""
        if self.limits.origin is None or self.limits.max_moved is None:
            return None
        held = held_by(self.limits.origin, self.load.shape[1])
        return np.pad(~held, ((0, 0), (0, 0), (0, 1)))


def _round(placement: Placement, load: Floats, cost: Cost, nodes: int, limits: Limits) -> Placement:
    """One change in every layer where one helps."""
    layers, devices, slots = placement.shape
    result = placement.copy()
    times = slot_ns(placement, load, cost, nodes).reshape(layers, -1)
    device_ns = times.reshape(placement.shape).sum(axis=2)
    open_layers = np.arange(layers)
    for propose in (_swaps, _replications, _pair_swaps):
        if not open_layers.size:
            break
        some = open_layers
        state = _State(
            placement[some].reshape(len(some), -1), load[some], times[some], device_ns[some],
            device_ns[some].argmax(axis=1), replicas(placement[some], load.shape[1]), devices,
            nodes, limits.of(some),
        )  # fmt: skip
        done = np.zeros(len(some), dtype=np.bool_)
        for changed, exists in propose(state, cost):
            todo = np.flatnonzero(exists & ~done)
            if not todo.size:
                break
            new = changed[todo].reshape(-1, devices, slots)
            good = _is_better(new, state, todo, cost)
            result[some[todo[good]]] = new[good]
            done[todo[good]] = True
        open_layers = some[~done]
    return result


def _is_better(new: Placement, state: _State, rows: Indices, cost: Cost) -> Mask:
    """Whether layers are faster for it, or fewer of their devices are the slowest; exactly."""
    load, limits = state.load[rows], state.limits.of(rows)
    times = slot_ns(new, load, cost, state.nodes).sum(axis=2)
    before = state.device[rows]
    was, now = before.max(axis=1), times.max(axis=1)
    line = was * (1 - _TIE)
    fewer = (times >= line[:, None]).sum(axis=1) < (before >= line[:, None]).sum(axis=1)
    good: Mask = (now < line) | ((now <= was) & fewer)
    if limits.ceiling is not None:
        good &= device_tokens(new, load).max(axis=1) <= limits.ceiling
    if limits.origin is not None and limits.max_moved is not None:
        good &= experts_to_send(limits.origin, new) <= limits.max_moved
    return good


def _swaps(state: _State, cost: Cost) -> Iterable[tuple[Placement, Mask]]:
    """An expert of the slowest device for what is in a slot elsewhere."""
    rows = np.arange(len(state.flat))[:, None]
    mine, owner = state.hot_slots(), state.owner()
    leaves = state.slot[rows, mine][:, :, None] - state.slot[:, None]
    hot_ns = state.device[rows, state.hot[:, None]][:, :, None]
    slowest = np.maximum(hot_ns - leaves, state.device[:, None, owner] + leaves)
    state_here, partner = state.flat[rows, mine], state.flat
    is_held = (partner[:, None] == state_here[:, :, None]).any(axis=1) & (partner != EMPTY)
    slowest[state.forbidden() | is_held[:, None] | state.holders(state_here)] = np.inf
    foreign = state.foreign()
    if foreign is not None:
        there, here = owner[None, None], state.hot[:, None, None]
        row = rows[:, :, None]
        more = (
            foreign[row, there, state_here[:, :, None]].astype(np.int64)
            - foreign[row, here, state_here[:, :, None]]
            + foreign[row, here, partner[:, None]]
            - foreign[row, there, partner[:, None]]
        )
        slowest[more > _room(state)] = np.inf
    for at, exists in _fastest(slowest, hot_ns[:, 0, 0]):
        index, other = np.divmod(at, state.flat.shape[1])
        first = mine[rows[:, 0], index]
        changed = state.flat.copy()
        changed[rows[:, 0], first] = state.flat[rows[:, 0], other]
        changed[rows[:, 0], other] = state.flat[rows[:, 0], first]
        yield changed, exists


def _replications(state: _State, cost: Cost) -> Iterable[tuple[Placement, Mask]]:
    """One more replica of an expert of the slowest device, in a slot that can be spared."""
    rows = np.arange(len(state.flat))[:, None]
    mine, owner = state.hot_slots(), state.owner()
    expert = np.maximum(state.flat, 0)
    copies = state.copies[rows, expert]
    is_empty = state.flat == EMPTY
    spare = is_empty | (copies > 1)
    whole = state.load[rows, expert]
    # The other holders of the expert that goes get what it had: the slowest of them afterwards.
    more = compute_ns(whole / np.maximum(copies - 1, 1), cost) - compute_ns(whole / copies, cost)
    slowest_holder = np.zeros(state.copies.shape)
    np.maximum.at(slowest_holder, (rows, expert), np.where(is_empty, 0, state.device[:, owner]))
    others = np.where(is_empty, 0.0, slowest_holder[rows, expert] + more)
    # What comes: an expert of the slowest device, by its share with one replica more.
    comes, was = state.flat[rows, mine], state.slot[rows, mine]
    count = copies[rows, mine]
    arriving = (was * count / (count + 1))[:, :, None]
    hot_ns = state.device[rows, state.hot[:, None]][:, :, None]
    there = state.device[:, None, owner] - state.slot[:, None] + arriving
    slowest = np.maximum(np.maximum(hot_ns - was[:, :, None] + arriving, there), others[:, None])
    limit = state.limits.max_replicas
    is_shut = (comes == EMPTY) | (count >= limit if limit is not None else False)
    shut = state.forbidden() | ~spare[:, None] | is_shut[:, :, None]
    shut = shut | state.holders(comes)
    foreign = state.foreign()
    if foreign is not None:
        row, at = rows[:, :, None], owner[None, None]
        sent = foreign[row, at, comes[:, :, None]].astype(np.int64)
        shut = shut | (sent - foreign[row, at, state.flat[:, None]] > _room(state))
    slowest[shut] = np.inf
    for at, exists in _fastest(slowest, hot_ns[:, 0, 0]):
        index, other = np.divmod(at, state.flat.shape[1])
        changed = state.flat.copy()
        changed[rows[:, 0], other] = comes[rows[:, 0], index]
        yield changed, exists


def _pair_swaps(state: _State, cost: Cost) -> Iterable[tuple[Placement, Mask]]:
    """Two experts of the slowest device for two of another; of many devices the fastest ones."""
    if state.slots < 2:
        return
    rows = np.arange(len(state.flat))
    first, second = np.triu_indices(state.slots, 1)
    budget = max(1, min(state.devices, _PAIRS // len(first) ** 2))
    time = state.device.copy()
    if state.limits.stays_on_node:
        node = np.arange(state.devices) // (state.devices // state.nodes)
        time[node != node[state.hot][:, None]] = np.inf
    partner = np.argsort(time, axis=1, kind="stable")[:, :budget]
    by_device = state.slot.reshape(len(rows), state.devices, -1)
    pairs = by_device[..., first] + by_device[..., second]  # [X, devices, pairs]
    hot_ns = state.device[rows, state.hot]
    leaves = pairs[rows, state.hot][:, :, None, None] - pairs[rows[:, None], partner][:, None]
    theirs = time[rows[:, None], partner]
    slowest = np.maximum(hot_ns[:, None, None, None] - leaves, theirs[:, None, :, None] + leaves)
    slowest[np.broadcast_to((partner == state.hot[:, None])[:, None, :, None], slowest.shape)] = (
        np.inf
    )
    for at, exists in _fastest(slowest, hot_ns):
        mine, rest = np.divmod(at, budget * len(first))
        which, other = np.divmod(rest, len(first))
        device = partner[rows, which]
        changed = state.flat.copy()
        for here, there in ((first[mine], first[other]), (second[mine], second[other])):
            one, two = state.hot * state.slots + here, device * state.slots + there
            changed[rows, one], changed[rows, two] = state.flat[rows, two], state.flat[rows, one]
        yield changed, exists & (state.twins_count(changed) <= state.twins_count(state.flat))


def _room(state: _State) -> Indices:
    """How many more experts may be sent in each layer, [X, 1, 1]."""
    limits = state.limits
    assert limits.origin is not None and limits.max_moved is not None
    now = state.flat.reshape(len(state.flat), state.devices, -1)
    return (limits.max_moved - experts_to_send(limits.origin, now))[:, None, None]


def _fastest(slowest: Floats, hot_ns: Floats) -> Iterable[tuple[Indices, Mask]]:
    """The best entries of slowest [X, ...] one after the other, and where they beat hot_ns."""
    flat = slowest.reshape(len(slowest), -1)
    rows = np.arange(len(flat))
    for _ in range(_TRIES):
        at = flat.argmin(axis=1)
        yield at, flat[rows, at] < hot_ns * (1 - _TIE)
        flat[rows, at] = np.inf


def _starts(
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
        return fill_slots(once, load, max_replicas, nodes if stays_on_node else 1)

    if stays_on_node:
        return [apart(theirs)]
    _, devices, slots = theirs.shape
    plain = apart(equal_count(load, devices=devices, slots=slots))
    single = apart(theirs)
    is_plain = layer_times(plain, load, cost, nodes) < layer_times(single, load, cost, nodes)
    starts = [np.where(is_plain[:, None, None], plain, single)]
    if nodes > 1 and cost.far_ns() > cost.near_ns():
        starts.append(apart(_spread(single, load, cost, nodes)))
    return starts


def _spread(placement: Placement, load: Floats, cost: Cost, nodes: int) -> Placement:
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
