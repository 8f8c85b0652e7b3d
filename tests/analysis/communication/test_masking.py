"""Communication by kind, type and operation, on small tables."""

from __future__ import annotations

from typing import Any

import pytest

from npuscope.analysis import query
from npuscope.analysis.catalog import metric
from npuscope.errors import UsageError
from tests.analysis.tables import Row, answer, connect, fill, kernel, op, select

PLACES = ("kind", "op_type", "group_hash")


def by(rows: list[dict[str, Any]], key: str, *names: str) -> dict[Any, Any]:
    """Figures of the rows gathered by one key, by what they are called (one name or three)."""
    found = {}
    for row in rows:
        if row["by_key"] == key:
            called = [row[name] for name in PLACES if row[name] is not None or key == "op"]
            values = tuple(row[name] for name in names)
            found[called[0] if key != "op" else tuple(called)] = values
    return found


def job() -> Any:
    """Step 1: compute until 10. Two groups of ep and one of tp; one operation in no known group."""
    con = connect()
    fill(con, "kernels", [kernel(0, 10, 1)])
    fill(con, "comm_ops", [
        op(5, 10, 1, group_hash="11", size_bytes=100),
        op(12, 10, 1, group_hash="11", size_bytes=50),
        op(10, 6, 1, group_hash="22", size_bytes=7),
        op(0, 4, 1, group_hash="33", op_type="send"),
        op(20, 4, 1, group_hash=None, op_type="send", size_bytes=1),
    ])  # fmt: skip
    fill(con, "groups", [
        {"group_hash": "11", "parallel_kind": "unknown"},
        {"group_hash": "11", "parallel_kind": "ep"}, {"group_hash": "22", "parallel_kind": "tp"},
        {"group_hash": "33", "parallel_kind": "ep"},
    ])  # fmt: skip
    return con


def test_what_is_gathered() -> None:
    rows = answer(job(), "comm")
    names = ("op_count", "total_ns", "union_ns", "masked_ns", "exposed_ns", "size_bytes")
    assert by(rows, "kind", *names) == {
        "ep": (3, 24, 21, 9, 12, None), "tp": (1, 6, 6, 0, 6, 7), "unknown": (1, 4, 4, 0, 4, 1),
    }  # fmt: skip
    assert by(rows, "type", *names) == {
        "allReduce": (3, 26, 17, 5, 12, 157), "send": (2, 8, 8, 4, 4, None),
    }  # fmt: skip
    assert by(rows, "op", *names) == {
        ("ep", "allReduce", "11"): (2, 20, 17, 5, 12, 150),
        ("tp", "allReduce", "22"): (1, 6, 6, 0, 6, 7),
        ("ep", "send", "33"): (1, 4, 4, 4, 0, None),
        ("unknown", "send", None): (1, 4, 4, 0, 4, 1),
    }
    ratios = by(rows, "kind", "masking_ratio")
    assert ratios == {"ep": (9 / 21,), "tp": (0.0,), "unknown": (0.0,)}


def test_exposed_instants_are_shared_among_those_that_communicate() -> None:
    rows = answer(job(), "comm")
    # 10-16: ep and tp; 16-20: ep; 20-22: ep and unknown; 22-24: unknown.
    assert by(rows, "kind", "exposed_attributed_ns") == {"ep": (8,), "tp": (3,), "unknown": (3,)}
    assert by(rows, "type", "exposed_attributed_ns") == {"allReduce": (11,), "send": (3,)}
    [step] = answer(job(), "steps")
    assert step["exposed_communication_ns"] == 14


def test_what_is_left_of_a_ns_goes_to_the_largest_remainders() -> None:
    con = connect()
    fill(con, "kernels", [kernel(0, 1, 1)])
    # Three kinds at once for 2 ns, one of them 1 ns more: thirds of 2, and 1 + 2/3.
    fill(con, "comm_ops", [
        op(10, 2, 1, group_hash="a"), op(10, 3, 1, group_hash="b"), op(10, 2, 1, group_hash="c"),
    ])  # fmt: skip
    kinds = {"a": "tp", "b": "ep", "c": "dp"}
    fill(con, "groups", [{"group_hash": g, "parallel_kind": k} for g, k in kinds.items()])
    shares = by(answer(con, "comm"), "kind", "exposed_attributed_ns")
    assert shares == {"dp": (1,), "ep": (2,), "tp": (0,)}  # equal remainders: by name


