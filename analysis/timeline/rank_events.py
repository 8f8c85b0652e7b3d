"""All events of one rank as arrays, in rows in which none covers another: what tiles are cut from.

Reading them takes as long as they are many, cutting tiles from them does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import polars as pl

from ..views import frame, has_view, open_views
from ..wording import numbers
from .lanes import flat_lanes
from .operator_classes import CLASSES, operator_class
from .shared_axis import Extent

Integers = npt.NDArray[np.int64]

# Of more host calls the longest: one rank's arrays stay below some 100 MB.
MOST_HOST_CALLS = 2_000_000
# Frames below which every call of a thread stands: they tell nothing.
_BOOTSTRAP = (
    r"(^|/)(runpy|threading|multiprocessing/\w+)\.py|importlib\._bootstrap"
    r"|<built-in method builtins\.exec|<module>$"
)
STATES = ("computing", "masked communication", "exposed communication")
_KERNELS = """
    select 'stream' as kind, cast(stream_id as varchar) as key,
        coalesce(type, name, 'kernel') as name, coalesce(type, name, 'kernel') as type, core,
        start_ns, dur_ns
    from kernels
    where {place} and rank = ? and is_compute and dur_ns > 0 and start_ns is not null
    union all
    select 'group', coalesce(group_hash, ''),
        coalesce(op_type, name, 'operation'), coalesce(op_type, name, 'operation'), null,
        start_ns, dur_ns
    from comm_ops
    where {place} and rank = ? and dur_ns > 0 and start_ns is not null"""
_HOST = """
    select 'host' as kind,
        coalesce(cast(process_id as varchar), '') || '/' || coalesce(cast(thread_id as varchar), '')
            as key,
        coalesce(name, kind) as name, kind as type, level as core, start_ns, dur_ns
    from host_ops
    where {place} and rank = ? and dur_ns > 0 and start_ns is not null
        and not (kind = 'python' and regexp_matches(coalesce(name, ''), ?))
    order by dur_ns desc limit ?"""
_GROUPS_ACROSS = """
    select group_hash, any_value(kind) as kind, any_value(global_ranks) as members
    from capture_groups where run = ? and capture = ? group by group_hash"""
_GROUPS = """
    select group_hash, any_value(parallel_kind) as kind, any_value(global_ranks) as members
    from groups where run = ? and capture = ? and rank = ? group by group_hash"""


_GROUP_KINDS = """
    select distinct kind from group_kinds where run = ? and capture = ? and kind is not null
    order by kind"""


@dataclass(frozen=True, slots=True)
class Track:
    """One track of a rank: `kind` is overlap, stream, group or host; `rows` it takes.

    `key` tells it from others of its kind: a stream, a group's hash, process/thread. `label` is
    what people call it; `group` the parallel kind of a group, `members` its ranks.
    """

    kind: str
    key: str
    label: str
    rows: int
    events: int
    group: str | None = None
    members: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RankEvents:
    """Events of a rank, in order of lane and start; a lane is one row of one track.

    start, dur: ns, on the shown clock from the capture's first moment. name: position in `names`,
    what is written on an event. class_: position in CLASSES, or in STATES for the overlap track.
    lane_first: where each lane's events begin, and where the last one's end; lane_track, lane_row
    say which it is. `is_whole`: no host call was left out.
    """

    tracks: tuple[Track, ...]
    start: Integers
    dur: Integers
    name: npt.NDArray[np.int32]
    class_: npt.NDArray[np.uint8]
    names: tuple[str, ...]
    lane_first: Integers
    lane_track: npt.NDArray[np.int32]
    lane_row: npt.NDArray[np.int32]
    is_whole: bool = True

    @property
    def count(self) -> int:
        """How many events."""
        return len(self.start)


def device_events(con: duckdb.DuckDBPyConnection, at: Extent, rank: int) -> RankEvents:
    """What overlaps, kernels by stream, and operations by group, of one rank."""
    read = frame(con, _KERNELS.format(place=at.place), [rank, rank])
    events = _on_shown_clock(read, at, rank)
    labels = _group_labels(con, at, rank)
    pieces = overlap_pieces(
        events["start_ns"].to_numpy(), events["dur_ns"].to_numpy(),
        (events["kind"] == "stream").to_numpy(),
    )  # fmt: skip
    overlap = pl.DataFrame({
        "kind": pl.repeat("overlap", len(pieces[0]), eager=True),
        "key": pl.repeat("", len(pieces[0]), eager=True),
        "name": pl.Series(STATES).gather(pieces[2]),
        "class": pl.Series(pieces[2], dtype=pl.UInt8),
        "start_ns": pieces[0], "dur_ns": pieces[1],
    })  # fmt: skip
    kinds = events.select("type", "core").unique()
    classes = kinds.with_columns(
        pl.Series(
            "class",
            [CLASSES.index(operator_class(*row)) for row in kinds.rows()],
            dtype=pl.UInt8,
        )
    )
    named = events.join(classes, on=["type", "core"], how="left", nulls_equal=True).drop(
        "type", "core"
    )
    whole = pl.concat([overlap, named.select(overlap.columns)], how="vertical_relaxed")
    return in_rows(whole, labels, ("overlap", "stream", "group"), is_nested=False)


def host_events(con: duckdb.DuckDBPyConnection, at: Extent, rank: int) -> RankEvents:
    """Host calls of one rank by thread, those that run inside others below them."""
    read = frame(con, _HOST.format(place=at.place), [rank, _BOOTSTRAP, MOST_HOST_CALLS + 1])
    is_whole = read.height <= MOST_HOST_CALLS
    calls = _on_shown_clock(read.head(MOST_HOST_CALLS), at, rank)
    kinds = {kind: position for position, kind in enumerate(HOST_KINDS)}
    whole = calls.with_columns(
        pl.col("type").replace_strict(kinds, default=0, return_dtype=pl.UInt8).alias("class")
    )
    threads = {key: key.rpartition("/")[2] for key in calls["key"].unique().to_list()}
    labels: Labels = {
        ("host", key): (f"host {name}".strip(), None, ()) for key, name in threads.items()
    }
    return in_rows(whole, labels, ("host",), is_nested=True, is_whole=is_whole)


HOST_KINDS = ("operator", "python", "enqueue", "dequeue", "api", "gc")
Labels = dict[tuple[str, str], tuple[str, str | None, tuple[int, ...]]]


def _on_shown_clock(read: pl.DataFrame, at: Extent, rank: int) -> pl.DataFrame:
    """Instants on the shown clock, from the capture's first moment."""
    return read.with_columns(pl.col("start_ns") - at.zero_of_ns(rank), pl.col("key").fill_null(""))


