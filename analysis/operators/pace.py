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


@dataclass(frozen=True, slots=True)
class Pace:
    """start_ns of any kernel, ns_per_work beyond it; factors of the line; the highest rate of all
    (work per ns beyond the start)."""

    start_ns: float
    ns_per_work: float
    low: float
    high: float
    best_rate: float

    def ns(self, work: float) -> float:
        """Time of a kernel with so much work."""
        return self.start_ns + self.ns_per_work * work


def pace(work: Floats, dur_ns: Floats, count: Floats) -> Pace | None:
    """The line through kernels with this work, mean duration and count; None: too few or alike."""
    known = (work > 0) & (dur_ns > 0) & (count > 0)
    work, dur_ns, count = work[known], dur_ns[known], count[known]
    if len(np.unique(work)) < _LEAST_POINTS or work.max() < _LEAST_SPAN * work.min():
        return None
    weights = np.sqrt(count)
    least_ns = float(dur_ns.min())
    start_ns = 0.9 * least_ns
    ns_per_work = _quantile((dur_ns - start_ns) / work, weights, 0.5)
    for _ in range(_ROUNDS):
        # Errors of the larger of both times, so that what is far off on either side counts alike.
        expected = start_ns + ns_per_work * work
        larger = np.maximum(dur_ns, expected)
        error = np.abs(dur_ns - expected) / larger
        scale = np.sqrt(weights / np.maximum(error, 1e-3)) / larger
        sides = np.column_stack([np.ones_like(work), work]) * scale[:, None]
        found = np.linalg.lstsq(sides, dur_ns * scale, rcond=None)[0]
        start_ns = float(np.clip(found[0], 0, least_ns))
        if found[1] > 0:
            ns_per_work = float(found[1])
    beyond = np.maximum(dur_ns - start_ns, 1.0)
    ratio = dur_ns / (start_ns + ns_per_work * work)
    large = work >= np.quantile(work, 0.5)
    return Pace(
        start_ns, ns_per_work, min(_quantile(ratio, weights, _TAIL), 1.0),
        max(_quantile(ratio, weights, 1 - _TAIL), 1.0),
        max(float((work[large] / beyond[large]).max()), 1 / ns_per_work),
    )  # fmt: skip


def _quantile(values: Floats, weights: Floats, share: float) -> float:
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, share * reached[-1])])
