"""How many events a window of time holds, and their instants on the shown clock."""

from __future__ import annotations

import duckdb
import polars as pl

from ..views import open_views
from .shared_axis import Extent, ahead_table

_MOST = """
    select cast(coalesce(sum(event_count), 0) as bigint)
    from (
        select level, event_count, bin_start_ns - coalesce(ahead_ns, 0) as start_ns, bin_width_ns
        from timeline_bins as b left join {ahead} as c on c.rank = b.rank
        where {place} and {ranks} and level = {level}
            and bin_start_ns > {from_ns} and bin_start_ns < {to_ns}
    )
    where start_ns + bin_width_ns > {start_ns} and start_ns < {end_ns} + bin_width_ns"""


def chosen_events(table: str, ahead: str) -> str:
    """The rows of a table with `start_ns` on the shown clock."""
    if "where false" in ahead:
        return f"select * from {table}"
    return (
        f"select t.* replace (start_ns - coalesce(ahead_ns, 0) as start_ns) from {table} as t"
        f" left join {ahead} as c on c.rank = t.rank"
    )


def most_events(con: duckdb.DuckDBPyConnection, at: Extent, *, window_ns: tuple[int, int]) -> int:
    """About how many kernels and operations a window holds at most, from the bins.

    Those that begin in the window and end after the last bin it touches are not among them.
    """
    open_views(con, ("timeline_bins",))
    rows = at.ranks
    if rows.is_empty():
        return 0
    length_ns = max(window_ns[1] - window_ns[0], 1)
    most = 0
    # Ranks of unlike lengths have unlike levels.
    for finest, coarsest in set(rows["finest", "coarsest"].rows()):
        level = finest
        while level < coarsest and length_ns // (10**6 * 4 ** (level + 1)) > 50:
            level += 1
        mine = rows.filter((pl.col("finest") == finest) & (pl.col("coarsest") == coarsest))
        ahead = mine["ahead_ns"].to_list()
        width_ns = 10**6 * 4**level
        query = _MOST.format(
            ahead=ahead_table(mine.filter(pl.col("ahead_ns") != 0)),
            place=at.place,
            ranks=of_ranks("b.rank", mine, at), level=level,
            start_ns=window_ns[0], end_ns=window_ns[1],
            from_ns=window_ns[0] + min(ahead) - width_ns,
            to_ns=window_ns[1] + max(ahead) + width_ns,
        )  # fmt: skip
        ((count,),) = con.execute(query).fetchall()
        most += count
    return most


def of_ranks(column: str, rows: pl.DataFrame, at: Extent) -> str:
    """A condition that skips other ranks' files; nothing where all are meant."""
    if rows.height == at.ranks.height:
        return "true"
    return f"{column} in ({', '.join(map(str, rows['rank']))})"
