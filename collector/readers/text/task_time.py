"""task_time.csv and task_time_*.csv: every task of the device. Where no kernel table and no
timeline tell, its tasks with a kernel's name are the kernels, the others what else it did."""

from __future__ import annotations

from collections.abc import Callable

import duckdb

from ...model import RankSource, ReadLog
from ..damaged_files import read_each
from ..delimited_text import Rows, fill, lose, open_rows
from .device_rows import names_device, own_rows

_START, _DURATION = ("task_start(us)",), ("task_time(us)",)


def read(
    con: duckdb.DuckDBPyConnection,
    source: RankSource,
    log: ReadLog,
    tables: frozenset[str],
    advance: Callable[[int], None],
) -> None:
    """Fill `kernels` and `device_tasks`; where it is the one to tell kernels, `comm_tasks`."""

    def read_one(path: str) -> None:
        rows = open_rows(path, log, (_START, _DURATION, ("kernel_name",)))
        if rows is None or not names_device(rows, source, log):
            return
        own = own_rows(source, "device_id")
        make = "create or replace temp table _tasks as"
        fill(con, rows, log, lambda text: f"{make} {_sql(rows, text, own)}")
        counts = con.execute("delete from _tasks where start_ns is null").fetchone() or (0,)
        lose(log, path, counts[0], "no valid start or duration")
        if "kernels" in tables:
            con.execute(_KERNELS)
            log.rules["kernels"] = "task_time"
            if "comm_tasks" in tables:
                con.execute(_EXCHANGES)
        if "device_tasks" in tables:
            con.execute(_OTHERS)
        con.execute("drop table _tasks")

    if tables:
        read_each(source.files.get("task_time", ()), read_one, log, advance)


_KERNELS = """
    insert into kernels by name
    select * exclude (kind) from _tasks
    where name is not null and not (is_compute and is_comm_row(null, name))"""
# The file has no operations: what moves bytes between devices, or waits for one, tells that there
# were some, so that a step's communication is unknown and not none.
_EXCHANGES = """
    insert into comm_tasks by name
    select stream_id, task_id, start_ns, dur_ns from _tasks
    where name is null and regexp_matches(kind, '(?i)sdma|notify|rdma')"""
_OTHERS = """
    insert into device_tasks by name
    select device_id, stream_id, task_id, kind as type, start_ns, dur_ns from _tasks
    where name is null and not starts_with(kind, 'PROFILING_') and (start_ns, task_id) not in (
        select (start_ns, task_id) from comm_tasks)"""


def _sql(rows: Rows, text: str, own: str) -> str:
    return f"""
        select * exclude (start, dur),
            case when us_ns(dur) >= 0 then us_ns(start) end as start_ns, us_ns(dur) as dur_ns
        from (
            select try_cast(whole({rows.cell("Device_id")}) as integer) as device_id,
                nullif(whole({rows.cell("stream_id")}), 4294967295) as stream_id,
                nullif(whole({rows.cell("task_id")}), 4294967295) as task_id,
                cell({rows.cell("kernel_name")}) as name,
                cell({rows.cell("kernel_type")}) as kind, task_core(kind) as core,
                cell({rows.cell(*_START)}) as start, cell({rows.cell(*_DURATION)}) as dur,
                is_compute_row(core, name) as is_compute
            from {text})
        where {own}"""
