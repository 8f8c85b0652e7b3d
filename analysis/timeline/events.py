"""Events of a short window: kernels and operations, what of them hides the other, host calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import polars as pl

from ..views import frame, open_views
from .shared_axis import Extent, ahead_table

MOST_EVENTS = 2_000
_KINDS = ("compute", "communication", "overlap", "host")
_BOUNDS = """
    select cast(coalesce(sum(event_count) filter (where {inside}), 0) as bigint) as least,
        cast(coalesce(sum(event_count), 0) as bigint) as most
    from (
        select level, event_count, bin_start_ns - coalesce(ahead_ns, 0) as start_ns, bin_width_ns
        from timeline_bins as b left join {ahead} as c on c.rank = b.rank
        where {place} and {ranks} and level = {level}
            and bin_start_ns > {from_ns} and bin_start_ns < {to_ns}
    )
    where start_ns + bin_width_ns > {start_ns} and start_ns < {end_ns} + bin_width_ns"""
_WINDOW = """
    select kernels.rank, 'compute' as kind, stream_id as lane_id,
        case when stream_id is null then 'compute' else 'stream ' || stream_id end as lane,
        coalesce(name, type, 'kernel') as name, type, core as detail, step,
        start_ns, dur_ns
    from ({kernels}) as kernels
    where {place} and {ranks} and is_compute and dur_ns > 0
        and start_ns < {end_ns} and start_ns + dur_ns > {start_ns}
    union all
    select comm_ops.rank, 'communication', hash(group_hash) % 1000000007,
        coalesce(group_hash, ''), coalesce(name, op_type, 'operation'), op_type, null, step,
        start_ns, dur_ns
    from ({comm_ops}) as comm_ops
    where {place} and {ranks} and dur_ns > 0
        and start_ns < {end_ns} and start_ns + dur_ns > {start_ns}
    limit {limit}"""
_HOST = """
    select rank, 'host' as kind, thread_id as lane_id,
        case when thread_id is null then 'host' else 'host ' || thread_id end as lane,
        coalesce(name, kind) as name, kind as type, level as detail, cast(null as bigint) as step,
        start_ns, dur_ns
    from ({host_ops})
    where {place} and {ranks} and dur_ns > 0
        and start_ns < {end_ns} and start_ns + dur_ns > {start_ns}
    order by dur_ns desc, start_ns limit {limit}"""
_GROUPS = """
    select group_hash as lane, any_value(kind) as kind from group_kinds
    where run = ? and capture = ? group by group_hash"""


@dataclass(frozen=True, slots=True)
class Events:
    """Events of some ranks in a window, on the shown clock.

    rows: rank, kind (compute, communication, overlap, host), lane (its name), name, type, detail,
    step, start_ns, dur_ns; in order of rank, kind, lane and start. Pieces of the kind overlap are
    cut at the window, and tell where communication is masked or exposed. `has_all_host`: no host
    call was left out; of more, the longest are kept.
    """

    rows: pl.DataFrame
    has_all_host: bool


def chosen_events(table: str, ahead: str) -> str:
    """The rows of a table with `start_ns` on the shown clock."""
    if "where false" in ahead:
        return f"select * from {table}"
    return (
        f"select t.* replace (start_ns - coalesce(ahead_ns, 0) as start_ns) from {table} as t"
        f" left join {ahead} as c on c.rank = t.rank"
    )


def event_bounds(
    con: duckdb.DuckDBPyConnection,
    at: Extent,
    *,
    ranks: Sequence[int] | None = None,
    window_ns: tuple[int, int],
) -> tuple[int, int]:
    """At least and about at most how many kernels and operations a window holds, from the bins.

    Those that begin in the window and end after the last bin it touches are not among them.
    """
    open_views(con, ("timeline_bins",))
    rows = at.of(ranks)
    if rows.is_empty():
        return 0, 0
    length_ns = max(window_ns[1] - window_ns[0], 1)
    least = most = 0
    # Ranks of unlike lengths have unlike levels.
    for finest, coarsest in set(rows["finest", "coarsest"].rows()):
        level = finest
        while level < coarsest and length_ns // (10**6 * 4 ** (level + 1)) > 50:
            level += 1
        mine = rows.filter((pl.col("finest") == finest) & (pl.col("coarsest") == coarsest))
        ahead = mine["ahead_ns"].to_list()
        width_ns = 10**6 * 4**level
        query = _BOUNDS.format(
            ahead=ahead_table(mine.filter(pl.col("ahead_ns") != 0)),
            place=at.place,
            ranks=_ranks("b.rank", mine, at), level=level,
            start_ns=window_ns[0], end_ns=window_ns[1],
            from_ns=window_ns[0] + min(ahead) - width_ns,
            to_ns=window_ns[1] + max(ahead) + width_ns,
            inside=f"start_ns >= {window_ns[0]} and start_ns + bin_width_ns <= {window_ns[1]}",
        )  # fmt: skip
        ((here_least, here_most),) = con.execute(query).fetchall()
        least, most = least + here_least, most + here_most
    return least, most


def _ranks(column: str, rows: pl.DataFrame, at: Extent) -> str:
    if rows.height == at.ranks.height:
        return "true"
    return f"{column} in ({', '.join(map(str, rows['rank']))})"


# metric: window_events
# What did ranks do in a short window, event by event?
#
# Kernels, operations and host calls that touch the window, on fitted clocks; pieces in which one
# hides the other are cut at the window. Of many host calls the longest.
#
# title: Events of a window
# meaning: Kernels, operations, what of them overlaps, and host calls of a window.
# table: longest_events
# figure: lanes
#
#   rank      integer  global rank
#   kind      varchar  compute, communication, overlap or host
#   lane      varchar  stream, group or thread
#   name      varchar  of the kernel, operation or call; of a piece: masked or exposed
#   type      varchar  type of the kernel or operation
#   detail    varchar  core of a kernel
#   step      bigint   producer's step number
#   start_ns  bigint   start, on the shown clock
#   dur_ns    bigint   length
def window_events(
    con: duckdb.DuckDBPyConnection,
    at: Extent,
    *,
    ranks: Sequence[int] | None = None,
    window_ns: tuple[int, int],
    most: int = MOST_EVENTS,
) -> Events | None:
    """What some ranks did in a window; None where it holds more kernels and operations than `most`.

    Bins are asked first, so that no event is read in vain.
    """
    rows = at.of(ranks)
    if rows.is_empty() or event_bounds(con, at, ranks=ranks, window_ns=window_ns)[0] > most:
        return None
    moved = ahead_table(rows.filter(pl.col("ahead_ns") != 0))
    tables = {name: chosen_events(name, moved) for name in ("kernels", "comm_ops", "host_ops")}
    parts = {**tables, "place": at.place, "start_ns": window_ns[0], "end_ns": window_ns[1]}
    clause = _ranks("rank", rows, at)
    found = frame(con, _WINDOW.format(**parts, ranks=clause, limit=most + 1))
    if found.height > most:
        return None
    room = most - found.height
    host = frame(con, _HOST.format(**parts, ranks=clause, limit=room + 1))
    whole = pl.concat(
        [_with_groups(con, at, found), masked_pieces(found, window_ns), host.head(room)],
        how="diagonal_relaxed",
    )
    order = pl.col("kind").replace_strict(_KINDS, range(len(_KINDS)), return_dtype=pl.Int8)
    ordered = whole.sort("rank", order, "lane_id", "start_ns", maintain_order=True, nulls_last=True)
    return Events(ordered.drop("lane_id"), host.height <= room)


def _with_groups(con: duckdb.DuckDBPyConnection, at: Extent, found: pl.DataFrame) -> pl.DataFrame:
    """Lanes of communication named after what their groups are for."""
    open_views(con, ("group_kinds",))
    kinds = frame(con, _GROUPS, [at.run, at.capture]).rename({"kind": "group_kind"})
    known = pl.col("group_kind").fill_null("unknown")
    named = (
        pl.when(pl.col("lane") == "").then(pl.lit("communication"))
        .when(known == "unknown").then(pl.lit("group ") + pl.col("lane").str.tail(6))
        .otherwise(known + " " + pl.col("lane").str.tail(3))
    )  # fmt: skip
    told = found.join(kinds, on="lane", how="left", maintain_order="left")
    is_op = pl.col("kind") == "communication"
    return told.with_columns(
        lane=pl.when(is_op).then(named).otherwise(pl.col("lane")),
        detail=pl.when(is_op).then(pl.col("group_kind")).otherwise(pl.col("detail")),
    ).drop("group_kind")


def masked_pieces(found: pl.DataFrame, window_ns: tuple[int, int]) -> pl.DataFrame:
    """Where communication of each rank is masked by compute and where it is exposed, in a window.

    `found` has all kernels and operations (rank, kind, start_ns, dur_ns) that touch the window.
    """
    cut = found.select(
        "rank",
        (pl.col("kind") == "compute").cast(pl.Int32).alias("kernels"),
        (pl.col("kind") == "communication").cast(pl.Int32).alias("ops"),
        pl.col("start_ns").clip(lower_bound=window_ns[0]).alias("from_ns"),
        (pl.col("start_ns") + pl.col("dur_ns")).clip(upper_bound=window_ns[1]).alias("to_ns"),
    )
    edges = pl.concat([
        cut.select("rank", pl.col("from_ns").alias("start_ns"), "kernels", "ops"),
        cut.select("rank", pl.col("to_ns").alias("start_ns"), -pl.col("kernels"), -pl.col("ops")),
    ])  # fmt: skip
    runs = pl.col("kernels") > 0
    states = (
        edges.group_by("rank", "start_ns")
        .agg(pl.col("kernels", "ops").sum())
        .sort("rank", "start_ns")
        .with_columns(pl.col("kernels", "ops").cum_sum().over("rank"))
        .with_columns(
            name=pl.when(pl.col("ops") == 0).then(pl.lit(""))
            .when(runs).then(pl.lit("masked communication"))
            .otherwise(pl.lit("exposed communication"))
        )
    )  # fmt: skip
    changes = states.filter(
        pl.col("name").ne_missing(pl.col("name").shift(1).over("rank"))
    ).with_columns(dur_ns=pl.col("start_ns").shift(-1).over("rank") - pl.col("start_ns"))
    return changes.filter(pl.col("name") != "").select(
        "rank",
        kind=pl.lit("overlap"),
        lane_id=pl.lit(0, pl.Int64),
        lane=pl.lit("overlap"),
        name="name",
        start_ns="start_ns",
        dur_ns="dur_ns",
    )
