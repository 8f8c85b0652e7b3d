"""When the store's disk is full: which file system that is, what is needed, what can go."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import duckdb

from npuscope.errors import StoreError

from ..model import RankSource
from .manifest import Manifest

_FEW_INODES = 256
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_UNWRITABLE = frozenset({errno.EROFS, errno.ESTALE, errno.ENOTCONN})
# DuckDB tells in words: of a failed write, and of spilling for which no room is left.
_FULL_WORDS = ("No space left on device", "Disk quota exceeded", "max_temp_directory_size")


def is_out_of_space(error: BaseException) -> bool:
    """Whether an error, or one behind it, says that a disk or a quota is full."""
    behind: BaseException | None = error
    while behind is not None:
        if isinstance(behind, OSError) and behind.errno in _FULL:
            return True
        if isinstance(behind, duckdb.Error) and any(w in str(behind) for w in _FULL_WORDS):
            return True
        behind = behind.__cause__ or behind.__context__
    return False


def is_refused_by_store(error: BaseException) -> bool:
    """Whether an error says that a store takes nothing just now, whatever it is: its bucket is out
    of reach or the credentials have expired, its disk is read-only or its server gone."""
    return isinstance(error, StoreError) or (
        isinstance(error, OSError) and error.errno in _UNWRITABLE
    )


def file_system_of(path: Path) -> tuple[str, str]:
    """Mount point and type of the file system that holds a path, as (`/data`, `nfs4`)."""
    real = os.path.realpath(path)
    best = ("/", "unknown")
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return best
    for line in lines:
        left, _, right = line.partition(" - ")
        mount = re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), left.split(" ")[4])
        inside = real == mount or real.startswith(mount.rstrip("/") + "/")
        # Of several mounts on one point the last one is seen.
        if inside and len(mount) >= len(best[0]):
            best = (mount, right.split(" ")[0])
    return best


@contextlib.contextmanager
def explain_full_disk(store: Path) -> Iterator[None]:
    """Makes the errors of a full disk a StoreError that says what to do."""
    try:
        yield
    except (OSError, duckdb.Error) as error:
        if not is_out_of_space(error):
            raise
        raise StoreError(f"{store}: {advice(store)}") from error


def advice(store: Path, left: Sequence[RankSource] = (), manifests: Sequence[Manifest] = ()) -> str:
    """What to do when the store's disk is full and the ranks `left` could not be read."""
    mount, kind = file_system_of(store)
    state = os.statvfs(mount)
    free, total = state.f_bavail * state.f_frsize, state.f_blocks * state.f_frsize
    inodes = ""
    if state.f_files and state.f_favail < _FEW_INODES:  # some came back when the work was undone
        inodes = f", {state.f_favail} of {state.f_files} inodes free"
    needed = ""
    if left:
        profiles = sum(source.size_bytes for source in left)
        needed = f"; {len(left)} rank(s) are left, {_size(profiles)} of profiles"
        read = sum(record.size_bytes for m in manifests for record in m.sources)
        written = sum(
            s.size_bytes for m in manifests for s in (*m.tables.values(), *m.summaries.values())
        )
        if read and written:
            needed += f", which take about {_size(profiles * written / read)}, more while read"
    room = f"{_size(free)} of {_size(total)} free{inodes}"
    return (
        f"no space left: {mount} ({kind}) has {room}{needed}. Make room there or in your quota"
        " (`npuscope store list` names stores of the cache, `npuscope store rm` deletes them;"
        " `npuscope compact STORE --keep-days N` drops old captures, whose space is free a day"
        " later, or with --grace-minutes 1 a minute later) or give --store on another file system,"
        " then repeat the command: published data is kept and not read again"
    )


def _size(size_bytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 1000:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.1f} TB"
