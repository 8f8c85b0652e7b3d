"""One rank from its files to a published generation: read, link, write, summarise, publish.

Runs in a worker process of its own. Readers speak in the order of trust: the profiler's DB first,
then text, which fills only what is still empty.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import duckdb
import msgspec

import npuscope
from npuscope.errors import TraceFormatError
from npuscope.messages import store_text

from .. import schema
from ..error_line import error_line
from ..model import RankSource, ReadLog, storable
from ..readers import unverified_forms
from ..readers.metadata.thread_nodes import fill_thread_nodes
from ..readers.text.device_rows import tables_without_device
from ..readers.trust import (
    FILE_BY_FILE,
    KINETO,
    MAIN_DB,
    READERS,
    SHARED_TABLES,
    SUPPLEMENTS,
    TIMELINE,
    TRACE,
    Advance,
    has_steps,
    read_of,
)
from ..selection import Selection
from ..staging import (
    DATABASE_PROCESS_BYTES,
    PROCESS_BYTES,
    SPILL,
    database_bytes,
    is_empty,
    nonempty,
    open_staging,
    scalar,
)
from ..store import store
from ..store.compact_files import Place
from ..store.folder_handles import make_staging
from ..store.manifest import Manifest, SourceRecord, rank_folder, read_manifest
from ..store.segments import Summarise, in_generation, write_summaries, write_tables
from ..store.space import is_out_of_space, is_refused_by_store
from .damage import changed_files, worse_than
from .deadline import Deadline, OverTime, over_time, time_limit_s
from .digests import digest_now
from .link import cross_check, keep_steps, link

log = logging.getLogger(__name__)

# From so many bytes on a rank is a batch of its own, and what is asked of it is planned with care.
ALONE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class RankTask:
    """What a worker needs to read one rank.

    `memory_bytes` is for its whole process; None: as little as does. `force`: even a reading that
    is worse than the one before, because files were damaged since, replaces it. `unreadable`: files
    of the rank that cannot be opened, and why.
    """

    store: str
    run: str
    capture: str
    source: RankSource
    memory_bytes: int | None = None
    force: bool = False
    unreadable: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class RankOutcome:
    """What became of one rank.

    `error` says why nothing was published, `out_of_space` that the store's disk was full,
    `refused_by_store` that it took nothing for another reason, `out_of_memory` that the rank needs
    more than it may take; `failed_files` what was not read of a rank that was.
    """

    run: str
    capture: str
    rank: int
    root: str
    error: str | None = None
    failed_files: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()
    row_count: int = 0
    seconds: float = 0.0
    out_of_space: bool = False
    out_of_memory: bool = False
    refused_by_store: bool = False


def read_rank(task: RankTask, summarise: Summarise | None, advance: Advance) -> RankOutcome:
    """Read one rank and publish it. Bad input becomes the outcome's `error`, never an exception.

    Where nobody limits the memory a rank that does not fit is read again with twice as much.
    """
    least_bytes = DATABASE_PROCESS_BYTES if "main_db" in task.source.files else PROCESS_BYTES
    process_bytes = task.memory_bytes or least_bytes
    deadline = deadline_of(task)
    while True:
        done = ProgressCount(advance)
        outcome = _read_within(process_bytes, task, summarise, done, deadline)
        process_bytes *= 2
        is_limited = task.memory_bytes is not None or process_bytes > _machine_bytes() // 2
        if is_limited or not outcome.out_of_memory:
            return outcome
        advance(-done.total)


def limit_of(task: RankTask) -> float | None:
    """How long reading a rank may take, in seconds."""
    return time_limit_s(task.source.size_bytes)


def deadline_of(task: RankTask) -> Deadline:
    """The end of a rank's time, which begins now."""
    return Deadline(limit_of(task))


