"""Which profiles are to be read now: looks of one poll compared with those of polls before.

Times here are those of a clock that never goes back; the wall clock of this or another machine,
and the times of files, decide nothing.

    READY.json           lists the files and their sizes: finished when all are there
    analyse.done         the profiler's own mark: finished, but not necessarily valid
    neither              finished when nothing changed for a while and profiler_info_*.json is there

A look lists names, sizes and times; of files only READY.json is opened. Nothing is ever written.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from ..discover.expert_folders import FOLDER
from ..discover.search import OUTPUT_FOLDER
from ..small_files import decode, read_small
from ..store.manifest import is_store

# A profile that is settled is listed in full at every tenth poll only: a watched tree keeps them.
_FULL_LOOKS = 10


@dataclass(slots=True)
class Folder:
    """A profile's folder: its state since when (monotonic seconds), and in which one it was
    settled: ingested, passed over or refused, or '' where it is not yet."""

    fingerprint: str
    since_s: float
    glance: tuple[int, int]
    settled_fingerprint: str = ""
    is_refused: bool = False
    reason: str = ""


@dataclass(slots=True)
class Folders:
    """Profiles by path, folders that cannot be listed with the reason, and those named as a hook's
    `loads`."""

    profiles: dict[str, Folder] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    loads: list[Path] = field(default_factory=list)
    polls: int = 0

    def settle(self, path: str, fingerprint: str, refusal: str = "") -> None:
        """Nothing more is to be done about a profile until it changes."""
        one = self.profiles.get(path)
        if one is not None:
            one.settled_fingerprint, one.is_refused, one.reason = (
                fingerprint,
                bool(refusal),
                refusal,
            )


@dataclass(frozen=True, slots=True)
class Poll:
    """Of one poll: profiles to read now, `failures` and `waits` with their reasons, and the places
    of those that are gone. Only news are told: a refused profile comes back when it changed."""

    profiles: list[FinishedProfile]
    failures: dict[str, tuple[str, str]]
    waits: dict[str, str]
    removals: list[str]


def look_around(
    folders: Folders,
    roots: tuple[Path, ...],
    *,
    quiet_s: float,
    once: bool,
    tell: Callable[[str], None],
) -> Poll:
    """Look at every profile below the roots. `once`: there is no later look, so that the age of a
    profile's newest file decides whether it is quiet."""
    now_s = time.monotonic()
    finished: list[FinishedProfile] = []
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
            folder_look = look(path)
        except OSError:
            there.discard(place)
            continue  # gone since it was listed
        if one is None:
            one = folders.profiles[place] = Folder(folder_look.fingerprint, now_s, glance)
        elif one.fingerprint != folder_look.fingerprint:
            one.fingerprint, one.since_s = folder_look.fingerprint, now_s
        one.glance = glance
        if one.settled_fingerprint == folder_look.fingerprint:
            continue
        quiet_for_s = _age_s(folder_look) if once else now_s - one.since_s
        is_quiet = quiet_for_s >= quiet_s
        has_changed = bool(one.settled_fingerprint) and not one.is_refused
        verdict = judge(folder_look, is_quiet=is_quiet, has_changed=has_changed)
        if verdict.kind == "finished":
            finished.append(FinishedProfile(folder_look, verdict, root))
        elif verdict.kind == "broken":
            broken[place] = (verdict.reason, folder_look.fingerprint)
        else:
            waiting[place] = verdict.reason
            if quiet_for_s < -_AHEAD_S:
                waiting[place] += f", or dated {-quiet_for_s:,.0f} s ahead of this machine's clock"
    _tell_unlisted(folders, unlisted, tell)
    gone = [
        place
        for place in folders.profiles.keys() - there
        if not any(_is_below(place, hidden) for hidden in unlisted)
    ]
    for place in gone:
        del folders.profiles[place]
    folders.polls += 1
    return Poll(finished, broken, waiting, gone)


def _is_as_it_was(one: Folder, glance: tuple[int, int], polls: int) -> bool:
    if one.settled_fingerprint != one.fingerprint or one.is_refused or one.glance != glance:
        return False
    return (polls + hash(one.fingerprint)) % _FULL_LOOKS != 0


