"""CSV files of the profilers as rows of text, columns bound by name.

The producers' files mix line ends, carry byte-order marks after a spreadsheet, hold line breaks
inside quotes and end in the middle of a row when their writer was killed. A row with fewer cells
than the header is dropped and counted: its last number may be cut. Cells beyond the header are
ignored.

A text file under a name, and with an end, that the engine's own reader takes.

The engine takes names for patterns (`*`, `?`, `[`) and knows none that are not UTF-8: such a file
is read through a link. And it takes what stands behind the last line break for a row:

    17,Add,10.500\\n18,Mul,1        written by a killed analysis: `1` may have been `12.250`

Every producer ends its last line, so what may be cut there is left out, through a copy without it.
"""

from __future__ import annotations

import contextlib
import csv
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import duckdb

from npuscope.errors import TraceFormatError

from ..literals import file_literal
from ..model import ReadLog
from ..small_files import open_regular
from ..staging import staging_place
from ..store.space import is_out_of_space
from .damaged_files import open_error

_HEADER_LIMIT_BYTES = 1 << 20
# A cell in which a spreadsheet left digits, or hid them, that are no number.
_ODD = "(number({0}) is null and regexp_matches({0}, '[0-9#]'))"


@dataclass(frozen=True, slots=True)
class Rows:
    """A CSV file ready to be queried.

    titles: header names as written, in file order; columns: their normal form -> identifier in SQL.
    """

    path: str
    titles: tuple[str, ...]
    columns: dict[str, str]

    def cell(self, *names: str) -> str:
        """SQL of the first of these columns that the file has, else a NULL text."""
        for name in names:
            if (column := self.columns.get(normal(name))) is not None:
                return column
        return "null::varchar"

    def has(self, *names: str) -> bool:
        return any(normal(name) in self.columns for name in names)

    def source(self, *, numbers: Iterable[str] | None = None) -> str:
        """SQL of the file's rows as text; dropped ones are in `_rejects`.

        With `numbers`, columns of these titles are doubles, and reading fails at anything odd.
        """
        doubles = {self.cell(title) for title in numbers or ()}
        # Spelled out, not sniffed: a guess would skip a header that is wider than the rows.
        columns = ", ".join(
            f"'c{i}': '{'double' if f'c{i}' in doubles else 'varchar'}'"
            for i in range(len(self.titles))
        )
        oddities = (
            "ignore_errors = true, store_rejects = true, rejects_table = '_rejects',"
            " rejects_scan = '_scans'"
            if numbers is None
            else "ignore_errors = false, nullstr = ['', 'N/A']"
        )
        return (
            f"read_csv({file_literal(self.path)}, columns = {{{columns}}}, header = true,"
            f" auto_detect = false, delim = ',', quote = '\"', escape = '\"', strict_mode = false,"
            f" {oddities}, hive_partitioning = false, max_line_size = 2097152,"
            " buffer_size = 16777216)"
        )


def normal(name: str) -> str:
    """A header name without case, byte-order mark, micro signs, blanks around it and its unit."""
    return plain(name).lower()


def plain(name: str) -> str:
    """The same with its case."""
    name = name.replace("\ufeff", "").replace("µ", "u").replace("μ", "u")
    return " ".join(name.strip(' \t\r\n"').split()).replace(" (", "(").replace("( ", "(")


def open_rows(path: str, log: ReadLog, required: Iterable[tuple[str, ...]] = ()) -> Rows | None:
    """The file's header, or None (with a warning) where the file holds nothing.

    required: for each, one of these columns must be there.
    Raises TraceFormatError when one is missing or the file cannot be opened.
    """
    try:
        with Path(path).open(encoding="utf-8-sig", errors="replace", newline="") as stream:
            line = stream.readline(_HEADER_LIMIT_BYTES)
    except OSError as error:
        raise open_error(path, error) from None
    line = line.replace("\0", "\ufffd")  # Python 3.10 refuses NUL
    names = next(csv.reader([line]), []) if len(line) < _HEADER_LIMIT_BYTES else [line[:80]]
    if not any(name.strip() for name in names):
        log.lose(path, "empty file")
        return None
    columns: dict[str, str] = {}
    for index, name in enumerate(names):
        columns.setdefault(normal(name), f"c{index}")
    rows = Rows(path, tuple(names), columns)
    for variants in required:
        if not rows.has(*variants):
            raise TraceFormatError(
                path,
                "header",
                f"no column {' or '.join(variants)}: is it a UTF-8 CSV of the profiler?",
            )
    return rows


def fill(
    con: duckdb.DuckDBPyConnection,
    rows: Rows,
    log: ReadLog,
    statement: Callable[[str], str],
    numbers: Iterable[str] = (),
    decimals: Iterable[str] = (),
) -> None:
    """Execute the statement made of the SQL of the rows; rows that cannot be split are counted.

    numbers: titles of columns that are only asked for their `number`. They are parsed as such: a
    file is taken for well-formed, and where anything in it is odd, it is read again as text. Then
    digits of these and of `decimals` that are no numbers are told.
    Raises TraceFormatError where the file cannot be read.
    """
    try:
        with engine_file(rows.path, staging_place(con)) as file:
            readable = replace(rows, path=file.path)
            if _execute(con, readable, rows, log, statement, numbers, decimals):
                _tell_unreadable(con, readable, rows, log, (*numbers, *decimals))
        if has_zero_bytes(rows.path):
            log.lose(rows.path, "damaged: zero bytes in place of text")
        if file.is_torn:
            log.lose(
                rows.path,
                "truncated in the middle of a line: the incomplete row is left out, and "
                "later rows are missing",
            )
    except OSError as error:
        if is_out_of_space(error):
            raise
        raise TraceFormatError(rows.path, "reading rows", str(error.strerror)) from None