def _machine_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _read_within(
    process_bytes: int,
    task: RankTask,
    summarise: Summarise | None,
    advance: Advance,
    deadline: Deadline,
) -> RankOutcome:
    began = time.monotonic()
    source = task.source
    folder = rank_folder(Path(task.store), task.run, task.capture, source.rank)
    staged: Path | None = None
    reading = ReadLog(warnings=list(source.warnings), rules=dict(source.rules))
    try:
        staged = make_staging(folder)
        with ThreadPoolExecutor(1) as beside:
            digests = beside.submit(source_records, source, deadline)
            memory_bytes = database_bytes(process_bytes)
            plainly = source.size_bytes <= ALONE_BYTES
            with closing(open_staging(staged, memory_bytes=memory_bytes, plainly=plainly)) as con:
                with deadline.interrupts(con):
                    facts = fill_tables(con, task, reading, advance, deadline)
                    tables = write_tables(
                        con, (task.run, task.capture, source.rank), staged,
                        leave_out=facts.left_out, stacks=source.selection.stacks,
                    )  # fmt: skip
            sources = digests.result()
        shutil.rmtree(staged / SPILL, ignore_errors=True)
        located = {name: [Place(str(staged / one.file))] for name, one in tables.items()}
        summaries = write_summaries(staged, located, summarise, memory_bytes)
        generation = generation_of(staged)
        manifest = manifest_of(task, reading, facts, sources, generation)
        manifest = msgspec.structs.replace(
            manifest,
            tables=in_generation(tables, generation),
            summaries=in_generation(summaries, generation),
            read_seconds=round(time.monotonic() - began, 3),
        )
        require_better(task, manifest)
        deadline.check()
        store.publish(Path(task.store), staged, manifest)
    except Exception as error:  # one that nobody foresaw must not cost the other ranks
        if staged:
            shutil.rmtree(staged, ignore_errors=True)
        return failure(task, reading, error, deadline, time.monotonic() - began)
    return success(manifest, source, reading, facts, time.monotonic() - began)


@dataclass(frozen=True, slots=True)
class ReadFacts:
    """What filling a rank's tables told: files that were not read and why, keys of what no real
    profile confirmed, tables that were not selected."""

    failures: dict[str, str]
    doubts: list[str]
    left_out: frozenset[str]


def fill_tables(
    con: duckdb.DuckDBPyConnection,
    task: RankTask,
    reading: ReadLog,
    advance: Advance,
    deadline: Deadline,
) -> ReadFacts:
    """Fill the canonical tables with what a rank's files tell, linked and checked.

    Raises TraceFormatError where nothing can be read, OverTime, and duckdb's errors.
    """
    source = task.source
    failed = _run_readers(con, source, reading, advance, deadline)
    if "counters" in source.selection.inputs:
        fill_thread_nodes(con, source)
    failed |= changed_files(source) | dict(task.unreadable)
    _require_content(con, source, failed)
    link(con, source, reading)
    cross_check(con, source, reading)
    unconfirmed = unverified_forms.unverified_keys(con, source, reading)
    return ReadFacts(failed, unconfirmed, _leave_out(con, source, reading))


def generation_of(staging: Path) -> str:
    """The name of what was written to a staging folder."""
    return f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S}-{staging.name[-12:]}"


def manifest_of(
    task: RankTask, reading: ReadLog, facts: ReadFacts, sources: list[SourceRecord], generation: str
) -> Manifest:
    """A rank's manifest, but for its tables and summaries."""
    source = task.source
    return Manifest(
        run=task.run,
        capture=task.capture,
        rank=source.rank,
        generation=generation,
        npuscope_version=npuscope.__version__,
        schema_digest=schema.digest(),
        reading_digest=schema.reading_digest(),
        published_at=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        rank_origin=source.rank_origin,
        source_root=storable(source.root),
        sources=sources,
        window_start_ns=source.window_start_ns,
        window_end_ns=source.window_end_ns,
        tables={},
        summaries={},
        rules=reading.rules,
        kept_warnings=[store_text(warning, storable) for warning in reading.warnings],
        failed_files={storable(path): storable(why) for path, why in facts.failures.items()},
        rows_lost=reading.rows_lost,
        bytes_lost=reading.bytes_lost,
        selection=source.selection,
        options=reading.options,
        unverified=facts.doubts,
    )


