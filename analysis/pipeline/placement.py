"""How many layers each part of a pipeline should get, so that the longest is as short as can be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .execution import Times
from .orders.other_orders import Part

Floats = NDArray[np.float64]


def place_layers(
    times_ns: Sequence[float],
    places: int,
    needed_bytes: Sequence[Sequence[float]] | None = None,
    limits_bytes: Sequence[float] | None = None,
) -> list[int] | None:
    """Layers of each place, contiguous, at least one each; None where nothing fits.

    times_ns: of a micro-batch through each layer, forward and backward, with what stands beside it
    (embedding, head, MTP). The largest sum of a place is least; of such cuts, that with the least
    sum of squares. needed_bytes[place][layer]: what a layer takes there; limits_bytes: of places.
    Dynamic programming over (places, layers), exact.
    """
    count = len(times_ns)
    if not 1 <= places <= count:
        return None
    spent = np.concatenate([[0.0], np.cumsum(times_ns)])
    lengths = spent[None, :] - spent[:, None]  # of layers from .. to
    fits = np.triu(np.ones((count + 1, count + 1), bool), 1)
    allowed = [fits] * places
    if needed_bytes is not None and limits_bytes is not None:
        allowed = []
        for needed, limit in zip(needed_bytes, limits_bytes, strict=True):
            total = np.concatenate([[0.0], np.cumsum(needed)])
            allowed.append(fits & (total[None, :] - total[:, None] <= limit))
    least, _ = _cut(lengths, allowed, np.maximum)
    if not np.isfinite(least):
        return None
    # Sums of the same layers differ by rounding alone.
    within = [one & (lengths <= least * (1 + 1e-12)) for one in allowed]
    _, bounds = _cut(lengths**2, within, np.add)
    return np.diff(bounds).tolist()


def _cut(
    costs: Floats, allowed: Sequence[NDArray[np.bool_]], join: np.ufunc
) -> tuple[float, list[int]]:
    """The least cost, joined over places, and where their layers begin and end."""
    count = len(costs) - 1
    best = np.full(count + 1, np.inf)
    best[0] = 0.0
    before: list[NDArray[np.int64]] = []
    for one in allowed:
        every = np.where(one, join(best[:, None], costs), np.inf)
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
