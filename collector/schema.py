"""The canonical tables as `schema.sql` defines them, for code that needs their names and types."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

# The rules by which files become rows, beside all of the readers.
_READING_RULES = (
    "schema.sql", "text.sql", "groups.py", "schema.py", "selection.py", "discover/identity.py",
    "ingest/link.py", "ingest/link.sql", "ingest/read_rank.py",
    "ingest/representatives.sql", "step_segments.sql",
)  # fmt: skip

# What tables and summaries may be called.
OWN_NAME = "[a-z][a-z0-9_]{0,62}"
KEY_COLUMNS: tuple[tuple[str, str], ...] = (
    ("run", "varchar"),
    ("capture", "varchar"),
    ("rank", "integer"),
)


@dataclass(frozen=True, slots=True)
class Column:
    """A column: `type` is DuckDB's, `meaning` its comment in schema.sql."""

    name: str
    type: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Table:
    """A canonical table without the key columns."""

    name: str
    meaning: str
    columns: tuple[Column, ...]

    @property
    def sort_columns(self) -> tuple[str, ...]:
        """Order of rows inside a segment: by stream, then by start."""
        sort_names = ("stream_id", "plane_id", "start_ns", "window_start_ns", "device_start_ns")
        names = {column.name for column in self.columns}
        clocked = tuple(name for name in sort_names if name in names)
        if not clocked and "timestamp_ns" in names:
            clocked = tuple(n for n in ("component", "name", "timestamp_ns") if n in names)
        return clocked or (self.columns[0].name,)


@cache
def sql(name: str) -> str:
    """Text of a SQL file of this room."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


@cache
def statements(name: str) -> dict[str, str]:
    """Statements of a SQL file of this room by name: each stands below `-- name: ...`."""
    parts = re.split(r"^-- name: (\w+)\n", sql(name), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@cache
def tables() -> dict[str, Table]:
    """Every canonical table by name, without the key columns run, capture and rank."""
    tables: dict[str, Table] = {}
    pattern = re.compile(r"((?:^--[^\n]*\n)+)create table (\w+) \(\n(.*?)^\);", re.M | re.S)
    for comment, name, body in pattern.findall(sql("schema.sql")):
        meaning = " ".join(line.lstrip("- ").strip() for line in comment.splitlines())
        columns: list[Column] = []
        for line in body.splitlines():
            definition, _, note = line.partition("--")
            for part in _split(definition):
                column, _, kind = part.partition(" ")
                columns.append(Column(column, kind.strip(), note.strip()))
        tables[name] = Table(name, meaning, tuple(columns))
    return tables


def _split(definition: str) -> list[str]:
    """Column definitions of one line; commas inside brackets do not separate."""
    parts, depth, current = [], 0, ""
    for char in definition:
        depth += (char in "([") - (char in ")]")
        if char == "," and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += char
    parts.append(current)
    return [part.strip() for part in parts if part.strip()]


@cache
def digest() -> str:
    """Short name of this version of the schema."""
    return hashlib.sha256(sql("schema.sql").encode()).hexdigest()[:12]


@cache
def reading_digest() -> str:
    """Short name of the rules by which files become rows: the schema, the readers, the linking.

    A rank read under other rules is read again, so that a corrected reader corrects old stores.
    """
    state = hashlib.sha256()
    room = resources.files(__package__)
    for name in _READING_RULES:
        state.update(room.joinpath(name).read_bytes())
    for rule in _rules_below(room.joinpath("readers")):
        state.update(rule)
    return state.hexdigest()[:12]


def _rules_below(folder: Traversable) -> Iterator[bytes]:
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        if file.is_dir():
            yield from _rules_below(file)
        elif file.name.endswith((".sql", ".py")):
            yield file.read_bytes()


def create_sql(table: Table, *, keys: bool = False) -> str:
    """A `create table` statement; `keys` puts run, capture and rank first."""
    columns = [*(KEY_COLUMNS if keys else ()), *((c.name, c.type) for c in table.columns)]
    body = ", ".join(f'"{name}" {kind}' for name, kind in columns)
    return f'create table "{table.name}" ({body})'
