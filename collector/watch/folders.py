"""Which profiles are to be read now: looks of one poll compared with those of polls before.

Times here are those of a clock that never goes back; the wall clock of this or another machine,
and the times of files, decide nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ..discover.search import OUTPUT_FOLDER
from .look import Look, judge, look, profile_folders
from .plan_ranks import Finished

# A profile that is settled is listed in full at every tenth poll only: a watched tree keeps them.
_FULL_LOOKS = 10


@dataclass(slots=True)
class Folder:
    """A profile's folder: its state since when (monotonic seconds), and in which one it was
    settled: ingested, passed over or refused, or '' where it is not yet."""

    fingerprint: str
    since_s: float
    glance: tuple[int, int]
    settled: str = ""
    is_refused: bool = False
    reason: str = ""


@dataclass(slots=True)
class Folders:
    """Profiles by path, folders that cannot be listed with the reason, and those named as a hook's
    `loads`."""

    profiles: dict[str, Folder] = field(default_factory=dict)
    unlisted: dict[str, str] = field(default_factory=dict)
    loads: list[Path] = field(default_factory=list)
    polls: int = 0

    def settle(self, path: str, fingerprint: str, refused: str = "") -> None:
        """Nothing more is to be done about a profile until it changes."""
        one = self.profiles.get(path)
        if one is not None:
            one.settled, one.is_refused, one.reason = fingerprint, bool(refused), refused


@dataclass(frozen=True, slots=True)
class Seen:
    """Of one poll: profiles to read now, `broken` ones with the reason, `waiting` ones, and those
    that are `gone`. Only news are told: a refused profile comes back when it changed."""

    finished: list[Finished]
    broken: dict[str, tuple[str, str]]
    waiting: dict[str, str]
    gone: list[str]


def look_around(
    folders: Folders,
    roots: tuple[Path, ...],
    *,
    quiet_s: float,
    once: bool,
    tell: Callable[[str], None],
) -> Seen:
    """Look at every profile below the roots. `once`: there is no later look, so that the age of a
    profile's newest file decides whether it is quiet."""
    now_s = time.monotonic()
    finished: list[Finished] = []
    broken: dict[str, tuple[str, str]] = {}
    waiting: dict[str, str] = {}
    there = set[str]()
    unlisted: dict[str, str] = {}
    folders.loads = []
    for root, path in profile_folders(roots, unlisted.__setitem__, folders.loads.append):
        place = str(path)
        one = folders.profiles.get(place)
        try:
            glance = _glance(path)
            there.add(place)
            if one and _is_as_it_was(one, glance, folders.polls):
                continue
            seen = look(path)
        except OSError:
            there.discard(place)
            continue  # gone since it was listed
        if one is None:
            one = folders.profiles[place] = Folder(seen.fingerprint, now_s, glance)
        elif one.fingerprint != seen.fingerprint:
            one.fingerprint, one.since_s = seen.fingerprint, now_s
        one.glance = glance
        if one.settled == seen.fingerprint:
            continue
        is_quiet = _age_s(seen) >= quiet_s if once else now_s - one.since_s >= quiet_s
        has_changed = bool(one.settled) and not one.is_refused
        verdict = judge(seen, is_quiet=is_quiet, has_changed=has_changed)
        if verdict.kind == "finished":
            finished.append(Finished(seen, verdict, root))
        elif verdict.kind == "broken":
            broken[place] = (verdict.reason, seen.fingerprint)
        else:
            waiting[place] = verdict.reason
    _tell_unlisted(folders, unlisted, tell)
    gone = [
        place
        for place in folders.profiles.keys() - there
        if not any(_is_below(place, hidden) for hidden in unlisted)
    ]
    for place in gone:
        del folders.profiles[place]
    folders.polls += 1
    return Seen(finished, broken, waiting, gone)


def _is_as_it_was(one: Folder, glance: tuple[int, int], polls: int) -> bool:
    if one.settled != one.fingerprint or one.is_refused or one.glance != glance:
        return False
    return (polls + hash(one.fingerprint)) % _FULL_LOOKS != 0


def _glance(path: Path) -> tuple[int, int]:
    """Times of the folders themselves, which change when a file in them comes or goes."""
    own_ns = path.stat().st_mtime_ns
    try:
        return own_ns, (path / OUTPUT_FOLDER).stat().st_mtime_ns
    except OSError:
        return own_ns, 0


def _age_s(seen: Look) -> float:
    """Seconds since the newest file came or changed, by the wall clock: less than 0 where that
    was set back."""
    changed_s = 0.0
    for name in seen.sizes:
        try:
            told = (Path(seen.path) / name).stat()
        except OSError:
            return 0.0  # changing at this moment
        changed_s = max(changed_s, told.st_mtime, told.st_ctime)
    return time.time() - changed_s


def _tell_unlisted(folders: Folders, unlisted: dict[str, str], tell: Callable[[str], None]) -> None:
    for place, why in unlisted.items():
        if folders.unlisted.get(place) != why:
            tell(f"cannot read folder {place}: {why}; retrying at every poll")
    for place in folders.unlisted.keys() - unlisted.keys():
        tell(f"{place} can be read again")
    folders.unlisted = unlisted


def _is_below(place: str, folder: str) -> bool:
    return place == folder or place.startswith(folder.rstrip("/") + "/")
