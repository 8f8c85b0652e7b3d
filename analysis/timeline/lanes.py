"""Which row of a picture each interval goes to, so that no two of a row partly overlap.

    A |=========|                 flat rows            rows that may nest
    B     |===|                   1  A    D            1  A    D
    C        |======|             2   B                    B
    D              |==|           2      C  (B ended)  2     C

Of intervals that are equal, only the first counts: equal ones nest wherever they are.

A rank's time cut into what it does: computing, communication exposed or masked, nothing.

The breakdown of steps says how much there is of each; this says when.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

import duckdb

from ..metric import sql_text
from ..views import open_views

# Track, start and end.
Interval = tuple[int, int, int]
# Track, start, end and row, counted from 0.
Seat = tuple[int, int, int, int]


def flat_lanes(intervals: Iterable[Interval]) -> Iterator[Seat]:
    """The lowest free row of its track for each of some intervals, in order of track and start."""
    seat = _Seats()
    last: Interval | None = None
    for one in intervals:
        if one != last:
            yield (*one, seat.take(one))
            last = one


def nested_lanes(intervals: Iterable[Interval]) -> Iterator[Seat]:
    """Row 0 for each interval that lies inside or beside all of row 0 so far, else a flat row from
    1 on.

    In order of track, start, and end from the last to the first.
    """
    seat = _Seats()
    track: int | None = None
    open_ends: list[int] = []
    last: Interval | None = None
    for one in intervals:
        if one == last:
            continue
        if one[0] != track:
            track, open_ends = one[0], []
        while open_ends and open_ends[-1] <= one[1]:
            open_ends.pop()
        if open_ends and open_ends[-1] < one[2]:
            yield (*one, 1 + seat.take(one))
        else:
            open_ends.append(one[2])
            yield (*one, 0)
        last = one


class _Seats:
    """Rows of one track after the other: those taken, by their end, and those free again."""

    def __init__(self) -> None:
        self._track: int | None = None
        self._seats: list[tuple[int, int]] = []
        self._free: list[int] = []

    def take(self, one: Interval) -> int:
        """The lowest row that is free at the start of an interval, until its end."""
        track, start, end = one
        if track != self._track:
            self._track, self._seats, self._free = track, [], []
        while self._seats and self._seats[0][0] <= start:
            heapq.heappush(self._free, heapq.heappop(self._seats)[1])
        row = heapq.heappop(self._free) if self._free else len(self._seats)
        heapq.heappush(self._seats, (end, row))
        return row


# One row per step of the rank; last what it did outside of all steps, where it has any.
_LABELS = """
    with _events as (
        select step, start_ns, start_ns + dur_ns as end_ns, true as is_compute
        from kernels where run = $run and capture = $capture and rank = $rank
            and is_compute and dur_ns > 0 and start_ns is not null
        union all
        select step, start_ns, start_ns + dur_ns, false
        from comm_ops where run = $run and capture = $capture and rank = $rank
            and dur_ns > 0 and start_ns is not null
    ), _figures as (
        select step, free_ns
        from step_summary where run = $run and capture = $capture and rank = $rank
            and basis = 'events'
    ), _with_steps as (
        select count(*) > 0 as has_steps from steps
        where run = $run and capture = $capture and rank = $rank
    ), _kept_steps as (
        select any_value(kept_steps) as kept_steps from ranks
        where run = $run and capture = $capture and rank = $rank
    )
    select e.step, min(start_ns), max(end_ns),
        bool_or(is_compute) as has_compute,
        coalesce(bool_or(free_ns is not null), false) as has_free,
        e.step is null and (any_value(has_steps) or bool_or(e.step is not null) over ())
            as is_outside
    from _events as e left join _figures as f on f.step is not distinct from e.step
    cross join _with_steps cross join _kept_steps
    where kept_steps is null or list_contains(kept_steps, e.step)
    group by e.step
    order by is_outside, min(start_ns), e.step"""
_TABLE = """
    create or replace temp table overlap_labels (
        label bigint, step bigint, lane integer, start_ns bigint, end_ns bigint, is_outside boolean
    )"""


def prepare_overlap(
    con: duckdb.DuckDBPyConnection,
    place: tuple[str, str, int],
    from_ns: int,
    to_ns: int,
) -> str:
    """The query for the pieces of a rank (run, capture, rank) between two instants.

    Its columns are those of sql/overlap.sql. The temporary table `overlap_labels` says which step
    a label is (`is_outside`: none, though the rank has steps) and on which `lane` its pieces lie.
    Both hold for this connection until the next call.
    """
    open_views(con, ("steps",))
    run, capture, rank = place
    values: dict[str, str | int] = {"run": run, "capture": capture, "rank": rank}
    rows = con.execute(_LABELS, values).fetchall()
    lanes = _lanes([(row[1], row[2]) for row in rows if not row[5]])
    con.execute(_TABLE)
    for number, (step, start_ns, end_ns, _, has_free, is_outside) in enumerate(rows, 1):
        label = 2 * number + (has_free and not is_outside)
        # In order of start; what is outside comes last and spans them all.
        lane = max(lanes, default=-1) + 1 if is_outside else lanes[number - 1]
        row = [label, step, lane, start_ns, end_ns, is_outside]
        con.execute("insert into overlap_labels values (?, ?, ?, ?, ?, ?)", row)
    knows_compute = any(row[3] for row in rows)
    parameters = {**values, "from_ns": from_ns, "to_ns": to_ns, "knows_compute": knows_compute}
    for name, value in parameters.items():
        con.execute(f"set variable overlap_{name} = ?", [value])
    return sql_text("overlap.sql")


def _lanes(spans: Iterable[tuple[int, int]]) -> list[int]:
    """The first free lane for each of some spans, in order of their start."""
    ends: list[int] = []
    lanes = []
    for start_ns, end_ns in spans:
        lane = next((n for n, end in enumerate(ends) if end <= start_ns), len(ends))
        ends[lane:] = [end_ns, *ends[lane + 1 :]]
        lanes.append(lane)
    return lanes
