"""Edges between moments while they are found, and how close in time what waits comes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..operations import OTHER, UNKNOWN, WAIT, Operations
from ..points import Flags, Indices, Integers

Index = Integers | Indices
Wait = Callable[[Integers, Integers, Integers, int], None]  # target, source, lag, origin

RECORDED, RULE, TOUCHING = 0, 1, 2
NEAR_NS = 6_000  # what starts so soon after an end may have waited for it
_LONGEST_LAG_NS = 2_000_000_000
_LOOKED_AT = 3  # operations that ended before a start
_LEAST, _MOST = 20, 2 / 3  # so many starts, and so many of them, tell what is usual
EARLY_NS = 1_000  # a start so long before an end did not wait for it


class Edges:
    """Edges while they are found: what waits, for which point, after whose duration."""

    def __init__(self) -> None:
        self.parts: list[tuple[Indices, Indices, Indices, Indices, int]] = []

    def add(
        self, target: Index, source: Index, work: Index, lag: Integers | int, origin: int
    ) -> None:
        # A lag of seconds is none: what is cut off stays in the gap.
        lags = np.broadcast_to(np.clip(lag, -_LONGEST_LAG_NS, _LONGEST_LAG_NS), target.shape)
        to, of, after, later = (one.astype(np.int32) for one in (target, source, work, lags))
        self.parts.append((to, of, after, later, origin))

    def whole(self) -> tuple[Indices, Indices, Indices, Indices, NDArray[np.int8]]:
        """All of them; none are left here."""
        target, source, work, lag = (
            np.concatenate([part[i] for part in self.parts]) for i in range(4)
        )
        origin = np.repeat(
            np.array([part[4] for part in self.parts], np.int8),
            [len(part[0]) for part in self.parts],
        )
        self.parts.clear()
        return target, source, work, lag, origin


def mean_by(key: Indices, values: Integers, mask: Flags, count: int) -> Integers:
    """Mean of the chosen values of each key; of all where a key has none; else 0."""
    counts = np.bincount(key[mask], minlength=count)
    sums = np.bincount(key[mask], weights=values[mask], minlength=count)
    every = sums.sum() / max(counts.sum(), 1)
    means = np.where(counts > 0, sums / np.maximum(counts, 1), every)
    return np.round(means).astype(np.int64)


def adjacent_starts(
    ops: Operations, end: Integers, best: Integers, causes: Integers
) -> tuple[Integers, Integers]:
    """Starts that nothing else explains, each with the operation of another stream of its rank
    that ended right before, else as long before as is usual here. `causes`: waits of which the
    record is known."""
    plain = (ops.role == 0) | (ops.role == OTHER)
    is_open = plain | (ops.role == WAIT)
    is_open[causes] = False
    late = np.flatnonzero((ops.start - best > 300) & (best != UNKNOWN) & is_open)
    span = int(end.max(initial=0) - ops.start.min(initial=0)) + 4 * NEAR_NS + 1
    base = ops.start.min(initial=0)
    order = np.argsort(ops.rank.astype(np.int64) * span + (end - base), kind="stable")
    keys = ops.rank[order].astype(np.int64) * span + (end[order] - base)
    last = np.searchsorted(keys, ops.rank[late].astype(np.int64) * span + ops.start[late] - base,
                           side="right") - 1  # fmt: skip
    sources = np.full(len(late), -1)

    def find(low: int, high: int) -> Integers:
        """Of those without one, what ended last so long before; -1: none."""
        one = sources.copy()
        for back in range(_LOOKED_AT):  # it may itself have ended, or others of its stream
            at = last - back
            candidate = order[np.maximum(at, 0)]
            gap = ops.start[late] - end[candidate]
            fits = (
                (one < 0) & (at >= 0) & (ops.rank[candidate] == ops.rank[late]) & plain[candidate]
                & (ops.stream[candidate] != ops.stream[late]) & (gap >= low) & (gap <= high)
                & (end[candidate] > best[late] - EARLY_NS)
            )  # fmt: skip
            one[fits] = candidate[fits]
        return one

    far = find(0, _LONGEST_LAG_NS)
    usual = _usual_distance((ops.start[late] - end[far])[far >= 0])
    sources = find(0, NEAR_NS)
    sources = find(usual, 2 * usual)
    keep = sources >= 0
    return late[keep], sources[keep]


def _usual_distance(gaps: Integers) -> int:
    """What lies between the end of another stream's operation and a start that waits for it: most
    take so long to twice as long. 0 where most do not: starts that wait for nothing of the kind lie
    anywhere behind such an end."""
    gaps = np.sort(gaps)
    beside = np.searchsorted(gaps, 2 * gaps, side="right") - np.arange(len(gaps))
    if len(gaps) < _LEAST or beside.max() < _MOST * len(gaps):
        return 0
    return int(gaps[beside.argmax()])
