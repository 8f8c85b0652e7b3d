"""Tiles of a timeline: events that are seen, and sums of those too short to be.

A level's bucket is 2^level ns, about what one pixel shows; a tile has 2,048 of them. An event as
long as a bucket is a row of its own; shorter ones of a lane and bucket are one row, of their number
and the sum of their lengths. What reaches into a tile from before it is in it too: sums count each
event where it starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from .coarser_rows import Rows, added_up, coarser_rows
from .rank_events import Integers, RankEvents

BUCKETS = 2_048
MOST_FOUND = 1_000


def tile_ns(level: int, index: int) -> tuple[int, int]:
    """From where to where a tile reaches, from the capture's first moment."""
    length = BUCKETS << level
    return index * length, (index + 1) * length


@dataclass(frozen=True, slots=True)
class DrawnRank:
    """Events of a rank and the rows that tiles of long stretches are cut from."""

    events: RankEvents
    rows: tuple[Rows, ...]

    @property
    def nbytes(self) -> int:
        """Bytes in memory, names left out."""
        return sum(one.nbytes for one in self.rows)


def drawn_rank(events: RankEvents) -> DrawnRank:
    """Events with their coarser rows: takes about as long as a tile of all of them."""
    return DrawnRank(events, coarser_rows(events))


# metric: timeline_tiles
# What does each track of a rank show in a tile of the timeline?
#
# Events as long as a bucket (2^level ns) one by one; shorter ones of a row and bucket as one row:
# their number, the sum of their lengths, and the name and class of the longest. Each event counts
# in the tile in which it starts; those that reach in from before are there to be drawn, with
# starts before the tile. Instants on the shown clock, from the capture's first moment.
#
# title: Timeline
# meaning: Events of each track of the timeline, those shorter than a pixel added up.
# figure: timeline
#
#   rank      integer  global rank
#   track     integer  position in the rank's tracks
#   row       integer  of its rows
#   start_ns  bigint   start; of several: of their bucket
#   dur_ns    bigint   length; of several: the sum of them
#   count     integer  how many events
#   name      varchar  type of the kernel or operation, name of the call, state of the overlap
#   class     integer  class of operators, or state, by position
def timeline_tiles(
    ranks: Mapping[int, DrawnRank], level: int, index: int, *, is_first_track: bool = False
) -> pa.Table:
    """Rows of the metric for one rank or several, `name` as a dictionary; of the first track only,
    which of a device is the overlap, where no more is in sight."""
    from_ns, to_ns = tile_ns(level, index)
    parts = [_cut(one, level, from_ns, to_ns, is_first_track) for one in ranks.values()]
    texts: dict[str, int] = {}
    codes = []
    for one, part in zip(ranks.values(), parts, strict=True):
        names = one.events.names
        used = np.flatnonzero(np.bincount(part["name"], minlength=len(names)))
        place = np.zeros(len(names), np.int32)
        place[used] = [texts.setdefault(names[code], len(texts)) for code in used.tolist()]
        codes.append(place[part["name"]])
    heights = [len(part["start"]) for part in parts]

    def column(name: str, type_: pa.DataType) -> pa.Array:
        return pa.array(np.concatenate([part[name] for part in parts]), type_)

    name = pa.DictionaryArray.from_arrays(
        pa.array(np.concatenate(codes), pa.int32()),
        pa.array(list(texts), pa.string()),
    )
    return pa.table({
        "rank": pa.array(np.repeat(np.fromiter(ranks, np.int32, len(heights)), heights)),
        "track": column("track", pa.int32()), "row": column("row", pa.int32()),
        "start_ns": column("start", pa.int64()), "dur_ns": column("dur", pa.int64()),
        "count": column("count", pa.int32()), "name": name, "class": column("class", pa.int32()),
    })  # fmt: skip


def _cut(
    events_of_rank: DrawnRank, level: int, from_ns: int, to_ns: int, is_first_track: bool
) -> dict[str, npt.NDArray[Any]]:
    """A tile's columns of one rank, in order of lane and start."""
    rows = next(one for one in reversed(events_of_rank.rows) if one.level <= level)
    lanes = int(np.searchsorted(events_of_rank.events.lane_track, 1)) if is_first_track else None
    places, lane = _overlaps(rows, from_ns, to_ns, lanes)
    reaches_in = rows.start[places] < from_ns
    # Of what reaches in, only what can be seen; a row of several ends with its bucket.
    is_drawn = ~reaches_in | (rows.longest[places] >> level > 0) & (rows.count[places] == 1)
    if not is_drawn.all():
        places, lane, reaches_in = places[is_drawn], lane[is_drawn], reaches_in[is_drawn]
    part = Rows(
        rows.level, rows.start[places], rows.dur[places], rows.count[places], rows.longest[places],
        rows.name[places], rows.class_[places], np.zeros(1, np.int64),
    )  # fmt: skip
    coarser, begins = added_up(part, level, lane, reaches_in)
    lane = lane[begins]
    return {
        "start": coarser.start, "dur": coarser.dur, "count": coarser.count, "name": coarser.name,
        "class": coarser.class_, "track": events_of_rank.events.lane_track[lane],
        "row": events_of_rank.events.lane_row[lane],
    }  # fmt: skip


