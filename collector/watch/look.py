"""What lies below the watched folders, and which profiles there are finished.

    READY.json           lists the files and their sizes: finished when all are there
    analyse.done         the profiler's own mark: finished, but not necessarily valid
    neither              finished when nothing changed for a while and profiler_info_*.json is there

A look lists names, sizes and times; of files only READY.json is opened. Nothing is ever written.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from ..discover.expert_folders import FOLDER
from ..discover.search import OUTPUT_FOLDER
from ..small_files import decode, read_small
from ..store.manifest import is_store

READY = "READY.json"
DONE = "analyse.done"
_PROFILE = re.compile(r".*_ascend_(pt|ms)")
_INFO = re.compile(r"profiler_info(_\d+)?\.json")
# Raw data lies deep and holds no profile's folder.
_NOT_BELOW = re.compile(r"\..*|PROF_.+")

Kind = Literal["finished", "waiting", "broken"]


class ReadyFile(msgspec.Struct, frozen=True):
    """A file of a finished profile, relative to its folder."""

    path: str
    size_bytes: int


class Ready(msgspec.Struct, frozen=True):
    """READY.json, as `npuscope.collector.training` writes it: last of all, and at once."""

    schema_version: int
    files: list[ReadyFile]
    run: str | None = None
    rank: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)] | None = None
    first_step: int | None = None
    last_step: int | None = None
    written_utc: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """A profile folder at one moment: sizes of its files by relative name, and a `fingerprint` of
    names, sizes and times that changes when any of them does."""

    path: str
    sizes: Mapping[str, int]
    fingerprint: str

    @property
    def output(self) -> list[str]:
        """What analysis wrote, its end mark apart."""
        inside = [name for name in self.sizes if name.startswith(f"{OUTPUT_FOLDER}/")]
        return [name for name in inside if name != f"{OUTPUT_FOLDER}/{DONE}"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a profile is finished, or why not; `run` and `rank` where READY.json tells them."""

    kind: Kind
    reason: str = ""
    run: str | None = None
    rank: int | None = None


def profile_folders(
    roots: Iterable[Path], unlisted: Callable[[str, str], None], loads: Callable[[Path], None]
) -> Iterator[tuple[Path, Path]]:
    """Every (root, profile folder's real path) below the roots, in order of names; each once.

    `unlisted` is told folders that cannot be listed, and why; `loads` folders named as those with
    a training hook's counts.
    """
    seen = set[str]()
    for root in roots:
        pending = [root]
        while pending:
            folder = pending.pop()
            real = os.path.realpath(folder)
            if real in seen:  # a link, or a root inside of another
                continue
            seen.add(real)
            try:
                with os.scandir(folder) as entries:
                    names = sorted(entry.name for entry in entries if _may_be_folder(entry))
            except OSError as error:
                unlisted(str(folder), error.strerror or str(error))
                continue
            if FOLDER in names:
                loads(folder / FOLDER)
            if _PROFILE.fullmatch(folder.name) or OUTPUT_FOLDER in names:
                yield root, Path(real)
            elif not is_store(folder):
                below = [folder / name for name in names if not _NOT_BELOW.fullmatch(name)]
                pending += reversed(below)


def look(folder: Path) -> Look:
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
        for name, told in files:
            sizes[prefix + name] = told.st_size
            line = f"{prefix}{name}\0{told.st_size}\0{told.st_mtime_ns}\0"
            state.update(line.encode(errors="surrogateescape"))
    return Look(str(folder), sizes, state.hexdigest())


def judge(seen: Look, *, is_quiet: bool, has_changed: bool = False) -> Verdict:
    """Whether a profile is finished.

    `is_quiet`: nothing of it changed for long enough. `has_changed`: it was judged finished before
    and is another now, so its marks may be those of the former analysis, and only quiet counts.
    """
    folder = Path(seen.path)
    told = Verdict("finished")
    if READY in seen.sizes:
        ready = _ready(folder / READY)
        if isinstance(ready, str):
            return Verdict("broken" if is_quiet else "waiting", ready)
        is_of_output = any(file.path.startswith(f"{OUTPUT_FOLDER}/") for file in ready.files)
        told = Verdict("finished", "", ready.run, ready.rank)
        # Analysis may take raw data away; then it says itself when it is done.
        if is_of_output or not seen.output:
            missing = _missing(ready, folder, seen, is_raw_needed=not is_of_output)
            if missing:
                return Verdict("broken" if is_quiet else "waiting", missing)
            if is_of_output and not has_changed:
                return told
    is_done = f"{OUTPUT_FOLDER}/{DONE}" in seen.sizes
    if not seen.output:
        if is_done:
            why = "analysis ended without results: see its log, then run analyse() again"
            return Verdict("broken", f"{OUTPUT_FOLDER} holds nothing but {DONE}: {why}")
        if told.rank is not None or is_quiet:
            analyse = f'torch_npu.profiler.profiler.analyse("{folder}")'
            return Verdict("waiting", f"raw data only: run {analyse} on a host with CANN")
        return Verdict("waiting", "still being written")
    if is_done and not has_changed:
        return told
    if not is_quiet:
        return Verdict("waiting", "still being written")
    if is_done or any(_INFO.fullmatch(name) for name in seen.sizes):
        return told
    return Verdict(
        "waiting",
        f"no end mark ({READY}, {DONE} or profiler_info_*.json), so it may be incomplete;"
        " `npuscope ingest` reads it anyway",
    )


def _may_be_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _ready(path: Path) -> Ready | str:
    try:
        return decode(read_small(path), Ready)
    except (OSError, msgspec.MsgspecError) as error:
        return f"{READY} cannot be read: {error}"


def _missing(ready: Ready, folder: Path, seen: Look, *, is_raw_needed: bool) -> str:
    """What READY.json lists and is not there; '' where all is."""
    if not ready.files:
        return f"{READY} lists no file"
    for file in ready.files:
        if Path(file.path).is_absolute() or ".." in Path(file.path).parts:
            return f"{READY} names a file outside of its folder: {file.path}"
        if file.path.startswith("PROF_") and not is_raw_needed:
            continue
        size_bytes = seen.sizes.get(file.path)
        if size_bytes is None:
            try:
                size_bytes = (folder / file.path).stat().st_size
            except (OSError, ValueError):  # a name that no file can have
                return f"{file.path} is listed in {READY} and is not there"
        if size_bytes != file.size_bytes:
            return f"{file.path} has {size_bytes} of the {file.size_bytes} bytes listed in {READY}"
    return ""
