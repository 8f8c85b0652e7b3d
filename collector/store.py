"""The store: immutable Parquet segments per rank, published by replacing one manifest.

    <store>/npuscope-store.json                        marker and layout version
    <store>/run=R/capture=C/index.json                 cache of the capture's manifests
    <store>/run=R/capture=C/rank=12/manifest.json      the current generation and its files
                                    <generation>/<table>.parquet
                                    .tmp-<host>-<pid>-<id>/   being written; invisible

Readers go through `open` (or `query`, which also survives a generation swept under its feet).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import socket
import stat
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import duckdb
import msgspec
import polars as pl

from npuscope.errors import StoreError

from . import schema
from .manifest import (
    MANIFEST,
    Manifest,
    check_layout,
    is_store,
    manifests,
    rank_folder,
    read_manifest,
    sync_folder,
    write_atomically,
    write_index,
)

GRACE_S = 86_400
# In an exported file: which summaries it holds, in which version.
SUMMARY_VERSIONS = "summary_versions"
_STAGING = re.compile(r"\.tmp-(?P<host>.+)-(?P<pid>\d+)-[0-9a-f]{12}(\..*)?")
_OFFLINE = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}


def open(
    path: str | Path, *, summaries: Mapping[str, str] | None = None
) -> duckdb.DuckDBPyConnection:
    """An in-memory DuckDB with one view per canonical table over everything published.

    `path` is a store or a `.duckdb` file that `export` wrote. Views of tables that no rank has are
    empty but typed. A summary is a view where every rank has it in the version that `summaries`
    (name -> version) asks for; by default in any, as long as it is one. The views pin the
    generations that were current at the call. Raises StoreError.
    """
    path = Path(path)
    con = duckdb.connect(":memory:", config=dict(_OFFLINE))
    if path.is_file():
        _attach_export(con, path, summaries)
        return con
    if not is_store(path):
        raise StoreError(f"{path}: not a store (no npuscope-store.json): ingest a profile into it")
    check_layout(path)
    _create_views(con, path, manifests(path), summaries)
    return con


def query(path: str | Path, sql: str, parameters: Sequence[object] = ()) -> pl.DataFrame:
    """Run one query over the store; when a listed file is gone, look again once.

    Files go only when a superseded generation outlived its grace period between our reading of
    the manifests and the query.
    """
    for attempt in (1, 2):
        con = open(path)
        try:
            return pl.DataFrame(con.sql(sql, params=list(parameters)).pl())
        except duckdb.IOException:
            if attempt == 2:
                raise
        finally:
            con.close()
    raise AssertionError("unreachable")


def version(path: str | Path) -> str:
    """Changes whenever anything is published or dropped: a key for caches."""
    state = hashlib.sha256()
    for m in manifests(Path(path)):
        state.update(f"{m.run}\0{m.capture}\0{m.rank}\0{m.generation}\0".encode())
    return state.hexdigest()[:16]


def summary_versions(found: Sequence[Manifest]) -> dict[str, str]:
    """Summaries that all the ranks have in one version."""
    shared: dict[str, str] = {}
    for name in sorted({name for m in found for name in m.summaries}):
        versions = {m.summaries[name].version if name in m.summaries else "" for m in found}
        if len(versions) == 1:
            shared[name] = versions.pop()
    return shared


def segment_paths(store: Path, found: Sequence[Manifest], table: str) -> list[str]:
    """Files of a table or summary over the given ranks."""
    return [
        str(rank_folder(store, m.run, m.capture, m.rank) / segment.file)
        for m in found
        if (segment := m.tables.get(table) or m.summaries.get(table)) and segment.file
    ]


def _create_views(
    con: duckdb.DuckDBPyConnection,
    store: Path,
    found: Sequence[Manifest],
    summaries: Mapping[str, str] | None,
) -> None:
    mixed = len({m.schema_digest for m in found}) > 1
    for name in schema.tables():
        create_view(con, name, segment_paths(store, found, name), union_by_name=mixed)
    for name, version in summary_versions(found).items():
        files = segment_paths(store, found, name)
        if files and (summaries is None or summaries.get(name) == version):
            create_view(con, name, files, union_by_name=mixed)


def create_view(
    con: duckdb.DuckDBPyConnection,
    name: str,
    files: Sequence[str],
    *,
    union_by_name: bool = False,
) -> None:
    """A view over Parquet files; over none, the canonical table's columns without rows."""
    if files:
        listed = ", ".join(quoted(file) for file in files)
        body = (
            f"* from read_parquet([{listed}], hive_partitioning = false, "
            f"union_by_name = {str(union_by_name).lower()})"
        )
    else:
        columns = schema.tables()[name].columns
        typed = [*schema.KEY_COLUMNS, *((column.name, column.type) for column in columns)]
        body = ", ".join(f'cast(null as {kind}) as "{column}"' for column, kind in typed)
        body += " where false"
    con.execute(f'create view "{name}" as select {body}')


