"""step_trace_time.csv: the producer's own table of steps, in microseconds."""

from __future__ import annotations

from collections.abc import Callable

import duckdb

from ...model import RankSource, ReadLog
from ..damaged_files import read_each
from ..delimited_text import Rows, fill, open_rows
from .device_rows import names_device

# Canonical column -> header. The analysis database spells them in lower case with underscores.
COLUMNS = {
    "computing_ns": "Computing",
    "communication_not_overlapped_ns": "Communication(Not Overlapped)",
    "overlapped_ns": "Overlapped",
    "communication_ns": "Communication",
    "free_ns": "Free",
    "stage_ns": "Stage",
    "bubble_ns": "Bubble",
    "communication_not_overlapped_and_exclude_receive_ns": (
        "Communication(Not Overlapped and Exclude Receive)"
    ),
    "preparing_ns": "Preparing",
}


def read(
    con: duckdb.DuckDBPyConnection,
    source: RankSource,
    log: ReadLog,
    tables: frozenset[str],
    advance: Callable[[int], None],
) -> None:
    """Fill `profiler_steps`."""

    def read_one(path: str) -> None:
        rows = open_rows(path, log, [("Computing",)]) if "profiler_steps" in tables else None
        if rows is not None and names_device(rows, source, log):
            columns = [name for name in ("Device_id", "Preparing") if rows.has(name)]
            log.rules["profiler_steps.late_columns"] = ", ".join(columns) or "none"
            insert = "insert into profiler_steps by name"
            fill(
                con, rows, log, lambda source: f"{insert} {_steps_sql(rows, source)}",
                decimals=COLUMNS.values(),
            )  # fmt: skip

    read_each(source.files.get("step_trace", ()), read_one, log, advance)


def _steps_sql(rows: Rows, source: str) -> str:
    times = ", ".join(
        f"scaled({rows.cell(header)}, 1000) as {name}" for name, header in COLUMNS.items()
    )
    return f"""
        select try_cast(whole({rows.cell("Device_id")}) as integer) as device_id,
            step_number({rows.cell("Step")}) as step, {times}
        from {source}"""
