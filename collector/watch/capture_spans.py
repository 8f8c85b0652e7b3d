"""What the store holds, as far as a watcher has to know: each capture's span, not its manifests.

Looked up again only where a capture's folder changed, so that a poll costs the same however much
the store holds, beside other processes that ingest, drop and compact.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..discover.captures import KnownCapture
from ..store.manifest import Manifest, capture_manifests, folder_value, rank_folder
from ..store.retention import recorded_ns

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class CaptureSpan:
    """A capture of the store: when it began and ended, when it counts as recorded (ns), its
    ranks' number."""

    start_ns: int | None
    end_ns: int | None
    recorded_ns: int
    rank_count: int


@dataclass(frozen=True, slots=True)
class StoreSpans:
    """Captures by (run, capture). `looked_up`: state of their folders when they were; None in
    `spans` stands for a folder that holds nothing any more."""

    store: Path
    spans: dict[Key, CaptureSpan | None]
    looked_up: dict[Key, tuple[int, int]]

    def refresh(self) -> None:
        """Look up what changed since the last time."""
        there = set[Key]()
        for run in _names(self.store, "run="):
            for capture in _names(self.store / run, "capture="):
                key = (folder_value(run), folder_value(capture))
                there.add(key)
                self._look_up(key, self.store / run / capture)
        for key in self.spans.keys() - there:
            del self.spans[key]
            self.looked_up.pop(key, None)

    def again(self, key: Key) -> None:
        """Look up one capture."""
        self.looked_up.pop(key, None)
        self._look_up(key, rank_folder(self.store, *key, 0).parent)

    def captures(self) -> dict[Key, CaptureSpan]:
        """Those with published ranks, in order of when they were recorded."""
        spans_here = {key: one for key, one in self.spans.items() if one is not None}
        return dict(sorted(spans_here.items(), key=lambda pair: (pair[1].recorded_ns, pair[0])))

    def of_run(self, run: str) -> list[KnownCapture]:
        """A run's captures, for new ranks to join."""
        return [
            KnownCapture(capture, one.start_ns, one.end_ns)
            for (its_run, capture), one in self.spans.items()
            if its_run == run and one is not None
        ]

    def _look_up(self, key: Key, folder: Path) -> None:
        try:
            stat = folder.stat()
        except OSError:
            self.spans.pop(key, None)
            return
        state = (stat.st_ino, stat.st_mtime_ns)
        if self.looked_up.get(key) != state:
            self.spans[key] = span_of(capture_manifests(folder))
            self.looked_up[key] = state


def places_of(store: Path, key: Key) -> tuple[str, ...]:
    """Folders that a capture's ranks were read from."""
    manifests = capture_manifests(rank_folder(store, *key, 0).parent)
    return tuple(sorted({one.source_root for one in manifests}))


def span_of(manifests: list[Manifest]) -> CaptureSpan | None:
    """What a capture's manifests tell; None of none."""
    if not manifests:
        return None
    starts = [m.window_start_ns for m in manifests if m.window_start_ns is not None]
    ends = [m.window_end_ns for m in manifests if m.window_end_ns is not None]
    return CaptureSpan(
        min(starts, default=None),
        max(ends, default=None),
        max(map(recorded_ns, manifests)),
        len(manifests),
    )


def _names(folder: Path, prefix: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if name.startswith(prefix))
    except OSError:
        return []
