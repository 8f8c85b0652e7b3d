"""Damage to databases: cells and schemas by SQL, and the bytes that SQLite's format gives meaning.

A page begins with its kind, the first free block, the number of cells, where their content starts,
and, inside a tree, the rightmost child; then the cells' offsets. The first page's header stands
behind the 100 bytes of the file's.
"""

from __future__ import annotations

import os
import random
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Literal

from tests.prove.fuzz.odd_values import REAL, TEXT, WHOLE

_HEADER = {  # offset -> bytes, of the file's header
    16: 2, 18: 1, 19: 1, 20: 1, 21: 1, 22: 1, 23: 1, 24: 4, 28: 4, 32: 4, 36: 4, 40: 4, 44: 4,
    52: 4, 56: 4, 64: 4, 92: 4, 96: 4,
}  # fmt: skip
_PAGE = {0: 1, 1: 2, 3: 2, 5: 2, 7: 1, 8: 4}  # the same of a page's
_SCHEMAS = (
    "this is no sql", "", "create table x", "create view {t} as select 1 as a",
    "create table {t} (a)", "create table {t} (a, b, a)", "create table other (startNs integer)",
    "create virtual table {t} using fts5(x)",
    "create table {t} (a integer primary key) without rowid",
    "create table {t} (startNs integer, endNs as (startNs * 1e300))",
    "create table {t} (value text collate nosuch)",
    "create table {t} (startNs, endNs generated always as (abs(-9223372036854775808)))",
)  # fmt: skip


def log_beside(chance: random.Random, data: bytes) -> tuple[str, bytes]:
    """A log as a killed writer may leave it, true or not: its suffix and its bytes."""
    suffix = chance.choice(["-wal", "-journal"])
    if suffix == "-wal" and chance.random() < 0.6:
        with suppress(sqlite3.Error, UnicodeDecodeError, OverflowError):
            return suffix, _true_log(chance, data)
    heads = {
        "-wal": b"\x37\x7f\x06\x82\x00\x2d\xe2\x18\x00\x00\x04\x00",
        "-journal": b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7\xff\xff\xff\xff",
    }
    head = heads[suffix]
    body = chance.choice([b"", chance.randbytes(600), data[1024:4096], bytes(2000)])
    return suffix, chance.choice([head + body, body or b"x", head])


def _true_log(chance: random.Random, data: bytes) -> bytes:
    """What SQLite itself writes before a change is put into the database, whole or cut."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.db")
        path.write_bytes(data)
        with closing(sqlite3.connect(path, isolation_level=None)) as con:
            con.execute("pragma journal_mode = wal")
            _change(chance, con)
            log = _salt(Path(f"{path}-wal").read_bytes())
    return log[: chance.randrange(len(log) + 1)] if chance.random() < 0.5 else log


def _salt(log: bytes) -> bytes:
    """The log with another salt than SQLite's, which is another one every time."""
    if len(log) < 32:
        return log
    order: Literal["big", "little"] = "big" if log[3] & 1 else "little"
    first, second = 0, 0

    def summed(part: bytes) -> bytes:
        nonlocal first, second
        for at in range(0, len(part), 8):
            first = (first + int.from_bytes(part[at : at + 4], order) + second) % 2**32
            second = (second + int.from_bytes(part[at + 4 : at + 8], order) + first) % 2**32
        return first.to_bytes(4, "big") + second.to_bytes(4, "big")

    salt = b"npuscope"
    head = log[:16] + salt
    parts = [head, summed(head)]
    frame_bytes = 24 + int.from_bytes(log[8:12], "big")
    for at in range(32, len(log) - frame_bytes + 1, frame_bytes):
        place, page = log[at : at + 8], log[at + 24 : at + frame_bytes]
        parts += [place, salt, summed(place + page), page]
    return b"".join(parts)


def by_sql(chance: random.Random, data: bytes) -> tuple[bytes, str]:
    """The database changed once by statements, and what was done."""
    descriptor, name = tempfile.mkstemp(suffix=".db")
    path = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        told = "nothing: SQLite could not change it"
        try:
            with closing(sqlite3.connect(path, isolation_level=None)) as con:
                con.execute("pragma journal_mode = off")
                told = _change(chance, con)
        except (sqlite3.Error, UnicodeDecodeError, OverflowError) as error:
            told = f"nothing: {error}"
        return path.read_bytes(), told
    finally:
        path.unlink()


def _change(chance: random.Random, con: sqlite3.Connection) -> str:
    rows = con.execute("select name from sqlite_master where type = 'table' and rootpage > 0")
    tables = [name for (name,) in rows]
    table = chance.choice(tables)
    columns = [row[1] for row in con.execute(f'pragma table_info("{table}")')]
    kinds: tuple[Callable[[random.Random, sqlite3.Connection, str, list[str]], str], ...]
    kinds = (_cells, _cells, _cells, _rows, _columns, _tables, _schema)
    return chance.choice(kinds)(chance, con, table, columns)


def _cells(chance: random.Random, con: sqlite3.Connection, table: str, columns: list[str]) -> str:
    column, value = chance.choice(columns), _value(chance)
    some = chance.choice(["1", "rowid % 2 = 0", "rowid = (select min(rowid) from {0})",
                          "rowid = (select max(rowid) from {0})"]).format(f'"{table}"')  # fmt: skip
    con.execute(f'update or ignore "{table}" set "{column}" = ? where {some}', [value])
    return f"{table}.{column} is {str(value)[:20]!r} where {some}"


