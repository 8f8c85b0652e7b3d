"""A rank's private workshop: an in-memory database with empty canonical tables that readers fill.

It spills to `folder` beyond `memory_bytes`, so what a rank needs does not depend on its size.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from . import schema
from .literals import engine_name
from .quiet_duckdb import open_duckdb

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT_MEMORY_BYTES = 1 << 30


SPILL = "spill"

# What a reading process may take where nobody says: files of any size fit, because tables spill.
PROCESS_BYTES = 400 << 20
# The same for a profiler's database: its joins are between tables as large as itself.
DATABASE_PROCESS_BYTES = 800 << 20
# What it takes besides its database: interpreter, libraries, the piece of a file being decoded.
_ASIDE_BYTES = 260 << 20
_LEAST_BYTES = 96 << 20


def database_bytes(process_bytes: int) -> int:
    """Memory for the database of a process that may take `process_bytes` in all."""
    return max(process_bytes - _ASIDE_BYTES, _LEAST_BYTES)


def connect(
    folder: Path, *, memory_bytes: int = DEFAULT_MEMORY_BYTES, threads: int = 1
) -> duckdb.DuckDBPyConnection:
    """An in-memory DuckDB that spills into `folder`/spill beyond `memory_bytes`.

    Nothing is fetched from a network: extension installing and loading are off.
    """
    con = open_duckdb(
        config={
            "memory_limit": f"{max(memory_bytes, 64 << 20) >> 20}MiB",
            "temp_directory": engine_name(folder / SPILL),
            "threads": max(threads, 1),
            "preserve_insertion_order": True,
            # Rows on their way to a segment are compressed there, not in memory too.
            "checkpoint_threshold": "1TiB",
            # What was freed is given back at once: a process may take little more than its limit.
            "allocator_flush_threshold": "4MiB",
            "allocator_bulk_deallocation_flush_threshold": "4MiB",
            # A table's size is guessed too small now and then; then loops over millions of pairs.
            "asof_loop_join_threshold": 0,
            "nested_loop_join_threshold": 0,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        },
    )
    # DuckDB 2 moves casts into read_csv, where a cell that cannot be cast costs the row.
    if con.execute("select 1 from duckdb_optimizers() where name = 'type_pushdown'").fetchall():
        con.execute("set disabled_optimizers = 'type_pushdown'")
    return con


def open_staging(
    folder: Path, *, memory_bytes: int = DEFAULT_MEMORY_BYTES, plainly: bool = False
) -> duckdb.DuckDBPyConnection:
    """A database as `connect` makes it, with every canonical table (without keys) and the macros
    of text.sql. `plainly`: for a rank of a few megabytes."""
    con = connect(folder, memory_bytes=memory_bytes)
    run(con, schema.sql("text.sql"))
    for table in schema.tables().values():
        run(con, schema.create_sql(table))
    if plainly:
        plan_plainly(con)
        con.execute("create or replace macro cell(s) as plain_cell(s)")
    return con


# What pays for a few thousand rows, too: joins by hash, and no column that nobody asks for.
_PLAINLY = ("filter_pushdown", "unused_columns")


def plan_plainly(con: duckdb.DuckDBPyConnection) -> None:
    """Let statements be planned without most of the optimizers: of a rank of a few megabytes these
    take longer than they save, a third of all that its reading takes."""
    names = [name for (name,) in con.execute("select name from duckdb_optimizers()").fetchall()]
    left_out = ",".join(name for name in names if name not in _PLAINLY)
    con.execute(f"set disabled_optimizers = '{left_out}'")


_STATEMENTS: dict[str, list[duckdb.Statement]] = {}
_PARSED_AT_MOST = 1024
_PARSED_LENGTH = 8192


def parse_statements(con: duckdb.DuckDBPyConnection, sql: str) -> list[duckdb.Statement]:
    """The statements of SQL. All ranks of a batch, and all batches of a process, ask the same:
    parsing would be a tenth of what reading a small rank takes."""
    statements = _STATEMENTS.get(sql)
    if statements is None:
        statements = con.extract_statements(sql)
        if len(_STATEMENTS) >= _PARSED_AT_MOST:  # some were of ever other words
            _STATEMENTS.clear()
        if len(sql) < _PARSED_LENGTH:
            _STATEMENTS[sql] = statements
    return statements


def run(
    con: duckdb.DuckDBPyConnection,
    sql: str,
    parameters: Sequence[object] | Mapping[str, object] = (),
) -> duckdb.DuckDBPyConnection:
    """As `con.execute`, of SQL that is asked of many ranks."""
    for statement in parse_statements(con, sql):
        con.execute(statement, parameters)
    return con


def run_on(
    con: duckdb.DuckDBPyConnection, _incoming: pa.Table | pa.RecordBatchReader, sql: str
) -> None:
    """As `run`, of SQL that reads rows as `_incoming`: the engine finds them by that name, which
    takes less than registering them."""
    for statement in parse_statements(con, sql):
        con.execute(statement)


def is_empty(con: duckdb.DuckDBPyConnection, table: str) -> bool:
    """Whether no reader has put a row into `table` yet."""
    return not run(con, f'select 1 from "{table}" limit 1').fetchall()


def nonempty(con: duckdb.DuckDBPyConnection, tables: Iterable[str]) -> frozenset[str]:
    """Those of some tables that have rows, by one query."""
    queries = [f"(select '{name}' from \"{name}\" limit 1)" for name in tables]
    names = run(con, " union all ".join(queries)).fetchall() if queries else []
    return frozenset(name for (name,) in names)


def has_table(con: duckdb.DuckDBPyConnection, name: str) -> bool:
    """Whether there is such a table."""
    # Asking the catalog's own table would count the rows of every table.
    try:
        run(con, f'select 1 from "{name}" limit 0')
    except duckdb.CatalogException:
        return False
    return True


def scalar(con: duckdb.DuckDBPyConnection, sql: str) -> Any:
    """The first value of a query's first row; None where it has no row.

    Takes the result whole: DuckDB 2 lets nothing else run on a connection before.
    """
    rows = run(con, sql).fetchall()
    return rows[0][0] if rows else None


def staging_place(con: duckdb.DuckDBPyConnection) -> Path:
    """A folder of its own for files that wait for SQL, where `con` spills to; not made yet."""
    spill = str(scalar(con, "select current_setting('temp_directory')"))
    return Path(spill) / f"staged-{uuid.uuid4().hex[:12]}"


def insert_rows(con: duckdb.DuckDBPyConnection, table: str, rows: pa.Table) -> None:
    """Add rows to a table, column by column's name."""
    run_on(con, rows, f'insert into "{table}" by name from _incoming')


def insert_row(con: duckdb.DuckDBPyConnection, table: str, row: Mapping[str, object]) -> None:
    """Add one row. Typed by the table: a column of None alone would be no integer."""
    names, marks = ", ".join(row), ", ".join("?" * len(row))
    con.execute(f'insert into "{table}" ({names}) values ({marks})', list(row.values()))
