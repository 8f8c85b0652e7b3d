"""Tiles of a timeline: events that are seen, and sums of those too short to be.

A level's bucket is 2^level ns, about what one pixel shows; a tile has 2,048 of them. An event as
long as a bucket is a row of its own; shorter ones of a lane and bucket are one row, of their number
and the sum of their lengths. What reaches into a tile from before it is in it too: sums count each
event where it starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
import pyarrow as pa

from .operator_classes import CLASSES
from .rank_events import Integers, RankEvents

BUCKETS = 2_048
MOST_LEVEL = 50
MOST_FOUND = 1_000


def tile_ns(level: int, index: int) -> tuple[int, int]:
    """From where to where a tile reaches, from the capture's first moment."""
    length = BUCKETS << level
    return index * length, (index + 1) * length


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
#   count     bigint   how many events
#   name      varchar  type of the kernel or operation, name of the call, state of the overlap
#   class     integer  class of operators, or state, by position
def timeline_tiles(ranks: Mapping[int, RankEvents], level: int, index: int) -> pa.Table:
    """Rows of the metric for one rank or several, `name` as a dictionary."""
    from_ns, to_ns = tile_ns(level, index)
    parts = [_cut(events, level, from_ns, to_ns) for events in ranks.values()]
    texts: dict[str, int] = {}
    codes = []
    for events, part in zip(ranks.values(), parts, strict=True):
        used, inverse = np.unique(part["name"], return_inverse=True)
        places = [texts.setdefault(events.names[one], len(texts)) for one in used.tolist()]
        codes.append(np.asarray(places, np.int32)[inverse])
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
        "count": column("count", pa.int64()), "name": name, "class": column("class", pa.int32()),
    })  # fmt: skip


def _cut(events: RankEvents, level: int, from_ns: int, to_ns: int) -> dict[str, Integers]:
    """A tile's columns of one rank."""
    chosen, lane = _touching(events, from_ns, to_ns)
    start, dur = events.start[chosen], events.dur[chosen]
    is_long = (dur >> level > 0) | (start < from_ns)
    long_ = np.flatnonzero(is_long)
    short = np.flatnonzero(~is_long)
    columns: dict[str, Integers] = {
        "lane": lane[long_], "start": start[long_], "dur": dur[long_],
        "count": np.ones(len(long_), np.int64),
        "name": events.name[chosen[long_]].astype(np.int64),
        "class": events.class_[chosen[long_]].astype(np.int64),
    }  # fmt: skip
    if len(short):
        mine, lanes, buckets = chosen[short], lane[short], start[short] >> level
        begins = np.flatnonzero(
            np.append(True, (lanes[1:] != lanes[:-1]) | (buckets[1:] != buckets[:-1]))
        )
        lengths = dur[short]
        counts = np.diff(np.append(begins, len(short)))
        longest = np.maximum.reduceat(lengths, begins)
        group = np.repeat(np.arange(len(begins)), counts)
        at_longest = np.flatnonzero(lengths == longest[group])
        named = at_longest[np.unique(group[at_longest], return_index=True)[1]]
        first = np.where(counts > 1, buckets[begins] << level, start[short][begins])
        more = {
            "lane": lanes[begins], "start": first, "dur": np.add.reduceat(lengths, begins),
            "count": counts, "name": events.name[mine[named]], "class": events.class_[mine[named]],
        }  # fmt: skip
        columns = {name: np.concatenate([columns[name], more[name]]) for name in columns}
    return columns | {
        "track": events.lane_track[columns["lane"]].astype(np.int64),
        "row": events.lane_row[columns["lane"]].astype(np.int64),
    }  # fmt: skip


def _touching(events: RankEvents, from_ns: int, to_ns: int) -> tuple[Integers, Integers]:
    """Positions of the events that touch a stretch of time, in order, and the lane of each."""
    chosen, lanes = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for lane in range(len(events.lane_track)):
        first, end = events.lane_first[lane], events.lane_first[lane + 1]
        starts = events.start[first:end]
        low = first + np.searchsorted(starts, from_ns)
        high = first + np.searchsorted(starts, to_ns)
        # Of those before, only the last can reach in: events of a lane follow each other.
        if low > first and events.start[low - 1] + events.dur[low - 1] > from_ns:
            low -= 1
        chosen.append(np.arange(low, high))
        lanes.append(np.full(high - low, lane))
    return np.concatenate(chosen), np.concatenate(lanes)


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
        chosen, lane = _touching(events, from_ns, to_ns)
        kinds = [one.kind for one in events.tracks]
        cut = pl.DataFrame({
            "kind": pl.Series(kinds, dtype=pl.String).gather(events.lane_track[lane]),
            "name": pl.Series(events.names, dtype=pl.String).gather(events.name[chosen]),
            "start": np.maximum(events.start[chosen], from_ns),
            "end": np.minimum(events.start[chosen] + events.dur[chosen], to_ns),
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
    parts, count, wanted = [_EMPTY_FOUND], 0, text.casefold()
    for rank, events in ranks.items():
        codes = [n for n, name in enumerate(events.names) if wanted in name.casefold()]
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


def classes() -> Sequence[str]:
    """What the column `class` counts, of tracks that are not of overlap or of the host."""
    return CLASSES
