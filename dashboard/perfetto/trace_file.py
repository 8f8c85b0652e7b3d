"""A capture as one Chrome trace: JSON that the Perfetto UI and chrome://tracing open.

    {"displayTimeUnit":"ns","otherData":{"producer":"npuscope 0.1.0",...},"traceEvents":[
    {"ph":"M","pid":3,"name":"process_name",...}       a process per rank, a thread per track
    ,{"ph":"X","pid":3,"tid":104,"ts":12.345,...}      a slice; us with digits down to one ns
    ,{"ph":"C","pid":3,"name":"memory PTA",...}        a point of a counter
    ]}

The engine builds the text of events, which goes through a pipe to its place in the file: neither
memory nor Python's time grows with the number of events.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import duckdb

from npuscope import __version__
from npuscope.analysis.overlap import prepare_overlap
from npuscope.collector.selection import spans_of, spans_text
from npuscope.collector.store.manifest import staging_name, sync_folder
from npuscope.errors import StoreError, UsageError

from .choice import Choice, Place
from .instants import ms_after_start, utc
from .rank_tables import Trace, opened_rank
from .text_stream import stream_lines
from .trace_size import Expected
from .trace_text import first_thread_id, points_query, process_names, slices_query, thread_names
from .tracks import KINDS, source_of, tracks_of

_COUNTERS = ("memory", "counters")
_HEAD = '{"displayTimeUnit":"ns","otherData":{"producer":"npuscope'


@dataclass(frozen=True, slots=True)
class Written:
    """Events of a trace by kind (`names`: of processes and threads), and its size on disk."""

    event_counts: dict[str, int]
    size_bytes: int


def write(trace: Trace, out: Path, expected: Expected) -> Written:
    """Write a trace to `out`, compressed where its name ends in `.gz`.

    It takes its name when it is whole. Raises UsageError where `out` is something else than an
    earlier trace, StoreError where it cannot be written.
    """
    _refuse_foreign(out)
    workshop = out.with_name(f"{staging_name()}.{out.name}")
    places = trace.chosen.places
    processes = [line for rank in places for line in process_names(rank.rank, rank.title)]
    counts = {"names": len(processes)}
    first_thread = first_thread_id(rank.rank for rank in places)
    try:
        workshop.mkdir(0o700, parents=True)  # only the last one is private
        whole = workshop / "trace"
        with _text_file(whole, compressed=out.suffix == ".gz") as file:
            file.write((_head(trace, expected) + ",\n".join(processes) + "\n").encode())
            for rank in places:
                with opened_rank(trace, rank, expected, workshop / "spill") as con:
                    written = _write_rank(con, file, rank, trace.choice, first_thread)
                    for kind, count in written:
                        counts[kind] = counts.get(kind, 0) + count
            file.write(b"]}\n")
        size_bytes = whole.stat().st_size
        whole.replace(out)
        sync_folder(out.parent)
    except OSError as error:
        raise StoreError(f"{out}: cannot be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(workshop, ignore_errors=True)
    return Written(counts, size_bytes)


def _kinds(choice: Choice) -> list[str]:
    return [kind for kind, tracks in KINDS.items() if tracks in choice.tracks]


def _counters(choice: Choice) -> list[str]:
    return [kind for kind in _COUNTERS if kind in choice.tracks]


def _write_rank(
    con: duckdb.DuckDBPyConnection,
    file: IO[bytes],
    rank: Place,
    choice: Choice,
    number: int,
) -> Iterator[tuple[str, int]]:
    """Write a rank's tracks, numbered from `number`; yields kinds with their number of events."""
    for kind in _kinds(choice):
        source = source_of(kind)
        if kind == "overlap":
            pieces = prepare_overlap(
                con, (rank.run, rank.capture, rank.rank), rank.from_ns, rank.to_ns
            )
            source = source.replace("_pieces", pieces)
        tracks = tracks_of(con, kind, source, number)
        number += len(tracks)
        if not tracks:
            continue
        lines = thread_names(rank.rank, tracks)
        file.write("".join(f",{line}\n" for line in lines).encode())
        yield "names", len(lines)
        yield kind, stream_lines(con, slices_query(con, rank.rank, source), file)
    for kind in _counters(choice):
        yield kind, stream_lines(con, points_query(rank.rank, source_of(kind)), file)


def _head(trace: Trace, expected: Expected) -> str:
    """The trace up to its first event."""
    places, choice = trace.chosen.places, trace.choice
    told: dict[str, object] = {
        "run": places[0].run,
        "capture": places[0].capture,
        "ranks": spans_text(spans_of(place.rank for place in places)),
        "tracks": ",".join(choice.tracks),
        "start_ns": str(expected.zero_ns),
    }
    if choice.steps is not None:
        told["steps"] = spans_text((choice.steps,))
    if trace.chosen.clock == "epoch":
        told["start"] = utc(expected.zero_ns)
    told["ms_after_capture_start"] = ms_after_start(expected.zero_ns, trace.chosen.start_ns)
    rest = json.dumps(told, ensure_ascii=False)[1:]
    return f'{_HEAD} {__version__}",{rest},"traceEvents":[\n'


def _refuse_foreign(out: Path) -> None:
    """Only an earlier trace may be replaced."""
    if not out.exists():
        return
    opener = gzip.open if out.suffix == ".gz" else open
    try:
        with opener(out, "rb") as file:
            if file.read(len(_HEAD)) == _HEAD.encode():
                return
    except (OSError, EOFError):
        pass
    raise UsageError(f"{out}: exists and is no earlier trace of npuscope: give another -o")


@contextlib.contextmanager
def _text_file(path: Path, *, compressed: bool) -> Iterator[IO[bytes]]:
    """A file to write text to; nothing in it tells when or where it was compressed."""
    with path.open("wb") as raw:
        if not compressed:
            yield raw
            return
        with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=raw, mtime=0) as file:
            yield cast(IO[bytes], file)
