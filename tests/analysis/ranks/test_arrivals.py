"""Matching of operations over ranks, and waiting by two estimates, against slow twins."""

from __future__ import annotations

from collections import Counter
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuscope.analysis.metric import sql_text
from npuscope.analysis.ranks.groups.groups import resolve_groups
from npuscope.sample_traces.generate import Job
from tests.analysis.ranks.across_tables import across, job_tables
from tests.analysis.tables import Row, connect, fill, op, select

TYPES = ("allReduce", "allToAllV", "send", "receive")


def tables(
    ops: list[Row], members: dict[str, list[int]], rank_count: int = 3
) -> duckdb.DuckDBPyConnection:
    """Operations of ranks on one host, with the members of their groups in metadata."""
    con = connect()
    fill(con, "ranks", [{"rank": rank, "host_name": "h"} for rank in range(rank_count)])
    fill(con, "groups", [
        {"rank": rank, "group_hash": name, "parallel_kind": "dp", "global_ranks": ranks}
        for name, ranks in members.items() for rank in ranks if rank < rank_count
    ])  # fmt: skip
    fill(con, "comm_ops", ops)
    return con


recorded = st.lists(
    st.tuples(
        st.integers(0, 2),  # rank
        st.sampled_from(["1", "2", "3"]),  # group: of all, of ranks 0 and 1, of a rank not seen too
        st.sampled_from(TYPES),
        st.integers(0, 3),  # number
        st.integers(0, 100),  # start
    ),
    max_size=25,
    unique_by=lambda one: (one[0], one[4]),  # one rank's operations start apart
)
MEMBERS = {"1": [0, 1, 2], "2": [0, 1], "3": [0, 1, 2, 9]}


def twin(ops: list[Row]) -> dict[int, tuple[frozenset[int], bool]]:
    """For each operation (by op_id) those it is one with, and whether they are complete."""
    keys: dict[int, tuple[Any, ...] | None] = {}
    sides: dict[tuple[str, object], set[object]] = {}
    for one in ops:
        is_pair = one["group_hash"] == "2" and one["rank"] in (0, 1)
        if is_pair and one["op_type"] in ("send", "receive"):
            number = str(one["name"]).partition("__")[2]
            sides.setdefault((number, one["op_type"]), set()).add(one["rank"])
    # Both send, or receive, under one number: directions tell what is whose.
    crossed = any(len(ranks) == 2 for ranks in sides.values())
    for one in ops:
        group, rank, kind = one["group_hash"], one["rank"], one["op_type"]
        if rank not in MEMBERS[str(group)]:
            keys[_id(one)] = None if kind in ("send", "receive") else (group, "none", one["name"])
            continue
        number = str(one["name"]).partition("__")[2]
        if kind not in ("send", "receive"):
            keys[_id(one)] = (group, "", one["name"])
        else:
            number = f"from {rank if kind == 'send' else 1 - rank}" if crossed else number
            keys[_id(one)] = (group, "", number) if group == "2" else None
    order: Counter[tuple[Any, ...]] = Counter()
    found: dict[tuple[Any, ...], list[Row]] = {}
    counts: dict[tuple[Any, ...], Counter[Any]] = {}
    for one in sorted(ops, key=lambda one: (one["rank"], one["start_ns"])):
        key = keys[_id(one)]
        if key is None:
            found[("alone", _id(one))] = [one]
            continue
        nth = order[key, one["rank"]]
        order[key, one["rank"]] += 1
        found.setdefault((*key, nth), []).append(one)
        counts.setdefault(key, Counter())[one["rank"]] += 1
    answer = {}
    for key, members in found.items():
        even = key[0] != "alone" and len(set(counts[key[:3]].values())) == 1
        kinds = Counter(one["op_type"] for one in members)
        pair = kinds["send"] + kinds["receive"]
        sure = even and (not pair or (kinds["send"] == 1 and kinds["receive"] == 1))
        size = 2 if pair else len(MEMBERS[str(members[0]["group_hash"])])
        ids = frozenset(_id(one) for one in members)
        for one in members:
            answer[_id(one)] = (ids, sure and len(members) == size)
    return answer


def _id(one: Row) -> int:
    number = one["op_id"]
    assert isinstance(number, int)
    return number


@pytest.fixture(scope="module")
def empty() -> duckdb.DuckDBPyConnection:
    con = tables([], MEMBERS)
    resolve_groups(con)
    return con


