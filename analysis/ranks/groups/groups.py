"""Which ranks a communication group has and what it is for, by all ranks of a capture together.

Kind: the framework's label in any member's metadata, else the communicator's own name, which an
operation's hash tells apart, else what its members do. Members: any member's metadata, else the
link matrix. What is guessed says so (`basis`), and nothing is guessed where it is unclear.

What a group is for, judged by what its members do: only where no metadata tells.

all-to-all                               -> ep   experts exchange tokens
only send, receive, batchSendRecv        -> pp   stages pass activations
large reductions late in the step        -> dp   gradients
many reductions spread over the step     -> tp   inside layers
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import duckdb
import polars as pl

from npuscope.collector.groups import group_hash, parallel_kind
from npuscope.collector.store import store

from ...metric import sql_text
from ...wording import numbers, ranks_named

# Names that frameworks give to communicators in every job.
_KNOWN_NAMES = ("hccl_world_group",)
_SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    "group_key": pl.Int32, "group_hash": pl.String, "group_name": pl.String,
    "group_label": pl.String, "kind": pl.String, "basis": pl.String,
    "global_ranks": pl.List(pl.Int32), "group_size": pl.Int32, "seen_ranks": pl.List(pl.Int32),
    "evidence": pl.String,
}  # fmt: skip


def resolve_groups(con: duckdb.DuckDBPyConnection) -> None:
    """Make the temporary tables `_groups` (a row per group) and `_members` (group_hash, rank,
    group_key, kind, group_size) from the canonical tables of one capture."""
    _name_hashes(con)
    con.execute(f"create or replace temp table _group_rows as {sql_text('group_members.sql')}")
    _by_name(con)
    mixes = _rows_of(con, "group_mix.sql")
    evidence = _rows_of(con, "group_evidence.sql")
    rows = store.frame(con.sql("from _group_rows order by group_key")).to_dicts()
    resolved = [
        _resolve(row, mixes.get(row["group_hash"]), evidence.get(row["group_hash"])) for row in rows
    ]
    con.register("_resolved_groups", pl.DataFrame(resolved, schema=_SCHEMA).to_arrow())
    con.execute("create or replace temp table _groups as from _resolved_groups")
    con.unregister("_resolved_groups")
    con.execute(
        "create or replace temp table _members as select group_key, group_hash, kind, group_size,"
        " unnest(seen_ranks) as rank from _groups"
    )


def _name_hashes(con: duckdb.DuckDBPyConnection) -> None:
    """`_named`: names of communicators with HCCL's hash of them and the kind they say."""
    result = con.execute("select distinct group_name from groups where group_name is not null")
    names = sorted({name for (name,) in result.fetchall()} | set(_KNOWN_NAMES))
    kinds = [parallel_kind(name) for name in names]
    named = pl.DataFrame(
        {
            "group_name": names,
            "group_hash": [group_hash(name) for name in names],
            "kind": [None if kind == "unknown" else kind for kind in kinds],
        },
        schema={"group_name": pl.String, "group_hash": pl.String, "kind": pl.String},
    )
    con.register("_named_frame", named.to_arrow())
    con.execute("create or replace temp table _named as from _named_frame")
    con.unregister("_named_frame")


def _by_name(con: duckdb.DuckDBPyConnection) -> None:
    """Groups that are known by their hash only get the name that has it."""
    con.execute(
        "update _group_rows set group_name = n.group_name, named_kind = n.kind from _named n"
        " where n.group_hash = _group_rows.group_hash and _group_rows.group_name is null"
    )


def _rows_of(con: duckdb.DuckDBPyConnection, file: str) -> dict[str, dict[str, Any]]:
    rows = store.frame(con.sql(sql_text(file))).to_dicts()
    return {row["group_hash"]: row for row in rows}


