"""One clock per host: how far it is ahead of the reference, how fast that grows, how sure that is.

Ranks of a host read one clock; where what they read contradicts that, or hosts are unknown, each
rank has its own. Offsets come from the ends of collectives (see `fit.fit`), errors from repetition
(see `fit.errors`), and nothing that happened may have happened before its cause (see `bounds`).

What no clock may contradict: a collective ends on no member before it begins on every other.

    member a   |=======================|        so  end on a  >=  start on b  in true time,
    member b             |=============|        and offset[a] - offset[b] <= end[a] - start[b]

A transfer bounds one way only: it is not received before the sending begins. Chains of such bounds
give each clock's bounds against the reference: shortest paths, found by relaxing all bounds at once
until nothing changes. An operation passes on the best that its members know, so that the work per
round grows with the readings and not with pairs of members.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import msgspec
import numpy as np
import polars as pl

from npuscope.collector.store import store
from npuscope.messages import Message, join, store_text

from ...metric import sql_text
from .fit import (
    APART_NS,
    HEAPS,
    Clock,
    Errors,
    Fit,
    Flags,
    Floats,
    Integers,
    Readings,
    clocks_of,
    components,
    errors,
    fit,
    hosts_apart,
    split_hosts,
    spread,
)

MOST_READINGS = 2_000_000
# A drift is told where it is known to one part in a million, or where it is known well enough to be
# of use and is three times as large as its error.
_FINE_PPM, _USEFUL_PPM, _TIMES = 1.0, 10.0, 3.0
# Where nothing tells a drift, it is taken to be no more than this: what crystals of computers are
# allowed to be off, and several times what they are.
_MOST_PPM = 100.0
# Beyond the instants it was fitted at, a drift counts as so many times as uncertain: its error from
# a dozen readings is itself known within a factor of two or three only.
_BEYOND = 3.0
_FIGURES: dict[str, type[pl.DataType]] = {
    "offset_ns": pl.Int64, "drift_ppm": pl.Float64, "drift_error_ppm": pl.Float64,
    "residual_ns": pl.Float64, "error_ns": pl.Int64, "lower_ns": pl.Int64, "upper_ns": pl.Int64,
    "instance_count": pl.Int64,
}  # fmt: skip
_SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    "clock": pl.Int32, "host": pl.String, "ranks": pl.List(pl.Int32), "reference_rank": pl.Int32,
    "reference_ns": pl.Int64, **_FIGURES, "basis": pl.String, "note": pl.String,
    "remarks": pl.String,
}  # fmt: skip


def fit_clocks(con: duckdb.DuckDBPyConnection) -> None:
    """Make `_clocks`, a row per clock, and `_aligning` (rank, clock, offset_ns, drift, ...), which
    the alignment needs, from `_matched`."""
    clocks = clocks_of(con)
    readings = _readings(con, clocks)
    apart = hosts_apart(readings)
    if apart:
        clocks = split_hosts(clocks, apart)
        readings = _readings(con, clocks)
    reference = _reference(readings, clocks) if clocks else 0
    middle_ns = _fit(readings, clocks, reference) if clocks else 0.0
    first_ns, last_ns = con.execute("select min(start_ns), max(end_ns) from _matched").fetchall()[0]
    zero_ns = first_ns or 0
    _widen(clocks, readings, reference, (last_ns or 0) - zero_ns)
    _leave_alone(clocks, reference)
    _write(con, clocks, reference, zero_ns + round(middle_ns))


def _readings(con: duckdb.DuckDBPyConnection, clocks: Sequence[Clock]) -> pl.DataFrame:
    """Rows of `sql/clock_readings.sql` for these clocks."""
    pairs = [(rank, number) for number, clock in enumerate(clocks) for rank in clock.ranks]
    table = pl.DataFrame(pairs, schema={"rank": pl.Int32, "clock": pl.Int64}, orient="row")
    con.register("_pairs", table.to_arrow())
    con.execute("create or replace temp table _rank_clock as from _pairs")
    con.unregister("_pairs")
    con.execute(
        "create or replace temp table _share as select count(*) // ? + 1 as share from _matched"
        " where rank_count > 1", [MOST_READINGS]
    )  # fmt: skip
    return store.frame(con.sql(sql_text("clock_readings.sql")))


def _numbers_of(values: pl.Series) -> Integers:
    """Sorted values as 0, 1, 2, ... without gaps."""
    return values.rle_id().cast(pl.Int64).to_numpy()


def _ends(rows: pl.DataFrame, clock_count: int) -> tuple[pl.DataFrame, Readings]:
    """Ends of collectives that several clocks read, which all members share."""
    several = pl.col("clock").min().over("instance") < pl.col("clock").max().over("instance")
    ends = rows.filter(pl.col("is_barrier") & several)
    clock = ends["clock"].to_numpy()
    return ends, Readings(
        _numbers_of(ends["instance"]), clock, ends["end_ns"].to_numpy(), clock_count
    )


def _reference(rows: pl.DataFrame, clocks: Sequence[Clock]) -> int:
    """The first clock of those most of which are joined."""
    _, readings = _ends(rows, len(clocks))
    label = components(readings)
    return int(np.bincount(label, minlength=len(clocks)).argmax())


def _fit(rows: pl.DataFrame, clocks: list[Clock], reference: int) -> float:
    """Fill in the clocks; returns the middle of the capture, for which offsets hold, in ns."""
    clocks[reference].offset_ns, clocks[reference].basis = 0, "reference"
    clocks[reference].error_ns, clocks[reference].drift_ppm = 0, 0.0
    if rows.is_empty():
        _remark_unjoined(clocks)
        return 0.0
    ends, readings = _ends(rows, len(clocks))
    label = components(readings)
    offset_ns, drift_rate, middle_ns = np.zeros(len(clocks)), np.zeros(len(clocks)), 0.0
    if ends.is_empty():
        middle_ns = float(rows["end_ns"].to_numpy().max()) / 2
    else:
        free = label == label[reference]
        free[reference] = False
        moving = fit(readings, reference, free)
        group = ends["group_key"].to_numpy().astype(np.int64)
        bounds = errors(readings, moving, group, reference, free)
        drifts = _tell_drifts(clocks, moving, bounds, free)
        still = moving
        if (drifts != free).any():
            still = fit(readings, reference, drifts, before=moving)
        offset_ns, drift_rate = still.offset_ns, still.drift_ns / still.half_ns
        middle_ns = still.middle_ns
        _tell_offsets(clocks, readings, still, bounds, free)
        _tell_apart(clocks, ends["rank"], readings, still)
    _bound(rows, clocks, (offset_ns, drift_rate, middle_ns), (label, reference))
    _remark_unjoined(clocks)
    return middle_ns


def _tell_drifts(clocks: Sequence[Clock], moving: Fit, bounds: Errors, free: Flags) -> Flags:
    """Note each drift that can be told from jitter; returns which those are."""
    is_certain = np.zeros(len(clocks), dtype=bool)
    per_ppm = moving.half_ns / 1e6
    for number in np.flatnonzero(free).tolist():
        clock = clocks[number]
        drift, error = moving.drift_ns[number] / per_ppm, bounds.drift_ns[number] / per_ppm
        if not np.isfinite(error):
            clock.remarks.append(
                Message(
                    "drift cannot be determined: fewer than {count} common operations", count=HEAPS
                )
            )
            continue
        clock.drift_error_ppm, clock.fitted_ppm = float(error), float(drift)
        is_clear = error <= _USEFUL_PPM and abs(drift) >= _TIMES * error
        is_certain[number] = error <= _FINE_PPM or is_clear
        if is_certain[number]:
            clock.drift_ppm = float(drift)
        else:
            clock.remarks.append(
                Message(
                    "drift cannot be determined: {seconds} s allow an error of {error} ppm only",
                    seconds=f"{2 * moving.half_ns / 1e9:.3g}",
                    error=f"{error:.3g}",
                )
            )
    return is_certain


def _tell_offsets(
    clocks: Sequence[Clock], readings: Readings, still: Fit, bounds: Errors, free: Flags
) -> None:
    """Note offsets and errors of the clocks that collectives join with the reference."""
    for number, clock in enumerate(clocks):
        residual_ns = still.residual_ns[readings.clock == number]
        if residual_ns.size:
            clock.residual_ns = spread(residual_ns)
        clock.instance_count = int(bounds.instant_count[number])
        if free[number]:
            clock.basis = "collectives"
            clock.offset_ns = round(float(still.offset_ns[number]))
            if np.isfinite(bounds.offset_ns[number]):
                clock.error_ns = int(np.ceil(max(bounds.offset_ns[number], 1.0)))


def _tell_apart(clocks: Sequence[Clock], ranks: pl.Series, readings: Readings, still: Fit) -> None:
    """Report ranks of one host whose clocks the fit finds apart; the error takes it up."""
    columns = {"clock": readings.clock, "rank": ranks, "residual_ns": still.residual_ns}
    middles = pl.DataFrame(columns).group_by("clock", "rank").agg(pl.col("residual_ns").median())
    residual = pl.col("residual_ns")
    ranges = middles.group_by("clock").agg(range_ns=residual.max() - residual.min())
    far_ns = max(APART_NS, 6 * still.spread_ns)
    for number, range_ns in ranges.filter(pl.col("range_ns") > far_ns).sort("clock").iter_rows():
        one = clocks[number]
        remark = "clocks of its ranks differ by up to {range} us"
        one.remarks.append(Message(remark, range=f"{range_ns / 1e3:.0f}"))
        if one.error_ns is not None:
            one.error_ns += int(np.ceil(range_ns / 2))


def _bound(
    readings: pl.DataFrame,
    clocks: Sequence[Clock],
    fitted: tuple[Floats, Floats, float],
    parts: tuple[Integers, int],
) -> None:
    """Hold the fitted (offset, drift, middle) against causality, and place by it alone what only
    transfers join; `parts` are the parts that collectives join, and the reference."""
    offset_ns, drift_rate, middle_ns = fitted
    label, reference = parts
    clock = readings["clock"].to_numpy()
    times = [readings[name].to_numpy() for name in ("start_ns", "end_ns")]
    start_ns, end_ns = (at - drift_rate[clock] * (at - middle_ns) for at in times)
    spans = Spans(
        _numbers_of(readings["instance"]), clock, start_ns, end_ns,
        readings["begins"].to_numpy(), readings["ends"].to_numpy(), len(clocks),
    )  # fmt: skip
    least, largest = bounds(spans, reference)
    contradictory = least > largest + 1
    for number in np.flatnonzero(contradictory).tolist():
        clocks[number].remarks.append(Message("operations give contradicting orders of events"))
    for number, one in enumerate(clocks):
        if number != reference and not contradictory[number]:
            lower, upper = float(least[number]), float(largest[number])
            one.lower_ns = round(lower) if np.isfinite(lower) else None
            one.upper_ns = round(upper) if np.isfinite(upper) else None
            if one.offset_ns is not None:
                _hold(one, lower, upper)
    for part in np.unique(label[label != label[reference]]):
        members = np.flatnonzero(label == part)
        low = float((least[members] - offset_ns[members]).max())
        high = float((largest[members] - offset_ns[members]).min())
        if not (np.isfinite(low) and np.isfinite(high) and low <= high):
            continue
        for number in members.tolist():
            one = clocks[number]
            one.basis = "transfers"
            one.offset_ns = round(float(offset_ns[number]) + (low + high) / 2)
            one.error_ns = int(np.ceil((high - low) / 2))
            one.remarks.append(
                Message(
                    "no collective shared with the reference clock: the midpoint of the bounds is"
                    " used"
                )
            )


def _hold(one: Clock, lower: float, upper: float) -> None:
    """Move an offset into its bounds; these stand in for an error that repetition cannot tell."""
    assert one.offset_ns is not None
    held = round(min(max(one.offset_ns, lower), upper))
    moved = abs(held - one.offset_ns)
    if moved > 1:
        remark = "moved by {moved} ns so that no operation ends before its cause"
        one.remarks.append(Message(remark, moved=moved))
        one.error_ns = max(one.error_ns or 0, moved)
        one.offset_ns = held
    if one.error_ns is None and np.isfinite(lower) and np.isfinite(upper):
        one.error_ns = int(np.ceil(max(upper - held, held - lower)))


def _widen(
    clocks: Sequence[Clock],
    readings: pl.DataFrame,
    reference: int,
    capture_ns: int,
) -> None:
    """Let errors hold anywhere in the capture: they grow with the time from where a clock was
    fitted, by as much as its drift may be off, or by all of the drift where that is not told.

    Times count from the capture's first start, as in `readings`.
    """
    fitted = readings.filter(pl.col("is_barrier")).group_by("clock").agg(
        pl.col("end_ns").min().alias("first_ns"), pl.col("end_ns").max().alias("last_ns"),
        pl.col("end_ns").mean().alias("mean_ns"),
    )  # fmt: skip
    places = {row["clock"]: row for row in fitted.to_dicts()}
    for number, one in enumerate(clocks):
        if number == reference or one.error_ns is None or one.offset_ns is None:
            continue
        off_ns = float(one.offset_ns)  # its readings, on the reference's clock
        place = places.get(number)
        if place is None or one.basis != "collectives":
            one.error_ns += int(np.ceil(_MOST_PPM * 1e-6 * capture_ns))
        elif one.drift_ppm is None:
            mean_ns = place["mean_ns"] - off_ns
            far_ns = max(abs(mean_ns), abs(capture_ns - mean_ns))
            one.error_ns += int(np.ceil(_untold_ppm(one) * 1e-6 * far_ns))
        else:
            first_ns, last_ns = place["first_ns"] - off_ns, place["last_ns"] - off_ns
            beyond_ns = max(first_ns, capture_ns - last_ns, 0.0)
            one.error_ns += int(np.ceil(_BEYOND * (one.drift_error_ppm or 0.0) * 1e-6 * beyond_ns))


def _untold_ppm(one: Clock) -> float:
    """How large a drift may be that could not be told apart from jitter."""
    if one.drift_error_ppm is None or one.fitted_ppm is None:
        return _MOST_PPM
    return min(abs(one.fitted_ppm) + one.drift_error_ppm, _MOST_PPM)


def _leave_alone(clocks: Sequence[Clock], reference: int) -> None:
    """A reference that no other clock is joined with is ahead of nothing."""
    others = [one for number, one in enumerate(clocks) if number != reference]
    if not clocks or any(one.offset_ns is not None for one in others):
        return
    one = clocks[reference]
    one.offset_ns = one.error_ns = one.drift_ppm = None
    one.remarks.append(
        Message("shares no operation with another clock")
        if others
        else Message("no other clock to compare it with")
    )


def _remark_unjoined(clocks: Sequence[Clock]) -> None:
    for clock in clocks:
        if clock.offset_ns is None:
            clock.remarks.append(Message("no operation shared with the reference clock"))


def _write(
    con: duckdb.DuckDBPyConnection, clocks: Sequence[Clock], reference: int, reference_ns: int
) -> None:
    rows = [
        {
            "clock": number,
            "host": one.host,
            "ranks": one.ranks,
            "reference_rank": clocks[reference].ranks[0],
            "reference_ns": reference_ns,
            **{name: getattr(one, name) for name in _FIGURES},
            "basis": one.basis,
            "note": join(one.remarks, "; ") or None,
            "remarks": msgspec.json.encode([store_text(remark) for remark in one.remarks]).decode(),
        }
        for number, one in enumerate(clocks)
    ]
    con.register("_clock_rows", pl.DataFrame(rows, schema=_SCHEMA).to_arrow())
    con.execute("create or replace temp table _clocks as from _clock_rows")
    con.unregister("_clock_rows")
    con.execute(
        "create or replace temp table _aligning as select unnest(ranks) as rank, clock, host,"
        f" case when clock = {reference} then 0 else offset_ns end as offset_ns,"
        " coalesce(drift_ppm, 0) / 1e6 as drift, reference_ns,"
        f" case when clock = {reference} then 0 else error_ns end as error_ns from _clocks"
    )


_LINKS = 64


@dataclass(frozen=True, slots=True)
class Spans:
    """Operations as their members' clocks saw them, in ns, with any drift taken out.

    `begins` tells whose start the others' ends wait for, `ends` whose end waits for the starts.
    """

    instance: Integers
    clock: Integers
    start_ns: Floats
    end_ns: Floats
    begins: Flags
    ends: Flags
    clock_count: int


def bounds(spans: Spans, reference: int) -> tuple[Floats, Floats]:
    """Least and largest offset of each clock to the reference, infinite where nothing bounds it.

    Where they contradict each other (least above largest) so do the readings.
    """
    largest = _largest(spans, reference)
    # Seen in a mirror, ends are starts and the largest offset is the least.
    mirrored = Spans(
        spans.instance, spans.clock, -spans.end_ns, -spans.start_ns, spans.ends, spans.begins,
        spans.clock_count,
    )  # fmt: skip
    return -_largest(mirrored, reference), largest


def _largest(spans: Spans, reference: int) -> Floats:
    largest = np.full(spans.clock_count, np.inf)
    largest[reference] = 0.0
    count = int(spans.instance.max()) + 1 if spans.instance.size else 0
    # A shorter chain's bound is a bound too, and bounds that contradict each other never settle.
    for _ in range(min(spans.clock_count, _LINKS)):
        nearest = np.full(count, np.inf)
        openings = spans.begins
        reached = largest[spans.clock[openings]] - spans.start_ns[openings]
        np.minimum.at(nearest, spans.instance[openings], reached)
        lower = largest.copy()
        ended = spans.ends
        reached = spans.end_ns[ended] + nearest[spans.instance[ended]]
        np.minimum.at(lower, spans.clock[ended], reached)
        lower[reference] = 0.0
        if (lower == largest).all():
            break
        largest = lower
    return largest
