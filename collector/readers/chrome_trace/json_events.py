"""Chrome-trace JSON of any size as decoded pieces, in bounded memory.

    [ {...}, {...}, {...}, {...}, {...}  ]        a bare array, or {"traceEvents": [...], ...}
      `------piece------' `---piece---' `tail

The file is read in chunks and cut where one event ends and the next begins: `}` `,` `{"`. Such a
cut may lie inside a string or a nested array; then the piece before it is no whole JSON, and is
joined with what follows. A piece that stays broken, or that nothing which follows could make whole,
is taken apart event by event: what decodes is kept, the rest is counted.

A whole array can also be cut into ranges, so that several processes read one file:

    [ {...}, {...}, | {...}, {...}, | {...}, {...} ]
      `---range---'   `---range---'   `--range---'

A cut is recognised by decoding what follows it. In a string every quote is escaped, so `}, {"` can
only stand at a string's end there, and what follows is no event. Behind a cut within an event's
nested array events may seem to follow; then the range before it does not end with a whole event.
That, and any other damage, is `TornRead`: such a file has to be read in one go.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Generic, TypeVar

from npuscope.errors import TraceFormatError

from ...model import ReadLog
from ...small_files import decompress, open_regular

Event = TypeVar("Event")
# `[...]` -> its events; ValueError unless the text is one whole JSON array, Broken if it is torn.
Decode = Callable[[bytes], list[Event]]

CHUNK_BYTES = 256 << 10
JOIN_BYTES = 16 << 20
_TRIES = 8  # spans tried together, and places tried inside one, before it is given up
_TOGETHER = 1024
_END_TRIES = 64
_PATIENCE = 64
# Of a file that is cut into ranges: what is looked at of its ends, and around each cut.
_EDGE_BYTES = 1 << 16
_WINDOW_BYTES = 1 << 20
_CANDIDATES = 16

BLANK = b" \t\r\n\0"
BOUNDARY = re.compile(rb'\}[ \t\r\n]*,[ \t\r\n]*(?=\{[ \t\r\n]*(?:"|\Z))')
_EVENT_START = re.compile(rb'\{[ \t\r\n]*"(?:ph|name|pid|tid|ts|dur|cat|id|bp|args)"[ \t\r\n]*:')
_CLOSE = re.compile(rb"\}")
_ANOTHER = re.compile(rb"[ \t\r\n\0,]*\[")
_ARRAY_END = re.compile(rb"\}[ \t\r\n]*(?=\])")
_TRACE_EVENTS = re.compile(rb'"traceEvents"[ \t\r\n]*:[ \t\r\n]*\[')


class Broken(ValueError):
    """A text is no whole array, and would be none whatever stood before its last bracket."""


def read_events(
    path: str,
    decode: Decode[Event],
    log: ReadLog,
    advance: Callable[[int], None],
    *,
    chunk_bytes: int = CHUNK_BYTES,
    join_bytes: int = JOIN_BYTES,
) -> Iterator[list[Event]]:
    """Lists of events of the file, in file order.

    Memory stays within a few times `join_bytes`, which bounds the size of one event. What is cut
    off or broken is counted in `log`; an empty file has no events. Raises TraceFormatError for a
    file that is no trace at all.
    """
    chunks = _chunks(path, log, advance, chunk_bytes)
    data, is_object = _open_array(path, chunks, log, join_bytes)
    if data is None:
        return
    reading = _Reading(decode, is_object)
    waiting, size, try_at = [data], len(data), 0
    for chunk in chunks:
        if reading.is_over:
            continue
        is_torn = False
        cut = _last_boundary(chunk)
        if cut is not None and size + len(chunk) >= try_at:
            events, is_torn = _try_decode(reading.decode, *waiting, memoryview(chunk)[: cut[0]])
            if events is not None:
                yield events
                waiting, try_at = [chunk[cut[1] :]], 0
                size = len(waiting[0])
                continue
            # An event goes on, or is torn: trying every chunk would copy what waits every time.
            try_at = 2 * (size + len(chunk))
        waiting.append(chunk)
        size += len(chunk)
        if is_torn or size > join_bytes:
            events, data = _salvage(reading, b"".join(waiting), keep_bytes=join_bytes // 2)
            yield events
            waiting, size, try_at = [data], len(data), 0
    yield _last(reading, b"".join(waiting))
    _tell_losses(reading, path, log)


@dataclass(slots=True)
class _Reading(Generic[Event]):
    """What is known of a file while it is read."""

    decode: Decode[Event]
    is_object: bool  # {"traceEvents": [...], ...}: what follows the array is no event
    has_ended: bool = False  # the array's ] was met
    lost_bytes: int = 0
    lost_places: int = 0
    failures: int = 0  # in a row: garbage that looks like many events must not cost many tries each

    @property
    def is_over(self) -> bool:
        return self.has_ended and self.is_object


def _whole(
    decode: Decode[Event], *parts: bytes | memoryview, end: bytes = b"]"
) -> list[Event] | None:
    """Events of a text in parts that lacks but its brackets to be an array; None if it is none."""
    return _try_decode(decode, *parts, end=end)[0]


def _try_decode(
    decode: Decode[Event], *parts: bytes | memoryview, end: bytes = b"]"
) -> tuple[list[Event] | None, bool]:
    """As `_whole`, and whether the text is torn: to wait for what follows would not help."""
    try:
        return decode(b"".join((b"[", *parts, end))), False
    except Broken:
        return None, True
    except ValueError:
        return None, False


def _last(reading: _Reading[Event], data: bytes) -> list[Event]:
    """Events of the file's end, which is `{...}]`, or should be."""
    if reading.is_over:
        return []
    body = data.rstrip(BLANK)
    events = _whole(reading.decode, body, end=b"")
    if events is not None:
        reading.has_ended = True
        return events
    events = _whole(reading.decode, body.rstrip(b","))
    return events if events is not None else _salvage(reading, body, keep_bytes=0)[0]


