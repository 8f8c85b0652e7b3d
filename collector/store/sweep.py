"""What nobody needs any more is deleted: after a grace period, so that no reader misses it.

A reader finds its files once and then works with them for as long as it likes, up to a day. What
is superseded is therefore touched when that happens, and goes when it was not touched for a day.
Where a disk is full it may go sooner, but not within the moment in which a generation already has
its name and no manifest names it yet.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

from . import mirror
from .answers import sweep_answers
from .batches import BATCH_FOLDER, COMPACT_FOLDER, LISTING
from .compact_files import COMPACT_FILE, in_use, read_compacted, segment
from .derived_tier import DERIVED_FOLDER, generations, read_derived
from .derived_tier import GENERATION as RESULTS
from .folder_handles import (
    GRACE_S,
    below,
    captures,
    changed_s,
    children,
    delete,
    handle,
    sweep_staging,
    touch,
)
from .manifest import (
    DROPPED_FILE,
    INDEX,
    MANIFEST,
    capture_manifests,
    read_manifest,
    remove,
)
from .store import touch_files, version

_GENERATION = re.compile(r"\d{8}T\d{6}-[0-9a-f]{12}")
_GENERATION_FOLDER = re.compile(rf"({COMPACT_FOLDER}|{BATCH_FOLDER}){_GENERATION.pattern}")
_OURS = re.compile(rf"[a-z][a-z0-9_]*([.-][A-Za-z0-9_-]+)?\.parquet|{re.escape(LISTING)}")


def sweep(store: Path, *, grace_s: float = GRACE_S) -> int:
    """Delete dead staging folders, and what was superseded for longer than the grace period.

    Returns bytes freed. A staging folder is dead if its host is this one and its process is gone,
    or if nothing touched it for a day. Superseded are generations that no manifest names, segments
    that were merged with others', merged files that are replaced, and results over ranks that were
    replaced since; answers to other versions of the ranks need no grace. Only what is named as ours
    is deleted, and nothing through a link.
    """
    freed = 0
    now = time.time()
    mirror.refresh(store, is_needed=True)
    # What a watcher or an ingest was about to write about the whole store when it was killed.
    freed += sweep_staging(store)
    for capture in captures(store):
        finish_drop(capture)
        merged = _merged_files(capture)
        copied = _copied_files(capture)
        still = partial(_is_merged, capture)
        freed += _sweep(capture, _GENERATION_FOLDER, now, grace_s, needed=merged, still=still)
        for rank in children(capture, "rank="):
            own = copied.get(rank.name, set())
            # A rank's generation may be published between our look and our deleting.
            still = partial(_is_needed, rank, own)
            needed = _current_files(rank) - own
            freed += _sweep(rank, _GENERATION, now, grace_s, needed=needed, still=still)
        if not capture_manifests(capture):
            _drop_derived(capture / DERIVED_FOLDER)
        derived = capture / DERIVED_FOLDER
        needed = _derived_files(derived)
        still = partial(_is_derived, derived)
        freed += _sweep(derived, RESULTS, now, grace_s, needed=needed, still=still)
        _remove_empty(capture, now)
    freed += sweep_answers(store, version(store))
    return freed + mirror.sweep(store, _read_from, grace_s=grace_s)


def _read_from(holder: Path) -> set[str]:
    """Files that are read from, of a rank's folder or of those that ranks share in a capture's."""
    if not holder.name.startswith("rank="):
        return _merged_files(holder)
    return _current_files(holder) - _copied_files(holder.parent).get(holder.name, set())


def finish_drop(capture: Path) -> None:
    """Unpublish every rank of a capture that carries the mark of being dropped."""
    if not (capture / DROPPED_FILE).exists():
        return
    for folder in children(capture, "rank="):
        manifest = read_manifest(folder)
        if manifest:
            touch_files(folder, manifest)
        remove(folder / MANIFEST)
    _drop_derived(capture / DERIVED_FOLDER)
    for name in (INDEX, COMPACT_FILE, DROPPED_FILE):
        remove(capture / name)


def _drop_derived(folder: Path) -> None:
    """Unpublish results over ranks; their readers of the moment keep them for the grace period."""
    derived = read_derived(folder)
    if derived is None:
        return
    for generation in generations(derived):
        touch(folder / generation)
    remove(folder / MANIFEST)


def _sweep(
    folder: Path,
    ours: re.Pattern[str],
    now: float,
    grace_s: float,
    *,
    needed: set[str],
    still: Callable[[str], bool] = lambda generation: False,
) -> int:
    """Delete from a folder dead staging folders, and of the folders that are named as `ours` the
    files that are not `needed` and were not touched for `grace_s`; returns bytes freed."""
    freed = sweep_staging(folder)
    with contextlib.suppress(OSError), handle(folder) as at:
        for name in sorted(filter(ours.fullmatch, os.listdir(at))):
            with contextlib.suppress(OSError):  # another process sweeps, too
                freed += _sweep_generation(at, name, needed, now - grace_s, still)
    return freed


def _sweep_generation(
    at: int, name: str, needed: set[str], before: float, still: Callable[[str], bool]
) -> int:
    """Delete a folder of which nothing is needed, or the files in it that are not, if untouched
    since `before`; returns bytes freed."""
    is_needed = _is_in(needed, name)
    if not is_needed and (changed_s(at, name) >= before or still(name)):
        return 0
    freed = 0
    # Whoever replaces one of many ranks touches the folder, not each file with rows of it.
    is_shared = name.startswith(BATCH_FOLDER)
    if is_shared and os.stat(name, dir_fd=at, follow_symlinks=False).st_mtime >= before:
        return 0
    with below(at, name) as inner:
        # Of a batch, what is in it goes last: without that its files are nobody's.
        for file in sorted(filter(_OURS.fullmatch, os.listdir(inner)), key=LISTING.__eq__):
            if f"{name}/{file}" not in needed and changed_s(inner, file) < before:
                freed += delete(inner, file)
    if not is_needed:
        with contextlib.suppress(OSError):  # something else lies in it
            os.rmdir(name, dir_fd=at)
    return freed


def _is_derived(folder: Path, name: str) -> bool:
    return _is_in(_derived_files(folder), name)


def _derived_files(folder: Path) -> set[str]:
    derived = read_derived(folder)
    return {one.file for one in derived.tables.values()} if derived else set()


def _is_needed(rank: Path, copied: set[str], generation: str) -> bool:
    return _is_in(_current_files(rank) - copied, generation)


def _merged_files(capture: Path) -> set[str]:
    """Files of several ranks that are needed, and what tells what is in them."""
    manifests = capture_manifests(capture)
    files = {file.file for batch in read_compacted(capture).batches for file in batch.files}
    used = {use.file.file for use in in_use(capture, manifests)}
    return files | used | {f"{one.batch}/{LISTING}" for one in manifests if one.batch}


def _is_merged(capture: Path, name: str) -> bool:
    return _is_in(_merged_files(capture), name)


def _copied_files(capture: Path) -> dict[str, set[str]]:
    """By rank folder, segments that readers take from files of several ranks instead."""
    manifests = {manifest.rank: manifest for manifest in capture_manifests(capture)}
    copied: dict[str, set[str]] = defaultdict(set)
    for use in in_use(capture, manifests.values()):
        for rank in use.ranks:
            own = segment(manifests[rank], use.file.table, use.file.version)
            copied[f"rank={rank}"].add(own.file if own else "")
    return copied


def _current_files(folder: Path) -> set[str]:
    manifest = read_manifest(folder)
    segments = [*manifest.tables.values(), *manifest.summaries.values()] if manifest else []
    return {segment.file for segment in segments}


def _is_in(files: set[str], generation: str) -> bool:
    return any(file.startswith(f"{generation}/") for file in files)


def _remove_empty(capture: Path, now: float) -> None:
    """Remove folders of ranks, and then of the capture, that were left empty for a day."""
    for folder in [*children(capture, "rank="), capture / DERIVED_FOLDER, capture]:
        with contextlib.suppress(OSError), handle(folder.parent) as at:
            state = os.stat(folder.name, dir_fd=at, follow_symlinks=False)
            if now - state.st_mtime > GRACE_S:
                os.rmdir(folder.name, dir_fd=at)


def size_bytes(path: Path) -> int:
    """Bytes below a folder; what vanishes meanwhile counts nothing."""
    total = 0
    for file in path.rglob("*"):
        try:
            state = file.lstat()
        except OSError:
            continue
        total += state.st_size if stat.S_ISREG(state.st_mode) else 0
    return total
