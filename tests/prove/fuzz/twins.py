"""What a file says, counted by code that shares nothing with the readers.

A twin gives a least number of rows per table, or exact sums, for a reader that reports no loss. It
says nothing (None) where the file is not whole by the standard library's own parser: then a reader
may take from it what it can.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.prove.fuzz.inputs import Input

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.A)
_HOST = {"cpu_op", "user_annotation", "python_function", "enqueue", "dequeue", "GC", "gc"}

# Table -> least rows, and (table, column) -> exact sum. "kernels" counts rows of operations too.
Least = dict[str, int]
Sums = dict[tuple[str, str], int]


def expected(given: Input, path: Path) -> tuple[Least, Sums] | None:
    """What must be read of a file at `path`."""
    match given.role:
        case "trace":
            least = _of_trace(given.data)
        case "communication" | "communication_matrix":
            least = _of_entries(given)
        case "profiler_info" | "profiler_metadata":
            return {}, {}
        case "main_db":
            least = _of_database(path)
        case "analysis_db":
            least = _of_analysis(path)
        case _:
            return _of_table(given)
    return None if least is None else (least, {})


_TABLES = {  # role -> table, its instant's column in the file's words, its duration's
    "kernels": ("kernels", ("start time(us)", "task start time(us)"),
                ("duration(us)", "task duration(us)")),
    "memory_record": ("memory", ("timestamp(us)",), ()),
    "module_memory": ("memory", ("timestamp(us)",), ()),
    "operator_memory": ("operator_memory", ("allocation time(us)",), ()),
    "step_trace": ("profiler_steps", (), ()),
}  # fmt: skip
_INSTANTS = {"kernels": "start_ns", "memory": "timestamp_ns", "operator_memory": "allocated_at_ns"}


def _of_table(given: Input) -> tuple[Least, Sums] | None:
    try:
        text = given.data.decode("utf-8-sig").replace("\0", "?")
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row]
    except (UnicodeDecodeError, csv.Error):
        return None
    if not rows or any(len(row) < len(rows[0]) for row in rows):
        return None
    titles = [" ".join(t.replace("\u03bc", "u").lower().split()).strip('"') for t in rows[0]]
    table, instants, durations = _TABLES[given.role]
    sums: Sums = {}
    for names, column in ((instants, _INSTANTS.get(table)), (durations, "dur_ns")):
        at = next((titles.index(name) for name in names if name in titles), None)
        if at is not None and column is not None:
            values = [_ns(row[at]) for row in rows[1:]]
            sums[table, column] = sum(value for value in values if value is not None)
    return {table: len(rows) - 1}, sums


def _ns(text: str) -> int | None:
    """Decimal microseconds as whole ns; None where the text is no number, or is of more than 146
    years."""
    text = text.strip(' \t\r\n"')
    if not _NUMBER.fullmatch(text):
        return None
    value = Decimal(text)
    if value.adjusted() > 30:
        return None
    value_ns = int((value * 1000).to_integral_value(ROUND_HALF_EVEN))
    return value_ns if abs(value_ns) < 2**62 else None


def _of_trace(data: bytes) -> Least | None:
    """Rows that single events make, whatever else is there."""
    try:
        document = json.loads(data.decode("utf-8-sig"), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list) or (not events and isinstance(document, dict)):
        return None
    least = {"host_ops": 0, "comm_tasks": 0, "counters": 0, "marks": 0, "comm_ops": 0}
    for event in events:
        if not isinstance(event, dict) or not isinstance(event.get("args", {}), dict):
            return None
        name, args = event.get("name"), event.get("args", {})
        if event.get("ph") == "C" and event.get("cat") not in _HOST:
            least["counters"] += sum(_is_number(args[key]) for key in args if key != "acc_id")
        if event.get("ph") != "X" or not isinstance(name, str) or not _is_placed(event):
            continue
        if re.fullmatch(r"ProfilerStep#\d+", name, re.A):
            least["marks"] += 1
        elif event.get("cat") in _HOST:
            least["host_ops"] += 1
        elif isinstance(args.get("Task Type"), str):
            continue
        elif isinstance(args.get("task type"), str):
            least["comm_tasks"] += 1
        elif isinstance(args.get("level"), str):
            least["host_ops"] += 1
        elif name.startswith("hcom_") and {"alg_type", "data_type"} & args.keys():
            least["comm_ops"] += 1
    return least


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_placed(event: dict[str, Any]) -> bool:
    started = str(event.get("ts"))
    return bool(_NUMBER.fullmatch(started)) and all(
        _is_number(event.get(key)) and abs(event[key]) < 2**53 for key in ("pid", "tid", "dur")
    )


def _of_entries(given: Input) -> Least | None:
    """Entries of operations, two or no levels down."""
    try:
        document = json.loads(given.data.decode("utf-8-sig"), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    entries: list[Any] = []
    for key, value in document.items():
        flat = "@" in key or key.lower().startswith("total")
        inner = {"": {key: value}} if flat else value
        if not isinstance(inner, dict) or not all(isinstance(v, dict) for v in inner.values()):
            return None
        entries += [
            entry for group in inner.values() for name, entry in group.items()
            if not name.lower().startswith("total")
        ]  # fmt: skip
    if not all(isinstance(entry, dict) for entry in entries):
        return None
    if given.role == "communication_matrix":
        return {"comm_matrix": sum(len(entry) for entry in entries)}
    return {
        "comm_times": sum(entry.get("Communication Time Info") is not None for entry in entries)
    }


_NUMBERED = "typeof({0}) in ('integer', 'real') and abs({0}) < 9e18"
_DATABASE = {
    "kernels": "select count(*) from (select globalTaskId from COMPUTE_TASK_INFO {and_scheduled})"
    " k join TASK t on t.globalTaskId = k.globalTaskId where {t.startNs}",
    "comm_ops": "select count(*) from COMMUNICATION_OP where {startNs}",
    "comm_tasks": "select count(*) from COMMUNICATION_TASK_INFO c join TASK t"
    " on t.globalTaskId = c.globalTaskId where {t.startNs}",
    "operator_memory": "select count(*) from OP_MEMORY",
    "memory": "select count(*) from MEMORY_RECORD where {timestamp}",
    "steps": "select count(distinct id) from STEP_TIME where {startNs}",
    "host_ops": "select count(*) from CANN_API where {startNs}",
}


def _of_database(path: Path) -> Least | None:
    queries = {}
    for table, query in _DATABASE.items():
        for column in ("t.startNs", "startNs", "timestamp"):
            query = query.replace(f"{{{column}}}", _NUMBERED.format(column))
        queries[table] = query.replace("{and_scheduled}", "")
    return _count(path, queries)


def _of_analysis(path: Path) -> Least | None:
    return _count(path, {
        "comm_times": "select count(*) from CommAnalyzerTime"
        " where lower(hccl_op_name) not like 'total%'"
        " and (start_timestamp is null or typeof(start_timestamp) != 'text'"
        " and start_timestamp between 0 and 9e15)",
        "comm_matrix": "select count(*) from CommAnalyzerMatrix"
        " where lower(hccl_op_name) not like 'total%'",
        "profiler_steps": "select count(*) from StepTraceTime",
    })  # fmt: skip


def _count(path: Path, queries: dict[str, str]) -> Least | None:
    """Answers of SQLite itself, if it finds nothing wrong with the file."""
    try:
        with _open_database(path) as con:
            if con.execute("pragma integrity_check").fetchone() != ("ok",):
                return None
            found = {}
            for table, query in queries.items():
                try:
                    found[table] = int(con.execute(query).fetchone()[0])
                except sqlite3.OperationalError as error:
                    if "no such" not in str(error):
                        return None
            return found
    except sqlite3.Error:
        return None


def is_whole(path: Path) -> bool:
    """Whether SQLite finds nothing wrong with a database's tables. A page that is the copy of
    another leaves them whole: the pages below the one that it replaced are not used any more."""
    try:
        with _open_database(path) as con:
            told = "\n".join(line for (line,) in con.execute("pragma integrity_check"))
    except sqlite3.Error:
        return False
    used = (line for line in told.splitlines() if not line.endswith("is never used"))
    return not set(used) - {"ok", "*** in database main ***"}


def database_rows(path: Path) -> int | None:
    """Rows of all tables together; None where SQLite cannot tell."""
    try:
        with _open_database(path) as con:
            tables = con.execute("select name from sqlite_master where type = 'table'").fetchall()
            counts = [
                con.execute(f'select count(*) from "{name}"').fetchone() for (name,) in tables
            ]
            return sum(int(count) for (count,) in counts)
    except sqlite3.Error:
        return None


@contextmanager
def _open_database(path: Path) -> Iterator[sqlite3.Connection]:
    """A copy of the database and what stands beside it: SQLite writes even when it only reads."""
    with TemporaryDirectory() as folder:
        for file in path.parent.iterdir():
            if file.name.startswith(path.name):
                shutil.copy(file, folder)
        with closing(sqlite3.connect(Path(folder, path.name))) as con:
            yield con
