"""The events of a timeline staged as Parquet files, one per kind: by one process or by several.

stage -> read whole, chunk by chunk         any file, losses counted
      -> or its ranges in several processes  a large file that proves to be whole

Views show SQL what was staged. Inserting rows into an engine's table costs ten times what writing
them to Parquet does, because every value is hashed there for statistics that nobody asks for.
"""

from __future__ import annotations

import logging
import multiprocessing
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from npuscope.errors import TraceFormatError

from ...engines.worker import begin_worker
from ...model import ReadLog
from ...staging import staging_place
from ...store.store import file_literal
from .columns import Form, no_values, tables, waiting_rows
from .events import Event, decode_events
from .json_events import Decode, Torn, ranges, read_events, read_range

if TYPE_CHECKING:
    from .scanned import Scan

log_of_work = logging.getLogger(__name__)

_WAITING_ROWS = 8192  # their values still fit the processor's cache
_SPLIT_BYTES = 96 << 20  # below this, starting processes costs more than it saves
SCAN_BYTES = 32 << 20  # below this, loading what is compiled costs more than it saves
_ROW_GROUP_BYTES = 3 << 20
# Columns of few values; looking for repetitions among ids only costs.
_REPEATED = frozenset({"name", "kind", "level", "task_type", "category", "side"})


@contextmanager
def staged(
    con: duckdb.DuckDBPyConnection,
    prefix: str,
    paths: Sequence[str],
    form: Form,
    log: ReadLog,
    advance: Callable[[int], None],
    *,
    processes: int,
) -> Iterator[list[Path]]:
    """The files' events as views `<prefix><kind>`, for as long as the block lasts.

    Gives the staged folders. Every table and view whose name begins so goes at the end. Raises as
    `stage` does.
    """
    place = staging_place(con)
    try:
        folders = stage(paths, place, form, log, advance, processes=processes)
        show(con, prefix, folders, form.schemas)
        yield folders
    finally:
        with suppress(duckdb.Error):  # it must not hide what went wrong before
            _drop(con, prefix)
        shutil.rmtree(place, ignore_errors=True)


def show(
    con: duckdb.DuckDBPyConnection, prefix: str, folders: Sequence[Path], kinds: Iterable[str]
) -> None:
    """A view `<prefix><kind>` over the files of each kind in all the folders."""
    for kind in kinds:
        files = ", ".join(file_literal(str(folder / f"{kind}.parquet")) for folder in folders)
        con.execute(f"create or replace temp view {prefix}{kind} as from read_parquet([{files}])")


def keep_rows(con: duckdb.DuckDBPyConnection, name: str, rows: pa.Table) -> None:
    """Make the temporary table `name` of these rows."""
    con.register("_staged_rows", rows)
    con.execute(f"create or replace temp table {name} as from _staged_rows")
    con.unregister("_staged_rows")


def _drop(con: duckdb.DuckDBPyConnection, prefix: str) -> None:
    for kind in ("view", "table"):
        found = con.execute(
            f"select {kind}_name from duckdb_{kind}s() where starts_with({kind}_name, ?)", [prefix]
        )
        for (name,) in found.fetchall():
            con.execute(f'drop {kind} "{name}"')


def stage(
    paths: Iterable[str],
    folder: Path,
    form: Form,
    log: ReadLog,
    advance: Callable[[int], None],
    *,
    processes: int = 1,
) -> list[Path]:
    """Put every event of every slice of the trace among those of its kind, below `folder`.

    Returns folders with a file `<kind>.parquet` for each of the form's schemas. A slice that cannot
    be read is told in `log`; raises TraceFormatError or OSError if none can.
    """
    folders: list[Path] = []
    failed: list[TraceFormatError | OSError] = []
    for number, path in enumerate(paths):
        place = folder / str(number)
        try:
            folders += _stage_slice(path, place, form, log, advance, processes)
        except TraceFormatError as error:
            log.lose(path, "not read: {where}: {got}", where=error.where, got=error.got)
            failed.append(error)
    if failed and not folders:
        raise failed[0]
    return folders


def _stage_slice(
    path: str,
    place: Path,
    form: Form,
    log: ReadLog,
    advance: Callable[[int], None],
    processes: int,
) -> list[Path]:
    try:
        large = processes > 1 and Path(path).stat().st_size >= _SPLIT_BYTES
        parts = ranges(path, processes, _decoder(ReadLog())) if large else []
    except OSError as error:
        raise _unreadable(path, error) from error
    if parts:
        told = 0

        def ahead(n_bytes: int) -> None:  # the other ranges advance as this one does
            nonlocal told
            told += n_bytes * len(parts)
            advance(n_bytes * len(parts))

        try:
            folders = _stage_ranges(path, parts, place, form, log, ahead)
            log_of_work.info("%s: read in %d ranges", path, len(parts))
            advance(Path(path).stat().st_size - told)
            return folders
        except (Torn, BrokenProcessPool) as error:
            log_of_work.info("%s: not in ranges (%r), reading it in one go", path, error)
            shutil.rmtree(place, ignore_errors=True)
            advance(-told)
    scan = scan_of(form, Path(path).stat().st_size)
    _stage_events(_events(path, _decoder(log, scan), log, advance), place, form, log, scan)
    return [place]


