"""One rank's rows of msprof-analyze's results over all ranks.

The files were taken apart once for all their ranks (see `taken_apart`), or are now for this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import msgspec
import pyarrow as pa

from ..groups import group_hash, parallel_kind
from ..model import RankSource, ReadLog
from ..store import file_literal
from .cluster_parts import take_apart
from .cluster_rows import Group, Told
from .communication_rows import insert_matrix, insert_packets, insert_times
from .profiler_metadata import GROUPS, parse_metadata, rank_columns
from .staged_views import staging_place

_MEMORY_BYTES = 128 << 20


def read(
    con: duckdb.DuckDBPyConnection,
    source: RankSource,
    log: ReadLog,
    wanted: frozenset[str],
    advance: Callable[[int], None],
) -> None:
    """Fill `ranks`, `groups`, `profiler_steps`, `comm_times`, `comm_links` and `comm_matrix`."""
    files = source.files.get("cluster_output", ())
    place = Path(source.parts) if source.parts else staging_place(con)
    if not source.parts:
        take_apart(files, None, place, _MEMORY_BYTES)
    told = msgspec.json.decode((place / "told.json").read_bytes(), type=Told)
    for warning in told.log.warnings:
        log.warn(warning)
    log.rules |= told.log.rules
    log.damaged |= told.log.damaged

    def rows(table: str, columns: str = "* exclude (rank)") -> str:
        # The store's own folder names would make columns.
        file = f"{file_literal(str(place / f'{table}.parquet'))}, hive_partitioning = false"
        return f"select {columns} from read_parquet({file}) where rank = {source.rank}"

    groups = list(_groups(told, source.rank))
    if "ranks" in wanted:
        _fill_rank(con, source.rank, told, rows("places"))
    if "groups" in wanted and groups:
        con.register("_incoming", pa.Table.from_pylist(groups, schema=GROUPS))
        con.execute("insert into groups by name from _incoming")
        con.unregister("_incoming")
    if "profiler_steps" in wanted:
        con.execute(f"insert into profiler_steps by name {rows('steps')}")
    if "comm_times" in wanted:
        insert_times(con, rows("times"))
    if "comm_links" in wanted:
        insert_packets(con, rows("packets"))
    if "comm_matrix" in wanted:
        insert_matrix(con, rows("matrix"))
        _place_in_groups(con)
    advance(sum(file.size_bytes for file in files) // source.shared_by)


def _groups(told: Told, rank: int) -> Iterator[dict[str, object]]:
    """Rows of `groups`. Where no framework told the members, they are the ranks that have
    operations of the group: ranks that were not profiled may lack, and nobody's place is known."""
    told_hashes: set[str] = set()
    for group in told.groups:
        if group.group_hash or group.name:
            told_hashes.add(group.group_hash or group_hash(group.name or ""))
            if rank in group.ranks:
                yield _group_row(group, rank)
    for seen, ranks in told.seen.items():
        if rank in ranks and seen not in told_hashes:
            yield _group_row(Group(seen, None, None, ranks), rank)


def _group_row(group: Group, rank: int) -> dict[str, object]:
    return {
        "group_hash": group.group_hash or group_hash(group.name or ""),
        "group_name": group.name,
        "group_label": group.label,
        "parallel_kind": parallel_kind(group.label),
        "group_rank": group.ranks.index(rank) if group.name else None,
        "global_ranks": group.ranks,
    }


def _fill_rank(con: duckdb.DuckDBPyConnection, rank: int, told: Told, places: str) -> None:
    """The producer's own row first, then what the job's sizes and groups tell."""
    con.execute(f"insert into ranks by name {places}")
    metadata = parse_metadata({
        "distributed_args": told.args,
        "parallel_group_info": {
            group.name: {"group_name": group.label, "global_ranks": group.ranks}
            for group in told.groups
            if group.name
        },
    })  # fmt: skip
    columns = rank_columns(metadata, rank)
    con.execute(
        f"insert into ranks ({', '.join(columns)}) values ({', '.join('?' * len(columns))})",
        list(columns.values()),
    )


def _place_in_groups(con: duckdb.DuckDBPyConnection) -> None:
    """The ranks of the matrix are global ones here; their places in a group follow from it."""
    con.execute("""
        create temp table _global as
        select m.* replace (
            m.src_group_rank as src_rank, m.dst_group_rank as dst_rank,
            list_position(g.global_ranks, m.src_group_rank) - 1 as src_group_rank,
            list_position(g.global_ranks, m.dst_group_rank) - 1 as dst_group_rank)
        from comm_matrix m
        left join groups g on g.group_hash = m.group_hash and g.group_rank is not null""")
    con.execute("delete from comm_matrix")
    con.execute("insert into comm_matrix by name from _global")
    con.execute("drop table _global")
