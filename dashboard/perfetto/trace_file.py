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
import fcntl
import gzip
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import IO, cast

import duckdb

from npuscope import __version__
from npuscope.analysis.timeline.lanes import prepare_overlap
from npuscope.analysis.wording import number, ranks_named
from npuscope.collector.literals import engine_name
from npuscope.collector.selection import spans_of, spans_text
from npuscope.collector.staging import is_empty, scalar
from npuscope.collector.store.folder_handles import staging_name
from npuscope.collector.store.manifest import sync_folder
from npuscope.errors import StoreError, UsageError

from ..units import size_text
from .choice import Choice, Place
from .instants import ms_after_start, utc
from .rank_tables import Trace, opened_rank
from .trace_size import ExpectedTrace
from .tracks import KINDS, Track, source_of, tracks_of

_COUNTERS = ("memory", "counters")
_HEAD = '{"displayTimeUnit":"ns","otherData":{"producer":"npuscope'


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """Events of a trace by kind (`names`: of processes and threads), and its size on disk."""

    event_counts: dict[str, int]
    size_bytes: int


def write(trace: Trace, out: Path, expected: ExpectedTrace) -> TraceSummary:
    """Write a trace to `out`, compressed where its name ends in `.gz`.

    It takes its name when it is whole. Raises UsageError where `out` is something else than an
    earlier trace, StoreError where it cannot be written.
    """
    engine_name(out)  # spills beside it
    _refuse_foreign(out)
    workshop = out.with_name(f"{staging_name()}.{out.name}")
    places = trace.selection.places
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
    return TraceSummary(counts, size_bytes)


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


def _head(trace: Trace, expected: ExpectedTrace) -> str:
    """The trace up to its first event."""
    places, choice = trace.selection.places, trace.choice
    head: dict[str, object] = {
        "run": places[0].run,
        "capture": places[0].capture,
        "ranks": spans_text(spans_of(place.rank for place in places)),
        "tracks": ",".join(choice.tracks),
        "start_ns": str(expected.zero_ns),
    }
    if choice.steps is not None:
        head["steps"] = spans_text((choice.steps,))
    if trace.selection.clock == "epoch":
        head["start"] = utc(expected.zero_ns)
    head["ms_after_capture_start"] = ms_after_start(expected.zero_ns, trace.selection.start_ns)
    rest = json.dumps(head, ensure_ascii=False)[1:]
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


def process_names(rank: int, title: str) -> list[str]:
    """Events that name the process of a rank and put it in its place."""
    return [
        _name_event(rank, "process_name", {"name": title}),
        _name_event(rank, "process_sort_index", {"sort_index": rank}),
    ]


def first_thread_id(ranks: Iterable[int]) -> int:
    """Where thread ids begin: above all process ids, or viewers take one for its main thread."""
    digits = len(str(max(ranks)))
    return int("1" + "0" * max(2, digits)) + 1


def thread_names(rank: int, tracks: Iterable[Track]) -> list[str]:
    """Events that name the threads of tracks and put them in their places."""
    return [
        _name_event(rank, f"thread_{what}", {what: value}, track.number)
        for track in tracks
        for what, value in (("name", track.name), ("sort_index", track.number))
    ]


def _name_event(rank: int, what: str, args: Mapping[str, str | int], tid: int | None = None) -> str:
    event: dict[str, object] = {"ph": "M", "pid": rank}
    if tid is not None:
        event["tid"] = tid
    return json.dumps({**event, "name": what, "args": args}, separators=(",", ":"))


def slices_query(con: duckdb.DuckDBPyConnection, rank: int, source: str) -> str:
    """The query for the events of a source whose slices `tracks_of` gave their tracks."""
    rows = f"""
        ({source}) as s join timeline_tracks as t
        on t.key_a is not distinct from s.key_a and t.key_b is not distinct from s.key_b"""
    if not is_empty(con, "timeline_moved"):
        rows += """
        left join timeline_moved as m
        on m.track = t.track and m.start_ns = s.start_ns and m.end_ns = s.end_ns
        where t.lane = coalesce(m.lane, 0)"""
    return f"""
        select concat(
            ',{{"ph":"X","pid":{rank},"tid":', t.number,
            ',"ts":', us(s.start_ns - getvariable('timeline_zero_ns')),
            ',"dur":', us(s.end_ns - s.start_ns),
            ',"name":', to_json(s.name), ',"cat":', to_json(s.category), s.flow,
            ',"args":{{', s.args, '}}}}'
        ) from {rows}"""