def _salvage(
    reading: _Reading[Event], data: bytes, *, keep_bytes: int
) -> tuple[list[Event], bytes]:
    """Events of broken text, and its end where that may go on in the text to come.

    A span between two boundaries is an event or, where a boundary was false, a part of one: so up
    to `_TRIES` neighbours are tried together. The end is handed back only while it is no longer
    than `keep_bytes`: so every call makes progress.
    """
    salvaged_events: list[Event] = []
    spans = _spans(data, 0)
    ahead: deque[tuple[int, int]] = deque()
    together = 1  # spans decoded at once, ever more as long as they are whole events
    while not reading.is_over:
        ahead.extend(islice(spans, max(0, max(_TRIES, together) - len(ahead))))
        if not ahead:
            break
        start, end = ahead[0]
        if together > 1:
            count = min(together, len(ahead))  # no more: a torn place ahead would fail each try
            events = _whole(reading.decode, data[start : ahead[count - 1][1]])
            if events is not None:
                salvaged_events += events
                for _ in range(count):
                    ahead.popleft()
            together = min(2 * together, _TOGETHER) if events is not None else 1
            continue
        patient = reading.failures < _PATIENCE
        for count in range(1, 1 + (min(len(ahead), _TRIES) if patient else 1)):
            events = _whole(reading.decode, data[start : ahead[count - 1][1]])
            if events is not None:
                salvaged_events += events
                reading.failures, together = 0, 2
                for _ in range(count):
                    ahead.popleft()
                break
        else:
            piece = data[start : ahead[min(len(ahead), _TRIES) - 1][1]]
            array_end = _array_end(reading, piece, salvaged_events) if patient else None
            if array_end is not None:
                ahead.clear()
                spans = _spans(data, start + array_end)
            elif len(ahead) < _TRIES and len(data) - start <= keep_bytes:
                return salvaged_events, data[start:]
            else:
                reading.failures += 1
                ahead.popleft()
                _drop(reading, data[start:end], salvaged_events)
    return salvaged_events, b""


