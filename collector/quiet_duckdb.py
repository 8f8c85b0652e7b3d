"""The engine, opened so that it prints nothing of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import duckdb

from .literals import engine_name


def open_duckdb(
    path: str = ":memory:", config: Mapping[str, Any] | None = None
) -> duckdb.DuckDBPyConnection:
    """A connection to a database, in memory unless a file is named. Raises duckdb.Error, and
    StoreError for a name that is not UTF-8."""
    con = duckdb.connect(engine_name(path), config=dict(config or {}))
    # Where no script runs (a process that reads, a prompt) it would draw how far each long
    # statement is, into what the command prints. Off already, the setting is not to be touched: in
    # a notebook without ipywidgets any change of it raises.
    if con.sql("select current_setting('enable_progress_bar')").fetchall() == [(True,)]:
        con.execute("set enable_progress_bar = false")
    return con