def test_without_kernels_masking_is_unknown() -> None:
    con = connect()
    fill(con, "comm_ops", [op(5, 10, 1)])
    found = answer(con, "comm")
    assert found
    for row in found:
        assert (row["union_ns"], row["masked_ns"], row["exposed_ns"]) == (10, None, None)
        assert row["masking_ratio"] is row["exposed_attributed_ns"] is None


def test_another_rank_hides_nothing() -> None:
    con = connect()
    fill(con, "kernels", [kernel(0, 10, 1, rank=1), kernel(90, 5, 1)])
    fill(con, "comm_ops", [op(0, 10, 1), op(0, 10, 1, rank=1)])
    found = {row["rank"]: row for row in answer(con, "comm") if row["by_key"] == "kind"}
    assert found[0]["exposed_attributed_ns"] == found[0]["exposed_ns"] == 10
    assert found[1]["exposed_attributed_ns"] == found[1]["exposed_ns"] == 0


def measure(name: str, wait_ns: float | None, step: int, **more: object) -> Row:
    """HCCL's times of an operation."""
    return {"name": name, "op_type": "allReduce", "group_hash": "11", "step": step,
            "elapse_ns": 9.5, "transit_ns": 0.25, "wait_ns": wait_ns, **more}  # fmt: skip


def test_hccl_times_stand_with_their_operations() -> None:
    con = connect()
    fill(con, "comm_ops", [
        op(0, 4, 1, name="a", group_hash="11"), op(5, 4, 1, name="b", group_hash="11"),
        op(9, 4, 2, name="c", group_hash="11"), op(5, 4, 2, name="b", group_hash="22"),
        op(9, 4, 2, name="d", group_hash=None),
        op(20, 4, 3, name="e", group_hash="11"), op(20, 4, 3, name="e", group_hash="22"),
    ])  # fmt: skip
    fill(con, "comm_times", [
        measure("a", 1.5, 2), measure("b", 0.125, 1), measure("c", None, 2),
        measure("nowhere", 50.0, 1), measure("a", 70.0, 1, rank=5),
        measure("d", 3.0, 2, group_hash=None),
        measure("e", 7.0, 3), measure("e", 9.0, 3, group_hash="22"),
    ])  # fmt: skip
    rows = [row for row in answer(con, "comm") if row["rank"] == 0 and row["by_key"] == "op"]
    told = ("op_count", "measured_count", "transit_ns", "wait_ns", "synchronization_ns")
    found = {(row["step"], row["group_hash"]): tuple(row[name] for name in told) for row in rows}
    assert found == {
        (1, "11"): (2, 2, 0.5, 1.625, None), (2, "11"): (1, 1, 0.25, None, None),
        (2, "22"): (1, 0, None, None, None), (2, None): (1, 1, 0.25, 3.0, None),
        (3, "11"): (1, 1, 0.25, 7.0, None), (3, "22"): (1, 1, 0.25, 9.0, None),
    }  # fmt: skip


def test_names_that_repeat_are_matched_in_order() -> None:
    con = connect()
    fill(con, "comm_ops", [op(at, 4, step, name="a", group_hash="11")
                           for at, step in ((50, 3), (0, 1), (20, 2))])  # fmt: skip
    fill(con, "comm_times", [measure("a", float(at), 9, start_ns=at + 1) for at in (20, 50, 0)])
    found = by(answer(con, "comm"), "type", "step", "wait_ns")
    assert found == {"allReduce": (3, 50.0)}
    waits = {r["step"]: r["wait_ns"] for r in answer(con, "comm") if r["by_key"] == "kind"}
    assert waits == {1: 0.0, 2: 20.0, 3: 50.0}