def _spans(data: bytes, start: int) -> Iterator[tuple[int, int]]:
    """Start and end of what stands between boundaries."""
    for match in BOUNDARY.finditer(data, start):
        yield start, match.start() + 1
        start = match.end()
    yield start, len(data)


def _array_end(reading: _Reading[Event], text: bytes, batch: list[Event]) -> int | None:
    """Where to go on behind the array's closing bracket, if whole events lead to it."""
    ends = (match.start() + 1 for match in islice(_ARRAY_END.finditer(text), _END_TRIES))
    for end in (0, *ends):
        bracket = end + len(text[end:]) - len(text[end:].lstrip(BLANK))
        if text[bracket : bracket + 1] == b"]":
            events = _whole(reading.decode, text[:end])
            if events is not None:
                batch += events
                reading.has_ended = True
                another = _ANOTHER.match(text, bracket + 1)
                return another.end() if another else bracket + 1
    return None


def _drop(reading: _Reading[Event], text: bytes, batch: list[Event]) -> None:
    """Count a broken span as lost, but for events that stand before, between or behind garbage."""
    done = 0
    for match in islice(_EVENT_START.finditer(text), _TRIES):
        start = match.start()
        if start < done:
            continue
        for close in islice(_CLOSE.finditer(text, start), _TRIES):
            candidate = text[start : close.end()]
            events = _whole(reading.decode, candidate) if b'"ph"' in candidate else None
            if events is not None:
                batch += events
                _lose(reading, text[done:start])
                done = close.end()
                break
    _lose(reading, text[done:])


def _lose(reading: _Reading[Event], text: bytes) -> None:
    lost = text.lstrip(BLANK + b",").rstrip(BLANK)
    if lost:
        reading.lost_bytes += len(lost)
        reading.lost_places += 1


def _tell_losses(reading: _Reading[Event], path: str, log: ReadLog) -> None:
    log.bytes_lost += reading.lost_bytes
    if not reading.has_ended:
        log.lose(
            path,
            "the closing ] is missing (the analysis was interrupted): read up to the last"
            " complete event, {lost_bytes} bytes lost",
            lost_bytes=reading.lost_bytes,
        )
    elif reading.lost_bytes:
        log.lose(
            path,
            "{lost_bytes} bytes in {lost_places} place(s) are not complete events and "
            "were left out",
            lost_bytes=reading.lost_bytes,
            lost_places=reading.lost_places,
        )


def _last_boundary(data: bytes) -> tuple[int, int] | None:
    """End of the event before the last boundary, and start of the one behind it."""
    window = 1 << 12
    while True:
        boundaries = deque(BOUNDARY.finditer(data, max(0, len(data) - window)), maxlen=1)
        if boundaries:
            return boundaries[0].start() + 1, boundaries[0].end()
        if window >= len(data):
            return None
        window *= 8


def _open_array(
    path: str, chunks: Iterator[bytes], log: ReadLog, limit_bytes: int
) -> tuple[bytes | None, bool]:
    """What follows the array's opening bracket, and whether an object holds the array."""
    head = b""
    for chunk in chunks:
        head = (head + chunk).removeprefix(b"\xef\xbb\xbf").lstrip(BLANK)
        if head.startswith(b"["):
            return head[1:], False
        if head.startswith(b"{") and (match := _TRACE_EVENTS.search(head)):
            return head[match.end() :], True
        if len(head) > limit_bytes:
            break
    if not head:
        log.lose(path, "empty file")
        return None, False
    match = _EVENT_START.search(head)
    if match is None:
        raise TraceFormatError(path, "start", f"not an array of trace events, but {head[:40]!r}")
    log.bytes_lost += match.start()
    log.lose(
        path,
        "the opening [ is missing; {start} bytes before the first event lost",
        start=match.start(),
    )
    return head[match.start() :], False


