"""What is computed over all ranks of a capture, kept beside them: the capture's `derived` tier.

    <capture>/derived/manifest.json                 the digest it was computed for, and its files
                     /<digest>-<id>/<table>.parquet
                     /.tmp-<host>-<pid>-<id>/       being written; invisible

The digest names the generations of all the ranks and the version of the rules. Where it is not that
of the ranks as they are now, the tier is stale and as good as absent: nobody who publishes,
replaces or drops a rank needs to know of it. The collector knows no cross-rank metrics: the
function that computes them is handed in.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import duckdb
import msgspec

from .. import schema
from ..literals import sql_literal
from ..small_files import read_own
from ..staging import SPILL, connect, scalar
from . import store
from .folder_handles import discard, make_staging, require_regular, touch
from .manifest import (
    DROPPED_FILE,
    MANIFEST,
    Manifest,
    Segment,
    publish_folder,
    rank_folder,
    require_own_files,
    write_atomically,
)

DERIVED_FOLDER = "derived"
GENERATION = re.compile("[A-Za-z0-9]{1,64}-[0-9a-f]{12}")
MEMORY_BYTES = 1 << 30


class Result(Protocol):
    """A table to keep: `query` holds on the connection that it was computed on."""

    @property
    def name(self) -> str: ...
    @property
    def query(self) -> str: ...


# From the canonical tables of one capture (and the summaries that all its ranks have) to results.
Derive = Callable[[duckdb.DuckDBPyConnection], Iterable[Result]]


class DerivedTier(msgspec.Struct, frozen=True):
    """What a capture's tier holds; files are relative to `derived`, '' of a table without rows."""

    digest: str
    tables: dict[str, Segment]

    def __post_init__(self) -> None:
        for folder in generations(self) or {""}:
            if not GENERATION.fullmatch(folder) and folder:
                raise ValueError(f"no name of results: {folder!r}")
            require_own_files(folder, self.tables)


def digest_of(members: Iterable[Manifest], version: str) -> str:
    """Short name of the ranks' generations and of the rules in that version."""
    state = hashlib.sha256(f"{version}\0{schema.digest()}\0".encode())
    for manifest in sorted(members, key=lambda m: m.rank):
        state.update(f"{manifest.rank}\0{manifest.generation}\0".encode())
    return state.hexdigest()[:16]


def derived_folder(store_path: Path, run: str, capture: str) -> Path:
    """Where a capture's tier lies."""
    return rank_folder(store_path, run, capture, 0).parent / DERIVED_FOLDER


def read_derived(folder: Path) -> DerivedTier | None:
    """What a tier's folder holds, for whatever ranks; None where nothing was published."""
    try:
        return read_own(folder / MANIFEST, DerivedTier)
    except (OSError, msgspec.MsgspecError):
        return None


def generations(tier: DerivedTier) -> set[str]:
    """Names of the folders that its files lie in: one, or none where no table has rows."""
    return {segment.file.partition("/")[0] for segment in tier.tables.values()} - {""}


def current(folder: Path, digest: str) -> dict[str, str] | None:
    """Path of each table computed for `digest`, '' of those without rows; None: there is none.

    Also where one of its files is gone, which then has to be computed again.
    """
    derived = read_derived(folder)
    if derived is None or derived.digest != digest:
        return None
    paths = {
        name: str(folder / segment.file) if segment.file else ""
        for name, segment in derived.tables.items()
    }
    require_regular(folder, (segment.file for segment in derived.tables.values() if segment.file))
    return paths if all(Path(path).is_file() for path in paths.values() if path) else None


def bring_up_to_date(
    store_path: Path,
    members: Sequence[Manifest],
    version: str,
    derive: Derive,
    *,
    summaries: Mapping[str, str] | None = None,
    memory_bytes: int = MEMORY_BYTES,
) -> dict[str, str]:
    """Paths of the tables of one capture as `current` tells them; computed where they are stale.

    Several processes may do so at once: each publishes whole tables of its own, the last wins, and
    the others' stay for their readers. `derive` finds the summaries that all ranks have in the
    version that `summaries` (name -> version) asks for, by default in any. Raises OSError where the
    store cannot be written, duckdb's errors where the computing fails.
    """
    one = members[0]
    folder = derived_folder(store_path, one.run, one.capture)
    digest = digest_of(members, version)
    paths = current(folder, digest)
    if paths is not None:
        return paths
    if (folder.parent / DROPPED_FILE).exists():
        raise FileNotFoundError(f"{folder.parent}: is being dropped")
    staged = make_staging(folder)
    try:
        written = _compute(store_path, members, derive, staged, summaries, memory_bytes)
        return _publish(folder, staged, digest, written)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _compute(
    store_path: Path,
    members: Sequence[Manifest],
    derive: Derive,
    staging: Path,
    summaries: Mapping[str, str] | None,
    memory_bytes: int,
) -> dict[str, Segment]:
    """Write the results of one capture into `staging`; no file for a table without rows."""
    written: dict[str, Segment] = {}
    threads = os.cpu_count() or 1
    with contextlib.closing(connect(staging, memory_bytes=memory_bytes, threads=threads)) as con:
        store.create_views(con, store_path, members, summaries)
        for result in derive(con):
            path = staging / f"{result.name}.parquet"
            target = sql_literal(str(path))
            query = f"copy ({result.query}) to {target} ({store.PARQUET})"
            row_count = int(scalar(con, query))
            if row_count:
                written[result.name] = Segment(path.name, row_count, path.stat().st_size)
            else:
                path.unlink()
                written[result.name] = Segment("", 0, 0)
    shutil.rmtree(staging / SPILL, ignore_errors=True)
    return written


def _publish(
    folder: Path, staging: Path, digest: str, written: Mapping[str, Segment]
) -> dict[str, str]:
    """Sync and rename the staged folder, then replace the manifest: all tables at once.

    The name is this process's own: a folder that another one published is never touched.
    """
    name = f"{digest}-{staging.name[-12:]}"
    superseded = read_derived(folder)
    publish_folder(staging, name)
    segments = {
        table: Segment(
            f"{name}/{segment.file}" if segment.file else "", segment.row_count, segment.size_bytes
        )
        for table, segment in written.items()
    }
    try:
        write_atomically(folder / MANIFEST, msgspec.json.encode(DerivedTier(digest, segments)))
    except OSError:  # a full disk needs the room
        current = read_derived(folder)
        if current is None or name not in generations(current):
            discard(folder / name)
        raise
    for old in generations(superseded) if superseded else ():
        touch(folder / old)
    return {
        table: str(folder / segment.file) if segment.file else ""
        for table, segment in segments.items()
    }
