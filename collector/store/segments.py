"""A rank's segments: its tables as sorted Parquet, and the summaries computed over them.

Small ranks are gathered in one database, and become files with the rows of all of them: a statement
costs the same for twenty ranks as for one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import duckdb
import msgspec

from .. import schema
from ..literals import file_literal, sql_literal
from ..small_files import crc32_of
from ..staging import SPILL, connect, nonempty, plan_plainly, run, scalar
from . import mirror, store
from .compact_files import Place, places
from .folder_handles import handle, make_staging
from .manifest import Manifest, Segment, rank_folder, sync_folder


class Summary(Protocol):
    """A per-rank result that is kept beside the facts: `query` over the canonical tables.

    It is known to have no rows where none of the tables in `rows_from` has any.
    """

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def query(self) -> str: ...
    @property
    def rows_from(self) -> tuple[str, ...]: ...


# Of the rank whose tables a connection has; of none, only to be asked for names and versions.
Summarise = Callable[[duckdb.DuckDBPyConnection | None], Iterable[Summary]]

# Of Parquet: some ten thousand events. Less than planning costs where every query opens its files.
_SMALL_BYTES = 1 << 20
SUMMARY_SCHEMA = "gathered"
_KEYS = ("run", "capture")
_IN_ORDER = "select * from _summary order by rank, rowid"


def write_tables(
    con: duckdb.DuckDBPyConnection,
    key: tuple[str, str, int],
    out: Path,
    *,
    leave_out: frozenset[str] = frozenset(),
    stacks: bool = True,
) -> dict[str, Segment]:
    """Write every table with rows as one sorted, compressed segment with its key columns.

    Without the tables to `leave_out`, and without call stacks where `stacks` is false. Tables are
    gone once they are written: those that follow are sorted in the memory that they held.
    """
    run, capture, rank = key
    written: dict[str, Segment] = {}
    filled = nonempty(con, schema.tables()) - leave_out
    for name, table in schema.tables().items():
        if name in filled:
            order = _order_by(con, f'"{name}"', table.sort_columns)
            columns = f"{_keys(run, capture)}, {rank}::integer as rank, {_columns(table, stacks)}"
            # What all rows have alike is put before them when they are sorted.
            query = f'select {columns} from (select * from "{name}" t {order}) t'
            written[name] = _copy(con, query, out / f"{name}.parquet")
        con.execute(f'drop table "{name}"')
    return written


def _keys(run: str, capture: str) -> str:
    return f"{sql_literal(run)} as run, {sql_literal(capture)} as capture"


def _columns(table: schema.Table, stacks: bool) -> str:
    return ", ".join(
        "cast(null as varchar) as call_stack"
        if column.name == "call_stack" and not stacks
        else f't."{column.name}"'
        for column in table.columns
    )


def _order_by(con: duckdb.DuckDBPyConnection, rows: str, columns: Sequence[str]) -> str:
    """The clause that sorts `rows`; empty where they already stand so, as readers try to insert
    them: sorting costs more than all else where the table is larger than the memory."""
    order = ", ".join(f't."{column}"' for column in columns)
    # As values of a row, NULLs stand last, as they do in a sort.
    falls = f"select row({order}) < lag(row({order})) over () as falls from {rows} t"
    unsorted = scalar(con, f"select count(*) from ({falls}) where falls")
    return f"order by {order}" if unsorted else ""


def create_gathered(con: duckdb.DuckDBPyConnection) -> None:
    """Empty tables in which the rows of ranks are gathered."""
    run(con, f"create schema {SUMMARY_SCHEMA}")
    for name, table in schema.tables().items():
        typed = ", ".join(f'"{column.name}" {column.type}' for column in table.columns)
        run(con, f'create table {SUMMARY_SCHEMA}."{name}" (rank integer, {typed})')


def gather_tables(
    con: duckdb.DuckDBPyConnection, rank: int, names: Iterable[str], *, stacks: bool = True
) -> None:
    """Copy rows of one rank from canonical tables to those in which ranks are gathered, all or
    nothing: closing the connection undoes what could not be finished."""
    con.begin()
    for name in names:
        rows = f'select $rank, {_columns(schema.tables()[name], stacks)} from "{name}" t'
        run(con, f'insert into {SUMMARY_SCHEMA}."{name}" {rows}', {"rank": rank})
    con.commit()


def write_gathered(
    con: duckdb.DuckDBPyConnection, run: str, capture: str, out: Path, tables: Iterable[str]
) -> dict[str, list[Place]]:
    """Write every table in which ranks were gathered as one file in order of ranks."""
    written: dict[str, list[Place]] = {}
    for name in tables:
        rows = f'{SUMMARY_SCHEMA}."{name}"'
        order = _order_by(con, rows, ("rank", *schema.tables()[name].sort_columns))
        path = out / shared_name(name)
        _copy(con, f"select {_keys(run, capture)}, t.* from {rows} t {order}", path)
        written[name] = [Place(str(path))]
    return written


def shared_name(table: str) -> str:
    """The file with rows of several ranks of a table or a summary."""
    return f"{table}-0.parquet"


def write_summaries(
    out: Path,
    places: Mapping[str, Sequence[Place]],
    summarise: Summarise | None,
    memory_bytes: int,
) -> dict[str, Segment]:
    """Compute the analysis room's summaries of one rank over the `places` of its tables into `out`.

    An empty summary has no file, but its version is known.
    """
    written: dict[str, Segment] = {}
    for summary, query, con in _summary_queries(out, places, summarise, memory_bytes):
        path = out / f"{summary.name}.{summary.version}.parquet"
        written[summary.name] = Segment("", 0, 0, summary.version)
        if query:
            segment = _copy(con, query, path)
            if segment.row_count:
                written[summary.name] = msgspec.structs.replace(segment, version=summary.version)
            else:
                path.unlink()
    return written


def write_shared_summaries(
    out: Path,
    places: Mapping[str, Sequence[Place]],
    summarise: Summarise | None,
    memory_bytes: int,
) -> dict[str, tuple[str, dict[int, int]]]:
    """The same for all ranks whose rows `places` hold, in order of ranks: by name the
    version, and how many rows each rank has."""
    written: dict[str, tuple[str, dict[int, int]]] = {}
    for summary, query, con in _summary_queries(out, places, summarise, memory_bytes):
        counts: dict[int, int] = {}
        if query:
            con.execute(f"create temp table _summary as {query}")
            ranks = "select rank, count(*) from _summary group by rank order by rank"
            counts = dict(con.execute(ranks).fetchall())
            if counts:
                _copy(con, _IN_ORDER, out / shared_name(summary.name))
            con.execute("drop table _summary")
        written[summary.name] = (summary.version, counts)
    return written


def _summary_queries(
    out: Path,
    places: Mapping[str, Sequence[Place]],
    summarise: Summarise | None,
    memory_bytes: int,
) -> Iterator[tuple[Summary, str, duckdb.DuckDBPyConnection]]:
    """Every summary with its query and where to ask it; no query where it has no row."""
    if summarise is None:
        return
    con = connect(out, memory_bytes=memory_bytes)
    try:
        is_small = _size_bytes(places) <= _SMALL_BYTES
        if is_small:
            plan_plainly(con)
        keys = _worded_keys(con, places)
        for name in schema.tables():
            store.create_view(con, name, places.get(name, ()))
            if keys:  # stands before the view of its name
                kind = "table" if is_small and places.get(name) else "view"
                rows = f'select * replace ({keys}) from memory.main."{name}"'
                con.execute(f'create temp {kind} "{name}" as {rows}')
        for summary in summarise(con):
            is_empty = summary.rows_from and not any(map(places.get, summary.rows_from))
            yield summary, "" if is_empty else summary.query, con
    finally:
        con.close()
        shutil.rmtree(out / SPILL, ignore_errors=True)


def _worded_keys(con: duckdb.DuckDBPyConnection, located: Mapping[str, Sequence[Place]]) -> str:
    """Run and capture, of which all rows are, as words of one: what is grouped, joined and sorted
    by them holds a byte of each and not their text. Written, they are text again."""
    path = next((places[0].path for places in located.values() if places), None)
    if path is None:
        return ""
    file = file_literal(path)
    one = con.execute(f"select run, capture from read_parquet({file}) limit 1").fetchall()
    if not one:
        return ""
    literals = {name: sql_literal(word) for name, word in zip(_KEYS, one[0], strict=True)}
    con.execute(";".join(f"create type _{n} as enum ({word})" for n, word in literals.items()))
    return ", ".join(f"{word}::_{name} as {name}" for name, word in literals.items())


def _size_bytes(places: Mapping[str, Sequence[Place]]) -> int:
    return sum(Path(place.path).stat().st_size for group in places.values() for place in group)


def with_stale_summaries(manifests: Sequence[Manifest], summarise: Summarise) -> list[Manifest]:
    """Those of published ranks whose summaries are of another rule than today's."""
    if not manifests:
        return []
    versions = {summary.name: summary.version for summary in summarise(None)}
    return [
        manifest
        for manifest in manifests
        if versions != {name: segment.version for name, segment in manifest.summaries.items()}
    ]