@settings(max_examples=40)
@given(drawn=recorded)
def test_matching_against_its_twin(
    empty: duckdb.DuckDBPyConnection, drawn: list[tuple[int, str, str, int, int]]
) -> None:
    ops = [
        op(start, 10, rank=rank, group_hash=group, op_type=kind, op_id=number,
           name=f"hcom_{kind}__00{group}_{index}_1", size_bytes=number)
        for number, (rank, group, kind, index, start) in enumerate(drawn)
        if rank in MEMBERS[group]
    ]  # fmt: skip
    empty.execute("delete from comm_ops")
    fill(empty, "comm_ops", ops)
    rows = select(empty, sql_text("matched.sql"))
    assert sorted(row["size_bytes"] for row in rows) == [_id(one) for one in ops]
    together: dict[int, set[int]] = {}
    for row in rows:
        together.setdefault(row["instance"], set()).add(row["size_bytes"])
    told = {
        row["size_bytes"]: (
            frozenset(together[row["instance"]]),
            row["is_matchable"] and row["rank_count"] == row["group_size"],
        )
        for row in rows
    }
    assert told == twin(ops)
    assert sorted(together) == list(range(1, len(together) + 1))
    assert all(row["rank_count"] == len(together[row["instance"]]) for row in rows)


def test_every_operation_of_a_job_meets_its_members() -> None:
    """Four stages in one group, so that transfers have to be told apart by their peers."""
    job = Job(name="meets", layers=4, pp=4, tp=2, dp=2, ep=2, steps=1)
    rows = across(job_tables(job), "arrivals")
    assert all(row["is_complete"] for row in rows)
    ends: dict[int, set[int]] = {}
    for row in rows:
        ends.setdefault(row["instance"], set()).add(row["end_ns"])
    assert all(len(times) == 1 for times in ends.values())
    pairs = Counter(row["instance"] for row in rows if row["op_type"] in ("send", "receive"))
    assert pairs and set(pairs.values()) == {2}


def test_transfers_in_a_large_group_without_tasks_stay_alone() -> None:
    job = Job(name="meets", layers=3, pp=3, dp=1, ep=1, experts=0, memory=False, comm_tasks=False)
    rows = across(job_tables(job), "arrivals")
    transfers = [row for row in rows if row["op_type"] in ("send", "receive")]
    assert transfers
    assert {(row["rank_count"], row["group_size"], row["is_complete"]) for row in transfers} == {
        (1, 2, False)
    }


@pytest.mark.slow
def test_transfers_of_a_pair_without_numbers_are_counted() -> None:
    """Both ways in turn, as on GPUs; one that is lost, or of other bytes, leaves its way alone."""
    sides = {"send": (0, 1), "receive": (1, 0)}
    ops = [
        op(100 * nth + 40 * way + 5 * rank, 30, rank=rank, group_hash="2", op_type=kind,
           op_id=10 * nth + way, step=4, name="ncclDevKernel_SendRecv", size_bytes=nth)
        for nth in range(3) for way in (0, 1) for kind, ranks in sides.items()
        for rank in [ranks[way]]
    ]  # fmt: skip
    whole = across(tables(ops, MEMBERS), "arrivals")
    pairs: dict[int, list[dict[str, Any]]] = {}
    for row in whole:
        pairs.setdefault(row["instance"], []).append(row)
    assert len(pairs) == 6 and all(row["is_complete"] for row in whole)
    for one, other in pairs.values():
        assert {one["op_type"], other["op_type"]} == {"send", "receive"}
        assert one["size_bytes"] == other["size_bytes"]
        assert abs(one["start_ns"] - other["start_ns"]) == 5
    for broken in (ops[1:], [{**ops[0], "size_bytes": 7}, *ops[1:]]):
        rows = across(tables(broken, MEMBERS), "arrivals")
        from_first = [row for row in rows if (row["rank"] == 0) == (row["op_type"] == "send")]
        assert {row["is_complete"] for row in from_first} == {False}
        assert {row["is_complete"] for row in rows if row not in from_first} == {True}


@pytest.mark.slow
def test_windows_that_differ_leave_operations_incomplete() -> None:
    job = Job(name="cut", layers=2, pp=1, dp=4, ep=2, memory=False)
    con = job_tables(job)
    con.execute("delete from comm_ops where rank = 1 and step = 13")
    rows = across(con, "arrivals")
    hit = [row for row in rows if row["rank"] in (0, 1) and row["kind"] == "ep"]
    assert {row["is_complete"] for row in hit if row["step"] == 12} == {True}
    assert {row["is_complete"] for row in hit if row["step"] == 13} == {False}
    waits = across(con, "comm_waits")
    (ratio,) = {
        row["coverage_ratio"] for row in waits
        if (row["rank"], row["step"], row["kind"]) == (0, 13, "ep")
    }  # fmt: skip
    assert ratio == 0


