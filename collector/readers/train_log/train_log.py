"""A trainer's log as rows of `train_log`: one per logged step, whatever else stands in the file.

    file ─ blocks of whole lines ─ lines with a mark ─ parse ─ columns ─ the last of each step

Memory is bounded by a block and by what is logged: lines without a mark cost a search and no more.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

import duckdb
import polars as pl

from npuscope.errors import TraceFormatError, TraceNotFound
from npuscope.messages import Message

from ...model import RankSource, ReadLog
from ...small_files import open_regular
from ...staging import insert_rows
from .alike_lines import split_alike
from .bar_lines import split_bars
from .event_files import event_files, read_events
from .log_facts import RULE, LogFacts
from .log_lines import COLUMNS, MARKS, MORE_COLUMNS, LogEntry, Scope, arguments, parse

_COLUMNS = (*COLUMNS, *MORE_COLUMNS)
SCHEMA: dict[str, type[pl.DataType]] = {"step": pl.Int64, **dict.fromkeys(_COLUMNS, pl.Float64)}
_BLOCK_BYTES = 8 << 20
# Whatever is longer is no line of a trainer.
_LINE_BYTES = 1 << 16
_COMPRESSION_MARKS = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"PK\x03\x04")
# Where `log_history` is looked for, and the most that is read of what has one.
_HEAD_BYTES, _STATE_BYTES = 1 << 16, 256 << 20
_CHUNK_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class TrainLog:
    """`rows` in the columns of `train_log`, in order of steps; `notes` on what was decided."""

    rows: pl.DataFrame
    facts: LogFacts
    notes: tuple[str, ...] = ()


def read_log(
    path: str | Path,
    *,
    size_bytes: int | None = None,
    advance: Callable[[int], None] = lambda n_bytes: None,
) -> TrainLog:
    """Read a log, or its first `size_bytes`: others may be writing it.

    Raises TraceNotFound where there is no such file, TraceFormatError where it logs no step.
    """
    log_rows = LogRows()
    former = None
    if written := event_files(Path(path)):
        former = read_events(written, advance)
    else:
        for line, is_ended in _telling_lines(Path(path), size_bytes, advance):
            _gather(log_rows, line, is_ended)
    log = log_so_far(log_rows, path, former)
    if log.rows.is_empty():
        raise _nothing_logged(path)
    return replace(log, notes=(*log.notes, *earlier_log(Path(path))))


def earlier_log(path: Path) -> list[str]:
    """That a log was rotated, where the part before it lies beside it: a sentence."""
    former = path.with_name(f"{path.name}.1")
    if not former.is_file():
        return []
    return [
        Message(
            "{former} beside {file} may hold what was logged before it, and is not read: put both"
            " into one file, the older first",
            former=former.name, file=path.name,
        )
    ]  # fmt: skip


def read_lines(path: Path) -> tuple[pl.DataFrame, LogFacts]:
    """Every logged line, in the file's order and with all that a line tells (`MORE_COLUMNS`).

    `path` may be a folder of event files. Raises as `read_log`.
    """
    rows_of_log = LogRows()
    if written := event_files(path):
        log_rows = read_events(written)
        if log_rows.is_empty():
            raise _nothing_logged(path)
        return log_rows, rows_of_log.facts()
    parts: list[pl.DataFrame] = []
    alike = partial(split_alike, forms=[])
    for block, is_ended in _blocks(path, None, lambda n_bytes: None, 0):
        lines = pl.Series(block.decode("utf-8", "replace").split("\n"), dtype=pl.String)
        is_told = lines.str.contains_any([mark.decode() for mark in MARKS])
        lines = lines.filter(is_told & (lines.str.len_bytes() <= _LINE_BYTES))
        at = pl.int_range(len(lines), eager=True, dtype=pl.UInt32)
        found_here: list[pl.DataFrame] = []
        for split in (alike, split_bars) if is_ended else ():
            if len(at):
                rows, is_other = split(lines.gather(at))
                found_here.append(rows.with_columns(at.gather(rows["line"]).alias("line")))
                at = at.filter(is_other)
        order = []
        for number in at.to_list():
            count = len(rows_of_log)
            _gather(rows_of_log, lines[number].encode(), is_ended)
            order += [number] * (len(rows_of_log) - count)
        found_here.append(rows_of_log.take().with_columns(pl.Series("line", order, pl.UInt32)))
        frames = [rows.select("line", *SCHEMA) for rows in found_here if len(rows)]
        parts += (
            frames if len(frames) < 2 else [pl.concat(frames).sort("line", maintain_order=True)]
        )
    log_rows = pl.concat(parts).drop("line") if parts else rows_of_log.rows()
    if log_rows.is_empty():
        raise _nothing_logged(path)
    return log_rows, rows_of_log.facts()


def gather(path: Path, log_rows: LogRows, begin_bytes: int, end_bytes: int) -> None:
    """Read a part of a log that begins and ends between lines, after what was gathered before.

    Raises TraceNotFound where there is no such file.
    """
    size_bytes = end_bytes - begin_bytes
    for line, is_ended in _telling_lines(path, size_bytes, begin_bytes=begin_bytes):
        _gather(log_rows, line, is_ended)


def log_so_far(log_rows: LogRows, path: str | Path, former: pl.DataFrame | None = None) -> TrainLog:
    """What was gathered of a log so far, after `former` rows of `train_log` where there are any."""
    rows = log_rows.rows()
    rows = rows if former is None else pl.concat([former.select(rows.columns), rows])
    rows, notes = _last_of_each(rows, Path(path).name)
    return TrainLog(rows, log_rows.facts(), notes)


def _gather(log_rows: LogRows, line: bytes, is_ended: bool) -> None:
    for logged in parse(line, is_ended=is_ended):
        log_rows.add(logged)
    for name, value in arguments(line) if is_ended else ():
        log_rows.say(name, value)


def require_logged(path: Path) -> None:
    """See that a file logs a step, no further than to its first. Raises as `read_log`."""
    if written := event_files(path):
        if not read_events(written).is_empty():
            return
        raise _nothing_logged(path)
    for line, is_ended in _telling_lines(path):
        if any(parse(line, is_ended=is_ended)):
            return
    raise _nothing_logged(path)


def read(
    con: duckdb.DuckDBPyConnection,
    source: RankSource,
    log: ReadLog,
    tables: frozenset[str],
    advance: Callable[[int], None],
) -> None:
    """Fill `train_log`. Raises TraceFormatError where a file is gone or logs no step."""
    for file in source.files.get("train_log", ()):
        try:
            log_content = read_log(file.path, size_bytes=file.size_bytes, advance=advance)
        except TraceNotFound as error:  # the rank is read without it
            raise TraceFormatError(file.path, "trainer log", "it no longer exists") from error
        insert_rows(con, "train_log", log_content.rows.to_arrow())
        for note in log_content.notes:
            log.warn(note)
        for name in LogFacts.__dataclass_fields__:
            value = getattr(log_content.facts, name)
            if value is not None:
                log.rules[f"{RULE}.{name}"] = str(value)


class LogRows:
    """Figures by column, as the lines come."""

    def __init__(self) -> None:
        self._chunks: list[pl.DataFrame] = []
        self._lines: list[tuple[float | None, ...]] = []
        # Two different values are as good as many: then there is no one value.
        self._notes: dict[str, set[int]] = {}
        self._scopes: set[Scope | None] = set()
        self._before: LogEntry | None = None

    def add(self, entry: LogEntry) -> None:
        self._lines.append((entry.step, *map(entry.values.get, _COLUMNS)))
        if len(self._lines) >= _CHUNK_ROWS:
            self._flush()
        if "tokens_per_s" in entry.values:
            self._scopes.add(entry.tokens_of)
        if "global batch size" in entry.counts:
            self.say("global batch size", entry.counts["global batch size"])
        before, self._before = self._before, entry
        if before is None or before.step is None or entry.step is None:
            return
        steps = entry.step - before.step
        for name in ("consumed samples", "consumed tokens"):
            if steps > 0 and name in entry.counts and name in before.counts:
                each, rest = divmod(entry.counts[name] - before.counts[name], steps)
                self.say(name, 0 if rest else max(0, each))

    def say(self, name: str, value: int) -> None:
        values = self._notes.setdefault(name, set())
        if len(values) < 2:
            values.add(value)

    def __len__(self) -> int:
        return sum(chunk.height for chunk in self._chunks) + len(self._lines)

    def take(self) -> pl.DataFrame:
        """Every logged line since the last time; what was said of the run stays."""
        rows = self.rows()
        self._chunks = []
        return rows

    def rows(self) -> pl.DataFrame:
        """Every logged line so far."""
        self._flush()
        return pl.concat(self._chunks) if self._chunks else pl.DataFrame(schema=SCHEMA)

    def facts(self) -> LogFacts:
        """What was said of the whole run."""
        batch = self._one("global batch size", "consumed samples", "global_batch_size")
        length = self._one("seq_length")
        product = batch * length if batch and length else None
        scope = next(iter(self._scopes)) if len(self._scopes) == 1 else None
        return LogFacts(
            batch, length, self._one("world_size"), self._one("consumed tokens") or product, scope
        )

    def _one(self, *names: str) -> int | None:
        """What the first that is said at all always says."""
        for name in names:
            if values := self._notes.get(name):
                return (next(iter(values)) or None) if len(values) == 1 else None
        return None

    def _flush(self) -> None:
        if self._lines:
            self._chunks.append(pl.DataFrame(self._lines, schema=SCHEMA, orient="row"))
            self._lines = []


def _last_of_each(rows: pl.DataFrame, name: str) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Every step once: a run that starts again logs some twice, and goes on from the latter."""
    stepped = rows.filter(pl.col("step").is_not_null())
    once = stepped.unique("step", keep="last", maintain_order=True).sort("step")
    unnumbered = rows.filter(pl.col("step").is_null())
    notes: list[str] = []
    changed = stepped.unique().height - once.height
    if changed:
        notes.append(
            Message(
                "{file}: {changed} line(s) differ from a later line of the same step (a "
                "restart, or several logging ranks): the last one is used",
                file=name,
                changed=changed,
            )
        )
    if unnumbered.height:
        notes.append(
            Message(
                "{file}: {height} line(s) have no step number: their step is unknown",
                file=name,
                height=unnumbered.height,
            )
        )
    return pl.concat([once, unnumbered]), tuple(notes)


