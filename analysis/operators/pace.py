"""How long kernels take for their work here: a line through those of one capture.

time = start + pace x work, through the medians (least sum of relative errors), so that some kernels
that are slow by nature do not bend it. `low` and `high` are what a tenth of the kernels stay below
and exceed, as a factor of the line.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
_ROUNDS = 30
_LEAST_POINTS, _LEAST_SPAN = 3, 1.5  # below, a start and a pace cannot be told apart
_TAIL = 0.1
_OTHER = float(np.log(2))
_MOST_POINTS = 100
_AT_ONCE = 1 << 18  # lines x kernels: stays in caches, however many kernels there are


@dataclass(frozen=True, slots=True)
class Pace:
    """start_ns of any kernel, ns_per_work beyond it; factors of the line; the highest rate of all
    (work per ns beyond the start)."""

    start_ns: float
    ns_per_work: float
    low: float
    high: float
    best_rate: float


def pace(work: Floats, dur_ns: Floats, count: Floats) -> Pace | None:
    """The line through kernels with this work, mean duration and count; None: too few or alike."""
    is_usable = (work > 0) & (dur_ns > 0) & (count > 0)
    work, dur_ns, count = work[is_usable], dur_ns[is_usable], count[is_usable]
    if len(np.unique(work)) < _LEAST_POINTS or work.max() < _LEAST_SPAN * work.min():
        return None
    weights = np.sqrt(count)
    start_ns, ns_per_work = _likeliest(work, dur_ns, weights)
    is_like = np.abs(np.log(dur_ns / (start_ns + ns_per_work * work))) < _OTHER
    likes = work[is_like], dur_ns[is_like], weights[is_like]
    if len(np.unique(likes[0])) >= _LEAST_POINTS:
        start_ns, ns_per_work = _through_medians(*likes, start_ns, ns_per_work)
    return _describe(start_ns, ns_per_work, work, dur_ns, weights)


def _likeliest(work: Floats, dur_ns: Floats, weights: Floats) -> tuple[float, float]:
    """Of all lines through two kernels (of the most frequent) the one that errs least, where what
    is off by more than a factor of 2 errs no further: how far a kernel of another kind is off must
    not count."""
    order = np.lexsort((work, -weights))[:_MOST_POINTS]
    one, other = np.triu_indices(len(order), 1)
    one, other = order[one], order[other]
    apart = work[one] != work[other]
    one, other = one[apart], other[apart]
    slopes = (dur_ns[other] - dur_ns[one]) / (work[other] - work[one])
    starts = np.clip(dur_ns[one] - slopes * work[one], 0, dur_ns.min())
    slopes = np.concatenate([slopes, (dur_ns[one] - starts) / work[one]])
    starts = np.concatenate([starts, starts])
    starts, slopes = starts[slopes > 0], slopes[slopes > 0]
    least, best = np.inf, (0.0, float(np.median(dur_ns / work)))
    lines = max(_AT_ONCE // len(work), 1)
    for begin in range(0, len(starts), lines):
        here = slice(begin, begin + lines)
        expected = starts[here, None] + slopes[here, None] * work
        errors = np.minimum(np.abs(np.log(dur_ns / expected)), _OTHER) @ weights
        at = int(errors.argmin())
        if errors[at] < least:
            least, best = float(errors[at]), (float(starts[here][at]), float(slopes[here][at]))
    return best


def _through_medians(
    work: Floats, dur_ns: Floats, weights: Floats, start_ns: float, ns_per_work: float
) -> tuple[float, float]:
    """The line with the least sum of relative errors, from a line near it."""
    least_ns = float(dur_ns.min())
    for _ in range(_ROUNDS):
        expected = start_ns + ns_per_work * work
        larger = np.maximum(dur_ns, expected)
        error = np.abs(dur_ns - expected) / larger
        scale = np.sqrt(weights / np.maximum(error, 1e-3)) / larger
        sides = np.column_stack([np.ones_like(work), work]) * scale[:, None]
        coefficients = np.linalg.lstsq(sides, dur_ns * scale, rcond=None)[0]
        start_ns = float(np.clip(coefficients[0], 0, least_ns))
        if coefficients[1] > 0:
            ns_per_work = float(coefficients[1])
    return start_ns, ns_per_work


def _describe(
    start_ns: float, ns_per_work: float, work: Floats, dur_ns: Floats, weights: Floats
) -> Pace:
    ratio = dur_ns / (start_ns + ns_per_work * work)
    beyond = np.maximum(dur_ns - start_ns, 1.0)
    of_kind = (work >= np.quantile(work, 0.5)) & (np.abs(np.log(ratio)) < _OTHER)
    rates = work[of_kind] / beyond[of_kind]
    return Pace(
        start_ns, ns_per_work, min(_quantile(ratio, weights, _TAIL), 1.0),
        max(_quantile(ratio, weights, 1 - _TAIL), 1.0),
        max(float(rates.max(initial=0.0)), 1 / ns_per_work),
    )  # fmt: skip


def _quantile(values: Floats, weights: Floats, share: float) -> float:
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, share * reached[-1])])
