"""A rank's private workshop: an in-memory database with empty canonical tables that readers fill.

It spills to `folder` beyond `memory_bytes`, so what a rank needs does not depend on its size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb

from . import schema

DEFAULT_MEMORY_BYTES = 1 << 30


SPILL = "spill"


def connect(
    folder: Path, *, memory_bytes: int = DEFAULT_MEMORY_BYTES, threads: int = 1
) -> duckdb.DuckDBPyConnection:
    """An in-memory DuckDB that spills into `folder`/spill beyond `memory_bytes`.

    Nothing is fetched from a network: extension installing and loading are off.
    """
    return duckdb.connect(
        ":memory:",
        config={
            "memory_limit": f"{max(memory_bytes, 64 << 20) >> 20}MiB",
            "temp_directory": str(folder / SPILL),
            "threads": max(threads, 1),
            "preserve_insertion_order": True,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        },
    )


def open_staging(
    folder: Path, *, memory_bytes: int = DEFAULT_MEMORY_BYTES, threads: int = 1
) -> duckdb.DuckDBPyConnection:
    """A database as `connect` makes it, with every canonical table (without keys) and the macros
    of text.sql."""
    con = connect(folder, memory_bytes=memory_bytes, threads=threads)
    con.execute(schema.sql("text.sql"))
    for table in schema.tables().values():
        con.execute(schema.create_sql(table))
    return con


def is_empty(con: duckdb.DuckDBPyConnection, table: str) -> bool:
    """Whether no reader has put a row into `table` yet."""
    return not con.execute(f'select 1 from "{table}" limit 1').fetchall()


def scalar(
    con: duckdb.DuckDBPyConnection,
    sql: str,
    parameters: Sequence[object] | Mapping[str, object] = (),
) -> Any:
    """The first value of a query's first row; None where it has no row.

    Takes the result whole: DuckDB 2 lets nothing else run on a connection before.
    """
    rows = con.execute(sql, parameters).fetchall()
    return rows[0][0] if rows else None
