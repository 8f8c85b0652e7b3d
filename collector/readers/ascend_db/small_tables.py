"""What the small tables of a profiler's main database tell, without its tasks and events.

The rank and its device, the job's groups, and when steps began and ended on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import resources

import duckdb

from ...model import RankSource, ReadLog
from ..sqlite import SqliteFile
from .meta_data import fill_metadata
from .source_tables import load_table, temp_name

_SMALL = ("SESSION_TIME_INFO", "NPU_INFO", "HOST_INFO", "RANK_DEVICE_MAP", "STEP_TIME")
# Tables that the rank's SQL asks too, where smaller ones are silent: empty here.
_LARGE = ("TASK", "AICORE_FREQ")


def fill_lightly(
    con: duckdb.DuckDBPyConnection,
    file: SqliteFile,
    source: RankSource,
    log: ReadLog,
    wanted: frozenset[str],
    spend: Callable[[int], None],
) -> None:
    """Fill `ranks`, `groups` and `steps`; of steps the device's range stays unknown."""
    for table in _SMALL:
        load_table(con, file, table, spend)
    for table in _LARGE:
        load_table(con, replace(file, tables={}), table, spend)
    if "ranks" in wanted:
        sql = resources.files(__package__).joinpath("sql", "ranks.sql").read_text("utf-8")
        con.execute(sql, {"rank": source.rank, "framework": source.framework})
    if "steps" in wanted:
        con.execute("""
            insert into steps by name
            select distinct id as step, startNs as window_start_ns, endNs as window_end_ns
            from _step_time where startNs is not null order by startNs
        """)
    fill_metadata(con, file, source, log, wanted, spend)
    for table in (*_SMALL, *_LARGE):
        con.execute(f"drop table if exists {temp_name(table)}")