def rebuild_summaries(
    store_path: Path, manifest: Manifest, summarise: Summarise, memory_bytes: int
) -> bool:
    """Compute a published rank's summaries anew; returns whether they were replaced.

    The new files join the current generation, then the manifest is replaced: readers see the old
    ones until then.
    """
    folder = rank_folder(store_path, manifest.run, manifest.capture, manifest.rank)
    generation = folder / manifest.generation
    # Written aside: another process may be doing the same.
    staged = make_staging(folder)
    try:
        located = places(store_path, [manifest])
        written = write_summaries(staged, located, summarise, memory_bytes)
        names = [file.name for file in staged.iterdir()]
        with handle(generation, make=True) as at:  # swept where all was merged with others
            for name in names:
                os.replace(staged / name, name, dst_dir_fd=at)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    sync_folder(generation)
    mirror.upload(generation, names)
    return store.replace_manifest(
        store_path,
        msgspec.structs.replace(manifest, summaries=in_generation(written, manifest.generation)),
    )


def _copy(con: duckdb.DuckDBPyConnection, query: str, path: Path) -> Segment:
    target = sql_literal(str(path))
    [(rows,)] = con.execute(f"copy ({query}) to {target} ({store.PARQUET})").fetchall()
    return Segment(path.name, rows, path.stat().st_size, crc32=crc32_of(path))


def in_generation(segments: Mapping[str, Segment], generation: str) -> dict[str, Segment]:
    """Segments as the manifest names them: below their generation's folder."""
    return {
        name: Segment(
            f"{generation}/{segment.file}" if segment.file else "",
            segment.row_count,
            segment.size_bytes,
            segment.version,
            segment.crc32,
        )
        for name, segment in segments.items()
    }
