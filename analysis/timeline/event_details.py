"""All that is known of one event of a timeline: its row, what launched it, who took part in it."""

from __future__ import annotations

from typing import Any

import duckdb
import polars as pl

from ..views import frame, has_view
from .shared_axis import Extent

# Where an event of a kind stands, the key of its track and its name there, as in rank_events.
_TABLES = {
    "stream": ("kernels", "cast(stream_id as varchar)", "coalesce(type, name, 'kernel')"),
    "group": ("comm_ops", "group_hash", "coalesce(op_type, name, 'operation')"),
    "host": (
        "host_ops",
        "concat(cast(process_id as varchar), '/', cast(thread_id as varchar))",
        "coalesce(name, kind)",
    ),
}
# Of several that start and last so (a call and the one that it is made of) the one that is meant.
_ROW = """
    select * exclude (run, capture, rank) from {table}
    where {place} and rank = ? and start_ns = ? and dur_ns = ?
    order by coalesce({key}, '') <> ?, {name} <> ? limit 1"""
_LAUNCH = """
    select api_name, operator_name, api_start_ns, operator_start_ns, latency_ns,
        cast(operator_thread_id as varchar) as operator_thread_id,
        cast(api_thread_id as varchar) as api_thread_id
    from launches
    where {place} and rank = ? and device_start_ns = ? and connection_id = ? limit 1"""
_LAUNCHES = """
    select device_start_ns, target, target_name from launches
    where {place} and rank = ? and {by} between ? and ? and {thread} is not distinct from ?
        and device_start_ns is not null
    order by device_start_ns limit 200"""
# By which times and thread of a launch it belongs to a call of that kind; else by those of its API.
_CALLERS = {"operator": "operator_{0}", "python": "coalesce(operator_{0}, api_{0})"}
_MEMBERS = """
    select rank, start_ns, dur_ns from comm_ops
    where {place} and name = ? and group_hash is not distinct from ?
        and step is not distinct from ? order by rank, start_ns"""


def event_columns(con: duckdb.DuckDBPyConnection) -> list[str]:
    """Columns that `row` of the details of an event may have."""
    columns = {name for table, *_ in _TABLES.values() for name in con.table(table).columns}
    return sorted(columns)


def event_details(
    con: duckdb.DuckDBPyConnection,
    at: Extent,
    rank: int,
    kind: str,
    start_ns: int,
    dur_ns: int,
    *,
    key: str = "",
    name: str = "",
) -> dict[str, Any] | None:
    """What is known of the event of a `kind` of track that starts and lasts so; None: none does.
    Of several it is that of the track with this `key`, by that `name`.

    `start_ns`, and all instants of the answer, are on the shown clock from the capture's first
    moment. row: its columns but the unknown ones. launch: what launched it, and from where
    (`start_ns`, `latency_ns`). launched: instants and names of what it launched. members: rank,
    start_ns, dur_ns of the same operation on the ranks of its group.
    """
    moves = dict(at.ranks["rank", "ahead_ns"].rows())
    zero = at.zero_ns
    own = start_ns + zero + moves.get(rank, 0)
    table, key_of, name_of = _TABLES[kind]
    query = _ROW.format(table=table, place=at.place, key=key_of, name=name_of)
    rows = frame(con, query, [rank, own, dur_ns, key, name]).to_dicts()
    if not rows:
        return None
    row = {column: value for column, value in rows[0].items() if value not in (None, "", [], {})}

    def shift_ns(moment: int | None, of: int = rank) -> int | None:
        return None if moment is None else moment - zero - moves.get(of, 0)

    details: dict[str, Any] = {"launch": None, "launched": [], "members": []}
    if kind == "host":
        of = _CALLERS.get(row.get("kind", ""), "api_{0}")
        query = _LAUNCHES.format(
            place=at.place, by=of.format("start_ns"), thread=of.format("thread_id")
        )
        parameters = [rank, own, own + max(dur_ns - 1, 0), row.get("thread_id")]
        launch_rows = con.execute(query, parameters).fetchall()
        details["launched"] = [
            {"start_ns": shift_ns(one), "target": what, "name": whose}
            for one, what, whose in launch_rows
        ]
    elif "connection_id" in row:
        parameters = [rank, own, row["connection_id"]]
        launches = frame(con, _LAUNCH.format(place=at.place), parameters).to_dicts()
        if launches:
            one = launches[0]
            from_operator = one["operator_start_ns"] is not None
            details["launch"] = {
                "name": one["operator_name"] or one["api_name"],
                "api": one["api_name"],
                "thread": one["operator_thread_id" if from_operator else "api_thread_id"],
                "start_ns": shift_ns(one["operator_start_ns" if from_operator else "api_start_ns"]),
                "latency_ns": one["latency_ns"],
            }
    if kind == "group" and row.get("name"):
        parameters = [row["name"], row.get("group_hash"), row.get("step")]
        members = frame(con, _MEMBERS.format(place=at.place), parameters)
        details["members"] = [
            {"rank": one, "start_ns": shift_ns(start, one), "dur_ns": dur}
            for one, start, dur in _nearest(members, moves, own - moves.get(rank, 0))
        ]
    if has_view(con, "arrivals") and details["members"]:
        starts = [one["start_ns"] for one in details["members"]]
        details["waited_ns"] = max(starts) - start_ns
    for column in ("start_ns", "device_id", "connection_id"):
        row.pop(column, None)
    pmu = row.pop("pmu", None)
    details["row"] = row | ({"pmu": {str(k): v for k, v in pmu} if isinstance(pmu, list) else pmu}
                         if pmu else {})  # fmt: skip
    return details


def _nearest(
    members: pl.DataFrame, moves: dict[int, int], at_ns: int
) -> list[tuple[int, int, int]]:
    """Of each rank the operation that starts nearest to an instant of the shown clock: names come
    again where steps are not told."""
    best: dict[int, tuple[int, int, int]] = {}
    for rank, start, dur in members.rows():
        far = abs(start - moves.get(rank, 0) - at_ns)
        if rank not in best or far < abs(best[rank][1] - moves.get(rank, 0) - at_ns):
            best[rank] = (rank, start, dur)
    return list(best.values())
