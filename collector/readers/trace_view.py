"""trace_view.json and msprof_*.json: the timeline: steps, calls, launches, communication.

    JSON pieces -> typed events -> Arrow -> staged events (one table per kind) -> canonical tables
    json_events    trace_events    trace_columns    here             trace_view.sql

Metadata that names processes and threads may follow what it names, or stand in another slice of the
trace: everything is staged first, and told apart afterwards.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import resources

import duckdb
import pyarrow as pa

from npuscope.errors import TraceFormatError

from ..groups import group_hash
from ..model import RankSource, ReadLog
from .json_events import read_events
from .trace_columns import columns
from .trace_events import Event, decode_events, texts

_BATCH_BYTES = 16 << 20
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
_OVERLAP_NAMES = frozenset({"Computing", "Communication", "Communication(Not Overlapped)", "Free"})


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
    TraceFormatError or OSError if no slice of the trace can be read.
    """
    sql = _parts()
    con.execute(sql["staging"])
    host = "host_ops" if "host_ops" in wanted else "_trace_host"
    try:
        _stage(con, source, log, advance, host, counters="counters" in wanted)
        _derive(con, log, wanted, sql, host)
    finally:
        with suppress(duckdb.Error):  # it must not hide what went wrong before
            _drop_staged(con)


@cache
def _parts() -> dict[str, str]:
    text = resources.files(__package__).joinpath("trace_view.sql").read_text(encoding="utf-8")
    parts = re.split(r"^-- name: (\w+)\n", text, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _stage(
    con: duckdb.DuckDBPyConnection,
    source: RankSource,
    log: ReadLog,
    advance: Callable[[int], None],
    host: str,
    *,
    counters: bool,
) -> None:
    """Put every event of every slice of the trace into the table of its kind."""
    paths = source.paths("trace")
    failed: list[TraceFormatError | OSError] = []
    for path in paths:
        waiting: dict[str, list[pa.Table]] = defaultdict(list)
        waiting_bytes = 0
        try:
            for events in read_events(path, lambda text: decode_events(text, log), log, advance):
                for kind, table in columns(events, log, counters=counters).items():
                    waiting[kind].append(table)
                    waiting_bytes += table.nbytes
                if waiting_bytes > _BATCH_BYTES:
                    _insert(con, waiting, host)
                    waiting_bytes = 0
        except (TraceFormatError, OSError) as error:
            log.warn(f"not read: {error}")
            failed.append(error)
        _insert(con, waiting, host)
    if failed and len(failed) == len(paths):
        raise failed[0]


def _insert(con: duckdb.DuckDBPyConnection, waiting: dict[str, list[pa.Table]], host: str) -> None:
    """Move tables to their kind's staging table, many at once: each insert has its price."""
    for kind, tables in waiting.items():
        con.register("_trace_chunk", pa.concat_tables(tables))
        if kind == "host":
            con.execute(_parts()["host_chunk"].format(target=host))
        else:
            con.execute(f"insert into _trace_{kind} by name from _trace_chunk")
        con.unregister("_trace_chunk")
    waiting.clear()


def _derive(
    con: duckdb.DuckDBPyConnection,
    log: ReadLog,
    wanted: frozenset[str],
    sql: dict[str, str],
    host: str,
) -> None:
    """Canonical tables from staged events."""
    con.execute(sql["places"].format(host_source=host))
    con.execute(sql["comm_places"])
    _name_groups(con)
    comm_rows = "_comm_rows" if _exists(con, "_comm_rows") else "_trace_no_comm_rows"
    con.execute(
        "create or replace temp table _trace_no_comm_rows"
        " (step bigint, name varchar, start_ns bigint, dur_ns bigint)"
    )
    for table in _TABLES:
        if table in wanted:
            con.execute(sql[table].format(host_source=host, comm_rows=comm_rows))
        if table == "kernels":
            if table in wanted:
                log.rules["kernels"] = "trace hardware tasks"
            con.execute(sql["kernel_places"])
            if _one(con, "select count(*) > 0 and count(connection_id) = 0 from kernels"):
                con.execute(sql["kernel_connections"])
    unbound = _one(con, sql["unbound"])
    if unbound and "launches" in wanted:
        log.warn(f"trace: {unbound} device tasks whose launching call was not recorded")


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
    rows = con.execute(
        "select table_name from duckdb_tables() where table_name like '\\_trace\\_%' escape '\\'"
    )
    for (name,) in rows.fetchall():
        con.execute(f'drop table "{name}"')
    con.execute("drop macro if exists _is_computing")


def overlap_table(path: str) -> pa.Table:
    """Rows from which the profiler's text export sums its own step table, in file order.

    Columns: name, ts, dur (decimal microseconds as written). Rows: the process "Overlap Analysis",
    operations named hcom_receive*, and ProfilerStep#N.
    """
    log = ReadLog()
    kept: list[Event] = []
    overlap_pids: set[int | None] = set()
    for events in read_events(path, lambda text: decode_events(text, log), log, lambda _: None):
        kept += [e for e in events if e.ph == "X" and _tells_steps(e.name or "")]
        overlap_pids |= {
            e.pid for e in events
            if e.name == "process_name" and b'"Overlap Analysis"' in bytes(e.args)
        }  # fmt: skip
    rows = [e for e in kept if e.name not in _OVERLAP_NAMES or e.pid in overlap_pids]
    return pa.table(
        {
            "name": pa.array([e.name for e in rows], pa.string()),
            "ts": texts([e.ts for e in rows]),
            "dur": texts([e.dur for e in rows]),
        }
    )


def _tells_steps(name: str) -> bool:
    return name in _OVERLAP_NAMES or name.startswith(("hcom_receive", "ProfilerStep#"))
