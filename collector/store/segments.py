"""A rank's segments: its tables as sorted Parquet, and the summaries computed over them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import duckdb
import msgspec

from .. import schema
from ..staging import SPILL, connect, nonempty, scalar
from . import store
from .compact_files import Place, places
from .folder_handles import handle
from .manifest import Manifest, Segment, make_staging, rank_folder, sync_folder


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


Summarise = Callable[[duckdb.DuckDBPyConnection], Iterable[Summary]]

# Of Parquet: some ten thousand events. Less than planning costs where every query opens its files.
_SMALL_BYTES = 1 << 20


def write_tables(
    con: duckdb.DuckDBPyConnection,
    key: tuple[str, str, int],
    out: Path,
    *,
    leave_out: frozenset[str] = frozenset(),
    stacks: bool = True,
) -> dict[str, Segment]:
    """Write every table with rows as one sorted, compressed segment with its key columns.

    Without the tables to `leave_out`, and without call stacks where `stacks` is false.
    """
    run, capture, rank = key
    named = f"{store.sql_literal(run)} as run, {store.sql_literal(capture)} as capture"
    keys = f"{named}, {rank}::integer as rank"
    written: dict[str, Segment] = {}
    kept = nonempty(con, schema.tables()) - leave_out
    for name, table in schema.tables().items():
        if name not in kept:
            continue
        columns = ", ".join(
            "cast(null as varchar) as call_stack"
            if column.name == "call_stack" and not stacks
            else f't."{column.name}"'
            for column in table.columns
        )
        query = f'select {keys}, {columns} from "{name}" t {_order_by(con, table)}'
        written[name] = _copy(con, query, out / f"{name}.parquet")
    return written


def _order_by(con: duckdb.DuckDBPyConnection, table: schema.Table) -> str:
    """The clause that sorts a table; empty where its rows already stand so, as readers try to
    insert them: sorting costs more than all else where the table is larger than the memory."""
    order = ", ".join(f't."{column}"' for column in table.sort_columns)
    # As values of a row, NULLs stand last, as they do in a sort.
    falls = f'select row({order}) < lag(row({order})) over () as falls from "{table.name}" t'
    unsorted = scalar(con, f"select count(*) from ({falls}) where falls")
    return f"order by {order}" if unsorted else ""


def write_summaries(
    out: Path,
    located: Mapping[str, Sequence[Place]],
    summarise: Summarise | None,
    memory_bytes: int,
) -> dict[str, Segment]:
    """Compute the analysis room's summaries of one rank over its `located` tables into `out`.

    An empty summary has no file, but its version is known.
    """
    if summarise is None:
        return {}
    written: dict[str, Segment] = {}
    con = connect(out, memory_bytes=memory_bytes)
    try:
        is_small = _size_bytes(located) <= _SMALL_BYTES
        for name in schema.tables():
            store.create_view(con, name, located.get(name, ()))
            if is_small and located.get(name):  # stands before the view of its name
                con.execute(f'create temp table "{name}" as from main."{name}"')
        for summary in summarise(con):
            if summary.rows_from and not any(map(located.get, summary.rows_from)):
                written[summary.name] = Segment("", 0, 0, summary.version)
                continue
            path = out / f"{summary.name}.{summary.version}.parquet"
            segment = _copy(con, summary.query, path)
            if segment.row_count == 0:
                path.unlink()
            written[summary.name] = Segment(
                path.name if segment.row_count else "",
                segment.row_count,
                segment.size_bytes if segment.row_count else 0,
                summary.version,
            )
    finally:
        con.close()
        shutil.rmtree(out / SPILL, ignore_errors=True)
    return written


def _size_bytes(located: Mapping[str, Sequence[Place]]) -> int:
    return sum(Path(place.path).stat().st_size for found in located.values() for place in found)


def rebuild_summaries(
    store_path: Path, manifest: Manifest, summarise: Summarise, memory_bytes: int
) -> bool:
    """Compute a published rank's summaries anew where their rule changed; returns whether it did.

    The new files join the current generation, then the manifest is replaced: readers see the old
    ones until then.
    """
    folder = rank_folder(store_path, manifest.run, manifest.capture, manifest.rank)
    con = duckdb.connect(":memory:")
    try:
        wanted = {summary.name: summary.version for summary in summarise(con)}
    finally:
        con.close()
    if wanted == {name: segment.version for name, segment in manifest.summaries.items()}:
        return False
    generation = folder / manifest.generation
    # Written aside: another process may be doing the same.
    staged = make_staging(folder)
    try:
        located = places(store_path, [manifest])
        written = write_summaries(staged, located, summarise, memory_bytes)
        with handle(generation, make=True) as at:  # swept where all was merged with others
            for file in staged.iterdir():
                os.replace(file, file.name, dst_dir_fd=at)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    sync_folder(generation)
    return store.replace_manifest(
        store_path,
        msgspec.structs.replace(manifest, summaries=in_generation(written, manifest.generation)),
    )


def _copy(con: duckdb.DuckDBPyConnection, query: str, path: Path) -> Segment:
    target = store.sql_literal(str(path))
    rows = scalar(con, f"copy ({query}) to {target} (format parquet, compression zstd)")
    return Segment(path.name, int(rows), path.stat().st_size)


def in_generation(segments: Mapping[str, Segment], generation: str) -> dict[str, Segment]:
    """Segments as the manifest names them: below their generation's folder."""
    return {
        name: Segment(
            f"{generation}/{segment.file}" if segment.file else "",
            segment.row_count,
            segment.size_bytes,
            segment.version,
        )
        for name, segment in segments.items()
    }
