"""Groups of a capture: true kinds from any rank's metadata, guesses that say so, or none."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest

from npuscope.analysis.ranks.groups.groups import inferred_kind
from npuscope.collector.groups import group_hash
from npuscope.sample_traces.generate import Job
from npuscope.sample_traces.job import groups
from tests.analysis.ranks.across_tables import across, job_tables
from tests.analysis.tables import connect, fill, op

JOB = Job(name="groups", layers=4, pp=2, tp=2, dp=4, ep=2, steps=1, memory=False)


def by_members(con: duckdb.DuckDBPyConnection) -> dict[tuple[str, tuple[int, ...]], dict[str, Any]]:
    """Rows of the groups that communicate, by hash and the members seen."""
    rows = across(con, "capture_groups")
    return {(row["group_hash"], tuple(row["seen_ranks"])): row for row in rows}


def without(con: duckdb.DuckDBPyConnection, condition: str) -> None:
    """Take ranks out of every table."""
    for table in ("ranks", "groups", "steps", "kernels", "comm_ops", "comm_tasks"):
        con.execute(f"delete from {table} where {condition}")


def group_kinds(ranks: set[int]) -> dict[tuple[str, tuple[int, ...]], tuple[str, tuple[int, ...]]]:
    """Kind and members of the job's groups of several of which some are in `ranks`."""
    return {
        (group_hash(group.name), tuple(rank for rank in group.ranks if rank in ranks)):
            (group.kind, group.ranks)
        for _, group in groups(JOB) if len(group.ranks) > 1 and ranks & {*group.ranks}
    }  # fmt: skip


@pytest.mark.parametrize("ranks", [set(range(16)), {3, 9}, {0}])
def test_partial_captures_keep_the_true_groups(ranks: set[int]) -> None:
    con = job_tables(JOB)
    without(con, f"rank not in ({', '.join(map(str, sorted(ranks)))})")
    found = by_members(con)
    told = {
        key: (row["kind"], tuple(row["global_ranks"])) for key, row in found.items()
        if row["group_size"] > 1
    }  # fmt: skip
    assert told == group_kinds(ranks)
    assert {row["basis"] for row in found.values()} == {"metadata"}


def test_one_rank_tells_for_all() -> None:
    """What a rank's list lacks, another's has."""
    con = job_tables(JOB)
    con.execute("delete from groups where rank % 2 = 1")
    found = by_members(con)
    for key, (kind, members) in group_kinds(set(range(16))).items():
        if any(rank % 2 == 0 for rank in members):
            row = found[key]
            assert (row["kind"], tuple(row["global_ranks"])) == (kind, members)
            assert (row["basis"], row["group_size"]) == ("metadata", len(members))


def test_without_metadata_kinds_are_inferred_or_unknown() -> None:
    con = job_tables(JOB)
    con.execute("delete from groups")
    con.execute("update comm_ops set group_size = null")
    kinds: dict[str, set[str]] = {}
    found = by_members(con)
    for key, (kind, members) in group_kinds(set(range(16))).items():
        if key not in found:
            continue  # it never communicates
        row = found[key]
        kinds.setdefault(kind, set()).add(row["kind"])
        assert row["basis"] == "inferred"
        # Tasks show that members seen talk to nobody but each other.
        assert row["group_size"] == (len(members) if kind != "world" else None)
        assert row["seen_ranks"] == list(members)
    assert kinds["ep"] == {"ep"} and kinds["pp"] == {"pp"} and kinds["tp"] == {"tp"}
    assert kinds["dp"] == kinds["dp_ep"] == {"dp"}
    assert kinds["world"] == {"unknown"}


def hash_only(**more: Any) -> duckdb.DuckDBPyConnection:
    """Two ranks that communicate in a group of which only the hash is told."""
    con = connect()
    fill(con, "ranks", [{"rank": 0}, {"rank": 1}])
    name = str(more.pop("name", "hccl_world_group"))
    fill(con, "comm_ops", [
        op(5, 10, rank=rank, group_hash=group_hash(name), name="hcom_allReduce__1_0_1", **more)
        for rank in (0, 1)
    ])  # fmt: skip
    return con


def test_a_name_is_known_by_its_hash() -> None:
    (row,) = across(hash_only(), "capture_groups")
    assert (row["kind"], row["basis"], row["group_name"]) == ("world", "hash", "hccl_world_group")
    assert row["seen_ranks"] == [0, 1] and row["group_size"] is None


