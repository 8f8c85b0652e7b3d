"""One input read by its reader, and what must hold of the outcome whatever the input is.

The reader either raises an error of npuscope, or its rows obey the schema: whole ns that can be
added, nothing that is no number, no text for "unknown", no more rows than the file can hold. Where
it tells of no loss, nothing that a twin counts is missing. What follows a reader takes its rows.
"""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType

import duckdb

from npuscope.collector import schema
from npuscope.collector.ingest.link import link
from npuscope.collector.ingest.read_batch import empty_tables
from npuscope.collector.model import RankSource, ReadLog, Role, SourceFile
from npuscope.collector.readers.ascend_db import analysis_db, ascend_db
from npuscope.collector.readers.hccl import communication
from npuscope.collector.readers.metadata import profiler_info
from npuscope.collector.readers.text import kernel_details, memory_record, step_trace
from npuscope.collector.readers.trace_view import trace_view
from npuscope.collector.staging import has_table, nonempty, open_staging, run
from npuscope.errors import NpuscopeError
from tests.prove.fuzz import twins
from tests.prove.fuzz.inputs import Input

READS: dict[Role, ModuleType] = {
    "kernels": kernel_details, "memory_record": memory_record, "operator_memory": memory_record,
    "module_memory": memory_record, "step_trace": step_trace, "trace": trace_view,
    "communication": communication, "communication_matrix": communication,
    "profiler_info": profiler_info, "profiler_metadata": profiler_info, "main_db": ascend_db,
    "analysis_db": analysis_db,
}  # fmt: skip
_WANTED = frozenset(schema.tables())
# Durations that no producer's format lets be negative.
_DURATIONS = ("kernels", "comm_ops", "comm_tasks", "host_ops", "marks")
# Tables with one row per row of a file; others join rows by values, which damage may change.
_ONE_TO_ONE = (
    "kernels", "comm_ops", "comm_tasks", "memory", "operator_memory", "host_ops", "comm_times",
    "comm_matrix", "profiler_steps",
)  # fmt: skip
# Of so many inputs, the rows of one are linked: it costs as much as a third of the reading.
_LINKED = 3
# Of so many inputs, one is read with a database of its own.
_ALONE = 16
_UNKNOWN = "('', 'N/A')"


@dataclass(frozen=True, slots=True)
class Judged:
    """What came of an input: `told` is the error or the losses, `rows` per table what was read,
    `wrong` what must not be."""

    told: tuple[str, ...]
    rows: dict[str, int]
    wrong: tuple[str, ...] = ()


def put(given: Input, folder: Path) -> Path:
    """The input as files in `folder`; where its own is."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / given.name
    path.write_bytes(given.data)
    for suffix, data in given.beside.items():
        Path(f"{path}{suffix}").write_bytes(data)
    return path


_NOTHING = Judged((), {})


def judge(given: Input, folder: Path, whole: Judged = _NOTHING) -> Judged:
    """Read the input in an empty `folder`. whole: what came of the input that was mutated."""
    path = put(given, folder)
    before = _listing(folder)
    file = SourceFile(str(path), len(given.data), 0)
    source = RankSource("job", "pytorch", 0, "fuzz", {given.role: (file,)})
    log = ReadLog()
    with _staging(given, folder) as con:
        try:
            READS[given.role].read(con, source, log, _WANTED, _pass)
        except NpuscopeError as error:
            wrong = [] if str(path) in str(error) else [f"an error that names no file: {error}"]
            return Judged((str(error),), {}, tuple(wrong))
        except Exception as error:
            return Judged((), {}, (f"raised {_name(error)}",))
        wrong = [] if _listing(folder) == before else ["something was written beside the input"]
        rows = _rows(con)
        wrong += _too_many(given, path, rows)
        told = [*log.warnings, *log.damage.values()]
        if not log.rows_lost and not log.bytes_lost and set(whole.told).issuperset(told):
            wrong += _missing(con, given, path, rows)
            # Of text whole lines may be gone, and a page that is another's copy is a whole one.
            if not given.is_edited and not twins.is_whole(path):
                wrong += _fewer(rows, whole.rows)
        if zlib.crc32(given.data) % _LINKED == 0:
            try:
                link(con, source, log)
            except Exception as error:
                wrong.append(f"its rows cannot be linked: {_name(error)}")
        return Judged(tuple(told), rows, (*wrong, *_against_schema(con)))


@contextmanager
def _staging(given: Input, folder: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Empty tables beside `folder`: half of the inputs are read as of a small rank, the others as
    of a large one. A large rank has a database of its own; most of the inputs share theirs, as
    small ranks do: to make one takes longer than to read what most of them hold."""
    place = folder.with_name(f"{folder.name}-staging")
    digest = zlib.crc32(given.data)
    is_small, is_shared = digest % 2 == 1, digest % _ALONE != 0
    base = _shared(place, plainly=is_small) if is_shared else open_staging(place)
    try:
        with closing(base.cursor() if is_shared else base) as con:
            yield con
    finally:
        if is_shared:
            empty_tables(base)
        shutil.rmtree(place, ignore_errors=True)