def _value(chance: random.Random) -> object:
    fits = [value for value in WHOLE if -(2**63) <= value < 2**63]
    odd = [chance.choice(fits)] * 6 + [chance.choice(REAL), float("inf"), None]
    text = chance.choice(TEXT).encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    return chance.choice(
        [*odd, text, text, text, b"", b"\xff\xfe", b"a\0b", str(chance.choice(fits))]
    )


# What is done to rows, columns and tables: statements, and what they did.
_ROWS = (
    (('delete from "{t}"',), "{t} without rows"),
    (('delete from "{t}" where rowid % 2 = 0',), "every other row of {t} deleted"),
    (('insert or ignore into "{t}" select * from "{t}"',), "rows of {t} twice, where they may be"),
    (('insert or ignore into "{t}" default values',), "a row of NULLs in {t}"),
)
_COLUMNS = (
    (('alter table "{t}" rename column "{c}" to "{c}_old"',), "{t}.{c} renamed"),
    (('alter table "{t}" drop column "{c}"',), "{t}.{c} dropped"),
    (('alter table "{t}" add column "it\'s ""new""" text default 7',),
     "a column with quotes in {t}"),
    (('create table _made as select * from "{t}"', 'drop table "{t}"',
      'alter table _made rename to "{t}"'), "{t} without declared keys"),
)  # fmt: skip
_TABLES = (
    (('drop table "{t}"',), "{t} dropped"),
    (('alter table "{t}" rename to "{lower}_"',), "{t} renamed"),
    (('alter table "{t}" rename to _renamed', 'create view "{t}" as select * from _renamed'),
     "{t} is a view"),
    (('create index "by {t}" on "{t}" ("{one}")',), "an index on {t}"),
)  # fmt: skip


def _rows(chance: random.Random, con: sqlite3.Connection, table: str, columns: list[str]) -> str:
    return _do(con, chance.choice(_ROWS), t=table)


def _columns(chance: random.Random, con: sqlite3.Connection, table: str, columns: list[str]) -> str:
    column = chance.choice(columns)
    return _do(con, chance.choice(_COLUMNS), t=table, c=column)


def _tables(chance: random.Random, con: sqlite3.Connection, table: str, columns: list[str]) -> str:
    chosen = chance.choice(_TABLES)
    one = chance.choice(columns) if chosen is _TABLES[-1] else ""
    return _do(con, chosen, t=table, lower=table.lower(), one=one)


def _do(con: sqlite3.Connection, chosen: tuple[tuple[str, ...], str], **names: str) -> str:
    statements, told = chosen
    for statement in statements:
        con.execute(statement.format(**names))
    return told.format(**names)


def _schema(chance: random.Random, con: sqlite3.Connection, table: str, columns: list[str]) -> str:
    con.execute("pragma writable_schema = on")
    if chance.random() < 0.4:
        page = chance.choice([0, 1, 2, -1, 10**9, chance.randrange(1, 80)])
        con.execute("update sqlite_master set rootpage = ? where name = ?", [page, table])
        return f"{table} begins on page {page}"
    sql = chance.choice(_SCHEMAS).format(t=table)
    con.execute("update sqlite_master set sql = ? where name = ?", [sql, table])
    return f"the schema of {table} is {sql[:40]!r}"


def by_format(chance: random.Random, data: bytes) -> tuple[bytes, str]:
    """The database's pages damaged once, and what was done."""
    changed = bytearray(data)
    size = int.from_bytes(data[16:18], "big")
    size = size if size in (512, 1024, 2048, 4096) and len(data) >= 2 * size else 512
    count = max(1, len(data) // size)
    page, other = chance.randrange(count), chance.randrange(count)
    start = page * size
    match chance.randrange(9):
        case 0 | 1:
            at, width = chance.choice(list(_HEADER.items()))
            changed[at : at + width] = _number(chance, data[at : at + width])
            return bytes(changed), f"file header: {bytes(changed[at : at + width])!r} at {at}"
        case 2 | 3:
            at, width = chance.choice(list(_PAGE.items()))
            at += start + (100 if page == 0 else 0)
            changed[at : at + width] = _number(chance, data[at : at + width])
            return bytes(changed), f"page {page}: {bytes(changed[at : at + width])!r} at {at}"
        case 4:
            cells = int.from_bytes(data[start + 3 : start + 5], "big")
            at = start + 8 + 2 * chance.randrange(max(1, min(cells, size // 4)))
            changed[at : at + 2] = _number(chance, data[at : at + 2])
            return bytes(changed), f"page {page}: offset of a cell at {at}"
        case 5:
            begin = start + int.from_bytes(data[start + 5 : start + 7], "big") % size
            at = chance.randrange(begin, start + size) if begin < start + size else start
            changed[at : at + 1] = bytes(
                [chance.choice([0, 1, 5, 6, 7, 8, 9, 10, 11, 127, 128, 255])]
            )
            return bytes(changed), f"page {page}: content at {at}"
        case 6:
            changed[start : start + size] = data[other * size : (other + 1) * size]
            return bytes(changed), f"page {page} is a copy of page {other}"
        case 7:
            changed[start : start + size] = chance.choice([bytes(size), b"\xff" * size])
            return bytes(changed), f"page {page} wiped"
        case _:
            end = chance.choice([start, start + size // 2, 100, 512])
            return bytes(changed[:end]), f"cut at {end}"


def _number(chance: random.Random, old: bytes) -> bytes:
    """Another number of as many bytes: near the old one, or at an edge."""
    top: int = 256 ** len(old)
    value = int.from_bytes(old, "big")
    near = [value + 1, value - 1, value * 2, value // 2]
    edges = [0, 1, 2, 5, 10, 13, 255, 512, 1024, top - 1, top // 2, chance.randrange(top)]
    other: int = chance.choice(near + edges) % top
    return other.to_bytes(len(old), "big")