def points_query(rank: int, source: str) -> str:
    """The query for the events of a source of counters."""
    return f"""
        select concat(
            ',{{"ph":"C","pid":{rank},"name":', to_json(name),
            ',"ts":', us(timestamp_ns - getvariable('timeline_zero_ns')), ',"args":{{', args, '}}}}'
        ) from ({source})"""


_PIPE_BYTES = 1 << 20


def stream_lines(con: duckdb.DuckDBPyConnection, query: str, file: IO[bytes]) -> int:
    """Append the one column of a query to a file, as it is, a line per row; returns the rows.

    Raises OSError where the file cannot be written.
    """
    out_end, in_end = os.pipe()
    with contextlib.suppress(OSError):  # fewer turns between the two threads
        fcntl.fcntl(in_end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    failures: list[OSError] = []
    pump = Thread(target=_pump, args=(out_end, file, failures))
    pump.start()
    # No quotes, no delimiters: rows are text without control characters.
    options = "format csv, header false, delimiter '\t', quote '', escape '', use_tmp_file false"
    rows = 0
    try:
        rows = int(scalar(con, f"copy ({query}) to '/dev/fd/{in_end}' ({options})"))
    except duckdb.IOException:
        if not failures:  # else the pipe broke because of it
            raise
    finally:
        os.close(in_end)
        pump.join()
    if failures:
        raise failures[0]
    return rows


def _pump(out_end: int, file: IO[bytes], failures: list[OSError]) -> None:
    """Move what comes out of a pipe to the end of a file, until its other end is closed."""
    try:
        while text := os.read(out_end, _PIPE_BYTES):
            file.write(text)
    except OSError as error:
        failures.append(error)
    finally:
        os.close(out_end)


# From here on a viewer is slow to open it; and beyond, most do not open it at all.
_LARGE_BYTES, _HUGE_BYTES = 300_000_000, 2_000_000_000
# The Perfetto UI, measured: 660 MB in 52 s and 1.7 GB, 1,980 MB in 163 s and 3.5 GB.
_OPENED_BYTES_PER_S = 12_000_000
_BROWSER_BYTES_PER_BYTE = 2.6


def before(trace: Trace, expected: ExpectedTrace) -> Iterator[str]:
    """What was asked for and is not there; clocks that do not agree; that it will be large."""
    content = trace.selection
    yield from content.messages
    if content.clock != "epoch" and len(content.places) > 1:
        yield (
            "note: not all ranks record wall-clock timestamps: their relative position has no"
            " meaning"
        )
    if expected.size_bytes < _LARGE_BYTES:
        return
    size = expected.size_bytes
    sentence = f"large: about {number(expected.event_count)} events, {size_text(size)}"
    if size < _HUGE_BYTES:
        seconds = size / _OPENED_BYTES_PER_S
        memory = size * _BROWSER_BYTES_PER_BYTE / 1e9
        sentence += f", which a browser opens in {seconds:,.0f} s and {memory:.1f} GB of memory"
    else:
        sentence += ", more than most browsers open"
    yield f"{sentence}; {' or '.join(_less(trace))} makes it smaller"


def _less(trace: Trace) -> Iterator[str]:
    """Options that choose less than now."""
    ranks = [place.rank for place in trace.selection.places]
    if len(ranks) > 1:
        yield f"--ranks {ranks[0]}"
    first, last = trace.choice.steps or (0, 1)
    if first < last and trace.choice.window_ns is None:
        first_step = trace.con.execute(
            "select min(step) from step_summary where run = ? and capture = ? and step >= ?",
            [trace.selection.places[0].run, trace.selection.places[0].capture, first],
        ).fetchall()
        if first_step[0][0] is not None:
            yield f"--steps {first_step[0][0]}"
    if trace.choice.window_ns is not None:
        yield "a shorter --window"
    yield "--tracks overlap,communication"


def written_line(trace: Trace, expected: ExpectedTrace, written: TraceSummary, out: Path) -> str:
    """What a trace holds, and which instant is its zero."""
    events = number(sum(written.event_counts.values()))
    ranks = ranks_named(place.rank for place in trace.selection.places)
    line = f"{out}: {events} events of {ranks}, {size_text(written.size_bytes)}"
    zero = utc(expected.zero_ns) if trace.selection.clock == "epoch" else None
    since = ms_after_start(expected.zero_ns, trace.selection.start_ns)
    line += f"; 0 is {zero}" if zero else ""
    if since is not None:
        line += f", {since} ms" if zero else f"; 0 is {since} ms"
        line += " after the capture's start"
    return f"{line}; open it with ui.perfetto.dev or chrome://tracing"