def _group_labels(con: duckdb.DuckDBPyConnection, at: Extent, rank: int) -> Labels:
    """What each group is called: its kind and members, `ep 0-1`."""
    if has_view(con, "capture_groups"):
        rows = con.execute(_GROUPS_ACROSS, [at.run, at.capture]).fetchall()
    else:
        rows = con.execute(_GROUPS, [at.run, at.capture, rank]).fetchall()
    labels: Labels = {}
    for group_hash, kind, members in rows:
        purpose = kind if kind not in (None, "unknown") else None
        label = f"{purpose or 'group'} {numbers(members) if members else (group_hash or '')[-6:]}"
        labels["group", group_hash or ""] = (label.strip(), purpose, tuple(members or ()))
    # Of groups of the same ranks, operations carry the last digits in their names.
    shared = Counter(label for label, *_ in labels.values())
    return {
        one: (f"{label} #{one[1][-3:]}" if shared[label] > 1 else label, purpose, members)
        for one, (label, purpose, members) in labels.items()
    }


def group_kinds_of(con: duckdb.DuckDBPyConnection, *, run: str, capture: str) -> tuple[str, ...]:
    """What the groups of a capture are for, each once, in order of the alphabet."""
    open_views(con, ("group_kinds",))
    rows = con.execute(_GROUP_KINDS, [run, capture]).fetchall()
    return tuple(kind for (kind,) in rows)


def overlap_pieces(
    start: Integers, dur: Integers, is_kernel: npt.NDArray[np.bool_]
) -> tuple[Integers, Integers, npt.NDArray[np.uint8]]:
    """Where a rank computes alone, where communication is masked and where exposed.

    Start, length and position in STATES of each piece, in order of time. Sums of pieces are the
    unions of the breakdown of steps: computing is the first two, communication the last two.
    """
    count = len(start)
    moments = np.concatenate([start, start + dur])
    kernels = np.concatenate([is_kernel, -is_kernel.astype(np.int64)]).astype(np.int64)
    ops = np.concatenate([~is_kernel, -(~is_kernel).astype(np.int64)]).astype(np.int64)
    if not count:
        empty = np.zeros(0, np.int64)
        return empty, empty, np.zeros(0, np.uint8)
    order = np.argsort(moments, kind="stable")
    moments = moments[order]
    last = np.append(moments[1:] != moments[:-1], True)
    kernels_open = np.cumsum(kernels[order])[last]
    ops_open = np.cumsum(ops[order])[last]
    at = moments[last]
    state = np.where(kernels_open > 0, np.where(ops_open > 0, 1, 0), np.where(ops_open > 0, 2, 3))
    changed = np.append(True, state[1:] != state[:-1])
    at, state = at[changed], state[changed]
    lengths = np.append(at[1:] - at[:-1], 0)
    is_piece = (state < 3) & (lengths > 0)
    return at[is_piece], lengths[is_piece], state[is_piece].astype(np.uint8)