def scan_of(form: Form, size_bytes: int) -> Scan | None:
    """A compiled pass for so many bytes, where it is worth loading and can be had."""
    if size_bytes < SCAN_BYTES:
        return None
    try:
        from .scan_library import scan_function
        from .scanned import Scan

        scan = scan_function()
    except ImportError:
        return None
    return Scan(form.wanted(), scan) if scan else None


def _stage_events(
    pieces: Iterable[list[Event]], place: Path, form: Form, log: ReadLog, scan: Scan | None
) -> None:
    files = _StagedFiles(place, form.schemas)

    def write_scanned() -> None:
        if scan:
            for kind, scanned in scan.tables():
                for name, table in form.rows(kind, scanned, log):
                    files.append(name, table)

    def write_values() -> None:
        for kind, table in tables(form, values, log):
            files.append(kind, table)

    try:
        values = no_values(form)
        for events in pieces:
            if events:
                form.gather(events, values, log)
            if scan and (events or scan.is_filling):
                write_scanned()
                write_values()
            elif waiting_rows(values) > _WAITING_ROWS:
                write_values()
        write_scanned()
        write_values()
    finally:
        files.close()
        pa.default_memory_pool().release_unused()  # the SQL that follows has its own


def _events(
    path: str, decode: Decode[Event], log: ReadLog, advance: Callable[[int], None]
) -> Iterator[list[Event]]:
    try:
        yield from read_events(path, decode, log, advance)
    except OSError as error:
        raise _unreadable(path, error) from error


def _decoder(log: ReadLog, scan: Scan | None = None) -> Decode[Event]:
    """Decodes pieces; what a scan takes of them leaves no event to decode."""

    def decode(text: bytes) -> list[Event]:
        return [] if scan and scan.add(text) else decode_events(text, log)

    return decode


def _unreadable(path: str, error: OSError) -> TraceFormatError:
    return TraceFormatError(path, "reading", f"{error.strerror}: check its permissions and disk")


def _stage_ranges(
    path: str,
    parts: Sequence[tuple[int, int]],
    place: Path,
    form: Form,
    log: ReadLog,
    advance: Callable[[int], None],
) -> list[Path]:
    """Stage the first range here and each other one beside it: in a process of its own, or a thread
    where a compiled pass does the work, which leaves Python's lock to others.

    Raises Torn where a range is not whole, BrokenProcessPool where a process died.
    """
    folders = [place / str(number) for number in range(len(parts))]
    pool: Executor
    if scan_of(form, min(end - start for start, end in parts)):
        pool = ThreadPoolExecutor(len(parts) - 1)
    else:
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(len(parts) - 1, context, initializer=begin_worker)
    try:
        others = [
            pool.submit(_stage_range, path, part, folder, form)
            for part, folder in zip(parts[1:], folders[1:], strict=True)
        ]
        logs = [_stage_range(path, parts[0], folders[0], form, advance)]
        logs += [other.result() for other in others]
    finally:
        pool.shutdown(cancel_futures=True)
    for told in logs:
        log.rows_lost += told.rows_lost
        for warning in told.warnings:
            log.warn(warning)
        log.damaged |= told.damaged
    return folders


def _stage_range(
    path: str,
    part: tuple[int, int],
    folder: Path,
    form: Form,
    advance: Callable[[int], None] | None = None,
) -> ReadLog:
    log = ReadLog()
    scan = scan_of(form, part[1] - part[0])
    pieces = read_range(path, *part, _decoder(log, scan), advance or _say_nothing)
    _stage_events(pieces, folder, form, log, scan)
    return log


def _say_nothing(n_bytes: int) -> None:
    pass


class _StagedFiles:
    """One growing file `<kind>.parquet` per kind of rows in a new folder.

    schemas: kind -> its columns. After `close` every kind has its file, also without rows.
    """

    def __init__(self, folder: Path, schemas: Mapping[str, pa.Schema]) -> None:
        folder.mkdir(parents=True)
        self._waiting: dict[str, list[pa.Table]] = {kind: [] for kind in schemas}
        self._waiting_bytes = dict.fromkeys(schemas, 0)
        self._schemas = schemas
        self._writers = {
            kind: pq.ParquetWriter(
                folder / f"{kind}.parquet",
                schema,
                compression="lz4",
                use_dictionary=[name for name in schema.names if name in _REPEATED],
                write_statistics=False,
            )
            for kind, schema in schemas.items()
        }

    def append(self, kind: str, table: pa.Table) -> None:
        """Add rows; the columns are those of the kind's schema."""
        table = table.cast(self._schemas[kind])
        self._waiting[kind].append(table)
        self._waiting_bytes[kind] += table.nbytes
        if self._waiting_bytes[kind] > _ROW_GROUP_BYTES:
            self._write(kind)

    def _write(self, kind: str) -> None:
        rows = pa.concat_tables([self._schemas[kind].empty_table(), *self._waiting[kind]])
        self._writers[kind].write_table(rows)
        self._waiting[kind].clear()
        self._waiting_bytes[kind] = 0

    def close(self) -> None:
        """Write what waits and end the files."""
        for kind, writer in self._writers.items():
            self._write(kind)
            writer.close()
