"""One rank's rows of msprof-analyze's results over all ranks.

The files were taken apart once for all their ranks (see `cluster_parts`), or are now for this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import msgspec

from npuscope.messages import restore_text

from ...groups import group_hash, parallel_kind
from ...literals import file_literal
from ...model import RankSource, ReadLog
from ...staging import insert_row, insert_rows, staging_place
from ..metadata.profiler_metadata import groups_table, parse_metadata, rank_columns
from .cluster_db import Group, JobFacts
from .cluster_parts import split_by_rank

_MEMORY_BYTES = 128 << 20


def read(
    con: duckdb.DuckDBPyConnection,
    source: RankSource,
    log: ReadLog,
    tables: frozenset[str],
    advance: Callable[[int], None],
) -> None:
    """Fill `ranks`, `groups`, `profiler_steps`, `comm_times`, `comm_links` and `comm_matrix`."""
    files = source.files.get("cluster_output", ())
    place = Path(source.parts) if source.parts else staging_place(con)
    if not source.parts:
        split_by_rank(files, None, place, _MEMORY_BYTES)
    facts = msgspec.json.decode((place / "job.json").read_bytes(), type=JobFacts)
    for warning in map(restore_text, facts.warnings):
        log.warn(warning)
    log.rules |= facts.log.rules
    log.damage |= facts.log.damage

    def rows(table: str) -> str:
        # The store's own folder names would make columns.
        file = f"{file_literal(str(place / f'{table}.parquet'))}, hive_partitioning = false"
        return f"select * exclude (rank) from read_parquet({file}) where rank = {source.rank}"

    groups = list(_groups(facts, source.rank))
    if "ranks" in tables:
        _fill_rank(con, source.rank, facts, rows("places"))
    if "groups" in tables and groups:
        insert_rows(con, "groups", groups_table(groups))
    for table in ("profiler_steps", "comm_times", "comm_links", "comm_matrix"):
        if table in tables:
            con.execute(f"insert into {table} by name {rows(table)}")
    advance(sum(file.size_bytes for file in files) // source.shared_by)


def _groups(facts: JobFacts, rank: int) -> Iterator[dict[str, object]]:
    """Rows of `groups`. Where no framework told the members, they are the ranks that have
    operations of the group: ranks that were not profiled may lack, and nobody's place is known."""
    told_hashes: set[str] = set()
    for group in facts.groups:
        if group.group_hash or group.name:
            told_hashes.add(group.group_hash or group_hash(group.name or ""))
            if rank in group.ranks:
                yield _group_row(group, rank)
    for hash_, ranks in facts.members.items():
        if rank in ranks and hash_ not in told_hashes:
            yield _group_row(Group(hash_, None, None, ranks), rank)


def _group_row(group: Group, rank: int) -> dict[str, object]:
    return {
        "group_hash": group.group_hash or group_hash(group.name or ""),
        "group_name": group.name,
        "group_label": group.label,
        "parallel_kind": parallel_kind(group.label),
        "group_rank": group.ranks.index(rank) if group.name else None,
        "global_ranks": group.ranks,
    }


def _fill_rank(con: duckdb.DuckDBPyConnection, rank: int, facts: JobFacts, places: str) -> None:
    """The producer's own row first, then what the job's sizes and groups tell."""
    con.execute(f"insert into ranks by name {places}")
    metadata = parse_metadata({
        "distributed_args": facts.args,
        "parallel_group_info": {
            group.name: {"group_name": group.label, "global_ranks": group.ranks}
            for group in facts.groups
            if group.name
        },
    })  # fmt: skip
    insert_row(con, "ranks", rank_columns(metadata, rank))