def test_a_rank_with_measurements_alone() -> None:
    con = connect()
    fill(con, "groups", [{"group_hash": "11", "parallel_kind": "ep"}])
    fill(con, "comm_times", [measure("a", 1.5, 7), measure("b", 2.0, 7, elapse_ns=2**53 + 2.0)])
    for row in answer(con, "comm"):
        assert (row["step"], row["op_count"], row["measured_count"]) == (7, 2, 2)
        assert (row["total_ns"], row["wait_ns"]) == (2**53 + 12, 3.5)
        unknown = ("union_ns", "masked_ns", "masking_ratio", "exposed_ns", "exposed_attributed_ns")
        assert [row[name] for name in (*unknown, "size_bytes")] == [None] * 6
    assert {row["kind"] for row in answer(con, "comm")} == {"ep", None}


def test_kinds_that_all_ranks_resolved_can_take_the_place_of_a_rank_s_own() -> None:
    con = job()
    con.execute("create table capture_groups as from (values ('job', 'c', '11', 'dp'),"
                " ('job', 'other', '22', 'cp')) as t(run, capture, group_hash, kind)")  # fmt: skip
    rows = select(con, metric("comm").sql_with(kinds="resolved_kinds.sql"))
    assert by(rows, "kind", "op_count") == {"dp": (2,), "unknown": (3,)}
    assert by(rows, "type", "union_ns") == by(answer(con, "comm"), "type", "union_ns")


def test_answers_by_key() -> None:
    con = job()
    figures = (
        "op_count total_ns union_ns masked_ns masking_ratio exposed_ns exposed_attributed_ns"
        " transit_ns wait_ns size_bytes share_ratio"
    ).split()
    place = ["run", "capture", "rank", "step"]
    assert query.comm(con).columns == [*place, "kind", *figures]
    assert query.comm(con, by="type").columns == [*place, "op_type", *figures]
    assert query.comm(con, by="op").columns == [*place, *PLACES, *figures]
    assert query.comm(con)["kind"].to_list() == ["ep", "tp", "unknown"]
    assert query.comm(con, by="op", top=1)["group_hash"].to_list() == ["11"]
    unknown: Any = "links"
    with pytest.raises(UsageError, match="kind, type, op"):
        query.comm(con, by=unknown)


@pytest.mark.parametrize(
    ("seen", "told", "waits"),
    [
        ([1, 2, 3], [2, 3], {1: None, 2: 20.0, 3: 30.0}),  # HCCL tells nothing of step 1
        ([2, 3], [1, 2, 3], {2: 20.0, 3: 30.0}),  # the timeline lacks it
        ([1, 1, 2], [1, 2], {1: 10.0, 2: 20.0}),  # one of two in step 1 was not measured
        ([None, 1, 2], [1, 2], {None: None, 1: 10.0, 2: 20.0}),
        # As many, but steps' edges are drawn apart: the order tells.
        ([1, 3, 3], [1, 2, 3], {1: 10.0, 3: 50.0}),
        ([None, 2, 3], [1, 2, 3], {None: 10.0, 2: 20.0, 3: 30.0}),
        ([1, 2], [None, None], {1: 0.0, 2: 0.0}),
        ([None, None], [1, 2, 2], {None: 30.0}),
    ],
)
def test_a_name_that_repeats_is_matched_in_its_step_where_steps_agree(
    seen: list[int | None], told: list[int | None], waits: dict[int | None, float | None]
) -> None:
    con = connect()
    fill(con, "comm_ops", [op(at * 10, 4, step, name="a", group_hash="11")
                           for at, step in enumerate(seen)])  # fmt: skip
    fill(con, "comm_times", [
        {**measure("a", 10.0 * (step or 0), 1), "step": step, "start_ns": at * 10}
        for at, step in enumerate(told)
    ])  # fmt: skip
    rows = [row for row in answer(con, "comm") if row["by_key"] == "op"]
    assert {row["step"]: row["wait_ns"] for row in rows} == waits
