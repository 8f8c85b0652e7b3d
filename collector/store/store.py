"""The store: immutable Parquet segments per rank, published by replacing one manifest.

    <store>/npuscope-store.json                        marker and layout version
    <store>/run=R/capture=C/index.json                 cache of the capture's manifests
                           /compacted.json             what merged files hold: see `compact_files`
                           /batch-<id>/<table>-0.parquet  ranks that were read together: `batches`
    <store>/run=R/capture=C/rank=12/manifest.json      the current generation and its files
                                    <generation>/<table>.parquet
                                    .tmp-<host>-<pid>-<id>/   being written; invisible

Readers go through `open` (or `query`, which also survives a generation swept under its feet).

A store opened for strangers' SQL: it can read the store's tables and do nothing else.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

import duckdb
import msgspec

from npuscope.errors import StoreError
from npuscope.messages import StoredText, restore_text

from .. import schema
from ..literals import engine_name, file_literal, sql_literal
from ..quiet_duckdb import open_duckdb
from ..small_files import decode, open_regular
from . import mirror
from .compact_files import Place, places, read_compacted, without_torn
from .folder_handles import captures, discard, handle, make_private, touch
from .manifest import (
    BUNDLE_HEAD,
    MANIFEST,
    Manifest,
    check_layout,
    is_store,
    manifests,
    publish_folder,
    rank_folder,
    read_manifest,
    remove,
    summary_versions,
    update,
    write_atomically,
    write_index,
)

if TYPE_CHECKING:
    import polars as pl

# In an exported file: which summaries it holds, in which version.
SUMMARY_VERSIONS = "summary_versions"
# In an exported file: how its ranks were read, a `Reading` each.
READINGS = "rank_readings"
# How the store's files are written: times that grow take little as their differences, and fewer
# rows than usual wait for their group to be full.
PARQUET = "format parquet, compression zstd, parquet_version v2, row_group_size 40960"
# Files of a store in a bucket may be gone before they are here.
_ATTEMPTS = 5
# A variable of connections to stores: the summaries that are known to have no row.
EMPTY_SUMMARIES = "empty_summaries"
# Processes of containers that share the temporary folder may have the same number.
_PROCESS = secrets.token_hex(4)
_OFFLINE = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}


class Reading(NamedTuple):
    """What was told and decided when a rank was read: exports carry it, as answers depend on it."""

    run: str
    capture: str
    rank: int
    rules: dict[str, str]
    warnings: list[StoredText]


@dataclass(frozen=True, slots=True)
class _Look:
    """What a store had when it was opened: the ranks, and what is told of captures left out."""

    manifests: list[Manifest]
    damage: dict[tuple[str, str], str]


# To read a thousand manifests takes as long as many an answer does.
_LOOKS: WeakKeyDictionary[duckdb.DuckDBPyConnection, _Look] = WeakKeyDictionary()


def open(
    path: str | Path,
    *,
    summaries: Mapping[str, str] | None = None,
    writable: Path | None = None,
    spill: Path | None = None,
) -> duckdb.DuckDBPyConnection:
    """An in-memory DuckDB with one view per canonical table over everything published.

    `path` is a store, a `.duckdb` file that `export` wrote, or a bundle. Views of tables that no
    rank has are empty but typed. A summary is a view where every rank has it in the version that
    `summaries` (name -> version) asks for; by default in any, as long as it is one. The views pin
    the generations that were current at the call. What memory does not hold goes to the folder
    `spill`. Captures of which a file is torn are left out: `left_out` tells them.

    An exported file may be anybody's: the engine then reaches no other file, but for those that
    statements write below the folder `writable`. Raises StoreError.
    """
    path = Path(path)
    con = _connection(spill)
    if path.is_file():
        _attach_export(con, _database(path), summaries, writable)
        return con
    if not is_store(path):
        raise StoreError(f"{path}: not a store (no npuscope-store.json): ingest a profile into it")
    check_layout(path)
    for attempt in range(_ATTEMPTS):
        try:
            manifests_of, damage = without_torn(path, manifests(path))
            if damage and not attempt:  # maybe replaced, and swept, since its manifest was read
                mirror.refresh(path, is_needed=True)
                continue
            create_views(con, path, manifests_of, summaries)
            _LOOKS[con] = _Look(manifests_of, damage)
            return con
        except FileNotFoundError as error:  # replaced, and swept, while we got its files
            if attempt == _ATTEMPTS - 1:
                raise StoreError(f"{error.filename}: gone again and again: try later") from error
            mirror.refresh(path, is_needed=True)
    raise AssertionError("unreachable")


def opened_over(con: duckdb.DuckDBPyConnection, path: Path) -> list[Manifest]:
    """The ranks that `open(path)` gave a connection, which a new look may find replaced; of other
    connections those that the store has now."""
    return _LOOKS[con].manifests if con in _LOOKS else manifests(path)


def readings(con: duckdb.DuckDBPyConnection, path: Path | None = None) -> list[Reading]:
    """How the ranks were read that `con` was opened over: of an exported file, or of a store; that
    is at `path`, where `open` did not make `con`. Nothing where an older version exported."""
    if con in _LOOKS or (path is not None and is_store(path)):
        return readings_of(opened_over(con, path or Path()))
    columns = con.execute(
        "select column_name from duckdb_columns()"
        " semi join duckdb_tables() using (database_name, schema_name, table_name)"
        " where database_name = 'exported' and schema_name = 'main' and table_name = ?"
        " and column_default is null",
        [READINGS],
    ).fetchall()
    if {name for (name,) in columns} != set(Reading._fields):
        return []
    read: list[Reading] = []
    rows = con.execute(
        f"select {', '.join(Reading._fields)} from exported.main.{READINGS} order by all"
    ).fetchall()
    for run, capture, rank, rules, warnings in rows:
        with suppress(msgspec.MsgspecError, ValueError):  # anybody's: passed over, as manifests are
            told = decode(rules, dict[str, str]), decode(warnings, list[StoredText])
            list(map(restore_text, told[1]))
            read.append(Reading(run, capture, rank, *told))
    return read


def readings_of(members: Iterable[Manifest]) -> list[Reading]:
    """What manifests tell of how their ranks were read."""
    return [Reading(m.run, m.capture, m.rank, m.rules, m.kept_warnings) for m in members]


def left_out(con: duckdb.DuckDBPyConnection) -> Mapping[tuple[str, str], str]:
    """By run and capture, what to tell of those that `open` left out as a file of them is torn."""
    return _LOOKS[con].damage if con in _LOOKS else {}


def is_export(path: Path) -> bool:
    """Whether it is a DuckDB file or a page with tables in it, whatever its name."""
    try:
        with open_regular(path) as file:
            head = file.read(200)
    except OSError:
        return False
    return head[8:12] == b"DUCK" or BUNDLE_HEAD in head


def _database(path: Path) -> Path:
    """The DuckDB file: the file itself, or what a bundle's tables were unpacked to."""
    head = b""
    with suppress(OSError), open_regular(path) as file:
        head = file.read(200)
    if BUNDLE_HEAD not in head:
        return path
    from .bundle import unpack  # seldom met

    return unpack(path)


