"""A few values of somebody's SQLite database, asked before it is known whether it can be read.

Nobody vouches for the file: a view may never end, a computed column may be of any size, and pages
may point in circles. So only tables whose values are stored are asked, for a bounded time.
"""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

Row = tuple[object, ...]

WITHIN_S = 10.0
# SQLite asks after so many of its instructions whether to go on: every few ms.
_ASKED_EACH = 100_000
_MOST_ROWS = 1 << 16
_MOST_BYTES = 1 << 20  # of a value
# Of pragma table_xinfo: 2 and 3 stand for computed columns.
_SCHEMA = """
select count(*) > 0 and max(x.hidden) = 0
from sqlite_master as m join pragma_table_xinfo(m.name) as x
where m.type = 'table' and m.rootpage > 0 and m.name = ? collate nocase
"""


def ask(
    path: str, questions: Sequence[tuple[str, str]], *, within_s: float = WITHIN_S
) -> list[list[Row]]:
    """Rows of each (table, query about it alone); none of one that cannot be answered, or not in
    time: the file's reader will say why."""
    answers: list[list[Row]] = [[] for _ in questions]
    end_s = time.monotonic() + within_s
    try:
        uri = Path(path).resolve().as_uri() + "?mode=ro&immutable=1"
        with closing(sqlite3.connect(uri, uri=True)) as database:
            database.set_progress_handler(lambda: time.monotonic() > end_s, _ASKED_EACH)
            if sys.version_info >= (3, 11):
                database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_BYTES)
            database.execute("pragma trusted_schema = off")
            for number, (table, query) in enumerate(questions):
                try:
                    is_list = table == "sqlite_master"  # stored always
                    if is_list or database.execute(_SCHEMA, [table]).fetchone()[0]:
                        answers[number] = database.execute(query).fetchmany(_MOST_ROWS)
                except (sqlite3.Error, MemoryError):
                    continue
    except sqlite3.Error:
        pass
    return answers
