"""SQLite files as Arrow batches, without touching them or their folder.

A file is opened read-only and immutable, so that no `-wal` or `-shm` appears beside it. Where
another process left a log that still has to be applied, database and log are copied to a scratch
folder and read there.

The driver takes a column's type from its first batch and fails when a later one differs, as it
does after a run of NULLs. `SqliteFile.select` therefore names a type per column; `stream` is for
SQL whose columns are surely typed.

SQLite types each value, not the column, and asking for that type in SQL costs as much again as
reading the value. So `select` takes values as they are and lets the driver notice one of another
type; from there on, rows are read with casts.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import pyarrow as pa

from npuscope.errors import TraceFormatError

from ..model import ReadLog
from ..small_files import open_regular
from .damaged_files import open_error

SqlType = Literal["integer", "real", "text"]
# How a column is read: its values as they are, integers that stand there as text, or by SQL casts.
_Way = Literal["plain", "digits", "cast"]

BATCH_ROWS = 32_768
_MAGIC = b"SQLite format 3\x00"
_LOGS = ("-wal", "-journal")

_TRIM = "trim({0}, ' ' || char(9, 10, 13))"
# Of `7.0`, which a table that was numbers once has as text, the zeros say nothing.
_WHOLE = f"case when instr({_TRIM}, '.0') then rtrim(rtrim({_TRIM}, '0'), '.') else {_TRIM} end"
# A value of another kind than asked for is unknown, not zero as SQLite's own cast would have it.
_CASTS: dict[SqlType, str] = {
    "integer": (
        "case typeof({0}) when 'integer' then {0} when 'real' then cast({0} as integer)"
        f" when 'text' then case when ltrim({_WHOLE}, '-') glob '[0-9]*'"
        f" and not {_WHOLE} glob '?*[^0-9]*'"
        f" then cast({_WHOLE} as integer) end end"
    ),
    "real": (
        "case typeof({0}) when 'real' then {0} when 'integer' then cast({0} as real)"
        f" when 'text' then case when {_TRIM} glob '[-+.0-9]*'"
        f" and not {_TRIM} glob '*[^-+.0-9eE]*' then cast({_TRIM} as real) end end"
    ),
    "text": "cast({0} as text)",
}
_FIRST: dict[SqlType, str] = {"integer": "0", "real": "0.0", "text": "''"}
_ARROW: dict[SqlType, pa.DataType] = {
    "integer": pa.int64(), "real": pa.float64(), "text": pa.string()
}  # fmt: skip


# Of pragma table_xinfo: 2 and 3 stand for computed columns.
_HAS_GENERATED_COLUMN = "exists (select 1 from pragma_table_xinfo(m.name) x where x.hidden >= 2)"


@dataclass(slots=True)
class SqliteFile:
    """An open database: `tables` maps each table to its columns and their declared types; one of
    a name that the reader knows is under that spelling, as SQLite knows no case.

    `conditions`: of some tables, which rows count, as SQL. `views` are names that stand for no
    table of stored values, with what they are. `damage`: what `check` found.
    """

    path: str
    tables: dict[str, dict[str, str]]
    _connection: Any
    _open: list[Any] = field(default_factory=list)
    _failure: TraceFormatError | None = None
    conditions: dict[str, str] = field(default_factory=dict)
    views: dict[str, str] = field(default_factory=dict)
    damage: list[str] = field(default_factory=list)

    def rows_of(self, table: str) -> str:
        """`from` and `where` of the rows of a table that count."""
        where = f" where {self.conditions[table]}" if table in self.conditions else ""
        return f'from "{table}"{where}'

    def check(self, table: str) -> None:
        """Look whether a table's pages hang together. A page that says it has fewer rows than it
        has, or is in another's place, is read without an error otherwise."""
        quoted = table.replace('"', '""')
        [answer, *_] = self.stream(f'pragma quick_check("{quoted}")').read_all()[0].to_pylist()
        if answer != "ok":
            first = str(answer).strip().splitlines()[-1][:120]
            self.damage.append(f"{table} is damaged, its rows may be wrong or missing ({first})")

    def stream(self, sql: str) -> pa.RecordBatchReader:
        """Batches of a query whose columns hold one type each, also in the first batch."""
        reader = self._execute(sql)
        return pa.RecordBatchReader.from_batches(reader.schema, self._check(reader))

    def select(self, columns: Mapping[str, tuple[SqlType, str]], rest: str) -> pa.RecordBatchReader:
        """Batches of `select <columns> <rest>` with the types asked for.

        columns: name -> (type, SQL expression); a value that is not of the type becomes NULL.
        rest: from `from` on; an `order by` belongs inside a subquery.
        """
        ways: dict[str, _Way] = {
            name: "cast" if kind == "text" else "plain" for name, (kind, _) in columns.items()
        }
        reader = self._execute(_select_sql(columns, ways, rest))
        other: dict[str, _Way] = {}
        for name, (kind, _) in columns.items():
            arrow_type = reader.schema.field(name).type
            if arrow_type != _ARROW[kind]:
                other[name] = (
                    "digits" if kind == "integer" and arrow_type == pa.string() else "cast"
                )
        if other:
            ways |= other
            reader = self._execute(_select_sql(columns, ways, rest))
        schema = pa.schema([(name, _ARROW[kind]) for name, (kind, _) in columns.items()])
        batches = self._cast(reader, columns, ways, rest)
        return pa.RecordBatchReader.from_batches(schema, self._check(batches))

    def _cast(
        self,
        reader: pa.RecordBatchReader,
        columns: Mapping[str, tuple[SqlType, str]],
        ways: Mapping[str, _Way],
        rest: str,
    ) -> Iterator[pa.RecordBatch]:
        """The reader's batches in the types asked for. What it cannot give in them is read again
        with casts: SQLite goes through a table in the order of its rows both times."""
        done_rows = -1  # the first row is ours
        try:
            for batch in reader:
                typed = _in_types(batch.slice(1) if done_rows < 0 else batch, ways)
                if typed is None:
                    break
                yield typed
                done_rows += batch.num_rows
            else:
                return
        except OSError as error:
            if "Type mismatch" not in str(error):
                raise
        rest = f"{rest} limit -1 offset {max(done_rows, 0)}"
        skip_rows = 1
        for batch in self._execute(_select_sql(columns, dict.fromkeys(columns, "cast"), rest)):
            yield batch.slice(skip_rows)
            skip_rows = 0

    def _execute(self, sql: str) -> pa.RecordBatchReader:
        import adbc_driver_manager as adbc

        statement = adbc.AdbcStatement(self._connection)
        self._open.append(statement)
        try:
            statement.set_options(**{"adbc.sqlite.query.batch_rows": str(BATCH_ROWS)})
            statement.set_sql_query(sql)
            handle, _ = statement.execute_query()
            reader = pa.RecordBatchReader._import_from_c(handle.address)
        except (adbc.Error, OSError, pa.ArrowException) as error:
            raise _format_error(self.path, error) from None
        self._open.append(reader)
        return reader

    def _check(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches; what goes wrong in mid-stream is kept for `open_sqlite`."""
        try:
            for batch in batches:
                batch.validate(full=True)  # text that is not UTF-8 must not reach the engine
                yield batch
        except (OSError, pa.ArrowException) as error:
            self._failure = _format_error(self.path, error)
            raise self._failure from None


def _select_sql(
    columns: Mapping[str, tuple[SqlType, str]], ways: Mapping[str, _Way], rest: str
) -> str:
    """SQL whose first row is ours and gives the driver the types."""
    first, body = [], []
    for name, (kind, expr) in columns.items():
        way = ways[name]
        first.append(f'{_FIRST["text" if way == "digits" else kind]} as "{name}"')
        body.append(_CASTS[kind].format(expr) if way == "cast" else expr)
    return f"select {', '.join(first)} union all select * from (select {', '.join(body)} {rest})"


def _in_types(batch: pa.RecordBatch, ways: Mapping[str, _Way]) -> pa.RecordBatch | None:
    """The batch with digits as integers; None where a text is anything else."""
    import pyarrow.compute as pc  # here: it takes a tenth of a second to load

    for position, (name, way) in enumerate(ways.items()):
        if way == "digits":
            texts = batch.column(position)
            try:
                if pc.all(pc.ascii_is_decimal(texts)).as_py() is False:
                    return None
                numbers = pc.cast(texts, pa.int64())
            except pa.ArrowInvalid:  # more digits than an integer has
                return None
            batch = batch.set_column(position, name, numbers)
    return batch


@contextlib.contextmanager
def open_sqlite(path: str, tables: Iterable[str] = ()) -> Iterator[SqliteFile]:
    """A SQLite file opened for reading; nothing is written to it or beside it.

    known: names of tables as the reader spells them. Where a log must be applied first, a copy goes
    into the system's folder for temporary files.
    Raises TraceFormatError for a file that is no database, empty, encrypted or damaged, also when
    the damage shows only while a stream is consumed inside the `with` block.
    """
    with contextlib.ExitStack() as stack:
        _check_header(path)
        logs = [suffix for suffix in _LOGS if _size(path + suffix)]
        _check_size(path, has_log=bool(logs))
        uri = _uri(path, logs, stack)
        file = SqliteFile(path, {}, _connect(path, uri, stack))
        stack.callback(_close, file)
        # What the file says is to be computed of each row could take for ever: a check would do it.
        for setting in ("ignore_check_constraints = on", "trusted_schema = off"):
            file.stream(f"pragma {setting}").read_all()
        spelled = {name.lower(): name for name in tables}
        file.tables.update({spelled.get(t.lower(), t): c for t, c in _tables(file).items()})
        file.views.update(_views(file))
        file.check("sqlite_master")
        try:
            yield file
        except Exception as error:
            if file._failure is not None and error is not file._failure:
                raise file._failure from error
            raise


def _check_header(path: str) -> None:
    try:
        with open_regular(path) as stream:
            head = stream.read(len(_MAGIC))
    except OSError as error:
        raise open_error(path, error) from None
    if not head:
        raise TraceFormatError(
            path, "header", "the file is empty: run the profiler's analysis again"
        )
    if head != _MAGIC:
        raise TraceFormatError(
            path,
            "header",
            "not a SQLite database (or encrypted): copy it again from where it was made",
        )


def _check_size(path: str, *, has_log: bool) -> None:
    """Refuse a file that ends before its last page does: SQLite would read zeros instead."""
    with open_regular(path) as stream:
        head = stream.read(100).ljust(100, b"\0")
    size_bytes = _size(path)
    page_bytes = max(int.from_bytes(head[16:18], "big"), 1)
    page_bytes = 1 << 16 if page_bytes == 1 else page_bytes
    expected_bytes = -(-size_bytes // page_bytes) * page_bytes
    # An old writer left another number there, and a log may hold what the file lacks.
    if head[24:28] == head[92:96] and not has_log:
        expected_bytes = max(expected_bytes, int.from_bytes(head[28:32], "big") * page_bytes)
    if size_bytes < expected_bytes:
        raise TraceFormatError(
            path,
            "reading SQLite",
            f"damaged or cut short ({size_bytes} bytes, not {expected_bytes}): copy it again, or"
            " run the profiler's analysis again",
        )


def _uri(path: str, logs: list[str], stack: contextlib.ExitStack) -> str:
    """Address of the file, or of a private copy where a log beside it must be applied."""
    if not logs:
        return f"file:{quote(os.fsencode(Path(path).absolute()))}?mode=ro&immutable=1"
    folder = stack.enter_context(
        tempfile.TemporaryDirectory(prefix="npuscope-", ignore_cleanup_errors=True)
    )
    copy = Path(folder, "copy.db")
    try:
        shutil.copyfile(path, copy)
        for suffix in logs:
            shutil.copyfile(path + suffix, f"{copy}{suffix}")
    except OSError as error:
        raise TraceFormatError(
            path, "copying it with its log to a scratch folder", f"{error.strerror}: set TMPDIR"
        ) from None
    return f"file:{quote(os.fsencode(copy))}?mode=rw"


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0


def _connect(path: str, uri: str, stack: contextlib.ExitStack) -> Any:
    import adbc_driver_manager as adbc
    import adbc_driver_sqlite as driver  # its .dbapi is not needed: it costs seconds to import

    try:
        database = driver.connect(uri)
        stack.callback(database.close)
        connection = adbc.AdbcConnection(database)
        stack.callback(connection.close)
    except (adbc.Error, OSError) as error:
        raise _format_error(path, error) from None
    return connection


def _close(file: SqliteFile) -> None:
    while file._open:
        file._open.pop().close()


def _tables(file: SqliteFile) -> dict[str, dict[str, str]]:
    """Ordinary tables only: a view or a virtual table of somebody else may not even be readable."""
    tables: dict[str, dict[str, str]] = {}
    columns: dict[str, tuple[SqlType, str]] = {
        "table": ("text", "m.name"), "column": ("text", "p.name"), "type": ("text", "p.type"),
    }  # fmt: skip
    rest = (
        "from sqlite_master m join pragma_table_info(m.name) p"
        " where m.type = 'table' and m.rootpage > 0 and m.name not like 'sqlite\\_%' escape '\\'"
        f" and not {_HAS_GENERATED_COLUMN}"
    )
    for row in file.select(columns, rest).read_all().to_pylist():
        tables.setdefault(row["table"], {})[row["column"]] = row["type"]
    return tables


def _views(file: SqliteFile) -> dict[str, str]:
    """Names that must not be read, with what they are."""
    columns: dict[str, tuple[SqlType, str]] = {"name": ("text", "m.name")}
    view = "m.type = 'view' or m.type = 'table' and coalesce(m.rootpage, 0) <= 0"
    views = dict.fromkeys(_names(file, columns, view), "is a view and no table")
    computed = _names(file, columns, f"m.type = 'table' and {_HAS_GENERATED_COLUMN}")
    return views | dict.fromkeys(computed, "has computed columns")


def _names(
    file: SqliteFile, columns: Mapping[str, tuple[SqlType, str]], condition: str
) -> list[str]:
    rows = file.select(columns, f"from sqlite_master m where {condition}").read_all()
    return [str(name) for name in rows["name"]]


def tell_views(file: SqliteFile, tables: Iterable[str], log: ReadLog) -> None:
    """Tell of tables that are wanted and but views, which may hold anything: they are not read."""
    names = {name.lower() for name in tables}
    for view, what in sorted(file.views.items()):
        if view.lower() in names:
            log.lose(file.path, "{view} {what}: not read", view=view, what=what)


def _format_error(path: str, error: Exception) -> TraceFormatError:
    if isinstance(error, TraceFormatError):
        return error
    text = str(error).splitlines()[0]
    if "malformed" in text or "disk I/O" in text:
        advice = "damaged or cut short: copy it again, or run the profiler's analysis again"
    elif "not a database" in text:
        advice = "not a SQLite database, or encrypted"
    elif "locked" in text or "busy" in text:
        advice = "locked by another program: close it, or copy the file first"
    else:
        advice = "cannot be read"
    return TraceFormatError(path, "reading SQLite", f"{advice} ({text})")
