"""What cube and vector cores do inside kernels, where PMU counters were recorded."""

from __future__ import annotations

import duckdb
import polars as pl

from .metric import sql_text
from .scope import ALL, Scope
from .views import frame


def core_use(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> pl.DataFrame:
    """Rows by type, the longest first: columns as at the head of core_use.sql.

    It reads the events: choose one rank of a large job.
    """
    clause, values = scope.where()
    query = sql_text("core_use.sql").partition("\nwith\n")[2]
    return frame(con, f"with _chosen as (select * from kernels {clause}),\n{query}", values)