def _glance(path: Path) -> tuple[int, int]:
    """Times of the folders themselves, which change when a file in them comes or goes."""
    own_ns = path.stat().st_mtime_ns
    try:
        return own_ns, (path / OUTPUT_FOLDER).stat().st_mtime_ns
    except OSError:
        return own_ns, 0


def _age_s(look: _Look) -> float:
    """Seconds since the newest file came or changed, by the wall clock: less than 0 where that
    was set back."""
    changed_s = 0.0
    for name in look.sizes:
        try:
            stat = (Path(look.path) / name).stat()
        except OSError:
            return 0.0  # changing at this moment
        changed_s = max(changed_s, stat.st_mtime, stat.st_ctime)
    return time.time() - changed_s


def _tell_unlisted(folders: Folders, reasons: dict[str, str], tell: Callable[[str], None]) -> None:
    for place, why in reasons.items():
        if folders.errors.get(place) != why:
            tell(f"cannot read folder {place}: {why}; retrying at every poll")
    for place in folders.errors.keys() - reasons.keys():
        tell(f"{place} can be read again")
    folders.errors = reasons


def _is_below(place: str, folder: str) -> bool:
    return place == folder or place.startswith(folder.rstrip("/") + "/")


_AHEAD_S = 1.0  # what file systems round by
READY = "READY.json"
_MARKER = "analyse.done"
_PROFILE = re.compile(r".*_ascend_(pt|ms)")
_INFO = re.compile(r"profiler_info(_\d+)?\.json")
# Raw data lies deep and holds no profile's folder.
_NOT_BELOW = re.compile(r"\..*|PROF_.+")


class _ReadyFile(msgspec.Struct, frozen=True):
    """A file of a finished profile, relative to its folder."""

    path: str
    size_bytes: int


class _Ready(msgspec.Struct, frozen=True):
    """READY.json, as `npuscope.collector.training` writes it: last of all, and at once."""

    schema_version: int
    files: list[_ReadyFile]
    run: str | None = None
    rank: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)] | None = None
    first_step: int | None = None
    last_step: int | None = None
    written_utc: str = ""


