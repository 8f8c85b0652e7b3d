"""Tables of a rank that is published already, exchanged for newer ones without reading it again.

    rank=0/manifest.json   generation G: kernels.parquet, train_log.<id>.parquet
                                                          ^ another file with each exchange

A trainer's log and expert loads go on growing after the profile they are kept with was read. What
is exchanged carries a version, so that `compact`, whose copies are of a generation as it was
published, never stands in for it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import duckdb
import msgspec

from ..staging import open_staging
from ..store import mirror
from ..store.folder_handles import changed_s, handle, make_staging, touch
from ..store.manifest import Manifest, Segment, SourceRecord, rank_folder, sync_folder, write_index
from ..store.segments import write_tables
from ..store.store import replace_manifest

# Who reads the store finds its files anew within this time. The usual day would be thousands of
# files of a log that grows at every poll.
_GRACE_S = 600


@contextlib.contextmanager
def staging(rank: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A staging database that spills beside a rank's generations."""
    folder = make_staging(rank)
    try:
        with contextlib.closing(open_staging(folder)) as con:
            yield con
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def exchange(
    store: Path,
    manifest: Manifest,
    con: duckdb.DuckDBPyConnection,
    tables: frozenset[str],
    *,
    rules: Mapping[str, str],
    replaced_sources: frozenset[str],
    sources: Sequence[SourceRecord],
) -> bool:
    """Put what `con` holds of `tables` in the place of what the rank has of them.

    `con` is a staging database without other rows. `rules` join the rank's, `sources` take the
    place of those with the paths `replaced_sources`. Returns whether it was done: not where the
    rank was published anew meanwhile. Raises OSError and duckdb's errors, as writing does.
    """
    folder = rank_folder(store, manifest.run, manifest.capture, manifest.rank)
    version = uuid.uuid4().hex[:12]
    staged = make_staging(folder)
    generation = folder / manifest.generation
    written: dict[str, Segment] = {}
    try:
        key = (manifest.run, manifest.capture, manifest.rank)
        for name, one in write_tables(con, key, staged).items():
            path = staged / one.file
            with path.open("rb") as opened:
                os.fsync(opened.fileno())
            with handle(generation, make=True) as at:  # swept where all was merged with others
                os.replace(path, f"{name}.{version}.parquet", dst_dir_fd=at)
            file = f"{manifest.generation}/{name}.{version}.parquet"
            written[name] = Segment(file, one.row_count, one.size_bytes, version, one.crc32)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    sync_folder(generation)
    mirror.upload(generation, [Path(one.file).name for one in written.values()])
    segments = {name: one for name, one in manifest.tables.items() if name not in tables}
    records = [one for one in manifest.sources if one.path not in replaced_sources]
    done = replace_manifest(
        store,
        msgspec.structs.replace(
            manifest,
            tables={**segments, **written},
            rules={**manifest.rules, **rules},
            sources=[*records, *sources],
        ),
    )
    for name in tables & manifest.tables.keys():
        touch(folder / manifest.tables[name].file)
    _delete_former(generation, tables, {Path(one.file).name for one in written.values()})
    with contextlib.suppress(OSError):  # a cache
        write_index(folder.parent)
    return done


def _delete_former(generation: Path, tables: frozenset[str], current: set[str]) -> None:
    """Delete exchanged files that nobody reads from any more."""
    before = time.time() - _GRACE_S
    with contextlib.suppress(OSError), handle(generation) as at:
        for name in os.listdir(at):
            table, _, rest = name.partition(".")
            if table in tables and rest.endswith(".parquet") and name not in current:
                with contextlib.suppress(OSError):
                    # In the future, where the clock was set back: then they wait for a sweep.
                    if changed_s(at, name) < before:
                        os.unlink(name, dir_fd=at)