def _attach_export(
    con: duckdb.DuckDBPyConnection, path: Path, summaries: Mapping[str, str] | None
) -> None:
    try:
        con.execute(f"attach {quoted(str(path))} as exported (read_only)")
        names = [n for (n,) in con.execute("select table_name from duckdb_tables()").fetchall()]
    except duckdb.Error as error:
        raise StoreError(f"{path}: not a DuckDB file of npuscope: {error}") from error
    if "ranks" not in names:
        raise StoreError(f"{path}: a DuckDB file, but not one that npuscope exported")
    versions: dict[str, str] = {}
    if SUMMARY_VERSIONS in names:
        versions = dict(con.execute(f"from exported.main.{SUMMARY_VERSIONS}").fetchall())
    for name in names:
        trusted = summaries is None or versions.get(name) == summaries.get(name)
        if name in schema.tables() or (name in versions and trusted):
            con.execute(f'create view "{name}" as select * from exported.main."{name}"')


def quoted(text: str) -> str:
    """A SQL string literal."""
    return "'" + text.replace("'", "''") + "'"


def publish(store: Path, staged: Path, manifest: Manifest) -> None:
    """Make a written generation the rank's current one: all its tables at once.

    `staged` is the staging folder beside the rank's generations; its files are synced, it is
    renamed to the generation's name, then the manifest is replaced. Dying between any two of
    these leaves what was published before.
    """
    folder = rank_folder(store, manifest.run, manifest.capture, manifest.rank)
    superseded = read_manifest(folder)
    for file in staged.iterdir():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    sync_folder(staged)
    staged.rename(folder / manifest.generation)
    sync_folder(folder)
    replace_manifest(store, manifest)
    if superseded:
        _begin_grace(folder / superseded.generation)


def replace_manifest(store: Path, manifest: Manifest) -> None:
    """Atomically replace a rank's manifest."""
    folder = rank_folder(store, manifest.run, manifest.capture, manifest.rank)
    write_atomically(folder / MANIFEST, msgspec.json.encode(manifest))


def drop(store: Path, manifest: Manifest) -> None:
    """Unpublish a rank; its files stay for readers of the moment until `sweep`."""
    folder = rank_folder(store, manifest.run, manifest.capture, manifest.rank)
    (folder / MANIFEST).unlink(missing_ok=True)
    _begin_grace(folder / manifest.generation)
    write_index(folder.parent)


def _begin_grace(generation: Path) -> None:
    """Readers of the moment may still need it: its grace period counts from now."""
    with contextlib.suppress(OSError):
        os.utime(generation)


def sweep(store: Path, *, grace_s: float = GRACE_S) -> int:
    """Delete dead staging folders and generations superseded for longer than the grace period.

    Returns bytes freed. A staging folder is dead if its host is this one and its process is gone,
    or if nothing touched it for a day.
    """
    freed = 0
    now = time.time()
    for capture in sorted(store.glob("run=*/capture=*")):
        for folder in [capture, *capture.glob("rank=*")]:
            current = _current_files(folder)
            for child in _listing(folder):
                staging = _STAGING.fullmatch(child.name)
                if staging:
                    dead = _is_dead(staging, child, now)
                else:
                    dead = (
                        child.is_dir()
                        and folder.name.startswith("rank=")
                        and not any(file.startswith(f"{child.name}/") for file in current)
                        and now - _touched(child) > grace_s
                    )
                if dead:
                    freed += size_bytes(child)
                    shutil.rmtree(child, ignore_errors=True)
                    child.unlink(missing_ok=True) if child.is_file() else None
    return freed


def _current_files(folder: Path) -> set[str]:
    manifest = read_manifest(folder)
    segments = [*manifest.tables.values(), *manifest.summaries.values()] if manifest else []
    return {segment.file for segment in segments}


def _is_dead(staging: re.Match[str], path: Path, now: float) -> bool:
    ours = re.sub(r"[^A-Za-z0-9.]", "_", socket.gethostname())
    if staging["host"] == ours:
        try:
            os.kill(int(staging["pid"]), 0)
        except ProcessLookupError:
            return True
        except OSError:
            pass
    return now - _touched(path) > GRACE_S


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
