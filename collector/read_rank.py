"""One rank from its files to a published generation: read, link, write, summarise, publish.

Runs in a worker process of its own. Readers speak in the order of trust: the profiler's DB first,
then text, which fills only what is still empty.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import duckdb

import npuscope
from npuscope.errors import TraceFormatError

from . import schema, store
from .link import link
from .manifest import (
    Manifest,
    SourceRecord,
    rank_folder,
    staging_name,
)
from .model import RankSource, ReadLog, Role
from .readers import (
    analysis_db,
    ascend_db,
    communication,
    kernel_details,
    memory,
    profiler_info,
    step_trace,
    trace_view,
)
from .segments import Summarise, placed, write_summaries, write_tables
from .staging import SPILL, is_empty, open_staging

log = logging.getLogger(__name__)


Advance = Callable[[int], None]
Reader = Callable[[duckdb.DuckDBPyConnection, RankSource, ReadLog, frozenset[str], Advance], None]

_TIMELINE = frozenset(
    {"kernels", "steps", "host_ops", "launches", "comm_ops", "comm_tasks", "counters", "marks"}
)
# (roles that must be there, what reads them, tables it may fill), in order of trust.
_READERS: tuple[tuple[tuple[Role, ...], Reader, frozenset[str]], ...] = (
    (("main_db",), ascend_db.read, frozenset(schema.tables())),
    (
        ("analysis_db",),
        analysis_db.read,
        frozenset({"comm_times", "comm_links", "comm_matrix", "profiler_steps"}),
    ),
    (
        ("profiler_info", "profiler_metadata"),
        profiler_info.read,
        frozenset({"ranks", "groups"}),
    ),
    (("kernels",), kernel_details.read, frozenset({"kernels", "comm_ops"})),
    (("trace",), trace_view.read, _TIMELINE),
    (
        ("communication", "communication_matrix"),
        communication.read,
        frozenset({"comm_times", "comm_links", "comm_matrix"}),
    ),
    (("step_trace",), step_trace.read, frozenset({"profiler_steps"})),
    (
        ("memory_record", "operator_memory", "module_memory"),
        memory.read,
        frozenset({"memory", "operator_memory"}),
    ),
)
# Readers whose good files stand where another cannot be read.
_FILE_BY_FILE = (communication.read, memory.read)
# Tables that more than one reader adds to.
_SHARED = frozenset({"ranks", "groups"})


@dataclass(frozen=True, slots=True)
class RankTask:
    """What a worker needs to read one rank."""

    store: str
    run: str
    capture: str
    source: RankSource
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class RankOutcome:
    """What became of one rank. `error` says why nothing was published; `failed_files` what was not
    read of a rank that was."""

    run: str
    capture: str
    rank: int
    root: str
    error: str | None = None
    failed_files: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()
    row_count: int = 0
    seconds: float = 0.0


def read_rank(task: RankTask, summarise: Summarise | None, advance: Advance) -> RankOutcome:
    """Read one rank and publish it. Bad input becomes the outcome's `error`, never an exception."""
    began = time.monotonic()
    source = task.source
    folder = rank_folder(Path(task.store), task.run, task.capture, source.rank)
    staged = folder / staging_name()
    reading = ReadLog(warnings=list(source.warnings))
    try:
        staged.mkdir(parents=True)
        with ThreadPoolExecutor(1) as beside:
            digests = beside.submit(_source_records, source)
            con = open_staging(staged, memory_bytes=task.memory_bytes)
            try:
                failed = _run_readers(con, source, reading, advance)
                _require_content(con, source, failed)
                link(con, source, reading)
                tables = write_tables(con, (task.run, task.capture, source.rank), staged)
            finally:
                con.close()
            sources = digests.result()
        shutil.rmtree(staged / SPILL, ignore_errors=True)
        summaries = write_summaries(staged, staged, tables, summarise, task.memory_bytes)
        generation = f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S}-{staged.name[-12:]}"
        manifest = Manifest(
            run=task.run,
            capture=task.capture,
            rank=source.rank,
            generation=generation,
            npuscope_version=npuscope.__version__,
            schema_digest=schema.digest(),
            reading_digest=schema.reading_digest(),
            published_at=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            rank_origin=source.rank_origin,
            source_root=source.root,
            sources=sources,
            window_start_ns=source.window_start_ns,
            window_end_ns=source.window_end_ns,
            tables=placed(tables, generation),
            summaries=placed(summaries, generation),
            rules=reading.rules,
            warnings=reading.warnings,
            failed_files=failed,
            rows_lost=reading.rows_lost,
            bytes_lost=reading.bytes_lost,
            read_seconds=round(time.monotonic() - began, 3),
        )
        store.publish(Path(task.store), staged, manifest)
    except (TraceFormatError, OSError, duckdb.Error) as error:
        shutil.rmtree(staged, ignore_errors=True)
        log.debug("rank %s of %s failed", source.rank, source.root, exc_info=True)
        return RankOutcome(
            task.run, task.capture, source.rank, source.root, error=_told(error),
            warnings=tuple(reading.warnings), seconds=time.monotonic() - began,
        )  # fmt: skip
    return RankOutcome(
        task.run,
        task.capture,
        source.rank,
        source.root,
        failed_files=tuple(sorted(failed.items())),
        warnings=tuple(reading.warnings),
        row_count=sum(segment.row_count for segment in tables.values()),
        seconds=time.monotonic() - began,
    )


