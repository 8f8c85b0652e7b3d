"""Folders of expert loads that grow while training goes on: read anew when their files change.

They are summed over ranks and steps, so all of a folder is read each time; how often, the watcher
decides by how long it took.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..discover.expert_choice import nearest_folders
from ..discover.expert_folders import folder_files, own_folder, recorded_files, with_loads
from ..model import RankSource, ReadLog, SourceFile, storable
from ..readers.expert_load import expert_files
from ..readers.expert_load.load_files import RULE
from ..readers.trust import EXPERT_LOAD, READERS
from ..store.manifest import SourceRecord, capture_manifests, rank_folder
from .capture_spans import Key
from .join_tables import exchange, staging

_FILLS = frozenset[str]().union(*(fills for _, reader, fills in READERS if reader == EXPERT_LOAD))


@dataclass(frozen=True, slots=True)
class LoadTask:
    """Read the expert loads of folders, parts of one job's, into a capture that is published."""

    store: str
    run: str
    capture: str
    folders: tuple[str, ...]


def load_folders(roots: tuple[Path, ...], folders: Sequence[Path]) -> list[Path]:
    """Folders that count tokens: of `folders`, which are named so, and the roots' own."""
    here = [folder for root in roots if (folder := own_folder(root))]
    return [one for one in dict.fromkeys((*folders, *here)) if folder_files(one)]


def loads_of(
    newest: Sequence[Key], places: Mapping[Key, Sequence[str]], load_files: Sequence[Path]
) -> dict[Key, tuple[Path, ...]]:
    """Which of the folders found each run's newest capture is brought up to date from.

    `newest` are these captures, the newest first, `places` the folders of their ranks. As for
    `npuscope ingest` the nearest folders count, but each for one capture only: the newest that it
    is nearest to.
    """
    folders = {one.resolve(): one for one in load_files}
    folders_by_capture: dict[Key, tuple[Path, ...]] = {}
    by_number = {str(number): places[key] for number, key in enumerate(newest)}
    for number, key in enumerate(newest):
        if places[key]:
            mine = sorted(nearest_folders(str(number), list(folders), by_number))
            folders_by_capture[key] = tuple(folders.pop(real) for real in mine)
    return {key: mine for key, mine in folders_by_capture.items() if mine}


def files_of(folders: Sequence[Path]) -> tuple[SourceFile, ...]:
    """The folders' files as they are now; none where they are gone, or are no parts of one job."""
    try:
        files = recorded_files(None, folders)
    except OSError:
        return ()
    return files[1] if files else ()


def join_loads(task: LoadTask) -> bool:
    """Read the folders' files and exchange the tables of the rank that holds them.

    Returns whether it was done. Raises TraceFormatError for files that cannot be read, OSError and
    duckdb's errors, as writing does.
    """
    store = Path(task.store)
    manifests = capture_manifests(rank_folder(store, task.run, task.capture, 0).parent)
    load_files = recorded_files(None, [Path(folder) for folder in task.folders])
    if not manifests or load_files is None or not load_files[1]:
        return False
    folder, files = load_files
    having = [m for m in manifests if m.rules.get(RULE) == folder]
    holder = (having or [m for m in manifests if RULE in m.rules] or manifests)[0]
    source = RankSource(holder.source_root, "pytorch", holder.rank, "", {})
    source = with_loads(source, (folder, files))
    reading = ReadLog(rules=dict(source.rules))
    former = recorded_files(holder, None)
    own = rank_folder(store, holder.run, holder.capture, holder.rank)
    with staging(own) as con:
        expert_files.read(con, source, reading, _FILLS, lambda n_bytes: None)
        return exchange(
            store,
            holder,
            con,
            _FILLS,
            rules=reading.rules,
            replaced_sources=frozenset(
                one.path for one in (*(former[1] if former else ()), *files)
            ),
            sources=[
                SourceRecord(storable(one.path), one.size_bytes, one.mtime_ns, "") for one in files
            ],
        )
