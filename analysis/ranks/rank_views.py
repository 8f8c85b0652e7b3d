"""What all ranks of a capture tell together, as views on a connection that has their tables.

What the store keeps is read; what is stale or missing is computed and kept there, or, where the
store cannot be written and for exported files, computed for this connection alone.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import duckdb

from npuscope.collector import schema
from npuscope.collector.literals import file_literal, sql_literal
from npuscope.collector.store import derived_tier, store
from npuscope.collector.store.manifest import Manifest, by_capture, is_store

from ..catalog import metric
from ..memo import forget
from ..summaries import summaries
from ..views import open_views
from .derive import RESOLVED_COMM, bring_up_to_date, derive, derived_tables

Key = tuple[str, str]
_VIEWS = "ranks compared"  # as answers are kept by
# The metric group_kinds, as all ranks together know it.
_KINDS = """
    select run, capture, group_hash,
        coalesce(min(kind) filter (where kind <> 'unknown'), 'unknown') as kind
    from capture_groups where group_hash is not null group by run, capture, group_hash"""


def open_across(
    path: Path | None,
    con: duckdb.DuckDBPyConnection,
    *,
    memory_bytes: int = derived_tier.MEMORY_BYTES,
) -> None:
    """Make the views `capture_groups`, `clocks`, `arrivals` and `comm_waits` on `con`, and
    `comm_summary` anew where all ranks together know kinds that a rank does not.

    `con` has the canonical tables as tables or views (not temporary ones), as `store.open(path)`
    makes them; `path` is that store, an exported file, or None where there is only `con`.
    """
    captures = con.execute("select distinct run, capture from ranks order by all").fetchall()
    files: dict[Key, dict[str, str]] = {}
    if path is not None and is_store(path):
        files = _derived_files(path, store.opened_over(con, path), captures, memory_bytes)
    selects: dict[str, list[str]] = defaultdict(list)
    for paths in files.values():
        for name, file in paths.items():
            if file:
                source = f"read_parquet({file_literal(file)}, hive_partitioning = false)"
                selects[name].append(f"select * from {source}")
    for number, key in enumerate(captures):
        if key not in files:
            for name, table in _compute(con, key, number):
                selects[name].append(f"select * from {table}")
    _create_views(con, selects)
    forget(con, views=_VIEWS)


def _derived_files(
    path: Path, manifests: Iterable[Manifest], captures: Collection[Key], memory_bytes: int
) -> dict[Key, dict[str, str]]:
    """Files of each capture by table, computed where they are stale; none of a capture that cannot
    be kept."""
    members = by_capture(manifests)
    files: dict[Key, dict[str, str]] = {}
    for key in captures:
        # The store cannot be written, is full, or lost a file that our reader still has open.
        with contextlib.suppress(OSError, duckdb.IOException):
            if key in members:
                files[key] = bring_up_to_date(path, members[key], memory_bytes)
    return files


def _compute(con: duckdb.DuckDBPyConnection, key: Key, number: int) -> Iterator[tuple[str, str]]:
    """Results for one capture of `con` as tables of its database: (name, table)."""
    ((database,),) = con.execute("select current_database()").fetchall()
    present = "select table_name from information_schema.tables where table_catalog = ?"
    names = {name for (name,) in con.execute(present, [database]).fetchall()}
    # Of summaries too the rows of this capture alone: `derive` knows of no other.
    tables = [*schema.tables(), *(one.name for one in summaries() if one.name in names)]
    rows_of_capture = f"run = {sql_literal(key[0])} and capture = {sql_literal(key[1])}"
    aside = con.cursor()
    try:
        for name in tables:
            whole = f'"{database}".main."{name}"'
            aside.execute(
                f'create temp view "{name}" as select * from {whole} where {rows_of_capture}'
            )
        for result in derive(aside):
            table = f'"{database}".main."_across_{number}_{result.name}"'
            aside.execute(f"create or replace table {table} as {result.query}")
            yield result.name, table
    finally:
        aside.close()


def _create_views(con: duckdb.DuckDBPyConnection, selects: dict[str, list[str]]) -> None:
    for name, columns in derived_tables().items():
        typed = ", ".join(f'cast(null as {kind}) as "{column}"' for column, kind in columns)
        nothing = f"select {typed} where false"
        body = " union all ".join([nothing, *selects[name]])
        con.execute(f'create or replace temp view "{name}" as {body}')
    con.execute(f"create or replace temp view group_kinds as {_KINDS}")
    if selects[RESOLVED_COMM]:
        _resolve_comm(con)


def _resolve_comm(con: duckdb.DuckDBPyConnection) -> None:
    """Put resolved kinds into `comm_summary`: rows of ranks that know less give way."""
    open_views(con, ("comm",))
    view = con.execute(
        "select 1 from duckdb_views() where database_name = current_database()"
        " and view_name = 'comm_summary'"
    ).fetchall()
    ((database,),) = con.execute("select current_database()").fetchall()
    own = f'"{database}".main.comm_summary' if view else f"({metric('comm').sql})"
    con.execute(
        f"create or replace temp view comm_summary as select * from {own}"
        f" anti join (select distinct run, capture, rank from {RESOLVED_COMM})"
        f" using (run, capture, rank) union all from {RESOLVED_COMM}"
    )