def _overlaps(
    events: RankEvents | Rows, from_ns: int, to_ns: int, lanes_read: int | None = None
) -> tuple[Integers, Integers]:
    """Positions of the events that touch a stretch of time, in order, and the lane of each; of the
    first lanes only, or of all."""
    places, lanes = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    bounds = events.lane_first.tolist()
    for lane, (first, end) in enumerate(pairwise(bounds[: lanes_read and lanes_read + 1])):
        starts = events.start[first:end]
        low, high = (first + np.searchsorted(starts, (from_ns, to_ns))).tolist()
        # Of those before, only the last can reach in: events of a lane follow each other.
        if low > first and events.start[low - 1] + events.dur[low - 1] > from_ns:
            low -= 1
        places.append(np.arange(low, high))
        lanes.append(np.full(high - low, lane))
    return np.concatenate(places), np.concatenate(lanes)


# metric: timeline_measured
# What runs in a stretch of the timeline, and how long?
#
# Of the tracks of the device: of each type how many events touch the stretch, how much of their
# time lies in it (sum), and of that the union over the tracks of the rank (busy).
#
# title: Measured stretch
# meaning: Number, time and busy time of each type of event in a stretch of time.
# figure: timeline
#
#   rank      integer  global rank
#   kind      varchar  stream, group or host
#   name      varchar  type of the kernel or operation, name of the call
#   count     bigint   events that touch the stretch
#   total_ns  bigint   their time inside the stretch
#   busy_ns   bigint   union of it
def timeline_measured(ranks: Mapping[int, RankEvents], from_ns: int, to_ns: int) -> pl.DataFrame:
    """Rows of the metric, the most time first."""
    parts = [_EMPTY_MEASURE]
    for rank, events in ranks.items():
        places, lane = _overlaps(events, from_ns, to_ns)
        kinds = [one.kind for one in events.tracks]
        cut = pl.DataFrame({
            "kind": pl.Series(kinds, dtype=pl.String).gather(events.lane_track[lane]),
            "name": pl.Series(events.names, dtype=pl.String).gather(events.name[places]),
            "start": np.maximum(events.start[places], from_ns),
            "end": np.minimum(events.start[places] + events.dur[places], to_ns),
        }).filter(pl.col("kind") != "overlap").sort("kind", "name", "start")  # fmt: skip
        reach = pl.col("end").cum_max().shift(1).over("kind", "name")
        new = pl.col("end") - pl.max_horizontal("start", reach)
        parts.append(
            cut.with_columns(new=new.clip(lower_bound=0))
            .group_by("kind", "name")
            .agg(
                count=pl.len().cast(pl.Int64), total_ns=(pl.col("end") - pl.col("start")).sum(),
                busy_ns=pl.col("new").sum(),
            )
            .select(pl.lit(rank, pl.Int32).alias("rank"), pl.all())
        )  # fmt: skip
    return pl.concat(parts).sort("total_ns", "name", descending=[True, False])


_EMPTY_MEASURE = pl.DataFrame(
    schema={"rank": pl.Int32, "kind": pl.String, "name": pl.String, "count": pl.Int64,
            "total_ns": pl.Int64, "busy_ns": pl.Int64}
)  # fmt: skip


# metric: timeline_found
# Which events of the timeline have a name with these letters?
#
# Upper and lower case alike, in order of time, the first 1,000.
#
# title: Found events
# meaning: Events of the timeline whose name or type has the letters looked for.
# figure: timeline
#
#   rank      integer  global rank
#   track     integer  position in the rank's tracks
#   start_ns  bigint   start, on the shown clock from the capture's first moment
#   dur_ns    bigint   length
#   name      varchar  as it is written on the event
def timeline_found(ranks: Mapping[int, RankEvents], text: str) -> tuple[pl.DataFrame, int]:
    """Rows of the metric, and how many events there are in all."""
    parts, count, needle = [_EMPTY_FOUND], 0, text.casefold()
    for rank, events in ranks.items():
        codes = [n for n, name in enumerate(events.names) if needle in name.casefold()]
        lanes = np.repeat(np.arange(len(events.lane_track)), np.diff(events.lane_first))
        is_event = np.asarray([one.kind != "overlap" for one in events.tracks], bool)
        track = events.lane_track[lanes]
        hits = np.flatnonzero(np.isin(events.name, codes) & is_event[track])
        count += len(hits)
        if len(hits) > MOST_FOUND:
            hits = hits[np.argpartition(events.start[hits], MOST_FOUND)[:MOST_FOUND]]
        parts.append(pl.DataFrame({
            "rank": pl.repeat(rank, len(hits), dtype=pl.Int32, eager=True),
            "track": track[hits], "start_ns": events.start[hits], "dur_ns": events.dur[hits],
            "name": pl.Series(events.names, dtype=pl.String).gather(events.name[hits]),
        }))  # fmt: skip
    return pl.concat(parts).sort("start_ns", "rank", "track").head(MOST_FOUND), count


_EMPTY_FOUND = pl.DataFrame(
    schema={"rank": pl.Int32, "track": pl.Int32, "start_ns": pl.Int64, "dur_ns": pl.Int64,
            "name": pl.String}
)  # fmt: skip