def _chunks(
    path: str, log: ReadLog, advance: Callable[[int], None], chunk_bytes: int
) -> Iterator[bytes]:
    """The file's bytes, unpacked where it is packed; `advance` gets bytes of the file."""
    with open_regular(path) as raw:
        stream = decompress(raw)
        count, ends = 0, False
        while not ends:
            pieces: list[bytes] = []
            missing = chunk_bytes
            try:
                # One piece after the other, as what comes before damage must not go with it.
                while missing and (piece := stream.read1(missing)):
                    pieces.append(piece)
                    missing -= len(piece)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                log.lose(path, "packed data ends early: {error}", error=str(error))
                ends = True
            position = raw.tell()
            advance(position - count)
            count = position
            if pieces:
                yield b"".join(pieces)
            else:
                ends = True


class TornRead(Exception):
    """The range is no sequence of whole events."""


def ranges(path: str, count: int, decode: Decode[Event]) -> list[tuple[int, int]]:
    """Start and end of up to `count` parts of about the same size, or none.

    None where the file is packed, does not begin and end as an array does, or an object that holds
    one, or is too small.
    """
    size = Path(path).stat().st_size
    if path.endswith(".gz") or size < 4 * count * _WINDOW_BYTES:
        return []
    with open_regular(path) as file:
        head = file.read(_EDGE_BYTES)
        file.seek(size - _EDGE_BYTES)
        tail = file.read(_EDGE_BYTES)
        bounds = _bounds(head, tail)
        if bounds is None:
            return []
        start, end = bounds[0], size - len(tail) + bounds[1]
        cuts = [start]
        for part in range(1, count):
            near = start + (end - start) * part // count
            file.seek(near)
            place = _cut(file.read(_WINDOW_BYTES), decode)
            if place is None:
                return []
            cuts.append(near + place)
    return list(zip(cuts, [*cuts[1:], end], strict=True))


def _bounds(head: bytes, tail: bytes) -> tuple[int, int] | None:
    """Where the array's events begin in a file's head, and where they end in its tail."""
    opened, closed = head.removeprefix(b"\xef\xbb\xbf").lstrip(BLANK), tail.rstrip(BLANK)
    if opened[:1] == b"[" and closed[-1:] == b"]":
        return len(head) - len(opened) + 1, len(closed) - 1
    begins, ends = _TRACE_EVENTS.search(head), [*_ARRAY_END.finditer(closed)]
    if opened[:1] == b"{" and closed[-1:] == b"}" and begins and ends:
        end = ends[-1].end()
        if b"{" not in closed[end:]:  # what stands behind the array is small and flat
            return begins.end(), end
    return None


def _cut(window: bytes, decode: Decode[Event]) -> int | None:
    """Where the first event begins that surely is one."""
    boundaries = list(islice(BOUNDARY.finditer(window), _CANDIDATES))
    for place, boundary in enumerate(boundaries):
        for following in boundaries[place + 1 :]:
            if _whole(decode, window[boundary.end() : following.start() + 1]) is not None:
                return boundary.end()
    return None


def read_range(
    path: str,
    start: int,
    end: int,
    decode: Decode[Event],
    advance: Callable[[int], None],
    *,
    chunk_bytes: int = CHUNK_BYTES,
) -> Iterator[list[Event]]:
    """Lists of the events between two cuts, in file order; TornRead where these are not whole."""
    left, data = end - start, b""
    with open_regular(path) as file:
        file.seek(start)
        while left:
            chunk = file.read(min(chunk_bytes, left))
            left -= len(chunk)
            advance(len(chunk))
            if not chunk or len(data) > JOIN_BYTES:
                raise TornRead(path)
            cut = _last_boundary(chunk)
            events = None
            if cut is not None and left:
                events = _whole(decode, data, chunk[: cut[0]])
            if events is None or cut is None:
                data += chunk
                continue
            yield events
            data = chunk[cut[1] :]
    events = _whole(decode, data.rstrip(BLANK).removesuffix(b","))
    if events is None:
        raise TornRead(path)
    yield events
