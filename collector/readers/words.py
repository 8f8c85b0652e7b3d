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
from ..staging import is_empty, scalar

# Tables that a profiler's database fills so.
LARGE = ("kernels", "launches", "host_ops")
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
    con.execute(f"""
        create or replace temp table _distinct_word as
        select distinct word from ({words_sql}) where word is not null""")
    is_worded = 0 < scalar(con, "select count(*) from _distinct_word") <= _WORDS_AT_MOST
    if is_worded:
        con.execute(f"create type {table}_word as enum (from _distinct_word order by word)")
        kinds |= dict.fromkeys(columns, f"{table}_word")
    con.execute("drop table _distinct_word")
    _create(con, table, kinds)
    return is_worded


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
    known = schema.tables()[table]
    columns = (replace(c, type=kinds.get(c.name, c.type)) for c in known.columns)
    con.execute(f'drop table "{table}"')
    con.execute(schema.create_sql(replace(known, columns=tuple(columns))))
