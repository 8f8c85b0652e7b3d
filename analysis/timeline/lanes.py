"""Which row of a picture each interval goes to, so that no two of a row partly overlap.

    A |=========|                 flat rows            rows that may nest
    B     |===|                   1  A    D            1  A    D
    C        |======|             2   B                    B
    D              |==|           2      C  (B ended)  2     C

Of intervals that are equal, only the first counts: equal ones nest wherever they are.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

# Track, start and end.
Interval = tuple[int, int, int]
# Track, start, end and row, counted from 0.
Placed = tuple[int, int, int, int]


def flat_lanes(intervals: Iterable[Interval]) -> Iterator[Placed]:
    """The lowest free row of its track for each of some intervals, in order of track and start."""
    seat = _Seats()
    last: Interval | None = None
    for one in intervals:
        if one != last:
            yield (*one, seat.take(one))
            last = one


def nested_lanes(intervals: Iterable[Interval]) -> Iterator[Placed]:
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
        self._taken: list[tuple[int, int]] = []
        self._free: list[int] = []

    def take(self, one: Interval) -> int:
        """The lowest row that is free at the start of an interval, until its end."""
        track, start, end = one
        if track != self._track:
            self._track, self._taken, self._free = track, [], []
        while self._taken and self._taken[0][0] <= start:
            heapq.heappush(self._free, heapq.heappop(self._taken)[1])
        row = heapq.heappop(self._free) if self._free else len(self._taken)
        heapq.heappush(self._taken, (end, row))
        return row
