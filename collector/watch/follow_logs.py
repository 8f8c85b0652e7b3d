"""Trainers' logs and expert loads of the newest capture, brought up to date at every round.

What that costs is bounded: what took a second is not done again for ten.

A trainer's log that grows: what was added is read, whatever stands before it is not.

    train.log      [ read already ............ | whole lines that are new | a line being written ]
    train.log.1    what the log was called before: its rest is read too

A log that is shorter than it was, or begins otherwise, is a new one: the job goes on in it, or
started again, so that of the former's steps those before its first one stay. All logged steps
stand in `train_log` of one rank of the newest capture, each once, as `npuscope ingest --train-log`
has it.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import polars as pl

from ..engines.processes import LostWorker
from ..model import SourceFile, storable
from ..quiet_duckdb import open_duckdb
from ..readers.train_log.log_facts import RULE, LogFacts
from ..readers.train_log.train_log import SCHEMA, LogRows, gather, log_so_far
from ..small_files import open_regular
from ..staging import insert_rows
from ..store.compact_files import places
from ..store.manifest import Manifest, SourceRecord, capture_manifests, rank_folder
from ..store.store import create_view, frame
from .capture_spans import CaptureSpan, Key, places_of
from .join_tables import exchange, staging
from .loads import LoadTask, files_of, load_folders, loads_of
from .options import Options
from .rounds import Watch, disk_is_full
from .work import Outcome, why_lost

# The share of time that following may take.
_SHARE = 0.1


@dataclass(slots=True)
class Progress:
    """A log and folders of expert loads, when each may be read again (monotonic seconds), what of
    folders was joined to which capture, and where the newest captures' ranks were read from."""

    tail: Tail | None = None
    next_s: dict[str, float] = field(default_factory=dict)
    loads: dict[str, tuple[Key, tuple[SourceFile, ...]]] = field(default_factory=dict)
    places: dict[Key, tuple[CaptureSpan, tuple[str, ...]]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    is_seeded: bool = False

    @classmethod
    def of(cls, options: Options) -> Progress:
        return cls(Tail(options.train_log) if options.train_log else None)


def follow(watch: Watch, progress: Progress) -> None:
    """Bring what the newest capture holds of logs and loads up to date."""
    if time.monotonic() < watch.try_again_s or not watch.go_on():
        return
    run, captures = watch.options.run, watch.spans.captures()
    newest_first = [key for key in reversed(captures) if run in (None, key[0])]
    if progress.tail is not None:
        _follow_log(watch, progress, progress.tail, next(iter(newest_first), None))
    of_run: dict[str, Key] = {}
    for key in newest_first:
        of_run.setdefault(key[0], key)
    for key, folders in _loads(watch, progress, [*of_run.values()]).items():
        _follow_loads(watch, progress, folders, key)


def _follow_log(watch: Watch, progress: Progress, tail: Tail, newest: Key | None) -> None:
    name, began_s = str(tail.path), time.monotonic()
    if began_s < progress.next_s.get(name, 0.0):
        return
    if newest is not None and not progress.is_seeded:
        _seed(tail, watch.options.store, newest)
        progress.is_seeded = True
    try:
        while read_on(tail) and watch.go_on() and watch.options.once:
            pass
    except OSError as error:
        _tell(watch, progress, name, f"cannot read the log {name}: {error.strerror}")
        return
    progress.notes.pop(name, None)
    if newest is not None:
        _join(tail, watch.options.store, newest)
    ended_s = time.monotonic()
    progress.next_s[name] = ended_s + (ended_s - began_s) * (1 / _SHARE - 1)


def _loads(watch: Watch, progress: Progress, newest: list[Key]) -> dict[Key, tuple[Path, ...]]:
    """Folders of expert loads by the capture that they belong to."""
    options = watch.options
    if options.expert_load is not None:
        return dict.fromkeys(newest[:1], (options.expert_load,))
    folders = load_folders(options.roots, watch.folders.loads)
    if not folders:
        return {}
    spans = watch.spans.captures()
    former, progress.places = progress.places, {}
    for key in newest:
        held, places = former.get(key, (None, ()))
        if held != spans[key]:
            places = places_of(options.store, key)
        progress.places[key] = spans[key], places
    places_by_key = {key: places for key, (_, places) in progress.places.items()}
    return loads_of(newest, places_by_key, folders)


def _follow_loads(watch: Watch, progress: Progress, folders: tuple[Path, ...], newest: Key) -> None:
    name, began_s = ", ".join(map(str, folders)), time.monotonic()
    files = files_of(folders)
    if not files and len(folders) > 1:
        _tell(watch, progress, name, f"{name} are no parts of one job's loads: give --expert-load")
    if not files or progress.loads.get(name) == (newest, files):
        return
    if began_s < progress.next_s.get(name, 0.0):
        return
    task = LoadTask(str(watch.options.store), *newest, tuple(map(str, folders)))
    took_s = 0.0
    for _, done in watch.processes.map([task], watch.go_on, watch.ends):
        error = why_lost(done) if isinstance(done, LostWorker) else None
        if isinstance(done, Outcome):
            error, took_s = done.error, done.seconds  # without the start of a process
            if done.out_of_space:
                disk_is_full(watch)
                return
        if error is not None:
            _tell(watch, progress, name, f"cannot read the expert loads in {name}: {error}")
        else:
            progress.notes.pop(name, None)
        progress.loads[name] = (newest, files)
    watch.busy_s = time.monotonic()
    progress.next_s[name] = watch.busy_s + took_s * (1 / _SHARE - 1)


def _tell(watch: Watch, progress: Progress, name: str, message: str) -> None:
    """Say what is wrong once, as long as it stays so."""
    if progress.notes.get(name) != message:
        watch.say(errors_total=watch.state.errors_total + 1)
        watch.hooks.tell(message)
    progress.notes[name] = message


_TABLE = "train_log"
# One poll reads no more, so that a log of many gigabytes does not keep profiles waiting.
_AT_ONCE_BYTES = 64 << 20
_HEAD_BYTES = 64
# No line of a trainer is longer.
_LINE_BYTES = 1 << 16


@dataclass(slots=True)
class Tail:
    """How far a log is read. `target`: the capture, rank and generation that has all of it.

    `former`: rows of the log before this one, or that an earlier watcher read.
    """

    path: Path
    rows: LogRows = field(default_factory=LogRows)
    former: pl.DataFrame | None = None
    end_bytes: int = 0
    inode: int = 0
    head: bytes = b""
    is_new: bool = False
    target: tuple[Key, int, str] | None = None


def read_on(tail: Tail) -> bool:
    """Read what was added; returns whether more waits. Raises OSError where the log is gone."""
    with open_regular(tail.path) as file:
        stat = os.fstat(file.fileno())
        head = file.read(_HEAD_BYTES)
        if stat.st_ino != tail.inode or stat.st_size < tail.end_bytes or not _begins_so(head, tail):
            if tail.inode and stat.st_ino != tail.inode:
                _read_rest(tail)
            if tail.end_bytes:
                tail.former = log_so_far(tail.rows, tail.path, former_rows(tail)).rows
            tail.rows, tail.end_bytes = LogRows(), 0
        tail.inode, tail.head = stat.st_ino, head
        limit_bytes = min(stat.st_size, tail.end_bytes + _AT_ONCE_BYTES)
        end_bytes = _last_line_end(file.fileno(), tail.end_bytes, limit_bytes)
    _take(tail, tail.path, end_bytes)
    return limit_bytes < stat.st_size


def _join(tail: Tail, store: Path, key: Key) -> bool:
    """Put all logged steps into the table of one rank of a capture; returns whether that was
    needed. Raises OSError and duckdb's errors, as writing does."""
    holder = _holder(capture_manifests(rank_folder(store, *key, 0).parent), tail.path)
    if holder is None:
        return False
    mark = (key, holder.rank, holder.generation)
    if tail.target == mark and not tail.is_new:
        return False
    if tail.former is None and holder.rules.get(RULE) == storable(str(tail.path)):
        tail.former = _rows_of(store, holder)
    log = log_so_far(tail.rows, tail.path, former_rows(tail))
    if log.rows.is_empty():
        return False
    rules = {RULE: storable(str(tail.path))}
    for name in LogFacts.__dataclass_fields__:
        value = getattr(log.facts, name)
        if value is not None:
            rules[f"{RULE}.{name}"] = str(value)
    stat = tail.path.stat()
    folder = rank_folder(store, holder.run, holder.capture, holder.rank)
    with staging(folder) as con:
        insert_rows(con, _TABLE, log.rows.to_arrow())
        record = SourceRecord(rules[RULE], stat.st_size, stat.st_mtime_ns, "")
        done = exchange(
            store,
            holder,
            con,
            frozenset({_TABLE}),
            rules=rules,
            replaced_sources=frozenset({rules[RULE], holder.rules.get(RULE, "")}),
            sources=[record],
        )
    if done:
        tail.target, tail.is_new = mark, False
    return done


def _holder(manifests: list[Manifest], path: Path) -> Manifest | None:
    """The rank that has the log, else one that has another, else the lowest."""
    by_fit = sorted(
        manifests,
        key=lambda m: (m.rules.get(RULE) != storable(str(path)), RULE not in m.rules, m.rank),
    )
    return by_fit[0] if by_fit else None


def _seed(tail: Tail, store: Path, key: Key) -> None:
    """Take over what an earlier watcher joined to a capture of this log."""
    for manifest in capture_manifests(rank_folder(store, *key, 0).parent):
        if manifest.rules.get(RULE) == storable(str(tail.path)):
            tail.former = _rows_of(store, manifest)


def _rows_of(store: Path, manifest: Manifest) -> pl.DataFrame | None:
    places_here = places(store, [manifest]).get(_TABLE)
    if not places_here:
        return None
    with contextlib.closing(open_duckdb()) as con:
        create_view(con, _TABLE, places_here, is_current=False)
        columns = ", ".join(f'"{name}"' for name in SCHEMA)
        try:
            return frame(con.sql(f"select {columns} from {_TABLE}"))
        except duckdb.IOException:  # replaced and swept meanwhile
            return None


def former_rows(tail: Tail) -> pl.DataFrame | None:
    """Steps of the former log that the log does not tell of."""
    if tail.former is None:
        return None
    numbered = tail.former.filter(pl.col("step").is_not_null())
    first = tail.rows.rows()["step"].drop_nulls().head(1).to_list()
    return numbered.filter(pl.col("step") < first[0]) if first else numbered


def _begins_so(head: bytes, tail: Tail) -> bool:
    former_head = tail.head[: tail.end_bytes]
    return head.startswith(former_head)


def _read_rest(tail: Tail) -> None:
    """What was written to a log between our last look and its being renamed."""
    with contextlib.suppress(OSError):  # moved elsewhere, compressed or gone
        with os.scandir(tail.path.parent) as entries:
            names = [e.name for e in entries if e.inode() == tail.inode]
        for name in names:
            if not name.startswith(tail.path.name):
                continue
            path = tail.path.with_name(name)
            with open_regular(path) as file:
                if _begins_so(file.read(_HEAD_BYTES), tail):
                    _take(tail, path, os.fstat(file.fileno()).st_size)


def _take(tail: Tail, path: Path, end_bytes: int) -> None:
    if end_bytes > tail.end_bytes:
        gather(path, tail.rows, tail.end_bytes, end_bytes)
        tail.end_bytes = end_bytes
        tail.is_new = True


def _last_line_end(descriptor: int, begin_bytes: int, end_bytes: int) -> int:
    """Where the last whole line ends; `end_bytes` where what is there is longer than any line."""
    start = max(begin_bytes, end_bytes - _LINE_BYTES)
    cut = os.pread(descriptor, end_bytes - start, start).rfind(b"\n") + 1
    if cut or start == begin_bytes:
        return start + cut
    return end_bytes
