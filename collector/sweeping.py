"""What nobody needs any more is deleted: after a grace period, so that no reader misses it.

A reader finds its files once and then works with them for as long as it likes, up to a day. What
is superseded is therefore touched when that happens, and goes when it was not touched for a day.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

from .compacted import COMPACT_FOLDER, COMPACTED, Compacted, in_use, read_compacted, segment
from .derived import DERIVED, generations, read_derived
from .manifest import (
    DROPPED,
    INDEX,
    MANIFEST,
    capture_manifests,
    process_space,
    read_manifest,
)
from .store import begin_grace

GRACE_S = 86_400
_STAGING = re.compile(r"\.tmp-(?P<host>.+)-(?P<pid>\d+)-[0-9a-f]{12}(\..*)?")


def sweep(store: Path, *, grace_s: float = GRACE_S) -> int:
    """Delete dead staging folders, and what was superseded for longer than the grace period.

    Returns bytes freed. A staging folder is dead if its host is this one and its process is gone,
    or if nothing touched it for a day. Superseded are generations that no manifest names, segments
    that were merged with others', merged files that are replaced, and results over ranks that were
    replaced since.
    """
    freed = 0
    now = time.time()
    for capture in sorted(store.glob("run=*/capture=*")):
        finish_drop(capture)
        compacted = read_compacted(capture)
        merged = {file.file for batch in compacted.batches for file in batch.files}
        copied = _copied_files(capture, compacted)
        for folder in [capture, *capture.glob("rank=*")]:
            for child in _listing(folder):
                staging = _STAGING.fullmatch(child.name)
                if staging:
                    freed += _delete(child) if _is_dead(staging, child, now) else 0
                elif folder is not capture and child.is_dir():
                    own = copied.get(folder.name, set())
                    needed = _current_files(folder) - own
                    # A rank's generation may be published between our look and our deleting.
                    still = partial(_is_needed, folder, own, child.name)
                    freed += _sweep_folder(child, needed, now - grace_s, still)
                elif child.name.startswith(COMPACT_FOLDER):
                    freed += _sweep_folder(child, merged, now - grace_s)
        if not capture_manifests(capture):
            _drop_derived(capture / DERIVED)
        freed += _sweep_derived(capture / DERIVED, now, grace_s)
        _remove_empty(capture, now)
    return freed


def finish_drop(capture: Path) -> None:
    """Unpublish every rank of a capture that carries the mark of being dropped."""
    if not (capture / DROPPED).exists():
        return
    for folder in sorted(capture.glob("rank=*")):
        manifest = read_manifest(folder)
        if manifest:
            begin_grace(folder / manifest.generation)
        (folder / MANIFEST).unlink(missing_ok=True)
    _drop_derived(capture / DERIVED)
    for name in (INDEX, COMPACTED, DROPPED):
        (capture / name).unlink(missing_ok=True)


def _drop_derived(folder: Path) -> None:
    """Unpublish results over ranks; their readers of the moment keep them for the grace period."""
    derived = read_derived(folder)
    if derived is None:
        return
    for generation in generations(derived):
        begin_grace(folder / generation)
    (folder / MANIFEST).unlink(missing_ok=True)


def _sweep_derived(folder: Path, now: float, grace_s: float) -> int:
    """Delete from a capture's derived tier what its manifest does not name; returns bytes freed."""
    freed = 0
    for child in _listing(folder):
        staging = _STAGING.fullmatch(child.name)
        if staging:
            freed += _delete(child) if _is_dead(staging, child, now) else 0
        elif child.is_dir():
            still = partial(_is_derived, folder, child.name)
            freed += 0 if still() else _sweep_folder(child, set(), now - grace_s, still)
    return freed


def _is_derived(folder: Path, name: str) -> bool:
    derived = read_derived(folder)
    return derived is not None and name in generations(derived)


def _sweep_folder(
    folder: Path, needed: set[str], before: float, still: Callable[[], bool] = lambda: False
) -> int:
    """Delete a folder of which nothing is needed, or the files in it that are not, if untouched
    since `before`; returns bytes freed."""
    if not _is_in(needed, folder.name):
        return _delete(folder) if _touched(folder) < before and not still() else 0
    return sum(
        _delete(file)
        for file in _listing(folder)
        if f"{folder.name}/{file.name}" not in needed and _touched(file) < before
    )


def _is_needed(rank: Path, copied: set[str], generation: str) -> bool:
    return _is_in(_current_files(rank) - copied, generation)


def _copied_files(capture: Path, compacted: Compacted) -> dict[str, set[str]]:
    """By rank folder, segments that readers take from merged files instead."""
    found = {manifest.rank: manifest for manifest in capture_manifests(capture)}
    copied: dict[str, set[str]] = defaultdict(set)
    for use in in_use(compacted, found.values()):
        for rank in use.ranks:
            own = segment(found[rank], use.file.table, use.file.version)
            copied[f"rank={rank}"].add(own.file if own else "")
    return copied


def _current_files(folder: Path) -> set[str]:
    manifest = read_manifest(folder)
    segments = [*manifest.tables.values(), *manifest.summaries.values()] if manifest else []
    return {segment.file for segment in segments}


def _is_in(files: set[str], generation: str) -> bool:
    return any(file.startswith(f"{generation}/") for file in files)


def _delete(path: Path) -> int:
    try:
        freed = size_bytes(path)
    except OSError:  # another process sweeps, too
        freed = 0
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
    return freed


def _remove_empty(capture: Path, now: float) -> None:
    """Remove folders of ranks, and then of the capture, that were left empty for a day."""
    for folder in [*capture.glob("rank=*"), capture / DERIVED, capture]:
        with contextlib.suppress(OSError):
            if now - folder.stat().st_mtime > GRACE_S:
                folder.rmdir()


def _is_dead(staging: re.Match[str], path: Path, now: float) -> bool:
    if staging["host"] == process_space() and not _is_running(int(staging["pid"])):
        return True
    return now - _touched(path) > GRACE_S


def _is_running(pid: int) -> bool:
    """Whether a process of this machine still works; unknown counts as yes."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    try:
        told = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return True
    # Ended, but nobody took note of it: in containers the first process often does not.
    return told.rpartition(b")")[2].split()[:1] not in ([b"Z"], [b"X"])


def _touched(path: Path) -> float:
    """Newest change of a folder's files, or of the file, in seconds since the epoch."""
    try:
        inside = [child.stat().st_mtime for child in path.iterdir()] if path.is_dir() else []
        return max([path.stat().st_mtime, *inside])
    except OSError:
        return time.time()


def _listing(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def size_bytes(path: Path) -> int:
    """Bytes below a path; what vanishes meanwhile counts nothing."""
    if path.is_file():
        return path.stat().st_size
    total = 0
    for file in path.rglob("*"):
        try:
            state = file.lstat()
        except OSError:
            continue
        total += state.st_size if stat.S_ISREG(state.st_mode) else 0
    return total
