"""Orders of passes as a small text file: what each device runs after what.

    # two stages, three micro-batches
    path 0 1
    0: F0 F1 BW0 F2 BW1 BW2
    1: F0 BW0 F1 BW1 F2 BW2

A line for each device. F3 is the forward of micro-batch 3, BW3 its backward; where that is split,
B3 makes the gradients of inputs (the stage before waits for it) and W3 those of weights. F3.1 is of
the device's chunk 1 (else 0). F4+BW1 run beside each other. `path` lists the places, device.chunk,
that a micro-batch passes forward; without one it is all devices, chunk by chunk. Two paths: one for
either half of the micro-batches. Text after # is a remark.
"""

from __future__ import annotations

import re
from collections import Counter
from fractions import Fraction
from pathlib import Path

from npuscope.errors import TraceFormatError, TraceNotFound, UsageError

from ..schedules import Kind, Pass, Schedule

_KINDS: dict[str, Kind] = {"F": "F", "BW": "BW", "B": "B", "W": "W"}
_PASS = re.compile(r"(F|BW|B|W)(\d{1,6})(?:\.(\d{1,3}))?")
_DEVICE = re.compile(r"(\d{1,6})\s*:(.*)", re.S)
_PLACE = re.compile(r"(\d{1,6})(?:\.(\d{1,3}))?")
_MOST_BYTES = 50_000_000


def read_order(path: Path) -> Schedule:
    """The schedule that a file describes; it has the file's name. Raises TraceNotFound and
    TraceFormatError where it cannot be read, and UsageError for what it says, with the number of
    the line where that can be said."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{path}: an order of passes has {_MOST_BYTES:,} bytes at most")
        text = path.read_text("utf-8")
    except OSError as error:
        raise TraceNotFound(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise TraceFormatError(path, f"byte {error.start}", "is no text in UTF-8") from None
    return parse_order(text, str(path), path.stem)


def parse_order(text: str, source: str, name: str) -> Schedule:
    """The schedule that a text describes; `source` is what errors call it. Raises UsageError."""
    orders: dict[int, tuple[tuple[Pass, ...], ...]] = {}
    routes: list[tuple[tuple[int, int], ...]] = []
    lines: dict[int, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split("#", 1)[0].strip()
        at = f"{source}: line {number}"
        if not words:
            continue
        if words.split()[0] == "path":
            routes.append(tuple(_place(word, at) for word in words.split()[1:]))
            continue
        match = _DEVICE.fullmatch(words)
        if match is None:
            raise UsageError(f"{at}: {words[:40]!r} is neither `DEVICE: PASSES` nor `path PLACES`")
        device = int(match[1])
        if device in orders:
            raise UsageError(f"{at}: device {device} has an order already, in line {lines[device]}")
        orders[device] = tuple(_entry(word, at) for word in match[2].split())
        lines[device] = number
    if not orders:
        raise UsageError(f"{source}: no device has an order: write lines such as `0: F0 BW0`")
    missing = set(range(max(orders) + 1)) - set(orders)
    if missing:
        raise UsageError(f"{source}: device {min(missing)} has no order: devices count from 0")
    ordered = tuple(orders[device] for device in range(len(orders)))
    chunks = 1 + max(
        (one.chunk for order in ordered for entry in order for one in entry), default=0
    )
    if not routes:
        routes = [tuple((d, chunk) for chunk in range(chunks) for d in range(len(ordered)))]
    share = Fraction(len(routes), chunks)
    schedule = Schedule(name, ordered, tuple(routes), share)
    _check(schedule, source, lines)
    return schedule


def _place(word: str, at: str) -> tuple[int, int]:
    match = _PLACE.fullmatch(word)
    if match is None:
        raise UsageError(f"{at}: {word[:40]!r} is no place: DEVICE or DEVICE.CHUNK, such as 2.1")
    return int(match[1]), int(match[2] or 0)


def _entry(word: str, at: str) -> tuple[Pass, ...]:
    passes = []
    for part in word.split("+"):
        match = _PASS.fullmatch(part)
        if match is None:
            raise UsageError(
                f"{at}: {part[:40]!r} is no pass: F, BW, B or W with a micro-batch, such as F3"
                " or BW3.1 (chunk 1)"
            )
        passes.append(Pass(_KINDS[match[1]], int(match[3] or 0), int(match[2])))
    if len(passes) > 2:
        raise UsageError(f"{at}: {word[:40]!r}: two passes at most run beside each other")
    return tuple(passes)


def _check(schedule: Schedule, source: str, lines: dict[int, int]) -> None:
    """Raises UsageError where a pass is there twice, or one is missing."""
    places = Counter(place for route in schedule.routes for place in route)
    twice = [place for place, count in places.items() if count > 1]
    if twice:
        raise UsageError(f"{source}: place {twice[0][0]}.{twice[0][1]} is on the path twice")
    batches: dict[tuple[int, int], dict[str, Counter[int]]] = {
        place: {kind: Counter() for kind in "FBW"} for place in places
    }
    for device, order in enumerate(schedule.orders):
        at = f"{source}: line {lines[device]}"
        for one in (one for entry in order for one in entry):
            counts = batches.get((device, one.chunk))
            if counts is None:
                raise UsageError(f"{at}: no path goes over place {device}.{one.chunk}")
            for kind in one.kind:  # BW is both
                counts[kind][one.micro_batch] += 1
                if counts[kind][one.micro_batch] > 1:
                    raise UsageError(
                        f"{at}: micro-batch {one.micro_batch} goes {_WORDS[kind]} chunk {one.chunk}"
                        " twice"
                    )
    for route in schedule.routes:
        expected = {one for place in route for one in batches[place]["F"]}
        for device, chunk in route:
            if device >= len(schedule.orders):
                raise UsageError(f"{source}: device {device} is on the path and has no order")
            for kind, there in batches[device, chunk].items():
                missing = expected - set(there)
                if missing:
                    raise UsageError(
                        f"{source}: line {lines[device]}: micro-batch {min(missing)} never goes"
                        f" {_WORDS[kind]} chunk {chunk}"
                    )


_WORDS = {
    "F": "forward through",
    "B": "backward through",
    "W": "backward for the weights of",
}