def test_operations_without_a_name_or_group_are_kept() -> None:
    ops = [
        op(5, 10, rank=0, op_id=1),
        op(5, 10, rank=1, op_id=1, group_hash="2"),
        op(7, None, rank=1, op_id=2, group_hash="2", name="hcom_allReduce__002_1_1"),
    ]
    rows = across(tables(ops, MEMBERS), "arrivals")
    assert [(row["rank"], row["is_complete"], row["rank_count"]) for row in rows] == [
        (0, False, 1), (1, False, 1),
    ]  # fmt: skip


def test_light_ranks_are_matched_by_hccls_times() -> None:
    con = tables([], MEMBERS)
    fill(con, "comm_times", [
        {"rank": rank, "step": 4, "name": "hcom_allReduce__002_0_1", "op_type": "allReduce",
         "group_hash": "2", "start_ns": 1000 * rank, "elapse_ns": 5000.0 - 1000 * rank,
         "wait_ns": 2.5}
        for rank in (0, 1)
    ])  # fmt: skip
    rows = across(con, "arrivals")
    assert [(row["rank"], row["end_ns"], row["is_complete"]) for row in rows] == [
        (0, 5000, True), (1, 5000, True),
    ]  # fmt: skip
    waits = across(con, "comm_waits", "rank")
    assert [row["wait_last_arrival_ns"] for row in waits] == [1000, 0]
    assert [row["hccl_wait_ns"] for row in waits] == [2.5, 2.5]


def waits_twin(arrivals: list[dict[str, Any]]) -> dict[tuple[Any, ...], tuple[int, int, int]]:
    """Waiting by the shortest duration, by the last arrival, and their disagreement."""
    found: dict[tuple[Any, ...], list[int]] = {}
    by_instance: dict[int, list[dict[str, Any]]] = {}
    for row in arrivals:
        by_instance.setdefault(row["instance"], []).append(row)
    for members in by_instance.values():
        if not members[0]["is_complete"]:
            continue
        least = min(row["end_ns"] - row["start_ns"] for row in members)
        last = max(row["aligned_start_ns"] for row in members)
        for row in members:
            dur = row["end_ns"] - row["start_ns"]
            late = min(dur, last - row["aligned_start_ns"])
            sums = found.setdefault((row["rank"], row["step"], row["kind"]), [0, 0, 0])
            for place, part in enumerate((dur - least, late, abs(late - dur + least))):
                sums[place] += part
    return {key: (a, b, c) for key, (a, b, c) in found.items()}


@pytest.mark.parametrize("jitter_ns", [0, pytest.param(50_000, marks=pytest.mark.slow)])
def test_waits_against_their_twin(jitter_ns: int) -> None:
    offsets = tuple(rank // 2 * 3_000_000 for rank in range(8))
    job = Job(name="waits", layers=2, memory=False, ranks_per_host=2, clock_offsets_ns=offsets)
    con = job_tables(job, jitter_ns=jitter_ns)
    expected = waits_twin(across(con, "arrivals"))
    rows = across(con, "comm_waits")
    told = {
        (row["rank"], row["step"], row["kind"]): (
            row["wait_min_duration_ns"], row["wait_last_arrival_ns"], row["disagreement_ns"]
        )
        for row in rows
    }  # fmt: skip
    # Within one host raw times are compared, which alignment moves by the same, give or take 1 ns.
    for key, sums in expected.items():
        slack = [2 * row["op_count"] for row in rows if key[:2] == (row["rank"], row["step"])]
        assert all(abs(a - b) <= max(slack) for a, b in zip(told[key], sums, strict=True))
    for row in rows:
        assert row["coverage_ratio"] == 1 and row["aligned_count"] == row["op_count"]
        for estimate in ("min_duration", "last_arrival"):
            parts = row[f"wait_{estimate}_ns"] + row[f"transfer_{estimate}_ns"]
            assert parts == row["total_ns"]
        if jitter_ns == 0:
            # Members leave together, so that both estimates are one.
            assert row["disagreement_ns"] <= 2 * row["op_count"]
