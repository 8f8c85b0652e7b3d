"""How many layers each part of a pipeline should get: so that the longest is as short as can be,
and from there so that the executed step is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from .execution import Times
from .orders.other_orders import Part

Floats = NDArray[np.float64]


def place_layers(
    times_ns: Sequence[float] | Times,
    places: int,
    needed_bytes: Sequence[Sequence[float]] | None = None,
    limits_bytes: Sequence[float] | None = None,
) -> list[int] | None:
    """Layers of each place, contiguous, at least one each; None where nothing fits.

    times_ns: of a micro-batch through each layer, forward and backward, with what stands beside it
    (embedding, head, MTP), by place where that hangs on it (places x layers). The largest sum of a
    place is least; of such cuts, that with the least sum of squares. needed_bytes[place][layer]:
    what a layer takes there; limits_bytes: of places.
    Dynamic programming over (places, layers), exact.
    """
    times = np.array(times_ns, float, ndmin=2)
    count = times.shape[1]
    if not 1 <= places <= count:
        return None
    spent = np.broadcast_to(np.pad(np.cumsum(times, axis=1), ((0, 0), (1, 0))), (places, count + 1))
    fits = np.triu(np.ones((count + 1, count + 1), bool), 1)
    allowed = [fits] * places
    if needed_bytes is not None and limits_bytes is not None:
        allowed = []
        for needed, limit in zip(needed_bytes, limits_bytes, strict=True):
            total = np.concatenate([[0.0], np.cumsum(needed)])
            allowed.append(fits & (total[None, :] - total[:, None] <= limit))
    least, _ = _cut(spent, allowed, np.maximum)
    if not np.isfinite(least):
        return None
    # Sums of the same layers differ by rounding alone.
    within = [one & (_lengths(its) <= least * (1 + 1e-12))
              for one, its in zip(allowed, spent, strict=True)]  # fmt: skip
    _, bounds = _cut(spent, within, np.add, power=2)
    return np.diff(bounds).tolist()


def settle_cuts(
    cuts: Sequence[tuple[int, ...]],
    length_ns: Callable[[tuple[int, ...]], float],
    most: int,
    needed_bytes: Sequence[Sequence[float]] | None = None,
    limits_bytes: Sequence[float] | None = None,
) -> tuple[int, ...]:
    """The shortest of some cuts, and of those that lie one layer from the shortest so far: until
    none of these is shorter, or `most` were looked at. needed_bytes, limits_bytes: as
    `place_layers`; of the cuts one fits.

    The longest stage alone does not tell a step: the last one has no other to wait for, and a slow
    one that fills the pipeline holds up all the others.
    """

    def length(cut: tuple[int, ...]) -> float:
        ends = np.cumsum(cut)
        if (
            needed_bytes is not None
            and limits_bytes is not None
            and any(
                sum(its[end - count : end]) > limit
                for its, end, count, limit in zip(
                    needed_bytes, ends, cut, limits_bytes, strict=True
                )
            )
        ):
            return float("inf")
        return length_ns(cut)

    lengths = {cut: length(cut) for cut in cuts}
    best = min(lengths, key=lengths.__getitem__)
    pairs = list(permutations(range(len(best)), 2))
    idle = at = 0
    while idle < len(pairs) and len(lengths) < most:
        giver, taker = pairs[at % len(pairs)]
        cut = tuple(one + (k == taker) - (k == giver) for k, one in enumerate(best))
        at, idle = at + 1, idle + 1
        if min(cut) and cut not in lengths:
            lengths[cut] = length(cut)
            if lengths[cut] < lengths[best]:
                best, idle = cut, 0
    return best


def _lengths(spent: Floats) -> Floats:
    """Of layers from .. to on a place."""
    return spent[None, :] - spent[:, None]


def _cut(
    spent: Floats, allowed: Sequence[NDArray[np.bool_]], join: np.ufunc, power: int = 1
) -> tuple[float, list[int]]:
    """The least cost, joined over places, and where their layers begin and end."""
    count = spent.shape[1] - 1
    best = np.full(count + 1, np.inf)
    best[0] = 0.0
    before: list[NDArray[np.int64]] = []
    for one, its in zip(allowed, spent, strict=True):
        every = np.where(one, join(best[:, None], _lengths(its) ** power), np.inf)
        before.append(every.argmin(axis=0))
        best = every.min(axis=0)
    bounds = [count]
    for place in reversed(before):
        bounds.append(int(place[bounds[-1]]))
    return float(best[count]), bounds[::-1]


def layer_costs(
    parts: Sequence[Part],
    means_ns: Sequence[Times],
    kept_bytes: Sequence[float],
    end_bytes: Sequence[float],
) -> tuple[list[float], list[list[float]]]:
    """Of layers, each with what is no layer before the first or behind it: what a micro-batch
    takes, and the bytes that stay at the end of a step and that a micro-batch keeps.

    By measured place: means_ns of forwards and of backwards, kept_bytes, end_bytes (empty:
    unknown).
    """
    times: list[float] = []
    bytes_: list[list[float]] = []
    before = [0.0, 0.0]
    each = Counter(one.place for one in parts if one.is_layer)
    for part in parts:
        forward = part.forward + part.forward_pause
        backward = part.backward + part.backward_pause
        spent = means_ns[0][part.place] * forward + means_ns[1][part.place] * backward
        keeps = kept_bytes[part.place] * forward
        if part.is_layer:
            times.append(spent + before[0])
            stays = end_bytes[part.place] / each[part.place] if end_bytes else 0.0
            bytes_.append([stays, keeps + before[1]])
            before = [0.0, 0.0]
        elif times:
            times[-1] += spent
            bytes_[-1][1] += keeps
        else:
            before = [before[0] + spent, before[1] + keeps]
    return times, bytes_


def layer_times(
    parts: Sequence[Part], means_ns: Sequence[Times], slow_share: Times | None
) -> Times:
    """What a micro-batch takes in each layer on each place, on its slowest rank there: places x
    layers. What slow ranks make of passes stays with their place, as where orders are executed.

    means_ns: of forwards and of backwards, places x columns; slow_share: what slow ranks make of
    these.
    """
    places, columns = means_ns[0].shape
    nothing = np.zeros(places)
    total = np.zeros((columns, places, sum(part.is_layer for part in parts)))
    for at, means in enumerate(means_ns):
        slow = np.zeros_like(means) if slow_share is None else slow_share[at]
        for column, bare in enumerate((means * (1 - slow)).T):
            both = [nothing, nothing]
            both[at] = bare
            costs, _ = layer_costs(parts, both, [0.0] * places, ())
            total[column] += np.array(costs) / (1 - slow[:, column, None])
    slowest: Times = total.max(axis=0)
    return slowest