@lru_cache(maxsize=2)
def _shared(place: Path, *, plainly: bool) -> duckdb.DuckDBPyConnection:
    return open_staging(place, plainly=plainly)


def _pass(n_bytes: int) -> None:
    pass


def _name(error: Exception) -> str:
    return f"{type(error).__module__}.{type(error).__name__}: {str(error)[:300]}"


def _listing(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


def _rows(con: duckdb.DuckDBPyConnection) -> dict[str, int]:
    """Rows per table that has any; operations of a kernel table count as its kernels."""
    parts = [f"select '{name}' as name, count(*) as n from \"{name}\"" for name in _WANTED]
    if has_table(con, "_comm_rows"):
        parts.append("select 'kernels', count(*) from _comm_rows")
    union = " union all ".join(parts)
    found = run(con, f"select name, sum(n)::bigint from ({union}) where n > 0 group by name")
    return dict(found.fetchall())


def _against_schema(con: duckdb.DuckDBPyConnection) -> list[str]:
    """What the rows of the tables break, by one query each."""
    found = []
    for table in (schema.tables()[name] for name in sorted(nonempty(con, _WANTED))):
        tests = {}
        names = {column.name for column in table.columns}
        for column in table.columns:
            name = f'"{column.name}"'
            if column.type == "double":
                tests[f"{column.name} is no number"] = f"not isfinite({name})"
            elif column.type == "varchar":
                tests[f"{column.name} is text for unknown"] = f"{name}::varchar in {_UNKNOWN}"
            elif column.type == "map(varchar, double)":
                tests[f"{column.name} has no number"] = (
                    f"len(list_filter(map_values({name}), lambda v: v is null or not isfinite(v)))"
                    " > 0"
                )
        if "dur_ns" in names and table.name in _DURATIONS:
            tests["dur_ns is negative"] = "dur_ns < 0"
            tests["no start_ns"] = "start_ns is null"
            tests["start_ns + dur_ns is beyond 64 bits"] = (
                "abs(start_ns::hugeint + coalesce(dur_ns, 0)) > 9223372036854775807"
            )
        for what in names & {"packet_count", "group_size", "block_count", "element_count"}:
            tests[f"{what} is negative"] = f"{what} < 0"
        counts = ", ".join(f"count(*) filter ({test})" for test in tests.values())
        if counts:
            [row] = run(con, f'select {counts} from "{table.name}"').fetchall()
            found += [
                f"{table.name}: {what} ({count} rows)"
                for what, count in zip(tests, row, strict=True) if count
            ]  # fmt: skip
    return found


def _too_many(given: Input, path: Path, rows: dict[str, int]) -> list[str]:
    """Rows made out of nothing."""
    data = given.data + b"".join(given.beside.values())
    if given.role in ("main_db", "analysis_db"):
        # Counters have a row per cell, and launches one per task and call.
        most = 20 * (twins.database_rows(path) or len(data) // 2)
    elif READS[given.role] in (trace_view, communication, profiler_info):
        most = data.count(b":") + data.count(b"{")
    else:
        most = data.count(b"\n") + data.count(b"\r") + 1
    return [
        f"{table}: {count} rows of a file that can hold {most}"
        for table, count in rows.items() if count > max(most, 1)
    ]  # fmt: skip


def _fewer(rows: dict[str, int], before: dict[str, int]) -> list[str]:
    return [
        f"{table}: {rows.get(table, 0)} rows of a damaged file, {count} before, and no word of it"
        for table, count in before.items()
        if table in _ONE_TO_ONE and rows.get(table, 0) < count
    ]


def _missing(
    con: duckdb.DuckDBPyConnection, given: Input, path: Path, rows: dict[str, int]
) -> list[str]:
    """What the file holds and nobody told was lost."""
    found = twins.expected(given, path)
    if found is None:
        return []
    least, sums = found
    wrong = [
        f"{table}: {rows.get(table, 0)} rows, {count} in the file, and no word of it"
        for table, count in least.items() if rows.get(table, 0) < count
    ]  # fmt: skip
    for (table, column), total in sums.items():
        if wrong:
            break
        more = f"union all select {column} from _comm_rows" if has_table(con, "_comm_rows") else ""
        query = (
            f"select coalesce(sum({column}::hugeint), 0) from (select {column} from {table} {more})"
        )
        [(ours,)] = con.execute(query).fetchall()
        if ours != total:
            wrong.append(f"{table}.{column} adds up to {ours}, not {total}")
    return wrong
