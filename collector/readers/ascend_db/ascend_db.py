"""The profiler's main database, a SQLite file of one rank.

ascend_pytorch_profiler_*.db, ascend_mindspore_profiler_*.db and msprof_*.db hold the same tables,
each only if it has rows. Every canonical table has one file of SQL, `sql/<table>.sql`, over temp
copies of the database's tables (see `source_tables`): loaded when first needed and dropped after
their last use, so that only a few are held at a time.

What the small tables of a profiler's main database tell, without its tasks and events.

The rank and its device, the job's groups, and when steps began and ended on the host.

META_DATA of a profiler database: what the framework told the profiler about the job.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import duckdb

from npuscope.errors import TraceFormatError

from ...model import RankSource, ReadLog
from ...staging import insert_rows, run, scalar
from ..metadata.profiler_metadata import group_rows, parse_metadata, rank_columns
from ..sqlite import SqliteFile, SqlType, open_sqlite, tell_views
from ..text.device_rows import own_database
from ..words import WORDS_FROM_BYTES, words_for_text
from .counter_tables import COUNTERS, fill_counters
from .large_tables import (
    fill_comm_tasks,
    fill_host_ops,
    fill_kernels,
    fill_launches,
    sql,
)
from .lookups import build_group_hashes
from .source_tables import (
    ENUMS,
    TABLES,
    load_enums,
    load_table,
    rounds_times,
    spelling,
    stream_columns,
    temp_name,
)

# Canonical table -> tables its SQL reads, in the order of reading. `_string` and `_enum` are
# always there.
_NEEDS: dict[str, tuple[str, ...]] = {
    "ranks": (
        "TASK", "SESSION_TIME_INFO", "NPU_INFO", "HOST_INFO", "RANK_DEVICE_MAP", "AICORE_FREQ",
    ),
    "steps": ("TASK", "CANN_API", "STEP_TIME"),
    "kernels": (
        "TASK", "COMPUTE_TASK_INFO", "COMMUNICATION_SCHEDULE_TASK_INFO", "TASK_PMU_INFO",
    ),
    "device_tasks": (
        "TASK", "COMPUTE_TASK_INFO", "COMMUNICATION_SCHEDULE_TASK_INFO", "COMMUNICATION_TASK_INFO",
        "COMMUNICATION_OP",
    ),
    "comm_tasks": ("TASK", "COMMUNICATION_TASK_INFO", "COMMUNICATION_OP"),
    "comm_ops": ("TASK", "COMMUNICATION_TASK_INFO", "COMMUNICATION_OP"),
    "launches": (
        "TASK", "CANN_API", "COMMUNICATION_OP", "COMPUTE_TASK_INFO", "PYTORCH_API",
        "CONNECTION_IDS",
    ),
    "marks": ("TASK", "MSTX_EVENTS", "PYTORCH_API", "CONNECTION_IDS"),
    "host_ops": (
        "CANN_API", "PYTORCH_API", "CONNECTION_IDS", "PYTORCH_CALLCHAINS", "GC_RECORD",
    ),
    "memory": ("MEMORY_RECORD", "NPU_OP_MEM", "NPU_MEM", "NPU_MODULE_MEM"),
    "operator_memory": ("OP_MEMORY",),
}  # fmt: skip
_ENUM_TABLES = frozenset(table for table, _ in ENUMS.values())
_KNOWN_TABLES = frozenset({*TABLES, *COUNTERS}) | _ENUM_TABLES
_DERIVED_TABLES = (
    "_enum", "_group", "_operator_call", "_ordered", "_part", "_queue_call", "_stack", "_stack_of",
    "_step_segments", "_target", "_word",
)  # fmt: skip


def read(
    con: duckdb.DuckDBPyConnection,
    source: RankSource,
    log: ReadLog,
    tables: frozenset[str],
    advance: Callable[[int], None],
) -> None:
    """Fill the canonical tables from the rank's main database; nothing to do where it has none.

    `step` stays NULL in kernels and comm_ops, as do global ranks in comm_tasks: linking knows them.
    Raises TraceFormatError for a file that is no database, is damaged, or has none of the known
    tables.
    """
    path = source.path("main_db")
    if path is None:
        return
    for other in source.paths("main_db")[1:]:
        log.warn(
            "{other}: not read, {file} is the rank's database",
            other=Path(other).name,
            file=Path(path).name,
        )
    left_bytes = source.files["main_db"][0].size_bytes

    def spend(arrow_bytes: int) -> None:
        # Counting rows beforehand would read the file twice; Arrow takes about a third more than
        # the tables do in SQLite.
        nonlocal left_bytes
        part = min(arrow_bytes * 3 // 4, left_bytes)
        left_bytes -= part
        advance(part)

    with open_sqlite(path, _KNOWN_TABLES) as file:
        _check_known(file)
        tell_views(file, TABLES, log)
        if not source.selection.light:
            own_database(file, source)
        _note_variants(file, log)
        try:
            if source.selection.light:
                _fill_lightly(con, file, source, log, tables, spend)
            elif source.files["main_db"][0].size_bytes < WORDS_FROM_BYTES:
                _fill(con, file, source, log, tables, spend)
            else:
                with words_for_text(con):
                    _fill(con, file, source, log, tables, spend, in_words=True)
        finally:
            there = "select table_name from duckdb_tables() where temporary"
            ours = {*map(temp_name, TABLES), *_DERIVED_TABLES}
            _drop(con, [name for (name,) in run(con, there).fetchall() if name in ours])
        for what in file.damage:
            log.lose(path, what)
    advance(left_bytes)


def _check_known(file: SqliteFile) -> None:
    if not file.tables.keys() & _KNOWN_TABLES - _ENUM_TABLES:
        names = ", ".join(sorted(file.tables)[:8]) or "no table at all"
        raise TraceFormatError(
            file.path,
            "tables",
            (f"none of the profiler's tables, but {names}: was analyse() run to its end?"),
        )


def _note_variants(file: SqliteFile, log: ReadLog) -> None:
    """Record which of the documented variants this database is."""
    if "COMPUTE_TASK_INFO" in file.tables:
        block = next(column for column in TABLES["COMPUTE_TASK_INFO"] if column.name == "blockNum")
        used = spelling(file, "COMPUTE_TASK_INFO", block)
        log.rules["ascend_db.block_count_column"] = used or "none"
    if "COMMUNICATION_OP" in file.tables:
        own = any(name.lower() == "deviceid" for name in file.tables["COMMUNICATION_OP"])
        log.rules["ascend_db.comm_op_device"] = "deviceId" if own else "TASK by connectionId"
    if "COMMUNICATION_TASK_INFO" in file.tables:
        names = {name.lower() for name in file.tables["COMMUNICATION_TASK_INFO"]}
        log.rules["ascend_db.master_plane"] = "isMaster" if "ismaster" in names else "none"
    if "MEMORY_RECORD" not in file.tables and "NPU_OP_MEM" in file.tables:
        log.rules["ascend_db.memory_curve"] = "NPU_OP_MEM"


def _fill(
    con: duckdb.DuckDBPyConnection,
    file: SqliteFile,
    source: RankSource,
    log: ReadLog,
    tables: frozenset[str],
    spend: Callable[[int], None],
    *,
    in_words: bool = False,
) -> None:
    load_table(con, file, "STRING_IDS", spend)
    _check_strings(con, file, log)
    load_enums(con, file, log)
    plan = [table for table in _NEEDS if table in tables]
    grouped = next((table for table in plan if table in ("comm_tasks", "comm_ops")), None)
    loaded: set[str] = set()
    for position, table in enumerate(plan):
        for needed in _NEEDS[table]:
            if needed not in loaded:
                load_table(con, file, needed, spend)
                if needed == "STEP_TIME":
                    _add_named_steps(con, file, log, spend)
                if needed in file.tables:
                    _check_starts(con, needed, log)
                if rounds_times(file, needed):
                    log.warn(
                        "{table}: its times are floating-point numbers, so they are right to "
                        "256 ns only",
                        table=needed,
                    )
                _check_names(con, needed, log)
                loaded.add(needed)
        if table == grouped:
            build_group_hashes(con)
        _fill_table(con, table, source, log, in_words=in_words)
        later = {needed for name in plan[position + 1 :] for needed in _NEEDS[name]}
        _drop(con, [temp_name(name) for name in loaded - later])
        loaded &= later
    if "counters" in tables:
        fill_counters(con, file, spend)
    _fill_metadata(con, file, source, log, tables, spend)


def _add_named_steps(
    con: duckdb.DuckDBPyConnection,
    file: SqliteFile,
    log: ReadLog,
    spend: Callable[[int], None],
) -> None:
    """Where STEP_TIME tells of no step, take the framework's own ranges, `ProfilerStep#N`: where
    both are there, they are the same to the ns. A range without a number is no step."""
    unnumbered = scalar(con, "select count(startNs) from _step_time where id is null")
    con.execute("delete from _step_time where id is null")
    if not scalar(con, "select count(startNs) from _step_time"):
        _load_named_steps(con, file, log, spend)
        if unnumbered and not scalar(con, "select count(startNs) from _step_time"):
            log.warn("STEP_TIME: its steps have no numbers, so figures are of the whole capture")


def _load_named_steps(
    con: duckdb.DuckDBPyConnection,
    file: SqliteFile,
    log: ReadLog,
    spend: Callable[[int], None],
) -> None:
    questions = {"PYTORCH_API": {"name", "startns", "endns"}, "STRING_IDS": {"id", "value"}}
    have = {table: {name.lower() for name in file.tables.get(table, ())} for table in questions}
    if any(not columns <= have[table] for table, columns in questions.items()):
        return
    columns: dict[str, tuple[SqlType, str]] = {
        "name": ("text", "(select value from STRING_IDS where id = p.name)"),
        "startNs": ("integer", "p.startNs"),
        "endNs": ("integer", "p.endNs"),
    }
    names = "select id from STRING_IDS where value glob 'ProfilerStep#[0-9]*'"
    rows = f"from (select * {file.rows_of('PYTORCH_API')}) as p where p.name in ({names})"
    sql = """
        insert into _step_time by name
        select try_cast(name[14:] as bigint) as id, startNs, endNs, endNs - startNs as durNs
        from _incoming where startNs > 0 and endNs >= startNs"""
    stream_columns(con, file.select(columns, rows), sql, spend)
    if scalar(con, "select count(startNs) from _step_time"):
        log.rules["steps"] = "ProfilerStep marks of the DB"


def _fill_table(
    con: duckdb.DuckDBPyConnection, table: str, source: RankSource, log: ReadLog, *, in_words: bool
) -> None:
    match table:
        case "ranks":
            run(con, sql(table), {"rank": source.rank, "framework": source.framework})
        case "kernels":
            fill_kernels(con, log, in_words=in_words)
        case "comm_tasks":
            fill_comm_tasks(con, log)
        case "launches":
            fill_launches(con, in_words=in_words)
        case "host_ops":
            fill_host_ops(con, log, in_words=in_words)
        case _:
            run(con, sql(table))


def _drop(con: duckdb.DuckDBPyConnection, names: list[str]) -> None:
    if names:
        run(con, ";".join(f"drop table if exists {name}" for name in names))


def _check_starts(con: duckdb.DuckDBPyConnection, table: str, log: ReadLog) -> None:
    """Leave out intervals without a start: nothing can be said about them."""
    if "startNs" not in {column.name for column in TABLES[table]}:
        return
    name = temp_name(table)
    counts = """count(*) filter (startNs is null), count(*) filter (startNs > endNs),
        count(*) filter (startNs is not null and endNs is null)"""
    [(lost, backwards, endless)] = run(con, f"select {counts} from {name}").fetchall()
    if lost:
        run(con, f"delete from {name} where startNs is null")
        log.rows_lost += lost
        log.warn("{table}: {lost} rows without a start time are left out", table=table, lost=lost)
    if backwards:
        log.warn(
            "{table}: {backwards} rows end before they start: their duration is unknown",
            table=table,
            backwards=backwards,
        )
    if endless:
        log.warn(
            "{table}: {endless} rows have no end: their duration is unknown",
            table=table,
            endless=endless,
        )


def _check_strings(con: duckdb.DuckDBPyConnection, file: SqliteFile, log: ReadLog) -> None:
    """Tell where the strings that all names refer to say nothing."""
    if not {"COMPUTE_TASK_INFO", "COMMUNICATION_OP"} & file.tables.keys():
        return
    counts = f"select count(*), count(distinct value) from {temp_name('STRING_IDS')}"
    [(rows, words)] = run(con, counts).fetchall()
    if rows == 0 or words < min(rows, 2):
        what = "no rows" if rows == 0 else "no value" if words == 0 else "one value in all its rows"
        log.warn(
            "STRING_IDS has {what}: names of kernels, operations and groups are unknown", what=what
        )


def _check_names(con: duckdb.DuckDBPyConnection, table: str, log: ReadLog) -> None:
    """Tell where kernels have no names: these say which of them communicate."""
    if table != "COMPUTE_TASK_INFO":
        return
    counts = f"select count(*), count(name) from {temp_name(table)}"
    [(rows, names)] = run(con, counts).fetchall()
    if rows and not names:
        log.warn(
            "{table} has no name in any of its {rows} rows: communication and wait tasks "
            "among its kernels may count as computing",
            table=table,
            rows=rows,
        )


_SMALL = ("SESSION_TIME_INFO", "NPU_INFO", "HOST_INFO", "RANK_DEVICE_MAP", "STEP_TIME")
# Tables that the rank's SQL asks too, where smaller ones are silent: empty here.
_LARGE = ("TASK", "AICORE_FREQ")


def _fill_lightly(
    con: duckdb.DuckDBPyConnection,
    file: SqliteFile,
    source: RankSource,
    log: ReadLog,
    tables: frozenset[str],
    spend: Callable[[int], None],
) -> None:
    """Fill `ranks`, `groups` and `steps`; of steps the device's range stays unknown."""
    for table in _SMALL:
        load_table(con, file, table, spend)
    _add_named_steps(con, file, log, spend)
    for table in _LARGE:
        load_table(con, replace(file, tables={}), table, spend)
    if "ranks" in tables:
        run(con, sql("ranks"), {"rank": source.rank, "framework": source.framework})
    if "steps" in tables:
        con.execute("""
            insert into steps by name
            select distinct id as step, startNs as window_start_ns, endNs as window_end_ns
            from _step_time where startNs is not null order by startNs
        """)
    _fill_metadata(con, file, source, log, tables, spend)
    for table in (*_SMALL, *_LARGE):
        run(con, f"drop table if exists {temp_name(table)}")


def _fill_metadata(
    con: duckdb.DuckDBPyConnection,
    file: SqliteFile,
    source: RankSource,
    log: ReadLog,
    tables: frozenset[str],
    spend: Callable[[int], None],
) -> None:
    """Fill `groups`, and the parallel sizes and coordinates of the row in `ranks`.

    A name may stand there several times (an export as text and database writes it twice): the last
    one counts.
    """
    load_table(con, file, "META_DATA", spend)
    rows = run(con, "select name, value from _meta_data where name is not null").fetchall()
    run(con, "drop table _meta_data")
    mapping: dict[str, object] = dict(rows)
    if version := mapping.get("SCHEMA_VERSION"):
        log.rules["ascend_db.schema_version"] = str(version)
    metadata = parse_metadata(mapping)
    log.rules |= metadata.rules()
    if "ranks" in tables:
        columns = {k: v for k, v in rank_columns(metadata, source.rank).items() if v is not None}
        if columns:
            con.execute(
                f"update ranks set {', '.join(f'{column} = ?' for column in columns)}",
                list(columns.values()),
            )
    if "groups" in tables and metadata.groups:
        insert_rows(con, "groups", group_rows(metadata, source.rank))
