"""From the canonical tables of one capture to what only all its ranks together tell.

groups ──▶ matched operations ──▶ clocks ──▶ arrivals on one clock ──▶ waits
   └─────▶ communication of ranks whose own metadata says another kind, computed again

Comparing the ranks of one capture ahead of the first reader who asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import duckdb

from npuscope.collector.store import derived_tier
from npuscope.collector.store.manifest import Manifest, capture_manifests, rank_folder

from .. import rules
from ..catalog import metric, sql_metrics
from ..metric import part_sql, sql_text
from ..summaries import summaries

# Rows of `comm_summary` of the ranks that need other kinds than they know themselves.
RESOLVED_COMM = "resolved_comm"
# A rank whose own metadata says of one of its groups what the capture's does not.
_OTHERWISE = """
    select distinct _members.rank from _members
    semi join (
        select rank, group_hash from comm_ops union all select rank, group_hash from comm_times
    ) using (rank, group_hash)
    left join (
        select rank, group_hash, min(parallel_kind) filter (where parallel_kind <> 'unknown') as own
        from groups group by rank, group_hash
    ) using (rank, group_hash)
    where coalesce(own, 'unknown') <> kind
"""


@dataclass(frozen=True, slots=True)
class Table:
    """A result: `query` holds on the connection that it was derived on."""

    name: str
    query: str


def derived_tables() -> dict[str, list[tuple[str, str]]]:
    """Columns (name, type) of each table that `derive` makes."""
    tables = {
        one.view: [(column.name, column.type) for column in one.columns]
        for one in sql_metrics()
        if one.over
    }
    comm = metric("comm").columns
    return {**tables, RESOLVED_COMM: [(column.name, column.type) for column in comm]}


@cache
def version() -> str:
    """Short name of the rules: results of another version are stale."""
    return rules.version(__name__)


def derive(con: duckdb.DuckDBPyConnection) -> Iterator[Table]:
    """The results for one capture, whose canonical tables `con` has; each is to be used before the
    next is asked for. Makes temporary tables whose names begin with an underscore."""
    # Only here: a store that is up to date is read without loading what fits and tests.
    from .clocks.clocks import fit_clocks
    from .groups.groups import resolve_groups
    from .stragglers import stragglers

    resolve_groups(con)
    con.execute(f"create or replace temp table _matched as {sql_text('matched.sql')}")
    fit_clocks(con)
    yield Table("capture_groups", sql_text("capture_groups.sql"))
    yield Table("clocks", sql_text("clocks.sql"))
    con.execute(f"create or replace temp table _arrivals as {sql_text('arrivals.sql')}")
    con.execute("drop table _matched")
    yield Table("arrivals", "from _arrivals order by instance, rank")
    yield Table("comm_waits", sql_text("comm_waits.sql"))
    for result in stragglers.results_of(con, arrivals="_arrivals"):
        yield Table(result.name, result.query)
    yield Table("step_parts", part_sql("step_parts.sql"))
    con.execute("drop table _arrivals")
    ranks = sorted(rank for (rank,) in con.execute(_OTHERWISE).fetchall())
    con.execute(
        "create or replace temp view capture_groups as select run, capture, group_hash, kind"
        " from _groups, (select any_value(run) as run, any_value(capture) as capture from ranks)"
    )
    condition = f"rank in ({', '.join(map(str, ranks))})" if ranks else "false"
    query = metric("comm").sql_with(kinds="resolved_kinds.sql")
    yield Table(RESOLVED_COMM, f"select * from ({query}) where {condition}")


def bring_up_to_date(
    store: Path, members: Sequence[Manifest], memory_bytes: int = derived_tier.MEMORY_BYTES
) -> dict[str, str]:
    """Files of the `derived` tier of a capture's ranks by table, as `derived_tier` does it."""
    versions = {one.name: one.version for one in summaries()}
    return derived_tier.bring_up_to_date(
        store, members, version(), derive, summaries=versions, memory_bytes=memory_bytes
    )


def compare_capture(store: Path, run: str, capture: str) -> None:
    """Bring the `derived` tier of a capture up to date; nothing where it is, or where the capture
    is gone.

    Raises OSError where the store cannot be written, duckdb's errors where the computing fails.
    """
    members = capture_manifests(rank_folder(store, run, capture, 0).parent)
    if members:
        bring_up_to_date(store, members)