def require_better(task: RankTask, manifest: Manifest) -> None:
    """Raises TraceFormatError where a reading must not replace the published one."""
    folder = rank_folder(Path(task.store), task.run, task.capture, manifest.rank)
    reason = None if task.force else worse_than(read_manifest(folder), manifest)
    if reason:
        raise TraceFormatError(task.source.root, "damaged after it was read", reason)


def failure(
    task: RankTask, reading: ReadLog, error: Exception, deadline: Deadline, seconds: float
) -> RankOutcome:
    """The outcome of a rank that was not published."""
    source = task.source
    log.debug("rank %s of %s failed", source.rank, source.root, exc_info=error)
    if isinstance(error, duckdb.InterruptException) and deadline.limit_s is not None:
        error = OverTime(over_time(deadline.limit_s))
    return RankOutcome(
        task.run, task.capture, source.rank, source.root, error=error_line(error, task.store),
        warnings=tuple(reading.warnings), seconds=seconds,
        out_of_space=is_out_of_space(error),
        out_of_memory=isinstance(error, duckdb.OutOfMemoryException),
        refused_by_store=is_refused_by_store(error),
    )  # fmt: skip


def success(
    manifest: Manifest, source: RankSource, reading: ReadLog, facts: ReadFacts, seconds: float
) -> RankOutcome:
    """The outcome of a rank that was published."""
    return RankOutcome(
        manifest.run,
        manifest.capture,
        source.rank,
        source.root,
        failed_files=tuple(sorted(facts.failures.items())),
        warnings=tuple(reading.warnings),
        row_count=sum(segment.row_count for segment in manifest.tables.values()),
        seconds=seconds,
    )


def _run_readers(
    con: duckdb.DuckDBPyConnection,
    source: RankSource,
    reading: ReadLog,
    advance: Advance,
    deadline: Deadline,
) -> dict[str, str]:
    """Let each reader fill what is still empty; returns files that could not be read, and why."""

    def advance_in_time(n_bytes: int) -> None:
        deadline.check()
        advance(n_bytes)

    failed: dict[str, str] = {}
    filled = frozenset[str]()
    tables = source.selection.inputs - tables_without_device(source, reading)
    for roles, reader, fillable in READERS:
        present = [role for role in roles if role in source.files]
        sizes = (file.size_bytes for role in present for file in source.files[role])
        size = sum(sizes) // source.shared_by
        tables_of = fillable & tables if present else frozenset()
        missing = tables_of - (filled - SHARED_TABLES - SUPPLEMENTS)
        if reader == MAIN_DB and not has_steps(source) and "trace" in source.files:
            missing -= {"host_ops"}
        if not missing or _is_spared(con, source, reader, missing):
            advance_in_time(size)
            continue
        began = time.monotonic()
        done = ProgressCount(advance_in_time)
        try:
            read_of(reader)(con, source, reading, missing, done)
        except (TraceFormatError, OSError, duckdb.Error) as error:
            deadline.check()
            if is_out_of_space(error) or isinstance(error, duckdb.OutOfMemoryException):
                raise  # no fault of the file
            path = error.path if isinstance(error, TraceFormatError) else source.path(present[0])
            failed[str(path)] = error_line(error)
            if reader not in FILE_BY_FILE:
                # Half a table would give figures that look whole.
                for table in missing - SHARED_TABLES:
                    con.execute(f'delete from "{table}"')
            reading.warn("not read: {error}", error=error_line(error))
        trace = source.path("trace")
        if reader == TRACE and trace in reading.damage and "kernels" in reading.rules:
            reading.lose(trace, "figures of this rank cover only the part that was read")
        names = nonempty(con, missing)
        filled |= names
        for table in sorted(names):
            reading.rules.setdefault(f"from.{table}", reader.rpartition(".")[2])
        done(max(0, size - done.total))
        log.info("%s: %s, %.2f s", source.root, present, time.monotonic() - began)
    return {**reading.damage, **failed}


