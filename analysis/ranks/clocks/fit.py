"""Offsets and drifts of clocks from instants that all clocks saw: robust least squares.

A collective that everybody waits for ends on all members at one true instant T. What the clock of
member m reads then is

    end[i, m] = T[i] + offset[m] + drift[m] * t[i] + noise

with t from -1 at the capture's begin to 1 at its end. T is eliminated by subtracting from each
instant's readings their mean; what remains is solved by conjugate gradients, which never forms a
matrix, so that time and memory grow with the readings only. Weights of readings that lie far off
fall (Huber, then Tukey's biweight), and the solution is repeated.

How far fitted clocks may be off, by what the fit does when some of the readings are missing.

Instants are dealt into eight heaps; the fit is repeated without each, with the weights it had. How
much the results differ tells their error, whatever the noise is like (delete-a-group jackknife).
What all readings of a group have in common, as when one member always leaves it first, no
repetition tells: that is estimated from how far groups disagree on a clock.

Which ranks read the same clock: those of one host, unless what they read says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import duckdb
import numpy as np
import polars as pl
from numpy.typing import NDArray

from npuscope.collector.store import store
from npuscope.messages import Message

from ...catalog import metric

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

_HUBER, _TUKEY = 1.345, 6.0
_HUBER_ROUNDS, _TUKEY_ROUNDS = 30, 5
_NORMAL = 1.4826  # standard deviation of a normal distribution / median absolute deviation
_LEAST_SPREAD_NS = 0.5  # readings are whole ns


@dataclass(frozen=True, slots=True)
class Readings:
    """What clocks read at instants: `end_ns[k]` is what `clock[k]` read at `instant[k]`.

    Instants are numbered from 0 without gaps, and so are clocks. Each instant was read by several.
    """

    instant: Integers
    clock: Integers
    end_ns: Floats
    clock_count: int

    @property
    def instant_count(self) -> int:
        return int(self.instant.max()) + 1 if self.instant.size else 0


@dataclass(frozen=True, slots=True)
class Fit:
    """Offsets at the middle of the capture and drifts over half of it, both in ns, per clock.

    `residual_ns` and `weight` are those of each reading, `middle_ns` and `half_ns` where t is 0 and
    how much time a unit of it is, on the clock of `reference`.
    """

    offset_ns: Floats
    drift_ns: Floats
    residual_ns: Floats
    weight: Floats
    place: Floats
    middle_ns: float
    half_ns: float
    spread_ns: float


def fit(readings: Readings, reference: int, drifts: Flags, *, before: Fit | None = None) -> Fit:
    """Robust offsets of all clocks to `reference`, and drifts of those that may drift.

    `before` is a fit of the same readings with other drifts to start from.
    """
    start = before or _start(readings)
    for round_ in range(_HUBER_ROUNDS if before else 0, _HUBER_ROUNDS + _TUKEY_ROUNDS):
        weight = _weights(start.residual_ns, start.spread_ns, is_last=round_ >= _HUBER_ROUNDS)
        start = refit(readings, replace(start, weight=weight), reference, drifts)
    return start


def refit(readings: Readings, before: Fit, reference: int, drifts: Flags) -> Fit:
    """The least squares solution for the weights of `before`, from where that one stands."""
    correction = _solve(readings, before, drifts)
    offset_ns = before.offset_ns + correction[0]
    drift_ns = before.drift_ns + correction[1]
    offset_ns, drift_ns = offset_ns - offset_ns[reference], drift_ns - drift_ns[reference]
    drift_ns[~drifts] = 0.0
    clock, place = readings.clock, before.place
    aligned = readings.end_ns - offset_ns[clock] - drift_ns[clock] * place
    instants = _means(readings, aligned, before.weight)
    residual_ns = aligned - instants[readings.instant]
    # Where t of an instant is, is known the better the better the clocks are.
    first, last = float(instants.min()), float(instants.max())
    half_ns = max((last - first) / 2, 1.0)
    middle_ns = (first + last) / 2
    ratio = half_ns / before.half_ns
    shift = (middle_ns - before.middle_ns) / before.half_ns
    return Fit(
        offset_ns + drift_ns * shift,
        drift_ns * ratio,
        residual_ns,
        before.weight,
        ((instants - middle_ns) / half_ns)[readings.instant],
        middle_ns,
        half_ns,
        spread(residual_ns),
    )


def spread(values: Floats) -> float:
    """Robust standard deviation, at least what rounding to whole ns makes."""
    if not values.size:
        return _LEAST_SPREAD_NS
    middle = np.median(values)
    return max(float(_NORMAL * np.median(np.abs(values - middle))), _LEAST_SPREAD_NS)


def components(readings: Readings) -> Integers:
    """A number per clock, the same for clocks that chains of common instants join."""
    label: Integers = np.arange(readings.clock_count, dtype=np.int64)
    while True:
        at_instant = np.full(readings.instant_count, readings.clock_count)
        np.minimum.at(at_instant, readings.instant, label[readings.clock])
        lower = label.copy()
        np.minimum.at(lower, readings.clock, at_instant[readings.instant])
        if (lower == label).all():
            return label
        label = lower


def _start(readings: Readings) -> Fit:
    """No offsets yet: every reading counts, and counts the same."""
    zeros = np.zeros(readings.clock_count)
    ones = np.ones(readings.end_ns.size)
    instants = _means(readings, readings.end_ns, ones)
    first, last = float(instants.min()), float(instants.max())
    middle_ns, half_ns = (first + last) / 2, max((last - first) / 2, 1.0)
    residual_ns = readings.end_ns - instants[readings.instant]
    place = ((instants - middle_ns) / half_ns)[readings.instant]
    return Fit(zeros, zeros, residual_ns, ones, place, middle_ns, half_ns, np.inf)


def _weights(residual_ns: Floats, spread_ns: float, *, is_last: bool) -> Floats:
    """How much a reading counts: the less the further it is off; in the end nothing far off."""
    far = np.abs(residual_ns) / spread_ns
    if is_last:
        weights: Floats = np.square(1 - np.square(np.minimum(far / _TUKEY, 1.0)))
        return np.maximum(weights, 1e-9)  # an instant of which nothing counts has no mean
    huber: Floats = np.minimum(1.0, _HUBER / np.maximum(far, 1e-12))
    return huber


def _means(readings: Readings, values: Floats, weight: Floats) -> Floats:
    """Weighted mean of each instant."""
    count = readings.instant_count
    total = np.bincount(readings.instant, weight * values, count)
    means: Floats = total / np.bincount(readings.instant, weight, count)
    return means


def _solve(readings: Readings, before: Fit, drifts: Flags) -> Floats:
    """Corrections of (offset, drift) by preconditioned conjugate gradients.

    The equations tell differences of clocks only: what all have in common stays as it is.
    """
    clock, instant, place, weight = readings.clock, readings.instant, before.place, before.weight
    clocks, instants = readings.clock_count, readings.instant_count
    sums = np.bincount(instant, weight, instants)
    free = np.stack([np.ones(clocks), drifts.astype(np.float64)])

    def gather(values: Floats) -> Floats:
        means = np.bincount(instant, weight * values, instants) / sums
        pull = weight * (values - means[instant])
        per_clock = [np.bincount(clock, pull, clocks), np.bincount(clock, pull * place, clocks)]
        pulls: Floats = np.stack(per_clock).astype(np.float64) * free
        return pulls

    own = weight * (1 - weight / sums[instant])
    diagonal = np.stack(
        [np.bincount(clock, own, clocks), np.bincount(clock, own * np.square(place), clocks)]
    )
    inverse = np.where(diagonal > 0, 1 / np.maximum(diagonal, 1e-300), 0.0) * free
    solution: Floats = np.zeros((2, clocks), dtype=np.float64)
    rest = gather(before.residual_ns)
    direction = inverse * rest
    size = float((rest * direction).sum())
    # About 1e-5 ns on each clock.
    goal = max(size * 1e-22, 1e-10 * float(diagonal[0].sum()))
    for _ in range(2 * clocks + 20):
        if size <= goal:
            break
        image = gather(direction[0][clock] + direction[1][clock] * place)
        curvature = float((direction * image).sum())
        if curvature <= 0:
            break
        step = size / curvature
        solution += step * direction
        rest -= step * image
        scaled = inverse * rest
        before_size, size = size, float((rest * scaled).sum())
        direction = scaled + size / before_size * direction
    return solution


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


# Ranks of one host whose middle residuals lie further apart than this, and than six times what a
# reading scatters, do not share a clock.
APART_NS = 20_000.0


@dataclass(slots=True)
class Clock:
    """A clock: whose it is, and what was found out; None: unknown."""

    host: str | None
    ranks: list[int]
    offset_ns: int | None = None
    drift_ppm: float | None = None
    drift_error_ppm: float | None = None
    fitted_ppm: float | None = None  # told or not
    residual_ns: float | None = None
    error_ns: int | None = None
    lower_ns: int | None = None
    upper_ns: int | None = None
    instance_count: int = 0
    basis: str = "none"
    remarks: list[str] = field(default_factory=list)


def clocks_of(con: duckdb.DuckDBPyConnection) -> list[Clock]:
    """A clock per host of a capture, in order of its first rank; of unknown hosts, and of devices
    that count from their own zero, one per rank."""
    hosts = f"select rank, host as host_key, host_name as host from ({metric('rank_hosts').sql})"
    device = "select rank, bool_or(clock = 'device') as is_device from ranks group by rank"
    ranks = store.frame(
        con.sql(f"select * from ({hosts}) left join ({device}) using (rank) order by rank")
    ).to_dicts()
    by_host: dict[str, Clock] = {}
    names: dict[str, set[str]] = {}
    for one in ranks:
        names.setdefault(one["host"] or "", set()).add(one["host_key"] or "")
    for one in ranks:
        key, host = one["host_key"], one["host"]
        if key is None:
            by_host[f"rank {one['rank']}"] = Clock(
                None, [one["rank"]], remarks=[Message("host unknown")]
            )
            continue
        # Machines may share a name.
        label = f"{host} ({key})" if len(names[host]) > 1 else host
        if one["is_device"]:
            clock = Clock(
                label, [one["rank"]], remarks=[Message("its device clock has its own zero")]
            )
            by_host[f"rank {one['rank']}"] = clock
            continue
        by_host.setdefault(f"host {key}", Clock(label, [])).ranks.append(one["rank"])
    return list(by_host.values())


def hosts_apart(readings: pl.DataFrame) -> set[int]:
    """Clocks whose ranks read different times at what ended for all of them at once.

    `readings` has the columns of `sql/clock_readings.sql`.
    """
    middles = (
        readings.filter("is_barrier")
        .with_columns(
            off_ns=pl.col("end_ns") - pl.col("end_ns").median().over("instance", "clock"),
            members=pl.len().over("instance", "clock"),
        )
        .filter(pl.col("members") > 1)
        .group_by("clock", "rank")
        .agg(
            middle_ns=pl.col("off_ns").median(),
            scatter_ns=(pl.col("off_ns") - pl.col("off_ns").median()).abs().median() * 1.4826,
        )
        .group_by("clock")
        .agg(
            range_ns=pl.col("middle_ns").max() - pl.col("middle_ns").min(),
            scatter_ns=pl.col("scatter_ns").median(),
        )
        .filter(pl.col("range_ns") > pl.max_horizontal(APART_NS, 6 * pl.col("scatter_ns")))
    )
    return set(middles["clock"])


def split_hosts(clocks: Sequence[Clock], apart: set[int]) -> list[Clock]:
    """The same, with a clock of its own for each rank of the hosts named."""
    remark = Message("ranks of this host do not share a clock")
    split: list[Clock] = []
    for number, clock in enumerate(clocks):
        if number in apart:
            split += [Clock(clock.host, [rank], remarks=[remark]) for rank in clock.ranks]
        else:
            split.append(clock)
    return split
