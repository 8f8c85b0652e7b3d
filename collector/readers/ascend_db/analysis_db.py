"""analysis.db and communication_analyzer.db: HCCL's figures and the producer's steps, as SQLite.

The tables of MindSpore and msprof lack step, type and op_name, and their matrix has one entry per
operation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import duckdb
import pyarrow as pa

from ...model import RankSource, ReadLog
from ...staging import run_on
from ..damaged_files import read_each
from ..hccl.communication_rows import insert_matrix, insert_packets, insert_times
from ..sqlite import SqliteFile, SqlType, open_sqlite, tell_views

Column = tuple[str, SqlType, tuple[str, ...]]

# Raw column (as in communication_rows), its type, and the names it has in the database.
OP: tuple[Column, ...] = (
    ("step", "text", ("step",)),
    ("category", "text", ("type",)),
    ("name", "text", ("hccl_op_name",)),
    ("group_hash", "text", ("group_name",)),
)
TIMES: tuple[Column, ...] = (
    *OP,
    ("start_us", "real", ("start_timestamp",)),
    ("elapse_ms", "real", ("elapse_time", "elapsed_time")),
    ("transit_ms", "real", ("transit_time",)),
    ("wait_ms", "real", ("wait_time",)),
    ("synchronization_ms", "real", ("synchronization_time",)),
    ("idle_ms", "real", ("idle_time",)),
)
PACKETS: tuple[Column, ...] = (
    *OP,
    ("link", "text", ("transport_type", "band_type")),
    ("size_mb", "real", ("transit_size",)),
    ("time_ms", "real", ("transit_time",)),
    ("bandwidth_gb_s", "real", ("bandwidth",)),
    ("large_packet_ratio", "real", ("large_packet_ratio",)),
    ("packet_mb", "real", ("package_size",)),
    ("packet_count", "real", ("count",)),
    ("packet_ms", "real", ("total_duration",)),
)
MATRIX: tuple[Column, ...] = (
    *OP,
    ("src", "text", ("src_rank",)),
    ("dst", "text", ("dst_rank",)),
    ("link", "text", ("transport_type",)),
    ("size_mb", "real", ("transit_size",)),
    ("time_ms", "real", ("transit_time",)),
    ("bandwidth_gb_s", "real", ("bandwidth",)),
    ("op_name", "text", ("op_name",)),
)
STEP_TIMES = (
    "computing", "communication_not_overlapped", "overlapped", "communication", "free", "stage",
    "bubble", "communication_not_overlapped_and_exclude_receive", "preparing",
)  # fmt: skip
STEPS: tuple[Column, ...] = (
    ("device_id", "integer", ("deviceId", "device_id")),
    ("step", "text", ("step",)),
    *((name, "real", (name,)) for name in STEP_TIMES),
)


_TABLES = ("CommAnalyzerTime", "CommAnalyzerBandwidth", "CommAnalyzerMatrix", "StepTraceTime")


def read(
    con: duckdb.DuckDBPyConnection,
    source: RankSource,
    log: ReadLog,
    tables: frozenset[str],
    advance: Callable[[int], None],
) -> None:
    """Fill `comm_times`, `comm_links`, `comm_matrix` and `profiler_steps`."""

    def read_one(path: str) -> None:
        if not Path(path).stat().st_size:
            log.lose(path, "empty file")
        elif tables & {"comm_times", "comm_links", "comm_matrix", "profiler_steps"}:
            with open_sqlite(path, _TABLES) as db:
                _note_variants(db, log)
                there = {name.lower() for name in (*db.tables, *db.views)}
                if db.tables and there.isdisjoint(name.lower() for name in _TABLES):
                    named = ", ".join(sorted(db.tables)[:8])
                    log.lose(
                        path, "none of the tables of an analysis database, but {named}", named=named
                    )
                _read_tables(con, db, tables, log)

    read_each(source.files.get("analysis_db", ()), read_one, log, advance)


def _note_variants(db: SqliteFile, log: ReadLog) -> None:
    """MindSpore and msprof name no steps; only torch_npu sorts its matrix by kinds."""
    columns = {table: {column.lower() for column in have} for table, have in db.tables.items()}
    if (times := columns.get("CommAnalyzerTime")) is not None:
        log.rules["analysis_db.steps"] = "named" if "step" in times else "none"
    if (matrix := columns.get("CommAnalyzerMatrix")) is not None:
        by_kind = "op_name" in matrix
        log.rules["communication.matrix"] = (
            "kinds of operations" if by_kind else "single operations"
        )


def _read_tables(
    con: duckdb.DuckDBPyConnection, db: SqliteFile, tables: frozenset[str], log: ReadLog
) -> None:
    parts: tuple[
        tuple[str, str, tuple[Column, ...],
              Callable[[duckdb.DuckDBPyConnection, pa.RecordBatchReader], None]], ...,
    ] = (
        ("comm_times", "CommAnalyzerTime", TIMES, insert_times),
        ("comm_links", "CommAnalyzerBandwidth", PACKETS, insert_packets),
        ("comm_matrix", "CommAnalyzerMatrix", MATRIX, insert_matrix),
        ("profiler_steps", "StepTraceTime", STEPS, _insert_steps),
    )  # fmt: skip
    tell_views(db, [table for target, table, *_ in parts if target in tables], log)
    for target, table, columns, insert in parts:
        if target in tables and table in db.tables:
            db.check(table)
            sources = sources_of(columns, db.tables[table])
            insert(con, db.select(sources, f'from "{table}"'))
    for what in db.damage:
        log.lose(db.path, what)


def sources_of(
    columns: tuple[Column, ...], have: Mapping[str, str]
) -> dict[str, tuple[SqlType, str]]:
    """Each raw column with the SQL of the first of its names the table has, NULL without one."""
    actual = {name.lower(): f'"{name}"' for name in have}
    return {
        column: (kind, next((actual[n.lower()] for n in names if n.lower() in actual), "null"))
        for column, kind, names in columns
    }


def _insert_steps(con: duckdb.DuckDBPyConnection, data: pa.RecordBatchReader) -> None:
    times = ", ".join(f"scaled({name}::varchar, 1000) as {name}_ns" for name in STEP_TIMES)
    sql = f"""
        insert into profiler_steps by name
        select try_cast(device_id as integer) as device_id, step_number(step) as step, {times}
        from _incoming"""
    run_on(con, data, sql)
