"""trace_view.json and msprof_*.json: the timeline: steps, calls, launches, communication.

    JSON pieces -> typed events -> Arrow         -> Parquet, one file per kind -> canonical tables
    json_events    trace_events    trace_columns    trace_staging                 trace_view.sql

Metadata that names processes and threads may follow what it names, or stand in another slice of the
trace: everything is staged first, and told apart afterwards.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from importlib import resources
from pathlib import Path

import duckdb
import pyarrow as pa

from ...groups import group_hash
from ...model import RankSource, ReadLog
from ...small_files import unpacked
from ...staging import is_empty
from ..metadata.msprof_info import process_id
from ..staged_views import hide, show, staging_place
from ..text.iterations import iteration_sql, make_iterations, put_steps
from .trace_columns import SCHEMAS
from .trace_devices import forget_devices, keep_device
from .trace_staging import Wanted, stage

_TIME = re.compile(rb'"ts"\s*:\s*(")?')
_HEAD_BYTES = 1 << 16
_TABLES = (
    "marks",
    "counters",
    "kernels",
    "launches",
    "steps",
    "comm_ops",
    "comm_tasks",
    "host_ops",
)


def read(
    con: duckdb.DuckDBPyConnection,
    source: RankSource,
    log: ReadLog,
    wanted: frozenset[str],
    advance: Callable[[int], None],
) -> None:
    """Fill those of `_TABLES` that are `wanted`.

    Where no kernel table filled `kernels`, device tasks that compute by their type do. Operations
    take their step from `_comm_rows` (see kernel_details) where it has them. Raises
    TraceFormatError if no slice of the trace can be read.
    """
    place = staging_place(con)
    staged = Wanted(counters="counters" in wanted, stacks=source.selection.stacks)
    try:
        folders = stage(
            source.paths("trace"), place, staged, log, advance, processes=source.processes
        )
        show(con, "_trace_", folders, list(SCHEMAS))
        _derive(con, source, log, wanted, folders)
    finally:
        with suppress(duckdb.Error):  # it must not hide what went wrong before
            _drop_staged(con)
        shutil.rmtree(place, ignore_errors=True)


@cache
def _parts() -> dict[str, str]:
    text = resources.files(__package__).joinpath("trace_view.sql").read_text(encoding="utf-8")
    parts = re.split(r"^-- name: (\w+)\n", text, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _derive(
    con: duckdb.DuckDBPyConnection,
    source: RankSource,
    log: ReadLog,
    wanted: frozenset[str],
    folders: Sequence[Path],
) -> None:
    """Canonical tables from staged events."""
    sql = _parts()
    con.execute(sql["places"])
    keep_device(con, folders, source, log)
    if source.framework == "msprof":  # no slice of the framework tells the process
        con.execute("update _trace_os_process set process_id = ?", [process_id(source)])
    con.execute(sql["comm_places"])
    _note_variants(con, source, log)
    _name_groups(con)
    comm_rows = "_comm_rows" if _exists(con, "_comm_rows") else "_trace_no_comm_rows"
    con.execute(
        "create or replace temp table _trace_no_comm_rows"
        " (step bigint, name varchar, start_ns bigint, dur_ns bigint)"
    )
    for table in _TABLES:
        if table in wanted:
            con.execute(sql[table].format(comm_rows=comm_rows))
        if table == "kernels":
            if table in wanted:
                log.rules["kernels"] = "trace hardware tasks"
            con.execute(sql["kernel_places"])
            if _one(con, "select count(*) > 0 and count(connection_id) = 0 from kernels"):
                con.execute(sql["kernel_connections"])
        elif table == "steps" and table in wanted and is_empty(con, "steps"):
            make_iterations(con)
            con.execute(sql["iterations"].format(iteration=iteration_sql("o.name", "t.name")))
            if put_steps(con, log):
                log.rules["steps"] = "iterations of the timeline"
    unbound = _one(con, sql["unbound"])
    if unbound and "launches" in wanted:
        log.warn(f"trace: {unbound} device tasks whose launching call was not recorded")


def _note_variants(con: duckdb.DuckDBPyConnection, source: RankSource, log: ReadLog) -> None:
    """Record how the timeline writes times, and which names it gives its processes."""
    if time := _TIME.search(_head(source)):
        log.rules["trace.time"] = "text" if time[1] else "number"
    processes = con.execute("select kind, name, label from _trace_process").fetchall()
    if names := sorted({name for kind, name, _ in processes if kind == "communication"}):
        log.rules["trace.communication_process"] = ", ".join(names)
    labels = {label for _, _, label in processes if str(label).startswith("NPU")}
    if labels:
        log.rules["trace.device_label"] = "NPU" if labels == {"NPU"} else "NPU and its number"


def _head(source: RankSource) -> bytes:
    path = source.paths("trace")[0]
    with Path(path).open("rb") as raw:
        try:
            return unpacked(raw).read(_HEAD_BYTES)
        except (OSError, EOFError):  # packed, and damaged: its reader has told
            return b""


def _name_groups(con: duckdb.DuckDBPyConnection) -> None:
    """Hashes of the groups whose threads carry the communicator's name."""
    rows = con.execute("select distinct group_name from _trace_thread where group_name is not null")
    names = [name for (name,) in rows.fetchall()]
    table = pa.table(
        {
            "group_name": pa.array(names, pa.string()),
            "group_hash": pa.array([group_hash(name) for name in names], pa.string()),
        }
    )
    con.register("_trace_chunk", table)
    con.execute("create or replace temp table _trace_group as from _trace_chunk")
    con.unregister("_trace_chunk")


def _exists(con: duckdb.DuckDBPyConnection, table: str) -> bool:
    found = con.execute("select 1 from duckdb_tables() where table_name = ?", [table])
    return bool(found.fetchall())


def _one(con: duckdb.DuckDBPyConnection, query: str) -> int:
    ((count,),) = con.execute(query).fetchall()
    return int(count)


def _drop_staged(con: duckdb.DuckDBPyConnection) -> None:
    con.unregister("_trace_chunk")
    con.execute("drop view if exists _trace_host_op")
    forget_devices(con)
    hide(con, "_trace_", list(SCHEMAS))
    rows = con.execute(
        "select table_name from duckdb_tables() where table_name like '\\_trace\\_%' escape '\\'"
    )
    for (name,) in rows.fetchall():
        con.execute(f'drop table "{name}"')
    con.execute("drop macro if exists _is_computing")
