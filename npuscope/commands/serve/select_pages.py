"""SELECTs that a program asks: a page of each answer, never all of it, for so long at most."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from npuscope.errors import UsageError
from npuscope.selects import run_select, select_connection

# A join without its condition would hold up every other question, and the end of the server.
MOST_SECONDS = 60.0


class SelectPages:
    """SELECTs over a store's or a file's tables; may be asked from several threads."""

    def __init__(self, target: Path) -> None:
        self._con = select_connection(target)
        self._asking = threading.Lock()

    def close(self) -> None:
        """Close the tables."""
        self._con.close()

    def page(self, text: str, offset: int, limit: int) -> tuple[list[dict[str, Any]], int]:
        """Rows from the offset on, `limit` at most, and how many there are in all.

        Raises UsageError, also for a statement that takes longer than `MOST_SECONDS`.
        """
        is_late = threading.Event()

        def end() -> None:
            is_late.set()
            self._con.interrupt()

        with self._asking:
            clock = threading.Timer(MOST_SECONDS, end)
            clock.start()
            try:
                return _page(self._con, text, offset, limit)
            except (UsageError, duckdb.Error, OSError, pa.ArrowException) as error:
                if is_late.is_set():
                    reason = f"SQL: not done after {MOST_SECONDS:g} s: ask for less"
                    raise UsageError(reason) from error
                if isinstance(error, UsageError):
                    raise
                raise UsageError(f"SQL: {error}") from error
            finally:
                clock.cancel()
                clock.join()  # it must not be the last to let the tables go


def _page(
    con: duckdb.DuckDBPyConnection, text: str, offset: int, limit: int
) -> tuple[list[dict[str, Any]], int]:
    rows: list[dict[str, Any]] = []
    count = 0
    for batch in run_select(con, text):
        first, end = max(offset - count, 0), min(offset + limit - count, batch.num_rows)
        if first < end:
            rows += batch.slice(first, end - first).to_pylist()
        count += batch.num_rows
    return rows, count
