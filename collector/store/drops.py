"""What went out of a store by age or size, so that no watcher puts it back.

    <store>/dropped.json     {"until_ns": {run: ...}, "captures": [[run, capture], ...]}

The profiles of dropped captures often still lie where they were read from. The oldest captures go
first, so one time for each run tells them all; names are kept for those whose profiles have no
wall clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from ..discover.captures import EPOCH_FROM_NS
from ..small_files import read_own
from .manifest import write_atomically
from .retention import StoredCapture

DROPPED_CAPTURES = "dropped.json"
_NAMES = 1000


class DroppedCaptures(msgspec.Struct, frozen=True):
    """By run, when its newest dropped capture ended (ns since 1970); (run, capture) of the last."""

    until_ns: dict[str, int] = {}
    captures: tuple[tuple[str, str], ...] = ()

    def has(self, run: str, capture: str, ended_ns: int | None) -> bool:
        """Whether a profile that ended then, of that capture, was dropped."""
        if ended_ns is not None and ended_ns >= EPOCH_FROM_NS:
            return ended_ns <= self.until_ns.get(run, 0)
        return (run, capture) in self.captures


def read_dropped(store: Path) -> DroppedCaptures:
    """What was dropped; nothing where the file is absent or damaged."""
    try:
        return read_own(store / DROPPED_CAPTURES, DroppedCaptures)
    except (OSError, msgspec.MsgspecError):
        return DroppedCaptures()


def remember_dropped(store: Path, going: Iterable[StoredCapture]) -> None:
    """Add captures that are about to be dropped. Raises OSError."""
    former = read_dropped(store)
    until_ns, names = dict(former.until_ns), dict.fromkeys(former.captures)
    for one in going:
        until_ns[one.run] = max(until_ns.get(one.run, 0), one.recorded_ns)
        names[one.run, one.capture] = None
    told = DroppedCaptures(until_ns, tuple(names)[-_NAMES:])
    if told != former:
        write_atomically(store / DROPPED_CAPTURES, msgspec.json.encode(told))
