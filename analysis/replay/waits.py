"""What an operation of a device waits for, and how sure that is.

stream order, events and launches as recorded ──▶ rules ──▶ touching times, and wherever else the
same two operations follow each other at the same distance

A rule that measured times refute is not applied there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .operations import UNKNOWN, WAIT, Operations
from .points import AT_ONCE, Flags, Indices, Integers, Points, points
from .waiting.edges import (
    EARLY_NS,
    NEAR_NS,
    RECORDED,
    RULE,
    TOUCHING,
    Edges,
    Wait,
    adjacent_starts,
    mean_by,
)
from .waiting.events import event_waits, right_behind
from .waiting.launches import follow_launches

_QUEUED_NS = 100_000  # what was launched so long before waited for the device alone
_GAP_BITS = 20  # of gaps behind what was queued: a millisecond at most
_LEAST_QUEUED = 20  # that tell how long a stream takes between two
_OVERLAP_NS = 40_000  # kernels of a stream can overlap by as much
_DISTANCES = 24


@dataclass(frozen=True, slots=True)
class Waits:
    """A capture as moments that wait for each other.

    Points are the starts of operations, the meetings of collectives, and the moments from which
    the host of a rank launches without waiting. An edge's delay is its `lag`, and the duration of
    operation `work` (a collective's: from its last member's start) or, where that is negative,
    the time of its host from there to launch `-1 - work`. `gap`: what of a recorded start nothing
    explains; of points that wait for nothing, when they were.
    """

    points: Points
    lag: Indices  # by edge place, as `work` and `origin`
    work: Indices
    origin: NDArray[np.int8]
    gap: Integers
    transfer: Integers  # durations by operation
    host: Integers  # by launch: host time since the point its host goes on from
    launches: Indices  # operations by launch
    segment: Indices  # by launch: which of those points
    explained: Flags  # by point: has a recorded start that something explains
    meetings: int

    def delays(self, part: slice = slice(None)) -> Integers:
        """Of edges, by default of all."""
        work = self.work[part]
        result: Integers = self.transfer[np.maximum(work, 0)]
        at = np.flatnonzero(work < 0)
        result[at] = self.host[-1 - work[at]]
        result += self.lag[part]
        return result

    def starts(self) -> Integers:
        """When points are."""
        result: Integers = self.points.walk(self.delays, self.gap)[self.points.place]
        return result

    def pauses(self) -> Integers:
        """Host time from launch to launch; of the first of a segment, since the host went on."""
        return np.diff(self.host, prepend=0) + np.where(self._is_first, self._before, 0)

    def with_pauses(self, pauses: Integers) -> Waits:
        """The same with other host times from launch to launch."""
        total = np.cumsum(pauses)
        before = np.maximum.accumulate(np.where(self._is_first, np.arange(len(pauses)), 0))
        host = total - (total - pauses)[before] if len(pauses) else total
        return replace(self, host=host)

    @property
    def _is_first(self) -> Flags:
        is_first: Flags = np.diff(self.segment, prepend=-1) != 0
        return is_first

    @property
    def _before(self) -> Integers:
        """Host time of the launch before."""
        return np.append(0, self.host[:-1]) if len(self.host) else self.host


def waits(ops: Operations) -> Waits:
    """Who waits for whom in a capture."""
    count = len(ops.rank)
    everyone = np.arange(count)
    is_comm = ops.is_communication
    meetings = int(ops.instance.max(initial=-1)) + 1
    met = np.full(meetings, UNKNOWN)
    np.maximum.at(met, ops.instance[is_comm], ops.start[is_comm])
    end = ops.start + ops.dur
    transfer = ops.dur.copy()
    transfer[is_comm] = end[is_comm] - met[ops.instance[is_comm]]
    # What waits for an operation waits for this point, and then its duration.
    after = np.where(is_comm, count + ops.instance, everyone)
    edges = Edges()
    at_comm = everyone[is_comm]
    edges.add(after[at_comm], at_comm, np.full(len(at_comm), count), 0, RECORDED)
    best = np.full(count, UNKNOWN)  # the latest of what explains a start

    def wait(target: Integers, source: Integers, lag: Integers, origin: int) -> None:
        edges.add(target, after[source], source, lag, origin)
        np.maximum.at(best, target, end[source] + lag)

    _follow_streams(ops, end, wait)
    causes = _follow_events(ops, end, wait)
    order, position = _program(ops)
    _comm_after_compute(ops, end, order, causes, wait)
    host, segment, segments, segment_edges = follow_launches(
        ops, end, order, best, causes, edges, count + meetings
    )
    touched = adjacent_starts(ops, end, best, causes)
    _again(ops, end, order, position, touched, wait)
    _after_anything(ops, end, best, wait)
    for number, source, lag in segment_edges:
        edges.add(
            np.array([count + meetings + number]), after[[source]], np.array([source]), lag, RULE
        )
    transfer = np.append(transfer, 0)  # of nothing
    recorded = np.concatenate([ops.start, met, np.array(segments, np.int64)])
    launched = np.zeros(0, np.int32) if order is None else order.astype(np.int32)
    return _make_waits(edges, recorded, transfer, host, launched, segment, count, meetings)


def _make_waits(
    edges: Edges, measured: Integers, transfer: Integers, host: Integers, launched: Indices,
    segment: Indices, count: int, meetings: int,
) -> Waits:  # fmt: skip
    total = len(measured)
    target, source, work, lag, origin = edges.whole()
    point_graph, open_ones = points(total, source, target)
    while open_ones.any():
        # What was inferred between points that wait for each other cannot be.
        keep = ~(open_ones[target] & open_ones[source] & (origin != RECORDED))
        if keep.all():
            keep = ~(open_ones[target] & open_ones[source])
        target, source, work, lag, origin = (
            one[keep] for one in (target, source, work, lag, origin)
        )
        point_graph, open_ones = points(total, source, target)
    lag, work, origin = lag[point_graph.edge], work[point_graph.edge], origin[point_graph.edge]
    point_graph = replace(
        point_graph, edge=point_graph.edge[:0]
    )  # it has done its duty, and takes memory
    none = np.zeros(0, bool)
    draft = Waits(
        point_graph, lag, work, origin, measured, transfer, host, launched, segment, none, meetings
    )
    gap, explained = _gaps(draft)
    explained[count : count + meetings] = True
    gap[explained] = 0
    return replace(draft, gap=gap, explained=explained)


def _gaps(draft: Waits) -> tuple[Integers, Flags]:
    """What of times of points nothing explains, and which are explained; their times as gaps."""
    points, measured = draft.points, draft.gap
    point_at = points.by_place()
    gap, explained = measured.copy(), np.zeros(len(measured), bool)
    for low in range(
        int(points.bounds[1]), len(measured), AT_ONCE
    ):  # the first level waits for none
        high = min(low + AT_ONCE, len(measured))
        first = points.first[low : high + 1]
        begin, end = int(first[0]), int(first[-1])
        arrived = measured[point_at[points.source[begin:end]]] + draft.delays(slice(begin, end))
        its = point_at[low:high]
        gap[its] -= np.maximum.reduceat(arrived, first[:-1] - begin)
        explained[its] = np.abs(gap[its]) <= NEAR_NS
    return gap, explained


def _follow_streams(ops: Operations, end: Integers, wait: Wait) -> None:
    order = np.argsort(ops.stream, kind="stable").astype(np.int32)  # by start they are
    before, after = order[:-1], order[1:]
    gap = ops.start[after] - end[before]
    keep = (ops.stream[before] == ops.stream[after]) & (gap >= -_OVERLAP_NS)
    before, after, gap = before[keep], after[keep], gap[keep]
    lag = np.where(gap < -NEAR_NS, gap, _turnaround(ops, end, before, after))
    recorded = ops.is_stream_recorded[after]
    for origin, mask in ((RECORDED, recorded), (RULE, ~recorded)):
        wait(after[mask], before[mask], lag[mask], origin)


def _turnaround(ops: Operations, end: Integers, before: Integers, after: Integers) -> Integers:
    """How long a stream takes from one operation to the next: with counters of the cores recorded
    much longer behind a kernel. What was launched long before shows it, else what comes soon."""
    gap = ops.start[after] - end[before]
    group = 2 * ops.rank[after] + ops.is_kernel[before]
    count = 2 * len(ops.ranks)
    lag = mean_by(group, gap, np.abs(gap) <= NEAR_NS, count)
    queued = (ops.launch[after] != UNKNOWN) & (ops.launch[after] + _QUEUED_NS <= end[before])
    queued &= (np.abs(gap) <= _QUEUED_NS * 10) & (ops.role[after] != WAIT)
    queued &= (ops.role[before] == 0) & ~ops.is_communication[after] & (gap >= 0)
    key = (group[queued].astype(np.int64) << _GAP_BITS) + gap[queued]
    key.sort()
    bounds = np.searchsorted(key, np.arange(count + 1) << _GAP_BITS)
    for one in np.flatnonzero(np.diff(bounds) >= _LEAST_QUEUED).tolist():
        gaps = key[bounds[one] : bounds[one + 1]] - (one << _GAP_BITS)
        usual = np.median(gaps)
        gaps = gaps[(gaps >= 0.5 * usual) & (gaps <= 1.5 * usual)]
        if len(gaps) >= _LEAST_QUEUED:
            lag[one] = np.round(gaps.mean())
    return lag[group]


def _follow_events(ops: Operations, end: Integers, wait: Wait) -> Integers:
    """Returns waits of which a record tells what they waited for."""
    after, before = event_waits(ops, end)
    gap = ops.start[after] - end[before]
    near = gap <= NEAR_NS
    lag = mean_by(ops.rank[after], gap, near, len(ops.ranks))[ops.rank[after]]
    # Of what had been recorded long before any record may be the one.
    for origin, mask in ((RECORDED, near), (RULE, ~near)):
        wait(after[mask], before[mask], lag[mask], origin)
    return after[near]


def _program(ops: Operations) -> tuple[Integers | None, Integers]:
    """Operations by rank and launch, and where each stands; None without launches."""
    position = np.full(len(ops.rank), -1)
    if not ops.has_launches:
        return None, position
    places = np.flatnonzero(ops.launch != UNKNOWN)
    order = places[np.lexsort((ops.launch[places], ops.rank[places]))]
    position[order] = np.arange(len(order))
    return order, position


def _main_streams(ops: Operations) -> Flags:
    """Operations of the stream of their rank that runs the most kernels."""
    kernels = ops.is_kernel
    counts = np.bincount(ops.stream[kernels], minlength=int(ops.stream.max(initial=-1)) + 1)
    owner = np.zeros(len(counts), np.int32)
    owner[ops.stream] = ops.rank
    order = np.lexsort((counts, owner))
    main = np.full(len(ops.ranks), -1)
    main[owner[order]] = order  # the last one of a rank stays
    result: Flags = kernels & (ops.stream == main[ops.rank])
    return result


def computed_before(
    ops: Operations, end: Integers, order: Integers | None = None
) -> tuple[Integers, Integers]:
    """Communication operations, and of each the last compute kernel launched before it; without
    launches, the last that had ended. `order`: operations by rank and launch."""
    if order is None:
        order, _ = _program(ops)
    main = _main_streams(ops)
    if order is None:
        kernels = np.flatnonzero(main)
        order = np.concatenate([kernels, np.flatnonzero(ops.is_communication)])
        when = np.where(ops.is_communication[order], ops.start[order] + EARLY_NS, end[order])
        order = order[np.lexsort((when, ops.rank[order]))]
    is_main = main[order]
    last = np.maximum.accumulate(np.where(is_main, np.arange(len(order)), -1))
    at = np.flatnonzero(ops.is_communication[order] & (last >= 0))
    after, before = order[at], order[last[at]]
    same = ops.rank[after] == ops.rank[before]
    return after[same], before[same]


def _comm_after_compute(
    ops: Operations, end: Integers, order: Integers | None, causes: Integers, wait: Wait
) -> None:
    after, before = computed_before(ops, end, order)
    gap = ops.start[after] - end[before]
    keep = (gap >= -EARLY_NS) & ~right_behind(ops, causes)[after]
    after, before, gap = after[keep], before[keep], gap[keep]
    near = gap <= NEAR_NS
    lag = mean_by(ops.rank[after], gap, near, len(ops.ranks))[ops.rank[after]]
    wait(after, before, np.minimum(lag, np.maximum(gap, 0)), RULE)


def _after_anything(ops: Operations, end: Integers, best: Integers, wait: Wait) -> None:
    """What waits for nothing so far and is not the first of its rank waits for whatever of its
    rank had ended last."""
    is_first = np.diff(ops.rank, prepend=-1) != 0
    free = np.flatnonzero((best == UNKNOWN) & ~is_first)
    if not len(free):
        return
    order = np.lexsort((end, ops.rank))
    span = int(end.max(initial=0) - ops.start.min(initial=0)) + 1
    keys = ops.rank[order] * np.int64(span) + end[order] - ops.start.min(initial=0)
    at = np.searchsorted(
        keys, ops.rank[free] * np.int64(span) + ops.start[free] - ops.start.min(initial=0), "right"
    )
    before = order[np.maximum(at - 1, 0)]
    keep = (at > 0) & (ops.rank[before] == ops.rank[free]) & (before != free)
    wait(free[keep], before[keep], np.zeros(int(keep.sum()), np.int64), RULE)


def _again(
    ops: Operations, end: Integers, order: Integers | None, position: Integers,
    touched: tuple[Integers, Integers], wait: Wait,
) -> None:  # fmt: skip
    """Edges where times touch, and where the same follows the same elsewhere in the program."""
    target, source = touched
    if not len(target):
        return
    lag = ops.start[target] - end[source]
    typical = mean_by(ops.rank[target], lag, np.ones(len(lag), bool), len(ops.ranks))
    distance = position[target] - position[source]
    is_placed = (position[target] >= 0) & (position[source] >= 0) & (distance > 0)
    alone = ~is_placed
    edges_of: list[tuple[Integers, Integers]] = [(target[alone], source[alone])]
    if order is not None and is_placed.any():
        types = len(ops.types)
        pairs = ops.type[source].astype(np.int64) * types + ops.type[target]
        distances, counts = np.unique(distance[is_placed], return_counts=True)
        common = distances[np.argsort(-counts, kind="stable")[:_DISTANCES]]
        rest = is_placed & ~np.isin(distance, common)
        edges_of.append((target[rest], source[rest]))
        kind = ops.type[order].astype(np.int64)
        for one in common.tolist():
            here = is_placed & (distance == one)
            pairs_here = np.unique(pairs[here])
            every = kind[:-one] * types + kind[one:]
            slot = np.minimum(np.searchsorted(pairs_here, every), len(pairs_here) - 1)
            alike = np.flatnonzero(pairs_here[slot] == every)
            first, second = order[alike], order[alike + one]
            same = ops.rank[first] == ops.rank[second]
            alike, first, second = alike[same], first[same], second[same]
            refuted = ops.start[second] < end[first] - EARLY_NS
            code = slot[alike]
            wrong = np.bincount(code[refuted], minlength=len(pairs_here))
            holds = (wrong <= 0.02 * np.bincount(code, minlength=len(pairs_here)))[code] & ~refuted
            holds &= ops.stream[first] != ops.stream[second]
            edges_of.append((second[holds], first[holds]))
            # What touched but does not hold elsewhere: there alone.
            lone = here.copy()
            lone[here] = wrong[np.searchsorted(pairs_here, pairs[here])] > 0
            edges_of.append((target[lone], source[lone]))
    count = len(ops.rank)
    both = np.unique(
        np.concatenate([after * np.int64(count) + before for after, before in edges_of])
    )
    after, before = both // count, both % count
    lags = np.minimum(typical[ops.rank[after]], np.maximum(ops.start[after] - end[before], 0))
    wait(after, before, lags, TOUCHING)
