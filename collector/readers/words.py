"""Text columns of large tables as enumerations of the words they hold, while a rank is read.

A name takes a byte or two so, in the table and while it is sorted, and its dictionary is there when
it is written; spelled out, names fill most of the memory. Written, they are text again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import duckdb

from .. import schema
from ..literals import sql_literal
from ..staging import is_empty, scalar

# Tables that a profiler's database fills so.
LARGE = ("kernels", "launches", "host_ops")
# Below so many bytes of a file, looking for its words costs more than it saves.
WORDS_FROM_BYTES = 16 << 20
# More words than these are no repetition that an enumeration could save.
_WORDS_AT_MOST = 1 << 16


def enumerate_words(
    con: duckdb.DuckDBPyConnection,
    table: str,
    columns: Iterable[str],
    words_sql: str,
    kinds: Mapping[str, str] | None = None,
) -> bool:
    """Let text `columns` of an empty canonical table be an enumeration, whether they could: too
    many words stay text.

    words_sql: a column `word`, everything these columns will hold. kinds: types of other columns.
    """
    kinds = dict(kinds or {})
    is_worded = _create_type(con, f"{table}_word", words_sql)
    if is_worded:
        kinds |= dict.fromkeys(columns, f"{table}_word")
    _create(con, table, kinds)
    return is_worded


def enumerate_keys(
    con: duckdb.DuckDBPyConnection, table: str, column: str, keys: Iterable[str]
) -> dict[str, str]:
    """Let a column of an empty canonical table, a map of doubles, have keys of an enumeration.

    Returns the column with its type; nothing where there are no keys.
    """
    words = ", ".join(sql_literal(key) for key in keys)
    if not words or not _create_type(con, f"{table}_key", f"select unnest([{words}]) as word"):
        return {}
    kinds = {column: f"map({table}_key, double)"}
    _create(con, table, kinds)
    return kinds


def turn_into_words(
    con: duckdb.DuckDBPyConnection,
    table: str,
    columns: Iterable[str],
    kinds: Mapping[str, str] | None = None,
) -> None:
    """The same as `enumerate_words` for columns of a table that is full; kinds: types that other
    columns have."""
    names = list(columns)
    kinds = dict(kinds or {})
    words_sql = f"select unnest([{', '.join(names)}]) as word from {table}"
    if not _create_type(con, f"{table}_word", words_sql):
        return
    kinds |= dict.fromkeys(names, f"{table}_word")
    con.execute(f"alter table {table} rename to _spelled")
    _create(con, table, kinds)
    con.execute(f"insert into {table} from _spelled")
    con.execute("drop table _spelled")


def _create_type(con: duckdb.DuckDBPyConnection, name: str, words_sql: str) -> bool:
    con.execute(f"""
        create or replace temp table _distinct_word as
        select distinct word from ({words_sql}) where word is not null""")
    count = int(scalar(con, "select count(*) from _distinct_word"))
    is_small = 0 < count <= _WORDS_AT_MOST
    if is_small:
        con.execute(f"create type {name} as enum (from _distinct_word order by word)")
    con.execute("drop table _distinct_word")
    return is_small


def worded_table(type_name: str) -> str:
    """The table whose columns an enumeration made here is of."""
    return type_name.rpartition("_")[0]


@contextmanager
def words_for_text(con: duckdb.DuckDBPyConnection, tables: Iterable[str] = LARGE) -> Iterator[None]:
    """For other readers: tables that stay empty, or are left half-filled, get their text back."""
    try:
        yield
    except BaseException:
        for table in tables:
            con.execute(f'delete from "{table}"')
        raise
    finally:
        for table in tables:
            spell_out(con, table)


def spell_out(con: duckdb.DuckDBPyConnection, table: str) -> None:
    """Give a canonical table that stayed empty its columns of schema.sql again."""
    if is_empty(con, table):
        _create(con, table, {})
        con.execute(f"drop type if exists {table}_word")
        con.execute(f"drop type if exists {table}_key")


def _create(con: duckdb.DuckDBPyConnection, table: str, kinds: Mapping[str, str]) -> None:
    tables = schema.tables()[table]
    columns = (replace(c, type=kinds.get(c.name, c.type)) for c in tables.columns)
    con.execute(f'drop table if exists "{table}"')
    con.execute(schema.create_sql(replace(tables, columns=tuple(columns))))
