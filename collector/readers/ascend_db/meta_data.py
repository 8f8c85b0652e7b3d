"""META_DATA of a profiler database: what the framework told the profiler about the job."""

from __future__ import annotations

from collections.abc import Callable

import duckdb

from ...model import RankSource, ReadLog
from ..metadata.profiler_metadata import group_rows, parse_metadata, rank_columns
from ..sqlite import SqliteFile
from .source_tables import load_table


def fill_metadata(
    con: duckdb.DuckDBPyConnection,
    file: SqliteFile,
    source: RankSource,
    log: ReadLog,
    wanted: frozenset[str],
    spend: Callable[[int], None],
) -> None:
    """Fill `groups`, and the parallel sizes and coordinates of the row in `ranks`.

    A name may stand there several times (an export as text and database writes it twice): the last
    one counts.
    """
    load_table(con, file, "META_DATA", spend)
    rows = con.execute("select name, value from _meta_data where name is not null").fetchall()
    con.execute("drop table _meta_data")
    mapping: dict[str, object] = dict(rows)
    if version := mapping.get("SCHEMA_VERSION"):
        log.rules["ascend_db.schema_version"] = str(version)
    metadata = parse_metadata(mapping)
    log.rules |= metadata.rules()
    if "ranks" in wanted:
        known = {k: v for k, v in rank_columns(metadata, source.rank).items() if v is not None}
        if known:
            con.execute(
                f"update ranks set {', '.join(f'{column} = ?' for column in known)}",
                list(known.values()),
            )
    if "groups" in wanted and metadata.groups:
        con.register("_batches", group_rows(metadata, source.rank))
        con.execute("insert into groups by name select * from _batches")
        con.unregister("_batches")
