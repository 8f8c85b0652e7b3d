"""The pipeline stage of each rank, and which ranks run a program of their own beside the others."""

from __future__ import annotations

import duckdb

from ..memo import latest
from ..metric import part_sql, sql_text
from ..views import frame

_PLACES = """
    with _facts as (
        select unnest(list_sort(global_ranks)) as rank, unnest(range(len(global_ranks))) as place
        from capture_groups
        where run = $run and capture = $capture and kind = 'pp' and len(global_ranks) > 1
    ),
    _sightings as (
        select rank, cast(min(place) as integer) as place from _facts
        group by rank having min(place) = max(place)
    )
    select distinct ranks.rank, coalesce(pp_rank, place) as stage
    from ranks left join _sightings using (rank)
    where ranks.run = $run and ranks.capture = $capture and coalesce(pp_rank, place) is not null"""


@latest
def rank_stages(con: duckdb.DuckDBPyConnection, run: str, capture: str) -> dict[int, int]:
    """The pipeline stage of each rank of a compared capture: its own coordinate, else its place in
    the groups of its pipeline; ranks of which neither tells are left out."""
    rows = con.execute(_PLACES, {"run": run, "capture": capture}).fetchall()
    return dict(rows)


def ranks_apart(con: duckdb.DuckDBPyConnection, run: str, capture: str) -> list[int]:
    """Ranks that do not step together with the others of their capture, or alone run no gradients:
    another program, with which nothing is to be compared. None where all are of one."""
    for programs in (sql_text("apart_steps.sql"), part_sql("forward_ranks.sql")):
        query = f"select ranks from ({programs}) where run = ? and capture = ?"
        if ranks := frame(con, query, [run, capture])["ranks"].explode().drop_nulls().to_list():
            return ranks
    return []