def _connection(spill: Path | None = None) -> duckdb.DuckDBPyConnection:
    # What memory does not hold goes there, not into the working folder; made when it is needed.
    spill = spill or _spill_folder() / f"{_spill_prefix()}{secrets.token_hex(4)}"
    con = open_duckdb(config={**_OFFLINE, "temp_directory": engine_name(spill)})
    con.execute("load parquet")  # built in; its setting waits for it
    con.execute("set parquet_metadata_cache = true")  # a published segment never changes
    return con


def _spill_folder() -> Path:
    """Where the queries of this user spill, unseen by others."""
    folder = Path(tempfile.gettempdir(), f"npuscope-{os.geteuid()}")
    try:
        make_private(folder)
    except OSError:  # somebody else took the name
        return _other_spill_folder()
    return folder


@cache
def _other_spill_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="npuscope-"))


def _spill_prefix() -> str:
    """How the folders begin to which queries of this process spill."""
    return f"{os.getpid()}-{_PROCESS}-"


def remove_spilled() -> None:
    """Remove what queries spilled that are under way in this process, which is about to end."""
    for folder in _spill_folder().glob(f"{_spill_prefix()}*"):
        shutil.rmtree(folder, ignore_errors=True)


def frame(relation: duckdb.DuckDBPyRelation) -> pl.DataFrame:
    """All rows of a relation, handed over as an Arrow stream: neither pyarrow nor numpy is loaded.

    polars keeps the types it has met until the process ends, which the engine's own must not be.
    Raises duckdb.Error, also for what fails while rows are handed over.
    """
    import polars as pl  # who reads profiles asks for no frame

    stream = SimpleNamespace(__arrow_c_stream__=relation.__arrow_c_stream__)
    try:
        return pl.DataFrame(stream)
    except pl.exceptions.ComputeError as error:
        reason = str(error).removeprefix("got external error: ")
        is_memory = "Out of Memory" in reason
        raise (duckdb.OutOfMemoryException if is_memory else duckdb.Error)(reason) from error


