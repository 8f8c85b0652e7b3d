"""Rows of a track: viewers draw slices of one row inside each other or one after the other only.

Where slices of a track partly overlap, the later one moves to a further row of that track. Kernels
and operations of a stream move wherever they overlap at all, because none of them is part of
another; host calls hold those they make.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib import resources

import duckdb

from npuscope.analysis.timeline.lanes import Interval, flat_lanes, nested_lanes
from npuscope.collector.staging import is_empty, scalar

_BATCH = 100_000


@cache
def statements(name: str) -> dict[str, str]:
    """Statements of a SQL file of this package by name."""
    text = resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    parts = re.split(r"^-- name: (\w+)\n", text, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def place(con: duckdb.DuckDBPyConnection, source: str, *, is_nested: bool) -> None:
    """Find the row of every slice of a source (key_a, key_b, start_ns, end_ns).

    Makes the temporary tables `timeline_keys` (track, key_a, key_b) and `timeline_moved` (track,
    start_ns, end_ns, lane): slices that do not stand on lane 0. Slices that are equal in all of it
    share a lane.
    """
    sql = statements("slice_rows.sql")
    for name in ("keys", "spans", "moved"):
        con.execute(sql[name].replace("_source", source))
    if not is_nested:
        con.execute(sql["overlapping"])
        lanes = flat_lanes(_asked_slices(con))
    else:
        con.execute(sql["edges"])
        con.execute(sql["crossed_tracks"])
        if is_empty(con, "timeline_crossed"):
            return
        con.execute(sql["crossing"])
        lanes = nested_lanes(_asked_slices(con))
    batch: list[tuple[int, int, int, int]] = []
    for event in lanes:
        if event[3]:
            batch.append(event)
        if len(batch) == _BATCH:
            _keep(con, batch)
            batch = []
    _keep(con, batch)


def _asked_slices(con: duckdb.DuckDBPyConnection) -> Iterator[Interval]:
    """Slices of `timeline_asked` in order, a batch in memory at a time."""
    count = scalar(con, "select count(*) from timeline_asked")
    for first in range(0, count, _BATCH):
        query = "select track, start_ns, end_ns from timeline_asked where rowid between ? and ?"
        yield from con.execute(query, [first, first + _BATCH - 1]).fetchall()


def _keep(con: duckdb.DuckDBPyConnection, batch: list[tuple[int, int, int, int]]) -> None:
    if batch:
        columns = [list(column) for column in zip(*batch, strict=True)]
        con.execute(
            "insert into timeline_moved select unnest(?), unnest(?), unnest(?), unnest(?)", columns
        )
