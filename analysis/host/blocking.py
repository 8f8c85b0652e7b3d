"""Calls that keep the host from launching, of a mean rank and step, and the words that end them."""

from __future__ import annotations

import duckdb
import polars as pl

from ..memo import kept
from ..scope import JOB, Scope
from ..views import frame

_CALLS = """
    with
    _steps as (select rank, count(*) as steps from step_summary {where} group by rank),
    _calls as (
        select cause, if(cause = 'synchronisation', operator, null) as operator, location, rank,
            sum(total_ns) as total_ns, sum(count) as count, max(longest_ns) as longest_ns
        from host_calls {where} group by all
    )
    select cause, operator, max_by(location, total_ns) as location,
        sum(count / steps) / {ranks} as count, sum(total_ns / steps) / {ranks} as total_ns,
        max(longest_ns) as longest_ns
    from _calls join _steps using (rank)
    group by cause, operator order by total_ns desc, cause, operator"""
_RANKS = "select greatest(count(distinct rank), 1) from step_summary {where}"


@kept
def blocking_calls(con: duckdb.DuckDBPyConnection, scope: Scope) -> pl.DataFrame:
    """cause, operator (of a wait for the device), location, count, total_ns (both of a mean rank
    and step of one capture) and longest_ns, the most time first."""
    clause, values = scope.where(JOB)
    ranks = frame(con, _RANKS.format(where=clause), values).item()
    return frame(con, _CALLS.format(where=clause, ranks=ranks), [*values, *values])


def word_of(cause: str, operator: str | None = None) -> str:
    """What `npuscope whatif` calls the end of a cause."""
    return f"cause:{cause}{f'/{operator}' if operator else ''}=0"
