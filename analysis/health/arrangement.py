"""Sequences over data-parallel ranks so that the slowest has least to do.

Greedy: the largest first, each to who has least, then moves and exchanges with the slowest as long
as they help.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Places = NDArray[np.int64]
_ROUNDS = 2000
_FEW = 14
_SHORT, _STARTS, _NOISE = 64, 8, 0.3


def greedy(costs: Sequence[float] | Floats, ranks_count: int) -> Places:
    """The rank of each sequence, by their costs (at least 0)."""
    cost = np.asarray(costs, np.float64)
    dice = np.random.default_rng(0)
    assignments = [_place_stages(cost, cost, ranks_count)]
    if len(cost) <= _SHORT:  # where one sequence matters, other orders may end better
        assignments += [
            _place_stages(cost, cost * dice.lognormal(0, _NOISE, len(cost)), ranks_count)
            for _ in range(_STARTS)
        ]
    return min(assignments, key=lambda places: np.bincount(places, cost, ranks_count).max())


def _place_stages(cost: Floats, ordered_by: Floats, ranks_count: int) -> Places:
    places = np.zeros(len(cost), np.int64)
    heap = [(0.0, rank) for rank in range(ranks_count)]
    for at in np.argsort(-ordered_by, kind="stable").tolist():
        load, rank = heap[0]
        places[at] = rank
        heapq.heapreplace(heap, (load + float(cost[at]), rank))
    return _split_again(cost, _improve(cost, places, ranks_count), ranks_count)


def _split_again(cost: Floats, places: Places, ranks_count: int) -> Places:
    """With what the slowest and another hold split between the two in the best way, where that is
    few enough to look at every way and helps."""
    ranks = np.arange(ranks_count)
    for _ in range(_ROUNDS):
        loads = np.bincount(places, cost, ranks_count)
        slowest = int(loads.argmax())
        for other in ranks[np.argsort(loads, kind="stable")].tolist():
            both = np.flatnonzero((places == slowest) | (places == other))
            if other == slowest or not 1 < len(both) <= _FEW:
                continue
            ways = (np.arange(1 << (len(both) - 1))[:, None] >> np.arange(len(both))) & 1
            one = ways @ cost[both]
            larger = np.maximum(one, cost[both].sum() - one)
            if larger.min() < loads[slowest] * (1 - 1e-12):
                places[both] = np.where(ways[larger.argmin()], slowest, other)
                break
        else:
            break
    return places


def _improve(cost: Floats, places: Places, ranks_count: int) -> Places:
    """With moves from the slowest, and exchanges with it, that make neither as slow."""
    loads = np.bincount(places, cost, ranks_count)
    for _ in range(_ROUNDS):
        slowest = int(loads.argmax())
        own, others = np.flatnonzero(places == slowest), np.flatnonzero(places != slowest)
        # Exchanges, and in the last column moves for nothing, one for each rank.
        given_back = np.append(cost[others], np.zeros(ranks_count))
        partner = np.append(places[others], np.arange(ranks_count))
        shift = cost[own][:, None] - given_back[None, :]
        after = np.maximum(loads[slowest] - shift, loads[partner][None, :] + shift)
        after[:, partner == slowest] = np.inf
        if not after.size:
            break
        best = np.unravel_index(int(after.argmin()), after.shape)
        if not after[best] < loads[slowest] * (1 - 1e-12):
            break
        mine, other = own[best[0]], int(best[1])
        places[mine] = partner[other]
        if other < len(others):
            places[others[other]] = slowest
        loads = np.bincount(places, cost, ranks_count)
    return places