def _run_readers(
    con: duckdb.DuckDBPyConnection, source: RankSource, reading: ReadLog, advance: Advance
) -> dict[str, str]:
    """Let each reader fill what is still empty; returns files that could not be read, and why."""
    failed: dict[str, str] = {}
    for roles, read, fillable in _READERS:
        present = [role for role in roles if role in source.files]
        size = sum(file.size_bytes for role in present for file in source.files[role])
        wanted = frozenset(t for t in fillable if t in _SHARED or is_empty(con, t))
        if not present or not wanted or _timeline_is_told(con, read):
            advance(size)
            continue
        began = time.monotonic()
        done = _Counted(advance)
        try:
            read(con, source, reading, wanted, done)
        except (TraceFormatError, OSError, duckdb.Error) as error:
            path = error.path if isinstance(error, TraceFormatError) else source.path(present[0])
            failed[str(path)] = _told(error)
            if read not in _FILE_BY_FILE:
                # Half a table would give figures that look whole.
                for table in wanted - _SHARED:
                    con.execute(f'delete from "{table}"')
            reading.warn(f"not read: {_told(error)}")
        if read is trace_view.read and "kernels" in reading.rules and reading.bytes_lost:
            reason = "cut: figures of this rank cover only the part that could be read"
            failed[str(source.path("trace"))] = reason
        done(max(0, size - done.total))
        log.info("%s: %s, %.2f s", source.root, present, time.monotonic() - began)
    return failed


class _Counted:
    """Passes progress on and remembers the sum, so that every file counts once in the end."""

    def __init__(self, advance: Advance) -> None:
        self.total = 0
        self._advance = advance

    def __call__(self, n_bytes: int) -> None:
        self.total += n_bytes
        self._advance(n_bytes)


def _timeline_is_told(con: duckdb.DuckDBPyConnection, read: Reader) -> bool:
    """Whether the DB told what the timeline would: then gigabytes of JSON need no reading."""
    return (
        read is trace_view.read and not is_empty(con, "kernels") and not is_empty(con, "host_ops")
    )


def _require_content(
    con: duckdb.DuckDBPyConnection, source: RankSource, failed: dict[str, str]
) -> None:
    telling = ("kernels", "comm_ops", "profiler_steps", "comm_times", "host_ops", "memory")
    if all(is_empty(con, table) for table in telling):
        reasons = "; ".join(failed.values()) or "its files hold no rows"
        raise TraceFormatError(source.root, "nothing readable", reasons)


def _told(error: Exception) -> str:
    """One line for a person: what an exception says, without a traceback."""
    text = str(error).strip() or type(error).__name__
    return text if isinstance(error, TraceFormatError) else f"{type(error).__name__}: {text}"


def _source_records(source: RankSource) -> list[SourceRecord]:
    return [
        SourceRecord(file.path, file.size_bytes, file.mtime_ns, file_digest(file.path))
        for role in sorted(source.files)
        for file in source.files[role]
    ]


def file_digest(path: str) -> str:
    """BLAKE2 of a file's content; '' where it cannot be read."""
    state = hashlib.blake2b(digest_size=16)
    try:
        with Path(path).open("rb") as file:
            while chunk := file.read(1 << 20):
                state.update(chunk)
    except OSError:
        return ""
    return state.hexdigest()
