"""A trainer's log that grows: what was added is read, whatever stands before it is not.

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
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import polars as pl

from ..model import spelled
from ..readers.train_log.train_log import RULE, SCHEMA, Gathered, LogFacts, gather, told_by
from ..small_files import open_regular
from ..store.manifest import Manifest, SourceRecord, capture_manifests, rank_folder
from ..store.merged_files import Place
from ..store.store import create_view, frame
from .capture_spans import Key
from .join_tables import exchange, staging

TABLE = "train_log"
# One poll reads no more, so that a log of many gigabytes does not keep profiles waiting.
_AT_ONCE_BYTES = 64 << 20
_HEAD_BYTES = 64
# No line of a trainer is longer.
_LINE_BYTES = 1 << 16


@dataclass(slots=True)
class Tail:
    """How far a log is read. `joined`: the capture, rank and generation that has all of it.

    `former`: rows of the log before this one, or that an earlier watcher read.
    """

    path: Path
    gathered: Gathered = field(default_factory=Gathered)
    former: pl.DataFrame | None = None
    end_bytes: int = 0
    inode: int = 0
    head: bytes = b""
    is_new: bool = False
    joined: tuple[Key, int, str] | None = None


def read_on(tail: Tail) -> bool:
    """Read what was added; returns whether more waits. Raises OSError where the log is gone."""
    with open_regular(tail.path) as file:
        told = os.fstat(file.fileno())
        head = file.read(_HEAD_BYTES)
        if told.st_ino != tail.inode or told.st_size < tail.end_bytes or not _begins_so(head, tail):
            if tail.inode and told.st_ino != tail.inode:
                _read_rest(tail)
            if tail.end_bytes:
                tail.former = told_by(tail.gathered, tail.path, former_rows(tail)).rows
            tail.gathered, tail.end_bytes = Gathered(), 0
        tail.inode, tail.head = told.st_ino, head
        limit_bytes = min(told.st_size, tail.end_bytes + _AT_ONCE_BYTES)
        end_bytes = _last_line_end(file.fileno(), tail.end_bytes, limit_bytes)
    _take(tail, tail.path, end_bytes)
    return limit_bytes < told.st_size


def join(tail: Tail, store: Path, key: Key) -> bool:
    """Put all logged steps into the table of one rank of a capture; returns whether that was
    needed. Raises OSError and duckdb's errors, as writing does."""
    holder = _holder(capture_manifests(rank_folder(store, *key, 0).parent), tail.path)
    if holder is None:
        return False
    mark = (key, holder.rank, holder.generation)
    if tail.joined == mark and not tail.is_new:
        return False
    if tail.former is None and holder.rules.get(RULE) == spelled(str(tail.path)):
        tail.former = _rows_of(store, holder)
    found = told_by(tail.gathered, tail.path, former_rows(tail))
    if found.rows.is_empty():
        return False
    rules = {RULE: spelled(str(tail.path))}
    for name in LogFacts.__dataclass_fields__:
        value = getattr(found.facts, name)
        if value is not None:
            rules[f"{RULE}.{name}"] = str(value)
    told = tail.path.stat()
    folder = rank_folder(store, holder.run, holder.capture, holder.rank)
    with staging(folder) as con:
        con.register("_incoming", found.rows.to_arrow())
        con.execute(f"insert into {TABLE} by name select * from _incoming")
        con.unregister("_incoming")
        record = SourceRecord(rules[RULE], told.st_size, told.st_mtime_ns, "")
        done = exchange(
            store,
            holder,
            con,
            frozenset({TABLE}),
            rules=rules,
            replaced_sources=frozenset({rules[RULE], holder.rules.get(RULE, "")}),
            sources=[record],
        )
    if done:
        tail.joined, tail.is_new = mark, False
    return done


def _holder(found: list[Manifest], path: Path) -> Manifest | None:
    """The rank that has the log, else one that has another, else the lowest."""
    by_fit = sorted(
        found, key=lambda m: (m.rules.get(RULE) != spelled(str(path)), RULE not in m.rules, m.rank)
    )
    return by_fit[0] if by_fit else None


def seed(tail: Tail, store: Path, key: Key) -> None:
    """Take over what an earlier watcher joined to a capture of this log."""
    for manifest in capture_manifests(rank_folder(store, *key, 0).parent):
        if manifest.rules.get(RULE) == spelled(str(tail.path)):
            tail.former = _rows_of(store, manifest)


def _rows_of(store: Path, manifest: Manifest) -> pl.DataFrame | None:
    one = manifest.tables.get(TABLE)
    if one is None or not one.file:
        return None
    folder = rank_folder(store, manifest.run, manifest.capture, manifest.rank)
    with contextlib.closing(duckdb.connect(":memory:")) as con:
        create_view(con, "former", [Place(str(folder / one.file))])
        columns = ", ".join(f'"{name}"' for name in SCHEMA)
        try:
            return frame(con.sql(f"select {columns} from former"))
        except duckdb.IOException:  # merged with others' and swept
            return None


def former_rows(tail: Tail) -> pl.DataFrame | None:
    """Steps of the former log that the log does not tell of."""
    if tail.former is None:
        return None
    numbered = tail.former.filter(pl.col("step").is_not_null())
    first = tail.gathered.rows()["step"].drop_nulls().head(1).to_list()
    return numbered.filter(pl.col("step") < first[0]) if first else numbered


def _begins_so(head: bytes, tail: Tail) -> bool:
    known = tail.head[: tail.end_bytes]
    return head.startswith(known)


def _read_rest(tail: Tail) -> None:
    """What was written to a log between our last look and its being renamed."""
    try:
        with os.scandir(tail.path.parent) as entries:
            for entry in entries:
                if entry.inode() == tail.inode and entry.name.startswith(tail.path.name):
                    with open_regular(entry.path) as file:
                        if _begins_so(file.read(_HEAD_BYTES), tail):
                            end_bytes = os.fstat(file.fileno()).st_size
                            _take(tail, Path(entry.path), end_bytes)
    except OSError:
        return  # moved elsewhere, compressed or gone


def _take(tail: Tail, path: Path, end_bytes: int) -> None:
    if end_bytes > tail.end_bytes:
        gather(path, tail.gathered, tail.end_bytes, end_bytes)
        tail.end_bytes = end_bytes
        tail.is_new = True


def _last_line_end(descriptor: int, begin_bytes: int, end_bytes: int) -> int:
    """Where the last whole line ends; `end_bytes` where what is there is longer than any line."""
    start = max(begin_bytes, end_bytes - _LINE_BYTES)
    cut = os.pread(descriptor, end_bytes - start, start).rfind(b"\n") + 1
    if cut or start == begin_bytes:
        return start + cut
    return end_bytes
