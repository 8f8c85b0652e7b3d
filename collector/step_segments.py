"""To which step an instant belongs, where ranges of steps overlap."""

from __future__ import annotations

import duckdb

from . import schema
from .staging import run


def cut_steps(con: duckdb.DuckDBPyConnection) -> None:
    """Make `_step_segments` (start_ns, end_ns, step) from `steps`: step_segments.sql says how."""
    run(con, schema.sql("step_segments.sql"))
