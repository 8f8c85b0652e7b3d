"""How much a trace will hold, before any of it is written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import duckdb

from .choice import BEFORE_NS, Place

# Table, its start and duration, the tracks that show it, and what a row takes in the file, about.
_TABLES = (
    ("steps", "window_start_ns", "window_end_ns - window_start_ns", "steps", 330),
    ("kernels", "start_ns", "dur_ns", "kernels", 430),
    ("kernels", "start_ns", "dur_ns", "overlap", 220),
    ("comm_ops", "start_ns", "dur_ns", "communication", 370),
    ("comm_ops", "start_ns", "dur_ns", "overlap", 220),
    ("marks", "start_ns", "dur_ns", "marks", 150),
    ("marks", "device_start_ns", "device_dur_ns", "marks", 150),
    ("host_ops", "start_ns", "dur_ns", "host", 220),
    ("memory", "timestamp_ns", "0", "memory", 160),
    ("counters", "timestamp_ns", "0", "counters", 110),
)
# Pieces that a kernel or operation adds to the overlap tracks, about.
_PIECES = 2


@dataclass(frozen=True, slots=True)
class ExpectedTrace:
    """What a trace will hold: about as many events and bytes; the instant from which its times
    count and its last."""

    event_count: int
    size_bytes: int
    zero_ns: int
    last_ns: int


def expect(
    con: duckdb.DuckDBPyConnection, places: Iterable[Place], tracks: Iterable[str]
) -> ExpectedTrace | None:
    """What the tracks of some ranks of one capture hold; None where that is nothing."""
    places_of = list(places)
    con.execute(
        "create or replace temp table timeline_windows"
        " (run varchar, capture varchar, rank integer, from_ns bigint, to_ns bigint)"
    )
    rows = [[p.run, p.capture, p.rank, p.from_ns, p.to_ns] for p in places_of]
    con.executemany("insert into timeline_windows values (?, ?, ?, ?, ?)", rows)
    track_set, events, size_bytes = set(tracks), 0, 0
    starts, ends = [], []
    for table, start, dur, shown_by, row_bytes in _TABLES:
        if shown_by not in track_set:
            continue
        query = f"""
            select count(*), min(greatest(start_ns, from_ns)), max(least(start_ns + dur_ns, to_ns))
            from (select run, capture, rank, {start} as start_ns, {dur} as dur_ns from {table})
            join timeline_windows using (run, capture, rank)
            where dur_ns >= 0 and start_ns < to_ns
                and (start_ns >= from_ns or start_ns + dur_ns > from_ns)"""
        ((count, start_ns, end_ns),) = con.execute(query).fetchall()
        if count:
            starts.append(start_ns)
            ends.append(end_ns)
            events += count * (_PIECES if shown_by == "overlap" else 1)
            size_bytes += count * row_bytes
    if not starts:
        return None
    windows = [place.from_ns for place in places_of if place.from_ns > BEFORE_NS]
    return ExpectedTrace(events, size_bytes, min(windows or starts), max(ends))