@dataclass(frozen=True, slots=True)
class _Look:
    """A profile folder at one moment: sizes of its files by relative name, and a `fingerprint` of
    names, sizes and times that changes when any of them does."""

    path: str
    sizes: Mapping[str, int]
    fingerprint: str

    @property
    def output(self) -> list[str]:
        """What analysis wrote, its end mark apart."""
        inside = [name for name in self.sizes if name.startswith(f"{OUTPUT_FOLDER}/")]
        return [name for name in inside if name != f"{OUTPUT_FOLDER}/{_MARKER}"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a profile is finished, or why not; `run` and `rank` where READY.json tells them."""

    kind: Literal["finished", "waiting", "broken"]
    reason: str = ""
    run: str | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class FinishedProfile:
    """A finished profile: what was seen of it, below which watched folder, what READY.json told."""

    look: _Look
    verdict: Verdict
    root: Path


def profile_folders(
    roots: Iterable[Path], tell_unlisted: Callable[[str, str], None], loads: Callable[[Path], None]
) -> Iterator[tuple[Path, Path]]:
    """Every (root, profile folder's real path) below the roots, in order of names; each once.

    `tell_unlisted` is told folders that cannot be listed, and why; `loads` folders named as those
    with a training hook's counts.
    """
    paths = set[str]()
    for root in roots:
        pending = [root]
        while pending:
            folder = pending.pop()
            real = os.path.realpath(folder)
            if real in paths:  # a link, or a root inside of another
                continue
            paths.add(real)
            try:
                with os.scandir(folder) as entries:
                    names = sorted(entry.name for entry in entries if _may_be_folder(entry))
            except OSError as error:
                tell_unlisted(str(folder), error.strerror or str(error))
                continue
            if FOLDER in names:
                loads(folder / FOLDER)
            if _PROFILE.fullmatch(folder.name) or OUTPUT_FOLDER in names:
                yield root, Path(real)
            elif not is_store(folder):
                below = [folder / name for name in names if not _NOT_BELOW.fullmatch(name)]
                pending += reversed(below)


def look(folder: Path) -> _Look:
    """List a profile's own files and its exports. Raises OSError where it is gone."""
    sizes: dict[str, int] = {}
    state = hashlib.blake2b(digest_size=12)
    for place, prefix in ((folder, ""), (folder / OUTPUT_FOLDER, f"{OUTPUT_FOLDER}/")):
        try:
            with os.scandir(place) as entries:
                files = sorted((e.name, e.stat()) for e in entries if e.is_file())
        except OSError:
            if not prefix:
                raise
            continue  # not analysed
        for name, stat in files:
            sizes[prefix + name] = stat.st_size
            line = f"{prefix}{name}\0{stat.st_size}\0{stat.st_mtime_ns}\0"
            state.update(line.encode(errors="surrogateescape"))
    return _Look(str(folder), sizes, state.hexdigest())


def judge(look: _Look, *, is_quiet: bool, has_changed: bool = False) -> Verdict:
    """Whether a profile is finished.

    `is_quiet`: nothing of it changed for long enough. `has_changed`: it was judged finished before
    and is another now, so its marks may be those of the former analysis, and only quiet counts.
    """
    folder = Path(look.path)
    verdict = Verdict("finished")
    if READY in look.sizes:
        ready = _ready(folder / READY)
        if isinstance(ready, str):
            return Verdict("broken" if is_quiet else "waiting", ready)
        is_of_output = any(file.path.startswith(f"{OUTPUT_FOLDER}/") for file in ready.files)
        verdict = Verdict("finished", "", ready.run, ready.rank)
        # Analysis may take raw data away; then it says itself when it is done.
        if is_of_output or not look.output:
            missing = _why_incomplete(ready, folder, look, is_raw_needed=not is_of_output)
            if missing:
                return Verdict("broken" if is_quiet else "waiting", missing)
            if is_of_output and not has_changed:
                return verdict
    is_done = f"{OUTPUT_FOLDER}/{_MARKER}" in look.sizes
    if not look.output:
        if is_done:
            why = "analysis ended without results: see its log, then run analyse() again"
            return Verdict("broken", f"{OUTPUT_FOLDER} holds nothing but {_MARKER}: {why}")
        if verdict.rank is not None or is_quiet:
            analyse = f'torch_npu.profiler.profiler.analyse("{folder}")'
            return Verdict("waiting", f"raw data only: run {analyse} on a host with CANN")
        return Verdict("waiting", "still being written")
    if is_done and not has_changed:
        return verdict
    if not is_quiet:
        return Verdict("waiting", "still being written")
    if is_done or any(_INFO.fullmatch(name) for name in look.sizes):
        return verdict
    return Verdict(
        "waiting",
        f"no end mark ({READY}, {_MARKER} or profiler_info_*.json), so it may be incomplete;"
        " `npuscope ingest` reads it anyway",
    )


def _may_be_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _ready(path: Path) -> _Ready | str:
    try:
        return decode(read_small(path), _Ready)
    except (OSError, msgspec.MsgspecError) as error:
        return f"{READY} cannot be read: {error}"


def _why_incomplete(ready: _Ready, folder: Path, look: _Look, *, is_raw_needed: bool) -> str:
    """What READY.json lists and is not there; '' where all is."""
    if not ready.files:
        return f"{READY} lists no file"
    for file in ready.files:
        if Path(file.path).is_absolute() or ".." in Path(file.path).parts:
            return f"{READY} names a file outside of its folder: {file.path}"
        if file.path.startswith("PROF_") and not is_raw_needed:
            continue
        size_bytes = look.sizes.get(file.path)
        if size_bytes is None:
            try:
                size_bytes = (folder / file.path).stat().st_size
            except (OSError, ValueError):  # a name that no file can have
                return f"{file.path} is listed in {READY} and is not there"
        if size_bytes != file.size_bytes:
            return f"{file.path} has {size_bytes} of the {file.size_bytes} bytes listed in {READY}"
    return ""
