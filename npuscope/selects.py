"""SELECTs of anybody over a store's or a file's tables, and no other file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa

from npuscope.analysis.views import open_views
from npuscope.collector.ctrl_c import run_interruptible
from npuscope.collector.literals import file_literal, sql_literal
from npuscope.collector.store import store
from npuscope.collector.store.compact_files import places
from npuscope.collector.store.manifest import is_store
from npuscope.errors import UsageError
from npuscope.profile import summary_versions

_PRAGMA = re.compile(r"\s*pragma\b", re.IGNORECASE)
_EXPLAIN = re.compile(r"\s*explain(\s+analyze)?\s", re.IGNORECASE)


def select_connection(target: Path) -> duckdb.DuckDBPyConnection:
    """A connection for SELECTs of anybody over a store's or a file's tables and metrics, and no
    other file. Raises StoreError."""
    con = store.open(target, summaries=summary_versions())
    try:
        open_views(con)
        lock_down(con, target)
    except BaseException:
        con.close()
        raise
    return con


def lock_down(con: duckdb.DuckDBPyConnection, path: Path) -> None:
    """Shut a connection of `store.open(path)`: only the store's files, no change of settings."""
    if is_store(path):
        located = places(path, store.opened_over(con, path)).values()
        paths = {place.path for table in located for place in table}
        # The engine asks for a file as the views spell it, then by the name that it found.
        names = ", ".join({*map(file_literal, paths), *map(sql_literal, paths)})
        con.execute(f"set allowed_paths = [{names}]")
    con.execute("set enable_external_access = false")
    con.execute("set lock_configuration = true")


def run_select(con: duckdb.DuckDBPyConnection, sql: str) -> pa.RecordBatchReader:
    """Run one reading statement and stream its result. Raises UsageError for anything else."""
    try:
        statements = con.extract_statements(sql)
        if len(statements) != 1:
            raise UsageError(f"one statement at a time, got {len(statements)}")
        if not _only_reads(con, sql):
            raise UsageError(
                "only SELECT, DESCRIBE and EXPLAIN are allowed here: see `npuscope export`"
            )
        relation = con.sql(sql)
        if relation is None:
            raise UsageError("the statement returns no rows")
        if len(set(relation.columns)) < len(relation.columns):
            # Rows become dicts and files: it names the second `a` a_1.
            relation = relation.project("*")
        name = "to_arrow_reader" if hasattr(relation, "to_arrow_reader") else "fetch_arrow_reader"
        reader = run_interruptible(getattr(relation, name), con.interrupt)  # the second: DuckDB 1.4
    except duckdb.Error as error:
        raise UsageError(f"SQL: {error}") from error
    return pa.RecordBatchReader.from_batches(reader.schema, _batches(con, reader))


def _batches(
    con: duckdb.DuckDBPyConnection, reader: pa.RecordBatchReader
) -> Iterator[pa.RecordBatch]:
    while (batch := run_interruptible(lambda: next(reader, None), con.interrupt)) is not None:
        yield batch


def _only_reads(con: duckdb.DuckDBPyConnection, sql: str) -> bool:
    """Whether a statement selects or explains a select (`explain analyze copy` would copy)."""
    if _PRAGMA.match(sql):  # DuckDB 1.4 turns some into selects
        return False
    explained = _EXPLAIN.match(sql)
    inner = con.extract_statements(sql[explained.end() :] if explained else sql)
    return len(inner) == 1 and inner[0].type == duckdb.StatementType.SELECT