def query(path: str | Path, sql: str, parameters: Sequence[object] = ()) -> pl.DataFrame:
    """Run one query over the store; when a listed file is gone, look again once.

    Files go only when a superseded generation outlived its grace period between our reading of
    the manifests and the query. Raises duckdb.IOException where they are gone both times.
    """
    for attempt in (1, 2):
        con = open(path)
        try:
            return frame(con.sql(sql, params=list(parameters)))
        except duckdb.IOException:
            if attempt == 2:
                raise
        finally:
            con.close()
    raise AssertionError("unreachable")


def version(path: str | Path, rank_manifests: Sequence[Manifest] | None = None) -> str:
    """Changes whenever anything is published, dropped or compacted: a key for caches.
    `rank_manifests`: of its ranks, where they are known."""
    state = hashlib.sha256()
    for m in manifests(Path(path)) if rank_manifests is None else rank_manifests:
        exchanged = "".join(one.version for one in m.tables.values())  # see `watch.join_tables`
        state.update(f"{m.run}\0{m.capture}\0{m.rank}\0{m.generation}\0{exchanged}\0".encode())
    for folder in captures(Path(path)):
        state.update(f"{read_compacted(folder).id}\0".encode())
    return state.hexdigest()[:16]


def over(
    path: Path,
    ranks: Sequence[Manifest],
    *,
    summaries: Mapping[str, str] | None = None,
    spill: Path | None = None,
) -> duckdb.DuckDBPyConnection:
    """As `open`, but over the given ranks of a store only."""
    con = _connection(spill)
    create_views(con, path, ranks, summaries)
    return con


def create_views(
    con: duckdb.DuckDBPyConnection,
    store: Path,
    manifests: Sequence[Manifest],
    summaries: Mapping[str, str] | None,
) -> None:
    """A view for every canonical table over the given ranks, and for summaries that all have."""
    located = places(store, manifests)
    digests = {manifest.schema_digest for manifest in manifests}
    for name in schema.tables():
        create_view(con, name, located.get(name, ()), is_current=digests <= {schema.digest()})
    empty = []
    for name, version in summary_versions(manifests).items():
        if summaries is not None and summaries.get(name) != version:
            continue
        if located.get(name):
            create_view(con, name, located[name])
        else:
            empty.append(name)
    # What has no row in any rank has no file: whoever knows its columns need not compute it again.
    con.execute(f"set variable {EMPTY_SUMMARIES} = ?::varchar[]", [empty])


def create_view(
    con: duckdb.DuckDBPyConnection,
    name: str,
    places: Sequence[Place],
    *,
    is_current: bool = True,
) -> None:
    """A view over Parquet files; over none, the canonical table's columns without rows.

    Files that are not all of the current schema are joined by column name, and columns that none
    of them has are NULL.
    """
    join = "union all" if is_current else "union all by name"
    union_by_name = str(not is_current).lower()
    parts = [] if places and is_current else [_typed_nothing(name)]
    whole = ", ".join(file_literal(place.path) for place in places if not place.condition)
    if whole:
        parts.append(_parquet(f"[{whole}]", union_by_name))
    parts += [
        f"{_parquet(file_literal(place.path), union_by_name)} where {place.condition}"
        for place in places
        if place.condition
    ]
    con.execute(f'create view "{name}" as {f" {join} ".join(parts)}')


def _parquet(files: str, union_by_name: str) -> str:
    options = f"hive_partitioning = false, union_by_name = {union_by_name}"
    return f"select * from read_parquet({files}, {options})"


def _typed_nothing(name: str) -> str:
    typed = _columns(schema.tables()[name])
    body = ", ".join(f'cast(null as {kind}) as "{column}"' for column, kind in typed)
    return f"select {body} where false"


def _columns(table: schema.Table) -> list[tuple[str, str]]:
    return [*schema.KEY_COLUMNS, *((column.name, column.type) for column in table.columns)]


def _attach_export(
    con: duckdb.DuckDBPyConnection,
    path: Path,
    summaries: Mapping[str, str] | None,
    writable: Path | None,
) -> None:
    try:
        export = attach_export(con, path, writable)
        versions = {}
        if export.get(SUMMARY_VERSIONS) == {"name", "version"}:
            query = (
                f"select name, version from exported.main.{SUMMARY_VERSIONS} where version <> ''"
            )
            versions = dict(con.execute(query).fetchall())
    except duckdb.Error as error:
        raise StoreError(f"{path}: not a DuckDB file of npuscope: {error}") from error
    keys = {name for name, _ in schema.KEY_COLUMNS}
    if not keys <= export.get("ranks", set()):
        raise StoreError(f"{path}: a DuckDB file, but not one that npuscope exported")
    for name, table in schema.tables().items():
        body = _typed_nothing(name)
        if keys <= export.get(name, set()):
            columns = ", ".join(  # an older export may lack some
                f'"{column}"' if column in export[name] else f'cast(null as {kind}) as "{column}"'
                for column, kind in _columns(table)
            )
            body = f'select {columns} from exported.main."{name}"'
        con.execute(f'create view "{name}" as {body}')
    for name in export.keys() - schema.tables().keys():
        version = versions.get(name)
        if version and (summaries is None or summaries.get(name) == version):
            con.execute(f'create view "{name}" as select * from exported.main."{name}"')


