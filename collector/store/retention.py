"""Old captures go, by age or by size: the oldest first, never the newest.

A capture is as old as the end of its profiling, or as its publishing where it has no wall clock.
It vanishes for readers at once; its files go when nobody can be reading them any more.

What went out is kept in mind, so that no watcher puts it back:

    <store>/dropped.json     {"until_ns": {run: ...}, "captures": [[run, capture], ...]}

The profiles of dropped captures often still lie where they were read from. The oldest captures go
first, so one time for each run tells them all; names are kept for those whose profiles have no
wall clock.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

from ..small_files import decode, read_own
from ..wall_clock import wall_clock_ns
from .folder_handles import captures
from .manifest import (
    DROPPED_FILE,
    Manifest,
    capture_manifests,
    folder_value,
    update,
    write_atomically,
)
from .sweep import finish_drop, size_bytes

_DAY_NS = 86_400 * 10**9


@dataclass(frozen=True, slots=True)
class StoredCapture:
    """A capture of a store: its folder, when it was recorded, its ranks and bytes on disk."""

    run: str
    capture: str
    folder: str
    recorded_ns: int
    rank_count: int
    size_bytes: int


def stored_captures(store: Path) -> list[StoredCapture]:
    """Every capture with published ranks, the oldest first."""
    stored: list[StoredCapture] = []
    for folder in captures(store):
        ranks = capture_manifests(folder)
        if ranks:
            stored.append(
                StoredCapture(
                    folder_value(folder.parent.name),
                    folder_value(folder.name),
                    str(folder),
                    max(map(recorded_ns, ranks)),
                    len(ranks),
                    size_bytes(folder),
                )
            )
    return sorted(stored, key=lambda one: (one.recorded_ns, one.run, one.capture))


def recorded_ns(manifest: Manifest) -> int:
    """When a rank was recorded: the end of its profiling, else its publishing, in ns since 1970."""
    ended_ns = wall_clock_ns(manifest.window_end_ns)
    if ended_ns is not None:
        return ended_ns
    try:
        return int(datetime.fromisoformat(manifest.published_at).timestamp() * 10**9)
    except (ValueError, OverflowError):  # nobody can tell: not old
        return time.time_ns()


def superfluous(
    captures: list[StoredCapture],
    *,
    now_ns: int,
    keep_days: float | None = None,
    keep_bytes: int | None = None,
) -> list[StoredCapture]:
    """Of captures in order of age those to drop: too old, or too many bytes with all younger ones.

    Never the newest, whatever its age and size.
    """
    dropped: list[StoredCapture] = []
    total_bytes = sum(one.size_bytes for one in captures)
    for one in captures[:-1]:
        is_old = keep_days is not None and now_ns - one.recorded_ns > keep_days * _DAY_NS
        is_much = keep_bytes is not None and total_bytes > keep_bytes
        if is_old or is_much:
            dropped.append(one)
            total_bytes -= one.size_bytes
    return dropped


def drop_capture(one: StoredCapture) -> None:
    """Take a capture out of the store: for readers all its ranks go at once."""
    folder = Path(one.folder)
    write_atomically(folder / DROPPED_FILE, b"dropped\n")
    finish_drop(folder)


DROPPED_CAPTURES = "dropped.json"
_NAMES = 1000


class _DroppedCaptures(msgspec.Struct, frozen=True):
    """By run, when its newest dropped capture ended (ns since 1970); (run, capture) of the last."""

    until_ns: dict[str, int] = {}
    captures: tuple[tuple[str, str], ...] = ()

    def has(self, run: str, capture: str, ended_ns: int | None) -> bool:
        """Whether a profile that ended then, of that capture, was dropped."""
        ended_ns = wall_clock_ns(ended_ns)
        if ended_ns is not None:
            return ended_ns <= (wall_clock_ns(self.until_ns.get(run)) or 0)
        return (run, capture) in self.captures


def read_dropped(store: Path) -> _DroppedCaptures:
    """What was dropped; nothing where the file is absent or damaged."""
    try:
        return read_own(store / DROPPED_CAPTURES, _DroppedCaptures)
    except (OSError, msgspec.MsgspecError):
        return _DroppedCaptures()


def remember_dropped(store: Path, captures: Iterable[StoredCapture]) -> None:
    """Add captures that are about to be dropped. Raises OSError."""
    dropped = list(captures)

    def add(content: bytes | None) -> bytes | None:
        former = _DroppedCaptures()
        with contextlib.suppress(msgspec.MsgspecError):
            former = decode(content or b"", _DroppedCaptures)
        until_ns, names = dict(former.until_ns), dict.fromkeys(former.captures)
        for one in dropped:
            # Never beyond now, as all that is still to come would count as dropped.
            former_ns = wall_clock_ns(until_ns.get(one.run)) or 0
            until_ns[one.run] = min(max(former_ns, one.recorded_ns), time.time_ns())
            names[one.run, one.capture] = None
        capture_list = _DroppedCaptures(until_ns, tuple(names)[-_NAMES:])
        return msgspec.json.encode(capture_list) if capture_list != former else None

    update(store / DROPPED_CAPTURES, add)
