"""Text as literals of SQL."""

from __future__ import annotations

import re

_PATTERN = re.compile(r"[*?\[]")


def sql_literal(text: str) -> str:
    """A SQL string literal."""
    return "'" + text.replace("'", "''") + "'"


def file_literal(path: str) -> str:
    """A SQL string literal that means this one file, where the engine takes patterns too."""
    # Beside a backslash the engine knows no escape; a name that is there counts before a pattern.
    return sql_literal(path if "\\" in path else _PATTERN.sub(r"[\g<0>]", path))
