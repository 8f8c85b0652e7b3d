"""Events of a trace as text: names in Python, everything numerous by the engine."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import duckdb

from npuscope.collector.staging import is_empty

from .tracks import Track


def process_names(rank: int, title: str) -> list[str]:
    """Events that name the process of a rank and put it in its place."""
    return [
        _name_event(rank, "process_name", {"name": title}),
        _name_event(rank, "process_sort_index", {"sort_index": rank}),
    ]


def first_thread_id(ranks: Iterable[int]) -> int:
    """Where thread ids begin: above all process ids, or viewers take one for its main thread."""
    digits = len(str(max(ranks)))
    return int("1" + "0" * max(2, digits)) + 1


def thread_names(rank: int, tracks: Iterable[Track]) -> list[str]:
    """Events that name the threads of tracks and put them in their places."""
    return [
        _name_event(rank, f"thread_{what}", {what: value}, track.number)
        for track in tracks
        for what, value in (("name", track.name), ("sort_index", track.number))
    ]


def _name_event(rank: int, what: str, args: Mapping[str, str | int], tid: int | None = None) -> str:
    event: dict[str, object] = {"ph": "M", "pid": rank}
    if tid is not None:
        event["tid"] = tid
    return json.dumps({**event, "name": what, "args": args}, separators=(",", ":"))


def slices_query(con: duckdb.DuckDBPyConnection, rank: int, source: str) -> str:
    """The query for the events of a source whose slices `tracks_of` gave their tracks."""
    rows = f"""
        ({source}) as s join timeline_tracks as t
        on t.key_a is not distinct from s.key_a and t.key_b is not distinct from s.key_b"""
    if not is_empty(con, "timeline_moved"):
        rows += """
        left join timeline_moved as m
        on m.track = t.track and m.start_ns = s.start_ns and m.end_ns = s.end_ns
        where t.lane = coalesce(m.lane, 0)"""
    return f"""
        select concat(
            ',{{"ph":"X","pid":{rank},"tid":', t.number,
            ',"ts":', us(s.start_ns - getvariable('timeline_zero_ns')),
            ',"dur":', us(s.end_ns - s.start_ns),
            ',"name":', to_json(s.name), ',"cat":', to_json(s.category), s.flow,
            ',"args":{{', s.args, '}}}}'
        ) from {rows}"""


def points_query(rank: int, source: str) -> str:
    """The query for the events of a source of counters."""
    return f"""
        select concat(
            ',{{"ph":"C","pid":{rank},"name":', to_json(name),
            ',"ts":', us(timestamp_ns - getvariable('timeline_zero_ns')), ',"args":{{', args, '}}}}'
        ) from ({source})"""
