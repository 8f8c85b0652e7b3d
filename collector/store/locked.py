"""A store opened for strangers' SQL: it can read the store's tables and do nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb
import pyarrow as pa

from npuscope.errors import UsageError

from . import store
from .manifest import is_store, manifests
from .merged_files import places

_PRAGMA = re.compile(r"\s*pragma\b", re.IGNORECASE)
_EXPLAIN = re.compile(r"\s*explain(\s+analyze)?\s", re.IGNORECASE)


def lock(con: duckdb.DuckDBPyConnection, path: Path) -> None:
    """Shut a connection of `store.open(path)`: only the store's files, no change of settings."""
    if is_store(path):
        located = places(path, manifests(path)).values()
        listed = ", ".join(store.quoted(place.path) for table in located for place in table)
        con.execute(f"set allowed_paths = [{listed}]")
    con.execute("set enable_external_access = false")
    con.execute("set lock_configuration = true")


def run(con: duckdb.DuckDBPyConnection, sql: str) -> pa.RecordBatchReader:
    """Run one reading statement and stream its result. Raises UsageError for anything else."""
    try:
        statements = con.extract_statements(sql)
        if len(statements) != 1:
            raise UsageError(f"one statement at a time, got {len(statements)}")
        if not _only_reads(con, sql):
            raise UsageError("only SELECT and EXPLAIN are allowed here: see `npuscope export`")
        relation = con.sql(sql)
        if relation is None:
            raise UsageError("the statement returns no rows")
        if hasattr(relation, "to_arrow_reader"):
            return relation.to_arrow_reader()
        return relation.fetch_arrow_reader()  # DuckDB 1.4
    except duckdb.Error as error:
        raise UsageError(f"SQL: {error}") from error


def _only_reads(con: duckdb.DuckDBPyConnection, sql: str) -> bool:
    """Whether a statement selects or explains a select (`explain analyze copy` would copy)."""
    if _PRAGMA.match(sql):  # DuckDB 1.4 turns some into selects
        return False
    explained = _EXPLAIN.match(sql)
    inner = con.extract_statements(sql[explained.end() :] if explained else sql)
    return len(inner) == 1 and inner[0].type == duckdb.StatementType.SELECT
