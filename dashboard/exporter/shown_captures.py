"""Which captures of a store are shown, and when there is something new to look at."""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from npuscope.collector.store import mirror
from npuscope.collector.store.compact_files import COMPACT_FILE
from npuscope.collector.store.manifest import (
    DROPPED_FILE,
    INDEX,
    Manifest,
    capture_manifests,
    check_layout,
)
from npuscope.collector.wall_clock import wall_clock_ns

# A slow rank is one for so many captures in a row.
STEADY_CAPTURES = 5
# An ingest writes a capture's index when it is done with it. One that has none for so long was
# killed, and what it published is all there will be.
_UNDER_WAY_S = 600.0

Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """A run's newest captures, the newest first, with their ranks; times in s since the epoch.

    `ingested_s` is that of all its captures; `profile_end_s` is the newest's, and None where no
    rank of it has a wall clock.
    """

    name: str
    captures: tuple[tuple[Manifest, ...], ...]
    ingested_s: float
    profile_end_s: float | None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the captures, the newest first."""
        return tuple(ranks[0].capture for ranks in self.captures)


def version_key(store: Path) -> Key:
    """Changes when captures appear, are done, are replaced, compacted or dropped.

    It looks at each capture's index, which counts its versions, not at each rank: it is asked at
    every scrape. Raises StoreError where the store is none.
    """
    check_layout(store)
    parts: list[object] = []
    if mirror.url_behind(store) is not None:  # has no indexes: its tags change with what is there
        mirror.refresh(store)
        parts.append(_state(store / mirror.TAGS))
    for folder in _folders(store):
        files = tuple(_state(folder / name) for name in (INDEX, COMPACT_FILE, DROPPED_FILE))
        parts.append((str(folder), files, _is_settled(folder)))
    return tuple(parts)


def newest_runs(store: Path, keep: int = STEADY_CAPTURES) -> list[Run]:
    """Every run with its newest captures, at most `keep`; by name. Captures of which the first
    ingest is still under way are passed over."""
    runs: dict[str, list[tuple[Manifest, ...]]] = defaultdict(list)
    for folder in _folders(store):
        ranks = tuple(capture_manifests(folder)) if _is_settled(folder) else ()
        if ranks:
            runs[ranks[0].run].append(ranks)
    return [_run(name, captures, keep) for name, captures in sorted(runs.items())]


def _run(name: str, captures: list[tuple[Manifest, ...]], keep: int) -> Run:
    ordered = sorted(captures, key=_age, reverse=True)
    newest = ordered[0]
    return Run(
        name,
        tuple(ordered[:keep]),
        max(_published_s(one) for ranks in captures for one in ranks),
        max((end for one in newest if (end := _ended_s(one)) is not None), default=None),
    )


def _age(ranks: tuple[Manifest, ...]) -> tuple[float, str]:
    """When a capture was recorded: its end, or where it has no wall clock its publishing."""
    ends = [_ended_s(one) or _published_s(one) for one in ranks]
    return max(ends), ranks[0].capture


def _ended_s(one: Manifest) -> float | None:
    ended_ns = wall_clock_ns(one.window_end_ns)
    return None if ended_ns is None else ended_ns / 1e9


def _published_s(one: Manifest) -> float:
    try:
        published = datetime.fromisoformat(one.published_at)
    except ValueError:
        return 0.0
    return (published if published.tzinfo else published.replace(tzinfo=timezone.utc)).timestamp()


def _folders(store: Path) -> list[Path]:
    folders: list[Path] = []
    for run in _folders_with_prefix(store, "run="):
        folders += _folders_with_prefix(run, "capture=")
    return folders


def _folders_with_prefix(folder: Path, prefix: str) -> list[Path]:
    with contextlib.suppress(OSError):
        return [folder / name for name in sorted(os.listdir(folder)) if name.startswith(prefix)]
    return []


def _state(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _is_settled(folder: Path) -> bool:
    # A bucket does not tell whether an ingest is under way: its ranks are shown as they come.
    if (folder / INDEX).exists() or mirror.url_behind(folder) is not None:
        return True
    with contextlib.suppress(OSError):
        return time.time() - folder.stat().st_mtime > _UNDER_WAY_S
    return False