def attach_export(
    con: duckdb.DuckDBPyConnection, path: Path, writable: Path | None = None
) -> dict[str, set[str]]:
    """Attach a DuckDB file as `exported`; returns the columns of its tables.

    The file may be anybody's. From here on the engine opens no other one, and may write only below
    `writable`. Views are passed over, tables whose columns are computed, and names that no table of
    ours has. Raises duckdb.Error.
    """
    whole = engine_name(path.absolute())  # a bare name might begin as a URL does
    before, mark, after = whole.partition("?")  # as the engine names its log
    con.execute(
        f"set allowed_paths = [{sql_literal(whole)}, {sql_literal(f'{before}.wal{mark}{after}')}]"
    )
    if writable is not None:
        con.execute(f"set allowed_directories = [{sql_literal(engine_name(writable.absolute()))}]")
    con.execute("set enable_external_access = false")
    con.execute(f"attach {sql_literal(whole)} as exported (read_only, type duckdb)")
    rows = con.execute(
        "select table_name, list(column_name) from duckdb_columns()"
        " semi join duckdb_tables() using (database_name, schema_name, table_name)"
        " where database_name = 'exported' and schema_name = 'main'"
        f" and regexp_full_match(table_name, {sql_literal(schema.OWN_NAME)})"
        " group by table_name having count(column_default) = 0"
    ).fetchall()
    return {name: set(columns) for name, columns in rows}


def publish(store: Path, staging: Path | None, manifest: Manifest) -> None:
    """Make a written generation the rank's current one: all its tables at once.

    `staging` is the staging folder beside the rank's generations; its files are synced, it is
    renamed to the generation's name, then the manifest is replaced. Dying between any two of
    these leaves what was published before. Of processes that publish one rank at the same time
    the last wins; generations of the others are swept like any superseded one. None: its rows
    stand in the files of its batch, which have their lasting name.
    """
    folder = rank_folder(store, manifest.run, manifest.capture, manifest.rank)
    superseded = read_manifest(folder)
    if staging is None:
        with handle(folder, make=True):
            pass
    else:
        publish_folder(staging, manifest.generation)
    try:
        write_atomically(folder / MANIFEST, msgspec.json.encode(manifest))
    except (OSError, StoreError):  # a full disk needs the room
        current = read_manifest(folder)
        if current is None or current.generation != manifest.generation:
            discard(folder / manifest.generation)
        raise
    if superseded:
        touch_files(folder, superseded)


def touch_files(folder: Path, manifest: Manifest) -> None:
    """Begin the grace period of a rank's files; those of a batch go when all its ranks did."""
    touch(folder / manifest.generation)
    if manifest.batch:
        touch(folder.parent / manifest.batch)


def replace_manifest(store: Path, manifest: Manifest) -> bool:
    """Atomically replace the manifest of a published generation by a better one of it.

    Returns whether it did: a generation that another process published meanwhile stays.
    """
    folder = rank_folder(store, manifest.run, manifest.capture, manifest.rank)
    current = read_manifest(folder)
    if current is None or current.generation != manifest.generation:
        return False
    is_done = True

    def better(content: bytes | None) -> bytes | None:
        nonlocal is_done
        is_done = _generation(content) == manifest.generation
        return msgspec.json.encode(manifest) if is_done else None

    update(folder / MANIFEST, better)
    return is_done


def _generation(content: bytes | None) -> str | None:
    """The generation that a manifest names; None where it cannot be read."""
    try:
        return decode(content or b"", Manifest).generation
    except msgspec.MsgspecError:
        return None


def drop(store: Path, manifest: Manifest) -> None:
    """Unpublish a rank; its files stay for readers of the moment until `sweep`."""
    folder = rank_folder(store, manifest.run, manifest.capture, manifest.rank)
    if remove(folder / MANIFEST, lambda content: _generation(content) == manifest.generation):
        touch_files(folder, manifest)
    write_index(folder.parent)