def test_a_name_told_elsewhere() -> None:
    con = hash_only(name="tp_group")
    fill(con, "groups", [{"rank": 0, "group_name": "tp_group", "parallel_kind": "unknown"}])
    (row,) = across(con, "capture_groups")
    assert (row["kind"], row["basis"], row["group_name"]) == ("tp", "hash", "tp_group")


def test_the_matrix_tells_members() -> None:
    con = hash_only(name="x", group_size=4)
    fill(con, "comm_matrix", [
        {"rank": rank, "group_hash": group_hash("x"), "src_rank": rank, "dst_rank": peer}
        for rank in (0, 1) for peer in (0, 1, 6, 7)
    ])  # fmt: skip
    (row,) = across(con, "capture_groups")
    assert (row["basis"], row["global_ranks"], row["group_size"]) == ("matrix", [0, 1, 6, 7], 4)
    assert row["kind"] == "unknown"
    con.execute("update comm_ops set group_size = 5")
    (row,) = across(con, "capture_groups")
    assert (row["global_ranks"], row["group_size"]) == (None, 5)


def test_one_hash_may_be_two_groups() -> None:
    con = connect()
    fill(con, "ranks", [{"rank": rank} for rank in range(4)])
    fill(con, "groups", [
        {"rank": rank, "group_hash": "9", "group_label": label, "parallel_kind": label,
         "global_ranks": members}
        for label, members in (("tp", [0, 1]), ("ep", [3, 2])) for rank in members
    ])  # fmt: skip
    fill(con, "comm_ops", [
        op(5, 10, rank=rank, group_hash="9", name="hcom_allGather__009_0_1") for rank in range(4)
    ])  # fmt: skip
    rows = across(con, "capture_groups", "seen_ranks")
    assert [(row["kind"], row["global_ranks"], row["seen_ranks"]) for row in rows] == [
        ("tp", [0, 1], [0, 1]), ("ep", [3, 2], [2, 3]),
    ]  # fmt: skip
    met = across(con, "arrivals")
    assert sorted((row["kind"], row["rank"], row["is_complete"]) for row in met) == [
        ("ep", 2, True), ("ep", 3, True), ("tp", 0, True), ("tp", 1, True),
    ]  # fmt: skip
    assert len({row["instance"] for row in met}) == 2


def test_labels_that_disagree_are_told() -> None:
    con = connect()
    fill(con, "ranks", [{"rank": rank} for rank in range(3)])
    fill(con, "groups", [
        {"rank": rank, "group_hash": "9", "parallel_kind": kind, "global_ranks": [0, 1, 2]}
        for rank, kind in enumerate(("dp", "dp", "cp"))
    ])  # fmt: skip
    (row,) = across(con, "capture_groups")
    assert row["kind"] == "dp"
    assert "2 contradicting labels" in row["evidence"]


def mix(**more: object) -> dict[str, object]:
    """Ten large all-reduces late in the step."""
    return {
        "total_count": 10, "all_to_all_count": 0, "pair_count": 0, "all_reduce_count": 10,
        "shard_count": 0, "count_per_step": 5.0, "size_bytes": 3e7, "early_place": 0.6,
        "middle_place": 0.8, "late_place": 0.9, **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({}, "dp"),
        ({"size_bytes": 100.0}, "unknown"),
        ({"size_bytes": None}, "unknown"),
        ({"early_place": None}, "unknown"),
        ({"all_reduce_count": 9}, "unknown"),
        ({"all_to_all_count": 1}, "ep"),
        ({"pair_count": 10}, "pp"),
        ({"early_place": 0.2, "middle_place": 0.5, "late_place": 0.8}, "unknown"),
        ({"early_place": 0.2, "late_place": 0.8, "count_per_step": 40.0}, "tp"),
        # Parameters gathered in the forward pass look like sharded activations, but are large.
        ({"early_place": 0.2, "late_place": 0.8, "count_per_step": 40.0, "all_reduce_count": 0,
          "shard_count": 10}, "unknown"),
        ({"early_place": 0.2, "late_place": 0.8, "count_per_step": 40.0, "all_reduce_count": 0,
          "shard_count": 10, "size_bytes": 1e5}, "tp"),
    ],
)  # fmt: skip
def test_kinds_by_what_members_do(change: dict[str, object], kind: str) -> None:
    assert inferred_kind(mix(**change))[0] == kind