class ProgressCount:
    """Passes progress on and remembers the sum, so that every file counts once in the end."""

    def __init__(self, advance: Advance) -> None:
        self.total = 0
        self._advance = advance

    def __call__(self, n_bytes: int) -> None:
        self.total += n_bytes
        self._advance(n_bytes)


def _is_spared(
    con: duckdb.DuckDBPyConnection, source: RankSource, reader: str, tables: frozenset[str]
) -> bool:
    """Whether a file need not be opened for the tables it would be opened for."""
    if reader != TRACE:
        return False
    selection = source.selection
    if {"kernels", "host_ops"} <= selection.inputs:
        # Where the DB told what the timeline would, gigabytes of JSON need no reading.
        return not is_empty(con, "kernels") and not is_empty(con, "host_ops")
    if has_steps(source) and any(not is_empty(con, t) for t in TIMELINE & selection.inputs):
        return True
    return tables == {"steps"} and not _needs_steps(con, selection)


def _needs_steps(con: duckdb.DuckDBPyConnection, selection: Selection) -> bool:
    """Whether a trace must be opened for the steps alone: not where kernels know theirs."""
    if selection.light:
        return False
    if "steps" in selection.outputs or selection.steps is not None:
        return True
    return not scalar(con, "select count(step) from kernels")


def _require_content(
    con: duckdb.DuckDBPyConnection, source: RankSource, failed: dict[str, str]
) -> None:
    telling = (
        *("kernels", "comm_ops", "profiler_steps", "comm_times", "comm_matrix", "host_ops"),
        *("memory", "operator_memory"),
    )
    if not source.selection.is_whole and not failed:
        return  # what was left out may be all there is
    if all(is_empty(con, table) for table in telling):
        reasons = "; ".join(
            f"{Path(path).name}: {why.removeprefix(f'{path}: ')}" for path, why in failed.items()
        )
        whose = "" if source.device_id is None else f" of device {source.device_id}"
        reasons = reasons or f"its files hold no rows{whose}"
        raise TraceFormatError(source.root, "nothing readable", reasons)


def _leave_out(
    con: duckdb.DuckDBPyConnection, source: RankSource, reading: ReadLog
) -> frozenset[str]:
    """Keep the selected steps; returns tables that were not selected, as `ranks` tells them."""
    selection = source.selection
    if selection.steps is not None:
        keep_steps(con, selection.steps, reading)
    left_out = set(schema.tables()) - selection.outputs
    told_elsewhere = "main_db" in source.files or not is_empty(con, "steps")
    if told_elsewhere and "steps" in selection.inputs:
        left_out.discard("steps")
    elif {"trace", "kineto"} & source.files.keys() and not _needs_steps(con, selection):
        left_out.add("steps")
    if left_out:
        con.execute("update ranks set left_out_tables = ?", [sorted(left_out)])
    return frozenset(left_out)


def source_records(source: RankSource, deadline: Deadline) -> list[SourceRecord]:
    """The rank's files; a digest only of those that are read."""
    selection = source.selection
    read = {
        role
        for roles, reader, fillable in READERS
        if fillable & selection.inputs
        and not (selection.light and reader in (MAIN_DB, TRACE, KINETO))
        for role in roles
    }
    whole = selection.is_whole
    return [
        SourceRecord(
            storable(file.path),
            file.size_bytes,
            file.mtime_ns,
            digest_now(source, file, deadline.check) if whole or role in read else "",
        )
        for role in sorted(source.files)
        for file in source.files[role]
    ]
