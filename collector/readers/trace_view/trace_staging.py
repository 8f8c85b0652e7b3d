"""The events of a timeline staged as Parquet files, one per kind: by one process or by several.

stage -> read whole, chunk by chunk         any file, losses counted
      -> or its ranges in several processes  a large file that proves to be whole
"""

from __future__ import annotations

import logging
import multiprocessing
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import pyarrow as pa

from npuscope.errors import TraceFormatError

from ...engines.worker import begin_worker
from ...model import ReadLog
from ..chrome_trace.json_events import read_events
from ..chrome_trace.json_ranges import Torn, ranges, read_range
from ..staged_files import StagedFiles
from .trace_columns import SCHEMAS, Values, gather, no_values, tables, waiting
from .trace_events import Event, decode_events

log_of_work = logging.getLogger(__name__)

_WAITING_ROWS = 8192  # their values still fit the processor's cache
_SPLIT_BYTES = 96 << 20  # below this, starting processes costs more than it saves


AnyEvent = TypeVar("AnyEvent")


class Form(Protocol[AnyEvent]):
    """A producer's timelines: how text becomes events, and these tables of `schemas`."""

    @property
    def schemas(self) -> Mapping[str, pa.Schema]: ...
    def decode(self, text: bytes, log: ReadLog) -> list[AnyEvent]: ...
    def no_values(self) -> Values: ...
    def gather(self, events: Sequence[AnyEvent], values: Values, log: ReadLog) -> None: ...
    def tables(self, values: Values, log: ReadLog) -> Iterator[tuple[str, pa.Table]]: ...


@dataclass(frozen=True, slots=True)
class Wanted:
    """The form of Ascend's timelines: which events are staged besides those that all need."""

    counters: bool = True
    stacks: bool = False

    @property
    def schemas(self) -> Mapping[str, pa.Schema]:
        return SCHEMAS

    def decode(self, text: bytes, log: ReadLog) -> list[Event]:
        return decode_events(text, log)

    def no_values(self) -> Values:
        return no_values()

    def gather(self, events: Sequence[Event], values: Values, log: ReadLog) -> None:
        gather(events, values, log, counters=self.counters, stacks=self.stacks)

    def tables(self, values: Values, log: ReadLog) -> Iterator[tuple[str, pa.Table]]:
        return tables(values, log)


def stage(
    paths: Iterable[str],
    folder: Path,
    form: Form[AnyEvent],
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
            log.lose(path, f"not read: {error.where}: {error.got}")
            failed.append(error)
    if failed and not folders:
        raise failed[0]
    return folders


def _stage_slice(
    path: str,
    place: Path,
    form: Form[AnyEvent],
    log: ReadLog,
    advance: Callable[[int], None],
    processes: int,
) -> list[Path]:
    try:
        large = processes > 1 and Path(path).stat().st_size >= _SPLIT_BYTES
        parts = ranges(path, processes, _decoder(form, ReadLog())) if large else []
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
    _stage_events(_events(path, form, log, advance), place, form, log)
    return [place]


def _stage_events(
    pieces: Iterable[list[AnyEvent]], place: Path, form: Form[AnyEvent], log: ReadLog
) -> None:
    files = StagedFiles(place, form.schemas)
    try:
        values = form.no_values()
        for events in pieces:
            form.gather(events, values, log)
            if waiting(values) > _WAITING_ROWS:
                for kind, table in form.tables(values, log):
                    files.append(kind, table)
        for kind, table in form.tables(values, log):
            files.append(kind, table)
    finally:
        files.close()
        pa.default_memory_pool().release_unused()  # the SQL that follows has its own


def _events(
    path: str, form: Form[AnyEvent], log: ReadLog, advance: Callable[[int], None]
) -> Iterator[list[AnyEvent]]:
    try:
        yield from read_events(path, _decoder(form, log), log, advance)
    except OSError as error:
        raise _unreadable(path, error) from error


def _decoder(form: Form[AnyEvent], log: ReadLog) -> Callable[[bytes], list[AnyEvent]]:
    return lambda text: form.decode(text, log)


def _unreadable(path: str, error: OSError) -> TraceFormatError:
    return TraceFormatError(path, "reading", f"{error.strerror}: check its permissions and disk")


def _stage_ranges(
    path: str,
    parts: Sequence[tuple[int, int]],
    place: Path,
    form: Form[AnyEvent],
    log: ReadLog,
    advance: Callable[[int], None],
) -> list[Path]:
    """Stage the first range here and each other one in a process of its own.

    Raises Torn where a range is not whole, BrokenProcessPool where a process died.
    """
    folders = [place / str(number) for number in range(len(parts))]
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
    form: Form[AnyEvent],
    advance: Callable[[int], None] | None = None,
) -> ReadLog:
    log = ReadLog()
    pieces = read_range(path, *part, _decoder(form, log), advance or _say_nothing)
    _stage_events(pieces, folder, form, log)
    return log


def _say_nothing(n_bytes: int) -> None:
    pass
