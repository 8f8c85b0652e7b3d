"""trace_view.json and msprof_*.json: the timeline: steps, calls, launches, communication.

    JSON pieces -> typed events -> Arrow         -> Parquet, one file per kind -> canonical tables
    json_events    events          trace_columns    staging                       trace_view.sql

Metadata that names processes and threads may follow what it names, or stand in another slice of the
trace: everything is staged first, and told apart afterwards. A timeline of several devices is read
as that of one. Of which device a process is:

    label `NPU 3`     since 2025-06 the process says so
    label `NPU`       before, only its made-up id: (pid << 10) | (place << 5) | device, host: 31

An id is believed where every process of the timeline has one of that form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import duckdb
import pyarrow as pa

from ... import schema
from ...groups import group_hash
from ...model import RankSource, ReadLog
from ...small_files import decompress, open_regular
from ...staging import has_table, is_empty, run, scalar
from ..chrome_trace.staged_views import event_views, keep_rows, show
from ..metadata.msprof_info import process_id
from ..text.iterations import iteration_sql, make_iterations, put_steps
from ..words import enumerate_words, words_for_text
from .trace_columns import TraceForm

_TIME = re.compile(rb'"ts"\s*:\s*(")?')
_HEAD_BYTES = 1 << 16
_TABLES = (
    "marks",
    "kernels",
    "device_tasks",
    "launches",
    "steps",
    "comm_ops",
    "comm_tasks",
    "host_ops",
    "counters",
)
# What kernels of a table have of the timeline's tasks, where none has it of its own.
_FROM_TIMELINE = {"connection_id": "kernel_connections", "stream_id": "kernel_streams"}
# Of large tables, the columns of words that repeat, and what tells these words.
_WORDS = {
    "host_ops": (("kind", "level", "name", "input_shapes", "input_dtypes", "module"), "host_words"),
    "counters": (("name", "series"), "counter_words"),
}
_MACROS = (
    "_is_computing", "_call_name", "_api_level", "_other_level", "_bytes_of", "_counted_as",
)  # fmt: skip
WORDS_FROM_BYTES = 32 << 20  # below this, looking for them costs more than it saves
# Kinds of staged events that may be a device's.
_DEVICE_KINDS = ("device", "plane", "other", "counter", "flow")
_OF_DEVICE = "kind in ('hardware', 'communication', 'overlap') or label ilike 'NPU%'"


def read(
    con: duckdb.DuckDBPyConnection,
    source: RankSource,
    log: ReadLog,
    tables: frozenset[str],
    advance: Callable[[int], None],
) -> None:
    """Fill those of `_TABLES` that stand in `tables`.

    Where no kernel table filled `kernels`, device tasks that compute by their type do. Operations
    take their step from `_comm_rows` (see kernel_details) where it has them. Raises
    TraceFormatError if no slice of the trace can be read.
    """
    form = TraceForm(counters="counters" in tables, stacks=source.selection.stacks)
    is_large = sum(file.size_bytes for file in source.files["trace"]) >= WORDS_FROM_BYTES
    worded = frozenset(_WORDS) & tables if is_large else frozenset()
    try:
        with (
            words_for_text(con, worded),
            event_views(
                con, "_trace_", source.paths("trace"), form, log, advance,
                processes=source.processes,
            ) as folders,
        ):  # fmt: skip
            _derive(con, source, log, tables, folders, worded)
    finally:
        with suppress(duckdb.Error):
            con.execute(";".join(f"drop macro if exists {macro}" for macro in _MACROS))


def _derive(
    con: duckdb.DuckDBPyConnection,
    source: RankSource,
    log: ReadLog,
    tables: frozenset[str],
    folders: Sequence[Path],
    worded: frozenset[str],
) -> None:
    """Canonical tables from staged events; in those `worded`, names are enumerations."""
    sql = schema.statements("readers/trace_view/trace_view.sql")
    run(con, sql["places"])
    _keep_device(con, folders, source, log)
    if source.framework == "msprof":  # no slice of the framework tells the process
        con.execute("update _trace_os_process set process_id = ?", [process_id(source)])
    run(con, sql["comm_places"])
    _note_variants(con, source, log)
    _name_groups(con)
    comm_rows = "_comm_rows" if has_table(con, "_comm_rows") else "_trace_no_comm_rows"
    con.execute(
        "create or replace temp table _trace_no_comm_rows"
        " (step bigint, name varchar, start_ns bigint, dur_ns bigint)"
    )
    run(con, sql["host_rows"])
    for table in _TABLES:
        if table in worded:
            columns, words = _WORDS[table]
            enumerate_words(con, table, columns, sql[words])
        if table in tables:
            run(con, sql[table].format(comm_rows=comm_rows))
        if table == "kernels":
            if table in tables:
                log.rules["kernels"] = "trace hardware tasks"
            run(con, sql["kernel_places"])
            for column, statement in _FROM_TIMELINE.items():
                if scalar(con, f"select count(*) > 0 and count({column}) = 0 from kernels"):
                    run(con, sql[statement])
        elif table == "steps" and table in tables and is_empty(con, "steps"):
            make_iterations(con)
            run(con, sql["iterations"].format(iteration=iteration_sql("o.name", "t.name")))
            if put_steps(con, log):
                log.rules["steps"] = "iterations of the timeline"
    if untyped := scalar(con, sql["untyped"]):
        log.rows_lost += untyped
        log.warn(
            "trace: {count} device tasks without a type left out: whether they compute is unknown",
            count=untyped,
        )
    unbound = scalar(con, sql["unbound"])
    if unbound and "launches" in tables:
        log.warn(
            "trace: {unbound} device tasks whose launching call was not recorded", unbound=unbound
        )


def _keep_device(
    con: duckdb.DuckDBPyConnection, folders: Sequence[Path], source: RankSource, log: ReadLog
) -> None:
    """Make the staged views show the rank's device, the host's events of processes that launched
    something on it, and nothing of other devices. Needs `_trace_process`."""
    if source.device_id is None:
        return
    _find_devices(con, source, log)
    con.execute(f"""
        create or replace temp table _trace_foreign as
        select pid from _trace_process
        where ({_OF_DEVICE}) and device_id is distinct from {source.device_id}""")
    show(con, "_trace_all_", folders, (*_DEVICE_KINDS, "api"))
    con.execute("""
        insert into _trace_foreign
        with arrow as (
            select s.pid, bool_or(f.pid not in (select pid from _trace_foreign)) as is_ours
            from _trace_all_flow s
            join _trace_all_flow f on f.side = 'f' and f.category = s.category and f.id = s.id
            where s.side = 's' and s.category = 'HostToDevice' group by s.pid
        )
        select pid from arrow where not is_ours and exists (from arrow where is_ours)""")
    for kind in (*_DEVICE_KINDS, "api"):
        con.execute(f"""
            create or replace temp view _trace_{kind} as
            select * from _trace_all_{kind}
            where pid is null or pid not in (select pid from _trace_foreign)""")


def _find_devices(con: duckdb.DuckDBPyConnection, source: RankSource, log: ReadLog) -> None:
    unlabelled = f"device_id is null and ({_OF_DEVICE})"
    if not scalar(con, f"select count(*) from _trace_process where {unlabelled}"):
        log.rules["trace.device"] = "label"
        return
    devices = ", ".join(map(str, (source.device_id, *source.other_devices)))
    is_of_form = scalar(
        con,
        f"""
        select coalesce(
            bool_and(case when kind = 'cann' then pid & 31 = 31 else pid & 31 in ({devices}) end)
                and count(distinct (kind, name, pid & 31)) = count(*)
                and count(distinct pid >> 10) = 1, false)
        from _trace_process where kind = 'cann' or {unlabelled}""",
    )
    if is_of_form:
        con.execute(f"update _trace_process set device_id = pid & 31 where {unlabelled}")
        log.rules["trace.device"] = "process id"
    else:
        log.rules["trace.device"] = "none"
        log.warn(
            "trace: its processes do not record their device, and there are several: data"
            " found only in the timeline is left out"
        )


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
    with open_regular(path) as raw:
        try:
            return decompress(raw).read(_HEAD_BYTES)
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
    keep_rows(con, "_trace_group", table)
