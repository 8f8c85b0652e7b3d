"""How far fitted clocks may be off, by what the fit does when some of the readings are missing.

Instants are dealt into eight heaps; the fit is repeated without each, with the weights it had. How
much the results differ tells their error, whatever the noise is like (delete-a-group jackknife).
What all readings of a group have in common, as when one member always leaves it first, no
repetition tells: that is estimated from how far groups disagree on a clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from .fit import Fit, Flags, Floats, Integers, Readings, refit, spread

HEAPS = 8
# 97.5 % of Student's t with 1, 2, ... HEAPS - 1 degrees of freedom.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365)


@dataclass(frozen=True, slots=True)
class Errors:
    """95 % bounds per clock: of the offset anywhere in the capture, and of the drift over half of
    it, in ns; with the common instants that each clock has."""

    offset_ns: Floats
    drift_ns: Floats
    instant_count: Integers


def errors(
    readings: Readings, fitted: Fit, group: Integers, reference: int, drifting: Flags
) -> Errors:
    """Errors of a fit's clocks against the reference; infinite where there are too few instants.

    With fewer than eight, that of the offset comes from how far they scatter.
    """
    counts, few_ns = _few(readings, fitted)
    heap = np.random.default_rng(0).permutation(readings.instant_count) % HEAPS
    offsets, drifts = [], []
    for left_out in range(HEAPS):
        # A hair instead of nothing: an instant without weight has no mean.
        weight = np.where(heap[readings.instant] == left_out, fitted.weight * 1e-9, fitted.weight)
        again = refit(readings, replace(fitted, weight=weight), reference, drifting)
        # The instants' range is the same, so that offsets and drifts of the repetitions compare.
        scale, shift = again.half_ns / fitted.half_ns, again.middle_ns - fitted.middle_ns
        drift_ns = again.drift_ns / scale
        offsets.append(again.offset_ns - drift_ns * shift / fitted.half_ns)
        drifts.append(drift_ns)
    offset, drift = np.stack(offsets), np.stack(drifts)
    at_ends = [_deviation(offset + drift), _deviation(offset - drift), _deviation(offset)]
    scatter_ns = np.hypot(np.max(at_ends, axis=0), _between_groups(readings, fitted, group))
    few = counts < HEAPS
    offset_ns = np.where(few, few_ns, np.maximum(_STUDENT[-1] * scatter_ns, 1.0))
    # Weights follow the readings, which makes few of them look better than they are: a slope over
    # -1..1 is not known better than the scatter, with what is far off, allows.
    slope_ns = _scale_of(readings, fitted) * np.sqrt(3 / np.maximum(counts, 1))
    drift_ns = _STUDENT[-1] * np.maximum(_deviation(drift), slope_ns)
    drift_ns = np.where(few, np.inf, np.maximum(drift_ns, 1.0))
    offset_ns[reference] = drift_ns[reference] = 0.0
    return Errors(offset_ns, drift_ns, counts)


def _few(readings: Readings, fitted: Fit) -> tuple[Integers, Floats]:
    """Common instants of each clock, and what the scatter of few of them tells of its offset."""
    means = (
        pl.DataFrame(
            {"clock": readings.clock, "instant": readings.instant,
             "residual_ns": fitted.residual_ns}
        )
        .group_by("clock", "instant").agg(pl.col("residual_ns").mean())
        .group_by("clock").agg(pl.len().alias("count"), pl.col("residual_ns").std())
    )  # fmt: skip
    counts = np.zeros(readings.clock_count, dtype=np.int64)
    counts[means["clock"].to_numpy()] = means["count"].to_numpy()
    scatter_ns = np.full(readings.clock_count, fitted.spread_ns)
    scatter_ns[means["clock"].to_numpy()] = np.maximum(
        means["residual_ns"].fill_null(0.0).to_numpy(), fitted.spread_ns
    )
    student = np.array([np.inf, np.inf, *_STUDENT])[np.minimum(counts, HEAPS)]
    few_ns: Floats = student * scatter_ns / np.sqrt(np.maximum(counts, 1))
    return counts, few_ns


def _scale_of(readings: Readings, fitted: Fit) -> Floats:
    """Root mean square of each clock's residuals, those far off counted as six spreads."""
    clock = readings.clock
    near = np.minimum(np.abs(fitted.residual_ns), 6 * fitted.spread_ns)
    counts = np.maximum(np.bincount(clock, minlength=readings.clock_count), 1)
    scale: Floats = np.sqrt(np.bincount(clock, np.square(near), readings.clock_count) / counts)
    return scale


def _deviation(values: Floats) -> Floats:
    """Standard error from the results without each heap."""
    centred = values - values.mean(axis=0)
    deviation: Floats = np.sqrt((HEAPS - 1) / HEAPS * np.square(centred).sum(axis=0))
    return deviation


def _between_groups(readings: Readings, fitted: Fit, group: Integers) -> Floats:
    """Standard error of each clock by how its groups' middle residuals scatter."""
    cells = (
        pl.DataFrame(
            {"clock": readings.clock, "group": group,
             "residual_ns": fitted.residual_ns}
        )
        .group_by("clock", "group").agg(pl.col("residual_ns").median())
    )  # fmt: skip
    scatter_ns = spread(cells["residual_ns"].to_numpy())
    counts = np.bincount(cells["clock"].to_numpy(), minlength=readings.clock_count)
    scattered: Floats = scatter_ns / np.sqrt(np.maximum(counts, 1))
    return scattered