def _execute(
    con: duckdb.DuckDBPyConnection,
    readable: Rows,
    rows: Rows,
    log: ReadLog,
    statement: Callable[[str], str],
    numbers: Iterable[str],
    decimals: Iterable[str],
) -> bool:
    """Whether anything in the file is odd."""
    source = readable.source(numbers=numbers)
    cells = {readable.cell(title) for title in decimals if readable.has(title)}
    checks = (f"case when {_ODD.format(c)} then error({c}) else {c} end as {c}" for c in cells)
    if cells:
        source = f"(select * replace ({', '.join(checks)}) from {source})"
    try:
        con.execute(statement(source))
    except (duckdb.InvalidInputException, duckdb.ConversionException):
        try:
            con.execute(statement(readable.source()))
        except (duckdb.InvalidInputException, duckdb.IOException) as error:
            raise _unreadable(rows, error) from None
        _count_rejects(con, rows, log)
        return True
    except duckdb.IOException as error:
        raise _unreadable(rows, error) from None
    return False


def _tell_unreadable(
    con: duckdb.DuckDBPyConnection, readable: Rows, rows: Rows, log: ReadLog, titles: Iterable[str]
) -> None:
    """Tell of values that a spreadsheet made unreadable, so unknown: `1,234.5`, `####`."""
    titles_here = [title for title in titles if rows.has(title)]
    if not titles_here:
        return
    counts = ", ".join(f"count(*) filter (where {_ODD.format(rows.cell(t))})" for t in titles_here)
    counts_row = con.execute(f"select {counts} from {readable.source()}").fetchone() or ()
    con.execute("drop table if exists _rejects")
    con.execute("drop table if exists _scans")
    if any(counts_row):
        columns = ", ".join(
            plain(t) for t, count in zip(titles_here, counts_row, strict=True) if count
        )
        text = "{count} values in {columns} are no numbers: they are unknown"
        log.lose(rows.path, text, count=sum(counts_row), columns=columns)


def _unreadable(rows: Rows, error: Exception) -> TraceFormatError:
    return TraceFormatError(rows.path, "reading rows", str(error).splitlines()[0])


def _count_rejects(con: duckdb.DuckDBPyConnection, rows: Rows, log: ReadLog) -> None:
    """Add the rows that could not be split into cells to the log, and forget them."""
    counts = con.execute("select count(distinct line), min(line) from _rejects").fetchone()
    con.execute("drop table if exists _rejects")
    con.execute("drop table if exists _scans")
    if counts and counts[0]:
        log.rows_lost += counts[0]
        log.lose(
            rows.path,
            "{count} broken rows left out, the first at line {line}",
            count=counts[0],
            line=counts[1],
        )


def lose(log: ReadLog, path: str, count: int, why: str) -> None:
    """Count rows that were left out, and say why."""
    if count:
        log.rows_lost += count
        log.lose(path, "{count} rows left out: {why}", count=count, why=why)


_ODD_NAME = re.compile(r"[*?\[\\\ud800-\udfff]")
# As long as a line may be.
_TAIL_BYTES = 2 << 20


@dataclass(frozen=True, slots=True)
class _EngineFile:
    """`path` is for the engine; `is_torn`: the file does not end with its last line."""

    path: str
    is_torn: bool


@contextlib.contextmanager
def engine_file(path: str, place: Path) -> Iterator[_EngineFile]:
    """The file as the engine can read it; `place`, a folder made where it is needed, goes again.

    Raises OSError where the file cannot be read or copied.
    """
    size_bytes, tail = _last_line(path)
    kept_bytes = size_bytes - len(tail) + _whole_bytes(tail)
    # The header's own line is found whether it ends or not.
    needs_copy = bool(tail) and 0 < kept_bytes < size_bytes
    if not needs_copy and not _ODD_NAME.search(path):
        yield _EngineFile(path, bool(tail))
        return
    place.mkdir(parents=True, exist_ok=True)
    try:
        stand_in = place / "rows.csv"
        if needs_copy:
            with open_regular(path) as source, stand_in.open("wb") as copy:
                shutil.copyfileobj(source, copy, 1 << 20)
                copy.truncate(kept_bytes)
        else:
            stand_in.symlink_to(Path(path).absolute())
        yield _EngineFile(str(stand_in), bool(tail))
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _last_line(path: str) -> tuple[int, bytes]:
    """The file's size, and what stands behind its last line break."""
    with open_regular(path) as file:
        size_bytes = file.seek(0, 2)
        file.seek(max(0, size_bytes - _TAIL_BYTES))
        tail = file.read(_TAIL_BYTES)
    return size_bytes, tail[max(tail.rfind(b"\n"), tail.rfind(b"\r")) + 1 :]


def _whole_bytes(tail: bytes) -> int:
    """How much of a line without an end is surely whole: all cells but the last, or that too
    where its closing quote is there."""
    if tail.count(b'"') % 2:
        opening = tail.rfind(b',"') + 1
        if opening or tail.startswith(b'"'):
            if tail.count(b'"', opening) % 2:
                return opening  # the cell was opened here and never closed
    elif tail.endswith(b'"'):
        return len(tail)
    return tail.rfind(b",") + 1


def has_zero_bytes(path: str) -> bool:
    """Whether a text file has bytes that no text has: blocks that a crash or a copy left empty."""
    with open_regular(path) as file:
        return any(b"\0" in chunk for chunk in iter(partial(file.read, 1 << 20), b""))
