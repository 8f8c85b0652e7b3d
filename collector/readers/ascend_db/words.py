"""Words of a profiler database in place of text: what keeps large staging tables small.

A database names things by ids into STRING_IDS. Spelled out they would fill most of the memory, and
be sorted into dictionaries once more when written. So while a canonical table is filled from a
database, its text columns are enumerations of the words it uses. Written, they are text again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import duckdb

from ... import schema
from ...staging import is_empty, scalar

# More words than these are no repetition that an enumeration could save.
_WORDS_AT_MOST = 1 << 16


def enumerate_words(
    con: duckdb.DuckDBPyConnection,
    table: str,
    columns: Iterable[str],
    *,
    words: Iterable[str] = ("value",),
    more: Iterable[str] = (),
    keys: Iterable[str] = (),
) -> None:
    """Let text `columns` of an empty canonical table, and the columns `words` of `_word`, be an
    enumeration of what these hold and `more`; too many words stay text.

    keys: the keys of the table's maps, which become an enumeration too.
    """
    kinds: dict[str, str] = {}
    if keys := [_literal(key) for key in keys]:
        con.execute(f"create type {table}_key as enum ({', '.join(keys)})")
        for column in schema.tables()[table].columns:
            if column.type.startswith("map(varchar,"):
                kinds[column.name] = column.type.replace("varchar", f"{table}_key")
    values = " union all ".join(
        [f"select {word} as word from _word" for word in words]
        + [f"select {_literal(word)}" for word in more]
    )
    distinct = f"select distinct word from ({values}) where word is not null order by 1"
    if 0 < scalar(con, f"select count(*) from ({distinct})") <= _WORDS_AT_MOST:
        con.execute(f"create type {table}_word as enum ({distinct})")
        kinds |= dict.fromkeys(columns, f"{table}_word")
        casts = ", ".join(f"cast({word} as {table}_word) as {word}" for word in words)
        con.execute(f"create or replace temp table _word as select * replace ({casts}) from _word")
    _create(con, table, kinds)


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


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
