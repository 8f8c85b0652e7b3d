"""Text as literals of SQL."""

from __future__ import annotations

import os
import re
from pathlib import Path

from npuscope.errors import StoreError

_PATTERN = re.compile(r"[*?\[]")


def sql_literal(text: str) -> str:
    """A SQL string literal."""
    return "'" + text.replace("'", "''") + "'"


def engine_name(path: str | Path) -> str:
    """The name of a file or folder as the engine is told it, in UTF-8. Raises StoreError."""
    name = os.fsencode(path)
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        raise StoreError(
            f"{name.decode(errors='backslashreplace')}: this name is not UTF-8, and the query"
            " engine takes no other: rename the folder or the file, or give another"
        ) from error


def file_literal(path: str) -> str:
    """A SQL string literal that means this one file, where the engine takes patterns too. Raises
    StoreError."""
    path = engine_name(path)
    # Beside a backslash the engine knows no escape; a name that is there counts before a pattern.
    return sql_literal(path if "\\" in path else _PATTERN.sub(r"[\g<0>]", path))
