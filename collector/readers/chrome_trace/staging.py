"""The events of a timeline staged as Parquet files, one per kind.

stage -> read whole, chunk by chunk           any file, losses counted
      -> or its ranges, by several processes  a large file that proves to be whole

A large file is read by processes of its own, also where it is one: what decoding and writing it
took of the memory is gone with them, before SQL begins.

Views show SQL what was staged. Inserting rows into an engine's table costs ten times what writing
them to Parquet does, because every value is hashed there for statistics that nobody asks for.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from npuscope.errors import TraceFormatError

from ...engines.processes import LostWorker, Processes
from ...model import ReadLog
from .columns import Form, no_values, tables, waiting_rows
from .events import Event, decode_events
from .json_events import CHUNK_BYTES, Decode, TornRead, ranges, read_events, read_range

if TYPE_CHECKING:
    from .scan_rows import Scan

log_of_work = logging.getLogger(__name__)

_WAITING_ROWS = 8192  # their values still fit the processor's cache
APART_BYTES = 96 << 20  # below this, starting processes costs more than it saves
SCAN_BYTES = 32 << 20  # below this, loading what is compiled costs more than it saves
SCAN_CHUNK_BYTES = 512 << 10  # a pass makes no values that would leave the processor's cache
# Some ranges have more events than others of their size: who is done early takes another one.
_RANGES_OF_ONE, _RANGE_BYTES = 4, 24 << 20
_ROW_GROUP_BYTES = 3 << 20
# Columns of few values; looking for repetitions among ids only costs.
_REPEATS = frozenset({
    "name", "kind", "level", "task_type", "category", "side", "series",
    "input_shapes", "input_dtypes", "module", "call_stack",
})  # fmt: skip


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

    Returns folders with a file `<kind>.parquet` for each of the form's schemas. `advance` is told
    bytes as they are consumed, by up to so many `processes` for one slice. A slice that cannot be
    read is told in `log`; raises TraceFormatError or OSError if none can.
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
    """Stage one file: a large one in ranges that prove to be whole, where `processes` may read it,
    else in one go."""
    try:
        size_bytes = Path(path).stat().st_size
        is_large = size_bytes >= APART_BYTES
        each = min(max(size_bytes // (processes * _RANGE_BYTES), 1), _RANGES_OF_ONE)
        is_shared = is_large and processes > 1
        parts = ranges(path, processes * each, _decoder(ReadLog())) if is_shared else []
    except OSError as error:
        raise _unreadable(path, error) from error
    done_bytes = 0

    def count_bytes(n_bytes: int) -> None:
        nonlocal done_bytes
        done_bytes += n_bytes
        advance(n_bytes)

    whole: tuple[tuple[int, int] | None, ...] = (None,)
    for spans in (parts, whole) if parts else (whole,) if is_large else ():
        slices = [_Part(path, span, place / str(n), form) for n, span in enumerate(spans)]
        try:
            folders = _stage_apart(slices, log, count_bytes, processes)
            log_of_work.info("%s: read in %d ranges", path, len(slices))
            advance(size_bytes - done_bytes)  # what stands around ranges
            return folders
        except (TornRead, _LostReader) as error:
            log_of_work.info("%s: not in ranges (%r), reading it in one go", path, error)
            shutil.rmtree(place, ignore_errors=True)
            advance(-done_bytes)
            done_bytes = 0
    _stage_whole(path, place, form, log, advance)
    return [place]


def scan_of(form: Form, size_bytes: int) -> Scan | None:
    """A compiled pass for so many bytes, where it is worth loading and can be had."""
    if size_bytes < SCAN_BYTES:
        return None
    try:
        from .scan_library import scan_function
        from .scan_rows import Scan

        scan = scan_function()
    except ImportError:
        return None
    return Scan(form.kinds(), scan) if scan else None


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
            elif events and waiting_rows(values) > _WAITING_ROWS:
                write_values()
        write_scanned()
        write_values()
    finally:
        files.close()
        pa.default_memory_pool().release_unused()  # the SQL that follows has its own


def _events(
    path: str, log: ReadLog, advance: Callable[[int], None], scan: Scan | None
) -> Iterator[list[Event]]:
    chunk_bytes = SCAN_CHUNK_BYTES if scan else CHUNK_BYTES
    try:
        decode = _decoder(log, scan)
        yield from read_events(path, decode, log, advance, chunk_bytes=chunk_bytes)
    except OSError as error:
        raise _unreadable(path, error) from error


def _decoder(log: ReadLog, scan: Scan | None = None) -> Decode[Event]:
    """Decodes pieces; what a scan takes of them leaves no event to decode."""

    def decode(text: bytes) -> list[Event]:
        return [] if scan and scan.add(text) else decode_events(text, log)

    return decode


def _unreadable(path: str, error: OSError) -> TraceFormatError:
    return TraceFormatError(path, "reading", f"{error.strerror}: check its permissions and disk")


@dataclass(frozen=True, slots=True)
class _Part:
    """What a process stages into a folder: a file, or a range of one."""

    path: str
    span: tuple[int, int] | None
    folder: Path
    form: Form


class _LostReader(Exception):
    """A process ended before it had staged its part."""


def _stage_apart(
    parts: Sequence[_Part], log: ReadLog, advance: Callable[[int], None], processes: int
) -> list[Path]:
    """Stage parts by so many processes.

    Raises TornRead where a range is not whole, _LostReader where a process died, and what reading
    raises.
    """
    logs: dict[Path, ReadLog] = {}
    width = min(processes, len(parts))
    with closing(Processes(_stage_part, width, advance=advance)) as readers:
        for part, result in readers.map(parts):
            if isinstance(result, LostWorker):
                raise _LostReader(part.path)
            if isinstance(result, Exception):
                raise result
            logs[part.folder] = result
    for part in parts:
        part_log = logs[part.folder]
        log.rows_lost += part_log.rows_lost
        log.bytes_lost += part_log.bytes_lost
        for warning in part_log.warnings:
            log.warn(warning)
        log.damage |= part_log.damage
    return [part.folder for part in parts]


def _stage_part(part: _Part, advance: Callable[[int], None]) -> ReadLog | Exception:
    """What staging a part told, or raised: an exception would end this process."""
    log = ReadLog()
    shutil.rmtree(part.folder, ignore_errors=True)  # of a process that died over it
    try:
        if part.span is None:
            _stage_whole(part.path, part.folder, part.form, log, advance)
        else:
            start, end = part.span
            scan = scan_of(part.form, Path(part.path).stat().st_size)  # loaded once for all ranges
            pieces = read_range(part.path, start, end, _decoder(log, scan), advance)
            _stage_events(pieces, part.folder, part.form, log, scan)
    except Exception as error:
        return error
    return log


def _stage_whole(
    path: str, folder: Path, form: Form, log: ReadLog, advance: Callable[[int], None]
) -> None:
    scan = scan_of(form, Path(path).stat().st_size)
    _stage_events(_events(path, log, advance, scan), folder, form, log, scan)


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
                use_dictionary=[name for name in schema.names if name in _REPEATS],
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
