"""When msprof collected, by start_info and end_info: on the epoch's clock and on the machine's.

    start_info.0  {"collectionTimeBegin": "1692340024324979", "clockMonotonicRaw": "56579931060630"}
    end_info.0    {"collectionTimeEnd":   "1692340082430569", "clockMonotonicRaw": "56638036649460"}

Collection times are microseconds, the other clock's are nanoseconds. Exports until 2023 tell the
times of events on the machine's clock.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from ..small_files import read_small
from .captures import EPOCH_FROM_NS
from .msprof_layout import device_of


def session_ns(paths: Iterable[str], event_ns: int) -> tuple[int, int] | None:
    """First and last ns of the session on the clock that an event has; None where nothing tells.

    A device's own files are believed before the host's. A session that does not hold the event is
    of another clock, and tells nothing.
    """
    ordered = sorted(paths, key=lambda path: device_of(path) is None)
    begins = [_readings(path, "collectionTimeBegin") for path in ordered if _is(path, "start")]
    ends = [_readings(path, "collectionTimeEnd") for path in ordered if _is(path, "end")]
    for begin, end in zip(begins, ends, strict=False):
        for start_ns, end_ns in zip(begin, end, strict=True):
            if start_ns is None or end_ns is None or not 0 < start_ns < end_ns:
                continue
            if (start_ns >= EPOCH_FROM_NS) != (event_ns >= EPOCH_FROM_NS) and event_ns:
                continue
            if not event_ns or start_ns <= event_ns <= end_ns:
                return start_ns, end_ns
    return None


def _is(path: str, which: str) -> bool:
    return Path(path).name.startswith(f"{which}_info")


def _readings(path: str, key: str) -> tuple[int | None, int | None]:
    """ns on the epoch's clock and on the machine's."""
    try:
        told = json.loads(read_small(path))
    except (OSError, ValueError, RecursionError):
        return None, None
    if not isinstance(told, dict):
        return None, None
    wall = _digits(told.get(key))
    if wall is not None and wall < EPOCH_FROM_NS // 10:
        wall *= 1000
    return wall, _digits(told.get("clockMonotonicRaw"))


def _digits(value: object) -> int | None:
    text = str(value).strip()
    return int(text) if text.isdecimal() and len(text) < 20 else None
