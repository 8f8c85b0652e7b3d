"""Where a series changes its level: a pure function on arrays, for captures and for logs alike.

values --> logarithms, lone spikes cut --> blocks, where there are many
       --> binary segmentation, each split held against chance --> places to the value, sizes

A series without change has a change found in ALARMS of all cases, by every split's own test: its
largest drop of the sum of squares (over all places, and over stretches of every length) against
that of the same values in random order, or, of few values, of normal ones. What follows the level
before (correlation from value to value) widens noise as in `compare`: (1 + r) / (1 - r).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

Floats = NDArray[np.float64]
# How often a series that has no change is said to have one.
ALARMS = 0.01
LEAST = 4  # of fewer values nothing can be told
_CONFIDENCE = 0.95
# Of fewer values their order cannot tell chance, nor their neighbours a spike or correlation.
_MANY = 20
_MOST_BLOCKS = 1000
_ORDERS = 199
_DRAWS = 999
_SHORTEST = 16  # of the stretches inside of a segment
_SPIKE = 4.0  # robust standard deviations from the neighbours' median
_AROUND = 5
_MOST_CORRELATED = 0.9


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """`at`: index of the first value of the new level. `before`, `after`: levels until the change
    before and after this one (geometric means without spikes; plain ones where a value is 0 or
    less). `delta` = after - before; `low`, `high`: its 95 % interval, None where noise is unknown.
    `count_before`, `count_after`: values of the two levels."""

    at: int
    before: float
    after: float
    low: float | None
    high: float | None
    count_before: int
    count_after: int

    @property
    def delta(self) -> float:
        """In the unit of the values."""
        return self.after - self.before

    def share(self, change: float | None) -> float | None:
        """A change as a share of the level before; None where that is 0 or the change unknown."""
        return None if change is None or not self.before else change / self.before


def change_points(values: Floats) -> list[ChangePoint]:
    """Changes of level of values in order of time, first to last.

    `values`: n finite numbers of one unit. Equal input gives equal output: random orders have
    one seed. A change that lasts less than n / 1000 values is not looked for.
    """
    if len(values) < LEAST:
        return []
    is_log = bool((values > 0).all())
    whole = np.log(values) if is_log else values.astype(np.float64)
    if len(whole) >= _MANY:
        whole = _without_spikes(whole)
    size = math.ceil(len(whole) / _MOST_BLOCKS)
    starts = np.arange(0, len(whole), size)
    blocks = np.add.reduceat(whole, starts) / np.diff(starts, append=len(whole))
    dice = np.random.default_rng(0)
    borders = [0, *(size * at for at in _splits(blocks, _widening(blocks), dice)), len(whole)]
    for place in range(1, len(borders) - 1):
        borders[place] = _sharpen(whole, (borders[place - 1], borders[place], borders[place + 1]))
    wide = _widening(whole)
    return [
        _change_point(whole, levels, wide, is_log)
        for levels in zip(borders, borders[1:], borders[2:], strict=False)
    ]


def _without_spikes(values: Floats) -> Floats:
    """A value far from the median of its neighbours is moved near it; steps keep their edge."""
    half = _AROUND // 2
    around = np.lib.stride_tricks.sliding_window_view(np.pad(values, half, "reflect"), _AROUND)
    middle = np.median(around, axis=1)
    spread = 1.4826 * float(np.median(np.abs(values - middle)))
    if not spread:
        return values
    return np.clip(values, middle - _SPIKE * spread, middle + _SPIKE * spread)


def _widening(values: Floats) -> float:
    """How much more a mean varies than one of independent values. From differences of values one
    and two apart, of which changes of level touch few."""
    if len(values) < _MANY:
        return 1.0
    # Two values on this side of a change have their next but one on the other.
    most = -(2 * math.ceil(len(values) / 50))
    near, far = (
        float(np.mean(np.sort((values[lag:] - values[:-lag]) ** 2)[:most])) for lag in (1, 2)
    )
    # By its own error more than that, which few values leave wide.
    r = min(max(far / near - 1, 0.0) + len(values) ** -0.5, _MOST_CORRELATED) if near else 0.0
    return (1 + r) / (1 - r)


def _splits(values: Floats, wide: float, dice: np.random.Generator) -> list[int]:
    """Binary segmentation: places of the changes, in order."""
    points: list[int] = []
    todo = [(0, len(values))]
    while todo:
        low, high = todo.pop()
        at = _split(values[low:high], wide, dice)
        if at is not None:
            points.append(low + at)
            todo += [(low, low + at), (low + at, high)]
    return sorted(points)


def _split(values: Floats, wide: float, dice: np.random.Generator) -> int | None:
    """Where the values change most, if chance seldom does as much."""
    count = len(values)
    if count < LEAST or values.max() == values.min():
        return None
    drop, at = _largest_drop(values[None, :])
    # Explained over unexplained, the latter that much more than it seems.
    rest = 1 - drop + (_rounding(values) if count < _MANY else 0.0)
    drop = drop / (drop + wide * rest)
    if count < _MANY:
        by_chance = _largest_drop(dice.standard_normal((_DRAWS, count)))[0]
    else:
        orders = np.tile(values, (_ORDERS, 1))
        by_chance = _largest_drop(dice.permuted(orders, axis=1, out=orders))[0]
    as_much = int((by_chance >= drop[0]).sum())
    return int(at[0]) if (1 + as_much) / (1 + len(by_chance)) <= ALARMS else None


def _rounding(values: Floats) -> float:
    """The share of their sum of squares that rounding hides, of values that repeat: these are known
    to the least difference between any two. Else a few that happen to be alike would have no noise
    at all, against which any other value is a change."""
    apart = np.diff(np.sort(values))
    if apart.all():
        return 0.0
    hidden = float(apart[apart > 0].min()) ** 2 / 12
    return hidden * len(values) / float(((values - values.mean()) ** 2).sum())


def _largest_drop(series: Floats) -> tuple[Floats, NDArray[np.intp]]:
    """Of each row the largest share of its sum of squares that one split explains, and where the
    second part begins. A split is of the whole row or, of many values, of a stretch inside: these
    are of half the length each time, and overlap by half (seeded binary segmentation)."""
    rows, count = series.shape
    least = 1 if count < _MANY else 2
    series = series - series.mean(axis=1, keepdims=True)
    sums = np.concatenate([np.zeros((rows, 1)), np.cumsum(series, axis=1)], axis=1)
    best = np.full(rows, -1.0)
    place = np.zeros(rows, np.intp)
    length = count
    while True:
        left = np.arange(least, length - least + 1)
        for start in _starts(count, length):
            inside = sums[:, start : start + length + 1]
            level = inside[:, -1:] - inside[:, :1]
            gap = inside[:, left] - inside[:, :1] - level * (left / length)
            drops = gap**2 * (length / (left * (length - left)))
            at = drops.argmax(axis=1)
            value = drops[np.arange(rows), at]
            better = value > best
            best[better] = value[better]
            place[better] = start + left[at[better]]
        length //= 2
        if count < _MANY or length < _SHORTEST:
            return best / (series**2).sum(axis=1), place


def _starts(count: int, length: int) -> range | list[int]:
    if length == count:
        return [0]
    last = count - length
    return [*range(0, last, max(length // 2, 1)), last]


def _sharpen(values: Floats, levels: tuple[int, int, int]) -> int:
    """The place between the middles of two levels (from first to at to last) at which they fit
    best, given what they are."""
    first, at, last = levels
    before, after = values[first:at].mean(), values[at:last].mean()
    low, high = (first + at) // 2, (at + last + 1) // 2
    # The cost of each value counted with the level before rather than that after.
    cost = (values[low:high] - before) ** 2 - (values[low:high] - after) ** 2
    place = low + int(np.argmin(np.concatenate([[0.0], np.cumsum(cost)])))
    return min(max(place, first + 1), last - 1)


def _change_point(
    values: Floats, levels: tuple[int, int, int], wide: float, is_log: bool
) -> ChangePoint:
    first, at, last = levels
    before, after = values[first:at], values[at:last]
    level, change = float(before.mean()), float(after.mean() - before.mean())
    counts = len(before), len(after)
    is_exact = not np.ptp(before) and not np.ptp(after)
    degrees = max(sum(counts) - 2, 1)
    squares = float(((before - before.mean()) ** 2).sum() + ((after - after.mean()) ** 2).sum())
    error = math.sqrt(wide * squares / degrees * sum(1 / one for one in counts))
    half = float(stdtrit(degrees, 0.5 + _CONFIDENCE / 2)) * error
    low, high = change - half, change + half
    if is_log:
        level = math.exp(level)
        change, low, high = (level * math.expm1(one) for one in (change, low, high))
    if is_exact:
        return ChangePoint(at, level, level + change, None, None, *counts)
    return ChangePoint(at, level, level + change, low, high, *counts)
