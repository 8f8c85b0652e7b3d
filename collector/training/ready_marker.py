"""READY.json: the last file of a capture, which tells a watcher that all others are there.

    host_123_20261122101500123_ascend_pt/READY.json
    {"schema_version": 1, "run": "pretrain", "rank": 0, "first_step": 200, "last_step": 201,
     "written_utc": "2026-11-22T10:15:09+00:00",
     "files": [{"path": "profiler_info_0.json", "size_bytes": 2034}, ...]}

A process that is killed leaves a capture without it.
"""

from __future__ import annotations

import json
import os
from datetime import datetime, timezone
from pathlib import Path

_NAME = "READY.json"
_SCHEMA_VERSION = 1


def write_ready(
    folder: Path, *, run: str | None, rank: int, first_step: int, last_step: int
) -> Path:
    """Put the marker into a capture that is complete, at once or not at all. Raises OSError."""
    fields = {
        "schema_version": _SCHEMA_VERSION,
        "run": run,
        "rank": rank,
        "first_step": first_step,
        "last_step": last_step,
        "written_utc": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "files": _files(folder),
    }
    marker, draft = folder / _NAME, folder / f".{_NAME}.{os.getpid()}.tmp"
    try:
        with draft.open("w", encoding="utf-8") as opened:
            json.dump(fields, opened)
            opened.flush()
            os.fsync(opened.fileno())
        draft.replace(marker)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    _sync_folder(folder)
    return marker


def _files(folder: Path) -> list[dict[str, object]]:
    files: list[dict[str, object]] = []
    for root, _, names in os.walk(folder):
        for name in names:
            path = Path(root) / name
            if name.endswith(".tmp") or path == folder / _NAME:
                continue
            try:
                size_bytes = path.lstat().st_size
            except FileNotFoundError:  # an analysis beside training has just removed it
                continue
            files.append({"path": path.relative_to(folder).as_posix(), "size_bytes": size_bytes})
    return sorted(files, key=lambda file: str(file["path"]))


def _sync_folder(folder: Path) -> None:
    """The new name, too, outlives a power cut; some file systems refuse, which does no harm."""
    try:
        opened = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(opened)
    except OSError:
        return
    finally:
        os.close(opened)
