"""Moments that wait for others, in levels: each level is worked out at once, over all ranks.

A point is when something starts, or when the last member of a collective has arrived. It is the
latest of what it waits for, each with its own delay, plus a gap of its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Indices = NDArray[np.int32]
Flags = NDArray[np.bool_]
Number = TypeVar("Number", np.int64, np.float64)
AT_ONCE = 1 << 18  # of what is too much to be held twice: stays in caches, and memory is used again
# A capture of few ranks has levels of a point or two, a hundred thousand of them: up to so many
# points, or edges, of a level are worked out one by one sooner than together.
_FEW_POINTS, _FEW_EDGES = 96, 20


@dataclass(frozen=True, slots=True)
class Points:
    """Edges by the point that waits, points by level: `place[i]` is where point i stands.

    `source` is a place; the edges of the point at place p are `first[p]` to `first[p + 1]`, `edge`
    is the number that they had. `bounds` are the first places of the levels.
    """

    place: Indices
    source: Indices
    edge: Indices
    first: Indices
    bounds: Integers

    def walk(
        self, delays: Callable[[slice], NDArray[Number]], gaps: NDArray[Number]
    ) -> NDArray[Number]:
        """When each point is, by place; delays of edges from one place to another, gaps (of those
        that wait for nothing: their times) by point. Both may have a second axis: as many runs of
        the same points at once."""
        result = np.empty_like(gaps)
        result[self.place] = gaps
        source, first = self.source, self.first
        few = _FEW_EDGES if result.ndim == 1 else 0
        bounds = self.bounds.tolist()
        edges = first[self.bounds].tolist()
        placed_edges = range(0)  # edges whose delays are
        level, levels = 1, len(bounds) - 1
        while level < levels:
            low, begin, end = bounds[level], edges[level], edges[level + 1]
            if end > placed_edges.stop:
                beyond = bisect_right(edges, begin + AT_ONCE, level + 1)
                placed_edges = range(begin, edges[max(beyond - 1, level + 1)])
                delays_ns = delays(slice(placed_edges.start, placed_edges.stop))
            last = level
            while last < levels and edges[last + 1] <= min(edges[last] + few, placed_edges.stop):
                last += 1
            if last > level:
                places = range(low, bounds[last])
                _arrive(
                    result.data, source.data, first.data, places, delays_ns.data, placed_edges.start
                )
                level = last
                continue
            arrived = result[source[begin:end]]
            arrived += delays_ns[begin - placed_edges.start : end - placed_edges.start]
            latest = np.maximum.reduceat(arrived, first[low : bounds[level + 1]] - begin, axis=0)
            result[low : bounds[level + 1]] += latest
            level += 1
        return result

    def by_place(self) -> Indices:
        """Points by place."""
        result = np.empty_like(self.place)
        result[self.place] = np.arange(len(result), dtype=np.int32)
        return result

    def times(self, delays: NDArray[Number], gaps: NDArray[Number]) -> NDArray[Number]:
        """The same by point, of delays in one array."""
        by_point: NDArray[Number] = self.walk(lambda part: delays[part], gaps)[self.place]
        return by_point


def _arrive(
    arrivals: memoryview, source: memoryview, first: memoryview,
    places: range, delays_ns: memoryview, begin: int,
) -> None:  # fmt: skip
    """Works out places of levels, one after the other; `delays_ns`: from edge `begin` on."""
    for place in places:
        own = first[place]
        latest = arrivals[source[own]] + delays_ns[own - begin]
        for edge in range(own + 1, first[place + 1]):
            one = arrivals[source[edge]] + delays_ns[edge - begin]
            if one > latest:
                latest = one
        arrivals[place] += latest


def points(count: int, source: Indices, target: Indices) -> tuple[Points, Flags]:
    """Points in levels, and which of them wait for each other: their levels are not known, and
    there are no `Points` of use while there are any."""
    level, open_ones = _levels(count, source, target)
    place = np.empty(count, np.int32)
    order = np.argsort(level, kind="stable")
    place[order] = np.arange(count, dtype=np.int32)
    bounds = np.concatenate([[0], np.cumsum(np.bincount(level))])
    by_target = np.argsort(place[target], kind="stable").astype(np.int32)
    first = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(place[target], minlength=count), out=first[1:])
    points = Points(place, place[source[by_target]], by_target, first, bounds)
    return points, open_ones


def _levels(count: int, source: Indices, target: Indices) -> tuple[Indices, Flags]:
    by_source = np.argsort(source, kind="stable")
    after = target[by_source]
    first = np.concatenate([[0], np.cumsum(np.bincount(source, minlength=count))])
    waiting = np.bincount(target, minlength=count).astype(np.int32)
    level = np.zeros(count, np.int32)
    views = after.data, first.data, waiting.data, level.data
    ready = np.flatnonzero(waiting == 0)
    number = 0
    while len(ready):
        if len(ready) <= _FEW_POINTS:
            ready, number = _few(*views, ready.tolist(), number)
            continue
        level[ready] = number
        number += 1
        begin = first[ready]
        counts = first[ready + 1] - begin
        ends = np.cumsum(counts)
        total = int(ends[-1])
        if total == 0:
            break
        every = np.repeat(begin - ends + counts, counts) + np.arange(total)
        later = np.sort(after[every])
        is_last = np.append(later[1:] != later[:-1], True)
        at = np.flatnonzero(is_last)
        their = later[at]
        waiting[their] -= np.diff(at, prepend=-1)
        ready = their[waiting[their] == 0]
    return level, waiting > 0


def _few(
    after: memoryview, first: memoryview, waiting: memoryview, level: memoryview,
    ready: list[int], number: int,
) -> tuple[Integers, int]:  # fmt: skip
    """Levels from one on, as long as they have few points: the first that has more, or no point."""
    while ready and len(ready) <= _FEW_POINTS:
        later = []
        for point in ready:
            level[point] = number
            for edge in range(first[point], first[point + 1]):
                target = after[edge]
                waiting[target] -= 1
                if not waiting[target]:
                    later.append(target)
        ready, number = later, number + 1
    return np.array(ready, np.int64), number
