"""Rows of a timeline at coarser levels, from which long stretches are cut as fast as short ones.

    level 0   every event                                 n rows
    level 14  of a lane and 2^14 ns one, longer ones own  at most n / 2
    level 17  ...                                         at most n / 4

Only levels with at most half the rows of the one before are kept: all of them together have fewer
rows than there are events. Any level is made from the next finer kept one without a difference.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .rank_events import Integers, RankEvents

MOST_LEVEL = 50


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a rank at a level, in order of lane and start.

    Events as long as a bucket (2^level ns) stand alone. Of shorter ones in a lane and bucket one
    row has the number (`count`), the sum of their lengths (`dur`), the longest one's (`longest`),
    and its name and class; its `start` is the bucket's, of one event its own. lane_first: where
    each lane begins, and where the last one ends.
    """

    level: int
    start: Integers
    dur: Integers
    count: npt.NDArray[np.int32]
    longest: Integers
    name: npt.NDArray[np.int32]
    class_: npt.NDArray[np.uint8]
    lane_first: Integers

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        arrays = (self.start, self.dur, self.count, self.longest, self.name, self.class_)
        return sum(one.nbytes for one in arrays)


def coarser_rows(events: RankEvents) -> tuple[Rows, ...]:
    """Rows at the levels worth keeping, the events themselves first."""
    count = len(events.start)
    alone = np.broadcast_to(np.int32(1), count)  # takes no memory
    levels = [Rows(0, events.start, events.dur, alone, events.dur, events.name, events.class_,
                 events.lane_first)]  # fmt: skip
    for level in range(1, MOST_LEVEL + 1):
        rows = levels[-1]
        shorter = int(np.count_nonzero(rows.longest >> level == 0))
        if shorter * 2 < len(rows.start) or not shorter:
            continue
        lane = np.repeat(np.arange(len(rows.lane_first) - 1), np.diff(rows.lane_first))
        coarser, begins = added_up(rows, level, lane)
        if len(coarser.start) * 2 <= len(rows.start):
            levels.append(coarser)
        if len(begins) == len(rows.lane_first) - 1:
            break
    return tuple(levels)


def added_up(
    rows: Rows, level: int, lane: Integers, alone: npt.NDArray[np.bool_] | None = None
) -> tuple[Rows, Integers]:
    """Rows of a coarser level, and the position of the first row that went into each.

    `lane` of each row; rows that are `alone` stay so however short they are.
    """
    is_long = rows.longest >> level > 0
    if alone is not None:
        is_long |= alone
    bucket = rows.start >> level
    is_new = np.ones(len(rows.start), bool)
    # A long one fills its bucket: short ones of a lane and bucket follow each other.
    is_new[1:] = is_long[1:] | is_long[:-1] | (lane[1:] != lane[:-1]) | (bucket[1:] != bucket[:-1])
    begins = np.flatnonzero(is_new)
    if len(begins) == len(rows.start):
        return rows, begins
    count = np.add.reduceat(rows.count, begins, dtype=np.int32)
    longest = np.maximum.reduceat(rows.longest, begins)
    several = np.diff(np.append(begins, len(rows.start)))
    at_longest = np.flatnonzero(rows.longest == np.repeat(longest, several))
    group = np.repeat(np.arange(len(begins)), several)[at_longest]
    named = at_longest[np.append(True, group[1:] != group[:-1])]
    start = np.where(count > 1, bucket[begins] << level, rows.start[begins])
    return (
        Rows(
            level, start, np.add.reduceat(rows.dur, begins), count, longest, rows.name[named],
            rows.class_[named], np.searchsorted(begins, rows.lane_first),
        ),
        begins,
    )  # fmt: skip