def in_rows(
    whole: pl.DataFrame,
    labels: Labels,
    kinds: Sequence[str],
    *,
    is_nested: bool,
    is_whole: bool = True,
) -> RankEvents:
    """Put events into rows of their tracks, tracks in order of kind and label.

    `whole`: kind and key of the track, name, class, start_ns and dur_ns of each event.
    """
    pairs = whole.select("kind", "key").unique().rows()

    def place(one: tuple[str, str]) -> tuple[Any, ...]:
        label = labels.get(one, (one[1], None, ()))[0]
        is_number = one[1].isdigit()
        return kinds.index(one[0]), not is_number, int(one[1]) if is_number else 0, label, one[1]

    ordered = sorted(pairs, key=place)
    codes = pl.DataFrame(
        {"kind": [kind for kind, _ in ordered], "key": [key for _, key in ordered],
         "track": list(range(len(ordered)))},
        schema={"kind": pl.String, "key": pl.String, "track": pl.Int32},
    )  # fmt: skip
    events = (
        whole.join(codes, on=["kind", "key"], how="left")
        .with_columns(pl.col("name").cast(pl.Categorical))
        .sort("track", "start_ns", pl.col("dur_ns"), descending=[False, False, True])
    )
    track = events["track"].to_numpy().astype(np.int64)
    start = events["start_ns"].to_numpy().astype(np.int64)
    dur = events["dur_ns"].to_numpy().astype(np.int64)
    class_ = events["class"].to_numpy().astype(np.uint8)
    rows = _depths(track, start, dur) if is_nested else _flat(track, start, dur)
    # Each state of the overlap and part of a path is a row, so that its sums stay its own.
    is_one = events["kind"].is_in(["overlap", "path"]).to_numpy()
    rows = np.where(is_one, class_, rows).astype(np.int64)
    order = np.lexsort((start, rows, track))
    texts = events["name"].cast(pl.String)
    names = texts.unique(maintain_order=True)
    code = texts.replace_strict(names, pl.Series(range(len(names)), dtype=pl.Int32))
    track, rows = track[order], rows[order]
    is_first = np.append(True, (track[1:] != track[:-1]) | (rows[1:] != rows[:-1]))[: len(track)]
    first = np.flatnonzero(is_first)
    height = np.zeros(len(ordered), np.int64)
    np.maximum.at(height, track, rows + 1)
    held = np.bincount(track, minlength=len(ordered))
    tracks = tuple(
        Track(kind, key, label or kind, int(height[n]), int(held[n]), group, members)
        for n, (kind, key) in enumerate(ordered)
        for label, group, members in [labels.get((kind, key), (_row_name(kind, key), None, ()))]
    )
    return RankEvents(
        tracks, start[order], dur[order], code.to_numpy().astype(np.int32)[order],
        class_[order], tuple(names.to_list()),
        np.append(first, len(track)).astype(np.int64),
        track[first].astype(np.int32), rows[first].astype(np.int32), is_whole,
    )  # fmt: skip


def _row_name(kind: str, key: str) -> str:
    return f"{kind} {key}".strip() if kind != "overlap" else "overlap"


def _flat(track: Integers, start: Integers, dur: Integers) -> Integers:
    """The row of each event, in order of track and start, so that none covers another.

    Hardly any track has events that overlap: only those are looked at one by one.
    """
    rows = np.zeros(len(track), np.int64)
    ends = start + dur
    overlaps = (track[1:] == track[:-1]) & (start[1:] < ends[:-1])
    for one in np.unique(track[1:][overlaps]):
        mine = np.flatnonzero(track == one)
        spans = list(
            zip(track[mine].tolist(), start[mine].tolist(), ends[mine].tolist(), strict=True)
        )
        seats = {span[:3]: span[3] for span in flat_lanes(spans)}
        rows[mine] = [seats[span] for span in spans]
    return rows


def _depths(track: Integers, start: Integers, dur: Integers) -> Integers:
    """How many events of its track are open when each begins: calls inside calls."""
    count = len(start)
    numbers_ = np.arange(count)
    tracks = np.concatenate([track, track])
    moments = np.concatenate([start, start + dur])
    begins = np.concatenate([np.ones(count, np.int64), np.full(count, -1)])
    # At one moment ends come first, then what begins, the longest first as they already stand.
    order = np.lexsort((np.concatenate([numbers_, numbers_]), begins, moments, tracks))
    steps = begins[order]
    open_ = np.cumsum(steps)
    depths = np.zeros(count, np.int64)
    is_start = steps > 0
    depths[order[is_start]] = open_[is_start] - 1
    return depths