def _resolve(
    row: dict[str, Any], mix: dict[str, Any] | None, evidence: dict[str, Any] | None
) -> dict[str, Any]:
    """A row of `_groups`."""
    members_here: Sequence[int] = row["seen_ranks"]
    members, size, by_members, told_members = _members(row, evidence)
    if row["told_kind"] is not None:
        kind, basis = row["told_kind"], "metadata"
        told_kind = f"label {row['group_label']}" if row["group_label"] else "label"
        if row["kind_count"] > 1:
            told_kind = f"the most frequent of {row['kind_count']} contradicting labels"
    elif row["named_kind"] is not None:
        kind, basis = row["named_kind"], "hash"
        told_kind = f"its hash matches the name {row['group_name']}"
    elif mix is not None:
        kind, told_kind = inferred_kind(mix)
        basis = by_members if by_members == "matrix" else "inferred"
    else:
        kind, basis = "unknown", by_members
        told_kind = "no label, and no operation to infer it from"
    return {
        "group_key": row["group_key"],
        "group_hash": row["group_hash"],
        "group_name": row["group_name"],
        "group_label": row["group_label"],
        "kind": kind,
        "basis": basis,
        "global_ranks": members,
        "group_size": size,
        "seen_ranks": members_here,
        "evidence": f"kind: {told_kind}; members: {told_members}",
    }


def _members(
    row: dict[str, Any], evidence: dict[str, Any] | None
) -> tuple[list[int] | None, int | None, str, str]:
    """Members in group order and their count (None: not known to be all), the basis, in words."""
    ranks = row["seen_ranks"]
    if row["global_ranks"] is not None:
        count = row["told_count"]
        origin = f"listed by {count} rank" + ("s" if count > 1 else "")
        return row["global_ranks"], len(set(row["global_ranks"])), "metadata", origin
    met = sorted({*ranks, *((evidence or {}).get("matrix_ranks") or ())})
    basis = "matrix" if evidence and evidence["matrix_ranks"] else "inferred"
    origin = f"{ranks_named(ranks)} use it"
    if basis == "matrix":
        origin += f", links of the matrix join {numbers(met)}"
    size = evidence["told_size"] if evidence else None
    if size is not None:
        origin += f", its operations say {size} ranks"
    elif evidence and evidence["position_count"] == evidence["rank_count"] == len(ranks) > 1:
        # Seen members talk to nobody but each other.
        size = len(ranks)
        origin += f", whose tasks name {size} positions"
    return (met if size == len(met) else None), size, basis, origin


_LARGE_BYTES = 1e6
_SMALL_BYTES = 4e6
# A layer has four of them; two layers are the least that can be told from gradient buckets.
_FREQUENT = 8


def inferred_kind(mix: dict[str, Any]) -> tuple[str, str]:
    """Kind and its evidence from a row of `sql/group_mix.sql`; `unknown` where it is unclear."""
    total = mix["total_count"]
    if mix["all_to_all_count"]:
        return "ep", f"{mix['all_to_all_count']} of {total} operations are all-to-all"
    if mix["pair_count"] == total:
        return "pp", f"all {total} operations send or receive"
    reduces = mix["all_reduce_count"] + mix["shard_count"]
    early, middle, late = (mix[f"{name}_place"] for name in ("early", "middle", "late"))
    if reduces < total:
        return "unknown", "a mix of operations that fits no kind"
    if early is None:
        return "unknown", f"{total} reductions, and no recorded step to locate them in"
    size_bytes, per_step = mix["size_bytes"], mix["count_per_step"]
    where = f"{per_step:.0f} reductions per step, half of them at {early:.0%} to {late:.0%} of it"
    if size_bytes is not None:
        where += f", {size_bytes / 1e6:.1f} MB in the middle"
    # Gradients are never all-reduced before the backward pass; shards of parameters may well be
    # gathered there, so that only their size tells.
    is_spread = early < 0.4 and late > 0.5 and per_step >= _FREQUENT
    is_small = size_bytes is not None and size_bytes < _SMALL_BYTES and per_step >= 2 * _FREQUENT
    if is_spread and (mix["shard_count"] == 0 or is_small):
        return "tp", where
    is_large = size_bytes is not None and size_bytes >= _LARGE_BYTES
    if is_large and early >= 0.4 and middle >= 0.6:
        return "dp", where
    return "unknown", where
