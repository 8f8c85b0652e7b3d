"""Tracks of one rank: a number for each, the order they stand in, and names that people read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import duckdb

from npuscope.analysis.wording import numbers

from .choice import Place
from .slice_rows import place, statements

# Kinds of slices from the top down, and the choice of tracks that shows them.
KINDS = {
    "steps": "steps",
    "overlap": "overlap",
    "kernels": "kernels",
    "communication": "communication",
    "device_marks": "marks",
    "marks": "marks",
    "host": "host",
}
_NESTED_KINDS = frozenset({"device_marks", "marks", "host"})
_KEYS = {"overlap": "select distinct lane as key_a, unnest([0, 1]) as key_b from overlap_labels"}


@dataclass(frozen=True, slots=True)
class Track:
    """A row of slices: `number` is its thread id in the trace and its place from the top."""

    number: int
    name: str


def make_groups(con: duckdb.DuckDBPyConnection, rank: Place) -> None:
    """The table `timeline_groups` (number, group_hash, label) of the groups a rank talks in."""
    query = """
        select c.group_hash, any_value(parallel_kind), any_value(group_label),
            any_value(global_ranks)
        from (
            select distinct group_hash from comm_ops
            where run = $run and capture = $capture and rank = $rank
        ) as c
        left join (
            select * from groups where run = $run and capture = $capture and rank = $rank
        ) as g on g.group_hash = c.group_hash
        group by c.group_hash"""
    values = {"run": rank.run, "capture": rank.capture, "rank": rank.rank}
    labels: list[tuple[str, str | None]] = []
    for group_hash, kind, label, members in con.execute(query, values).fetchall():
        labels.append((_group_label(group_hash, kind, label, members), group_hash))
    # Of groups of the same ranks, HCCL's operations carry the last digits in their names.
    shared = Counter(label for label, _ in labels)
    labels = [
        (f"{label} #{group_hash[-3:]}" if shared[label] > 1 and group_hash else label, group_hash)
        for label, group_hash in labels
    ]
    con.execute(
        "create or replace temp table timeline_groups"
        " (number integer, group_hash varchar, label varchar)"
    )
    for number, (label, group_hash) in enumerate(sorted(labels, key=lambda one: one[0]), 1):
        con.execute("insert into timeline_groups values (?, ?, ?)", [number, group_hash, label])


def _group_label(
    group_hash: str | None, kind: str | None, label: str | None, members: list[int] | None
) -> str:
    if group_hash is None:
        return "of no known group"
    purpose = kind if kind not in (None, "unknown") else label
    if members:
        return f"{purpose or 'group'} {numbers(members)}"
    return f"{purpose} group {group_hash}" if purpose else f"group {group_hash}"


def tracks_of(
    con: duckdb.DuckDBPyConnection, kind: str, source: str, first_number: int
) -> list[Track]:
    """Tracks of a kind for the rows of `source`, numbered on.

    Makes `timeline_keys` and `timeline_moved` as `place` does, and `timeline_tracks` (track, lane,
    number) for who writes the slices.
    """
    if kind in _KEYS:
        place(con, f"select *, 0 as start_ns, 0 as end_ns from ({_KEYS[kind]})", is_nested=True)
    else:
        place(con, source, is_nested=kind in _NESTED_KINDS)
    rows = con.execute("""
        select k.track, key_a, key_b, lane
        from timeline_keys as k
        join (
            select track, 0 as lane from timeline_keys
            union select distinct track, lane from timeline_moved
        ) using (track)
        order by key_a nulls last, key_b nulls last, lane""").fetchall()
    names = _names(con, kind, source)
    several = len({key_a for _, key_a, _, _ in rows}) > 1
    tracks, tracks_here = [], []
    for number, (track, key_a, key_b, lane) in enumerate(rows, first_number):
        name_of = names.get((key_a, key_b))
        name, what = name_of or (_name(kind, key_a, key_b, several=several), "")
        # The first row says what stands there, further ones belong to it.
        name = f"{name} ({lane + 1})" if lane else f"{name}{what}"
        tracks.append(Track(number, name))
        tracks_here.append((track, key_a, key_b, lane, number))
    con.execute("""
        create or replace temp table timeline_tracks
        (track integer, key_a bigint, key_b bigint, lane integer, number integer)""")
    if tracks_here:
        columns = [list(column) for column in zip(*tracks_here, strict=True)]
        values = ", ".join(f"unnest(?::{type_}[])" for type_ in ("integer", *("bigint",) * 4))
        con.execute(f"insert into timeline_tracks select {values}", columns)
    return tracks


def _names(
    con: duckdb.DuckDBPyConnection, kind: str, source: str
) -> dict[tuple[int | None, int | None], tuple[str, str]]:
    """Names that only the rows know and what more to say, by key."""
    names: dict[tuple[int | None, int | None], tuple[str, str]] = {}
    if kind == "communication":
        for number, label in con.execute("select number, label from timeline_groups").fetchall():
            names[number, None] = f"communication {label}", ""
    elif kind == "overlap":
        lanes = con.execute("select distinct lane, is_outside from overlap_labels").fetchall()
        for lane, is_outside in lanes:
            name = f"overlap ({lane + 1})" if lane else "overlap"
            name = "outside of steps" if is_outside else name
            names |= {(lane, 0): (name, ""), (lane, 1): (name, ": masked")}
    elif kind == "host":
        query = f"select key_a, key_b, list(distinct category) from ({source}) group by all"
        for process, thread, kinds in con.execute(query).fetchall():
            if thread is not None:
                names[process, thread] = f"host {thread}", f": {', '.join(_in_order(kinds))}"
    return names


def _in_order(kinds: Iterable[str]) -> list[str]:
    order = ("python", "operator", "enqueue", "dequeue", "api", "gc")
    return sorted(kinds, key=lambda kind: (order.index(kind) if kind in order else 9, kind))


def _name(kind: str, key_a: int | None, key_b: int | None, *, several: bool) -> str:
    match kind:
        case "kernels":
            stream = f"stream {key_b}" if key_b is not None else "kernels"
            return f"{stream} of device {key_a}" if several and key_a is not None else stream
        case "marks":
            return f"marks {key_b}" if key_b is not None else "marks"
        case "device_marks":
            return "marks on the device"
        case "host":
            return "host calls"
        case _:
            return kind


def source_of(kind: str) -> str:
    """The query for the rows of a kind, as in sources.sql."""
    return statements("sources.sql")[kind].strip()
