"""What is wrong with a rank's files, in words for a person; and when a reading is worse than the
one before it."""

from __future__ import annotations

from pathlib import Path

from ..model import RankSource
from ..store.manifest import Manifest
from .digests import is_same

_MOST = 3


def changed_files(source: RankSource) -> dict[str, str]:
    """Files that are not as large any more as when they were found: somebody writes them."""
    changes: dict[str, str] = {}
    for role, file in ((role, file) for role, group in source.files.items() for file in group):
        try:
            size_bytes = Path(file.path).stat().st_size
        except OSError as error:
            changes[file.path] = f"removed while being read ({error.strerror}): ingest again"
            continue
        if role in ("train_log", "expert_load") and size_bytes > file.size_bytes:
            continue  # a job that goes on logs on
        if size_bytes != file.size_bytes:
            changes[file.path] = (
                f"changed while being read ({file.size_bytes} bytes, then {size_bytes}): ingest"
                " again when it is complete"
            )
    return changes


def worse_than(before: Manifest | None, now: Manifest) -> str | None:
    """Why a reading must not replace the published one: it holds less, or no more, through damage
    that its files took since, or less as some are gone. None where it may."""
    if before is None:
        return None
    read = {record.path: record for record in before.sources}
    same = {one.path for one in now.sources if one.path in read and is_same(read[one.path], one)}
    damaged = {
        path: why for path, why in now.failed_files.items() if path in read and path not in same
    }
    counts = {
        name: (now.tables[name].row_count if name in now.tables else 0, old.row_count)
        for name, old in before.tables.items()
    }
    fewer = [f"{name} ({new} of {old})" for name, (new, old) in counts.items() if new < old]
    grew = any(new > old for new, old in counts.values()) or now.tables.keys() - counts.keys()
    if not fewer and (grew or damaged.keys() <= before.failed_files.keys()):
        return None
    if before.source_root == now.source_root:  # another profile of the rank has files of its own
        left = read.keys() - {one.path for one in now.sources}
        # What is still there was left for something else that was named.
        gone = (path for path in sorted(left) if not Path(now.source_root, path).exists())
        damaged.update(dict.fromkeys(gone, "is gone since it was read"))
    if not damaged:
        return None
    files = "; ".join(f"{Path(path).name}: {why}" for path, why in list(damaged.items())[:_MOST])
    lost = f", as rows would be missing from {', '.join(fewer[:_MOST])}" if fewer else ""
    return (
        f"{files}. The previous data is kept{lost}: repair the files or bring them back, or"
        " read them as they are with --force"
    )
