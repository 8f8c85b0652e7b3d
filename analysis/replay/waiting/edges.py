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


def mean_by(key: Indices, values: Integers, chosen: Flags, count: int) -> Integers:
    """Mean of the chosen values of each key; of all where a key has none; else 0."""
    counts = np.bincount(key[chosen], minlength=count)
    sums = np.bincount(key[chosen], weights=values[chosen], minlength=count)
    every = sums.sum() / max(counts.sum(), 1)
    means = np.where(counts > 0, sums / np.maximum(counts, 1), every)
    return np.round(means).astype(np.int64)


def touching(
    ops: Operations, end: Integers, best: Integers, told: Integers
) -> tuple[Integers, Integers]:
    """Starts that nothing else explains, each with the operation of another stream of its rank
    that ended right before. `told`: waits of which the record is known."""
    plain = (ops.role == 0) | (ops.role == OTHER)
    is_open = plain | (ops.role == WAIT)
    is_open[told] = False
    late = np.flatnonzero((ops.start - best > 300) & (best != UNKNOWN) & is_open)
    span = int(end.max(initial=0) - ops.start.min(initial=0)) + 4 * NEAR_NS + 1
    base = ops.start.min(initial=0)
    order = np.argsort(ops.rank.astype(np.int64) * span + (end - base), kind="stable")
    keys = ops.rank[order].astype(np.int64) * span + (end[order] - base)
    at = np.searchsorted(keys, ops.rank[late].astype(np.int64) * span + ops.start[late] - base,
                         side="right") - 1  # fmt: skip
    found = np.full(len(late), -1)
    for _ in range(3):  # an operation may itself have ended, or others of its stream
        candidate = order[np.maximum(at, 0)]
        fits = (
            (found < 0) & (at >= 0) & (ops.rank[candidate] == ops.rank[late]) & plain[candidate]
            & (ops.stream[candidate] != ops.stream[late])
            & (ops.start[late] - end[candidate] <= NEAR_NS)
            & (end[candidate] > best[late] - EARLY_NS)
        )  # fmt: skip
        found[fits] = candidate[fits]
        at = at - 1
    keep = found >= 0
    return late[keep], found[keep]
