"""One whole array of events cut into ranges, so that several processes read one file.

    [ {...}, {...}, | {...}, {...}, | {...}, {...} ]
      `---range---'   `---range---'   `--range---'

A cut is recognised by decoding what follows it. In a string every quote is escaped, so `}, {"` can
only stand at a string's end there, and what follows is no event. Behind a cut within an event's
nested array events may seem to follow; then the range before it does not end with a whole event.
That, and any other damage, is `Torn`: such a file has to be read in one go (see json_events).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from .json_events import (
    BLANK,
    BOUNDARY,
    CHUNK_BYTES,
    JOIN_BYTES,
    TRACE_EVENTS,
    Decode,
    Event,
    last_boundary,
)

_EDGE_BYTES = 1 << 16
_WINDOW_BYTES = 1 << 20
_CANDIDATES = 16
_ARRAY_END = re.compile(rb"\}[ \t\r\n]*\]")


class Torn(Exception):
    """The range is no sequence of whole events."""


def ranges(path: str, count: int, decode: Decode[Event]) -> list[tuple[int, int]]:
    """Start and end of up to `count` parts of about the same size, or none.

    None where the file is packed, does not begin and end as an array does, or an object that holds
    one, or is too small.
    """
    size = Path(path).stat().st_size
    if path.endswith(".gz") or size < 4 * count * _WINDOW_BYTES:
        return []
    with Path(path).open("rb") as file:
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
    begins, ends = TRACE_EVENTS.search(head), [*_ARRAY_END.finditer(closed)]
    if opened[:1] == b"{" and closed[-1:] == b"}" and begins and ends:
        end = ends[-1].end() - 1
        if b"{" not in closed[end:]:  # what stands behind the array is small and flat
            return begins.end(), end
    return None


def _cut(window: bytes, decode: Decode[Event]) -> int | None:
    """Where the first event begins that surely is one."""
    boundaries = list(islice(BOUNDARY.finditer(window), _CANDIDATES))
    for place, boundary in enumerate(boundaries):
        for following in boundaries[place + 1 :]:
            try:
                decode(b"[" + window[boundary.end() : following.start() + 1] + b"]")
            except ValueError:
                continue
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
    """Lists of the events between two cuts, in file order; Torn where these are not whole."""
    left, data = end - start, b""
    with Path(path).open("rb") as file:
        file.seek(start)
        while left:
            chunk = file.read(min(chunk_bytes, left))
            left -= len(chunk)
            advance(len(chunk))
            if not chunk or len(data) > JOIN_BYTES:
                raise Torn(path)
            cut = last_boundary(chunk)
            events = None
            if cut is not None and left:
                events = _whole(decode, data + chunk[: cut[0]])
            if events is None or cut is None:
                data += chunk
                continue
            yield events
            data = chunk[cut[1] :]
    events = _whole(decode, data.rstrip(BLANK).removesuffix(b","))
    if events is None:
        raise Torn(path)
    yield events


def _whole(decode: Decode[Event], text: bytes) -> list[Event] | None:
    try:
        return decode(b"[" + text + b"]")
    except ValueError:
        return None