def _telling_lines(
    path: Path,
    size_bytes: int | None = None,
    advance: Callable[[int], None] = lambda n_bytes: None,
    *,
    begin_bytes: int = 0,
) -> Iterator[tuple[bytes, bool]]:
    """Lines with one of the marks in them, and whether they have ended."""
    for block, is_ended in _blocks(path, size_bytes, advance, begin_bytes):
        marks: dict[int, int] = {}
        for mark in MARKS:
            at = block.find(mark)
            while at >= 0:
                end = block.find(b"\n", at)
                end = len(block) if end < 0 else end
                marks[block.rfind(b"\n", 0, at) + 1] = end
                at = block.find(mark, end)
        for start, end in sorted(marks.items()):
            if end - start <= _LINE_BYTES:
                yield block[start:end], is_ended


def _blocks(
    path: Path, size_bytes: int | None, advance: Callable[[int], None], begin_bytes: int
) -> Iterator[tuple[bytes, bool]]:
    """The file in blocks of whole lines; what is left when it does not end with one comes last.

    A carriage return ends a line too: progress bars write over themselves that way.
    """
    try:
        file = open_regular(path)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise TraceNotFound(
            f"{path}: no training log here: give the file with your job's output"
        ) from error
    rest, is_inside = b"", False
    with file:
        if history := _history(file) if not begin_bytes else b"":
            advance(os.fstat(file.fileno()).st_size)
            yield history, True
            return
        file.seek(begin_bytes)
        left = os.fstat(file.fileno()).st_size if size_bytes is None else size_bytes
        while left > 0 and (block := file.read(min(_BLOCK_BYTES, left))):
            left -= len(block)
            advance(len(block))
            block = rest + block.replace(b"\r", b"\n")
            cut = block.rfind(b"\n") + 1
            begin = block.find(b"\n") + 1 if is_inside else 0
            is_inside = is_inside and not cut
            if cut:
                yield block[begin:cut], True
            rest = b"" if is_inside else block[cut:]
            if len(rest) > _LINE_BYTES:
                rest, is_inside = b"", True
    if rest:
        yield rest, False


def _history(file: BinaryIO) -> bytes:
    """The lines of a `trainer_state.json`, which Hugging Face's Trainer writes in one piece; none
    where the file is something else. Its start is where it was."""
    head = file.read(_HEAD_BYTES)
    is_state = head.lstrip().startswith(b"{") and b'"log_history"' in head
    content = head + file.read(_STATE_BYTES) if is_state else b""
    file.seek(0)
    try:
        history = json.loads(content).get("log_history") if content else None
    except (ValueError, RecursionError):
        return b""
    return "".join(
        f"{json.dumps(one)}\n" for one in history or () if isinstance(one, dict)
    ).encode()


def _nothing_logged(path: str | Path) -> TraceFormatError:
    if Path(path).is_file():
        with open_regular(path) as file:
            head = file.read(8)
        if head.startswith(_COMPRESSION_MARKS):
            return TraceFormatError(path, "a compressed file", "unpack it, and give the text")
    return TraceFormatError(
        path,
        "no logged step",
        "no line such as ` iteration 10/ 500 | elapsed time per iteration (ms): ... |`, `step: 10"
        " loss: ... tps: ...` or `{'loss': ..., 'learning_rate': ...}`: give the output of the rank"
        " that prints them (Megatron: the last one)",
    )
