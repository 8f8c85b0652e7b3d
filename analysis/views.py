"""The metrics as views on a connection."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import duckdb
import polars as pl

from npuscope.collector.store import store

from .catalog import sql_metrics
from .memo import memoize
from .metric import Metric, read_by
from .scope import PLACE, Scope

# Metrics whose views a connection is known to have, those whose views it lacked when it was first
# asked, and which of these have no rows: to ask it takes as long as a small question.
_VIEWS: WeakKeyDictionary[duckdb.DuckDBPyConnection, set[str]] = WeakKeyDictionary()
_ABSENT_VIEWS: WeakKeyDictionary[
    duckdb.DuckDBPyConnection, tuple[dict[str, Metric], frozenset[str]]
] = WeakKeyDictionary()
# A query that is not only a select of tables, as the engine serializes it.
_OPAQUE = re.compile(r'"error":true|"type":"(TABLE_FUNCTION|SHOW_REF)"')


def open_views(con: duckdb.DuckDBPyConnection, names: Collection[str] | None = None) -> None:
    """Create the view of every metric, or of those named, and what they read, that `con` does not
    have yet.

    But for what is computed over all ranks of a capture: see `ranks.rank_views`.

    They are temporary: a database opened for reading can have them, and connections that share a
    database do not disturb each other.
    """
    if names is not None and _VIEWS.get(con, set()).issuperset(names):
        return
    if con not in _ABSENT_VIEWS:
        _ABSENT_VIEWS[con] = _absent_views(con)
    missing, empty = _ABSENT_VIEWS[con]

    def create(view: str) -> None:
        entry = missing.pop(view, None)
        # It may have one since: of what ranks tell together, or of one rank for a trace.
        if entry is not None and view in empty:
            columns = ", ".join(f'null::{one.type} as "{one.name}"' for one in entry.columns)
            con.execute(f'create temp view if not exists "{view}" as select {columns} where false')
        elif entry is not None:
            for read in read_by(con, entry.sql):
                create(read)
            con.execute(f'create temp view if not exists "{view}" as {entry.sql}')

    for metric in [*missing.values()]:
        if names is None or metric.name in names:
            create(metric.view)
    _VIEWS.setdefault(con, set()).update(names or ())


def _absent_views(con: duckdb.DuckDBPyConnection) -> tuple[dict[str, Metric], frozenset[str]]:
    """Metrics by the view that `con` lacks, and views of summaries that are kept and empty."""
    present = _present(con)
    missing = {
        metric.view: metric
        for metric in sql_metrics()
        if metric.view and not metric.over and metric.view not in present
    }
    ((empty,),) = con.execute(f"select getvariable('{store.EMPTY_SUMMARIES}')").fetchall()
    return missing, frozenset(empty or ())


def view_names(con: duckdb.DuckDBPyConnection, query: str) -> set[str] | None:
    """Metrics whose views anybody's query names, each as a word of it, for `open_views`.

    None (all) where that does not tell: what is no plain select (`show tables`), functions that
    list or look up tables, and a table that is not there, whose error names those that are alike.
    """
    ((tree,),) = con.execute("select json_serialize_sql(?)", [query]).fetchall()
    names_of = {one.view for one in sql_metrics() if one.view and not one.over}
    read = {name.lower() for name in read_by(con, query)}
    if _OPAQUE.search(tree) or not read <= names_of | _present(con):
        return None
    words = {*re.findall(r"\w+", query.lower())}
    return {one.name for one in sql_metrics() if one.view in words}


def _present(con: duckdb.DuckDBPyConnection) -> set[str]:
    """Tables and views of `con` itself, not of files that are attached."""
    names = (
        "select table_name from information_schema.tables"
        " where table_catalog in (current_database(), 'temp')"
    )
    return {name for (name,) in con.execute(names).fetchall()}


def has_view(con: duckdb.DuckDBPyConnection, name: str) -> bool:
    """Whether `con` itself has a table or view of this name, not a file that is attached."""
    query = (
        "select 1 from information_schema.tables"
        " where table_catalog in (current_database(), 'temp') and table_name = ?"
    )
    return bool(con.execute(query, [name]).fetchall())


def frame(
    con: duckdb.DuckDBPyConnection, query: str, parameters: Sequence[str | int] = ()
) -> pl.DataFrame:
    """Result of a query as a frame; `parameters` stand for its question marks.

    Views of metrics that the query names are made when they are not there: to make all of them
    takes longer than most questions.
    """
    words = set(re.findall(r"\w+", query))
    open_views(con, {metric.name for metric in sql_metrics() if metric.view in words})
    return store.frame(con.sql(query, params=list(parameters)))


@memoize
def select(
    con: duckdb.DuckDBPyConnection,
    /,
    view: str,
    scope: Scope,
    order: str = "",
    *,
    of: Sequence[str] = PLACE,
    top: int | None = None,
    columns: str = "*",
    **equal: str | int | None,
) -> pl.DataFrame:
    """Rows of a view at a scope, where `equal` columns have these values.

    `of` are the columns that tell its places apart: of them alone the scope is heeded, in their
    order the rows stand, at each place in `order`, the `top` first of it (None: all).
    """
    clause, values = scope.where(of, **equal)
    best = ""
    if top is not None:
        place = ", ".join(of)
        best = f"qualify row_number() over (partition by {place} order by {order}) <= ?"
        values.append(top)
    by = ", ".join([*(f"{name} nulls last" for name in of), *([order] if order else [])])
    return frame(con, f"select {columns} from {view} {clause} {best} order by {by}", values)


def sum_of(rows: pl.DataFrame, names: Sequence[str]) -> dict[str, Any]:
    """One row for those that an outlet does not show each: these columns added up, others NULL."""
    return {**dict.fromkeys(rows.columns), **rows.select(pl.col(names).sum()).row(0, named=True)}
