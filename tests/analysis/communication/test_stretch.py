"""Kernels beside communication against the same kernels alone."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from npuscope.analysis import query
from tests.analysis.tables import answer, connect, fill, kernel, op

SAME = {"type": "MatMul", "input_shapes": "2,2", "input_dtypes": "FP32"}
CON = connect()


def test_the_stretch_and_what_overlap_gains() -> None:
    con = connect()
    fill(con, "kernels", [
        kernel(0, 10, 1, **SAME), kernel(100, 20, 2, **SAME),  # alone: 15 on average
        kernel(200, 18, 2, **SAME), kernel(220, 20, 2, **SAME),  # beside communication
        kernel(240, 5, 2, type="Add", input_shapes="2"),  # never alone
    ])  # fmt: skip
    fill(con, "comm_ops", [op(190, 40, 2), op(239, 2, 2)])
    first, second = query.compute_stretch(con).to_dicts()
    assert (first["overlapped_kernel_count"], first["net_gain_ns"]) == (0, 0)
    assert first["stretch_ratio"] is None
    told = ("overlapped_kernel_count", "overlapped_ns", "compared_kernel_count", "compared_ns",
            "expected_ns", "stretch_ratio", "extra_ns", "masked_ns", "net_gain_ns")  # fmt: skip
    assert [second[name] for name in told] == [3, 43, 2, 38, 30, 38 / 30, 8, 30, 22]


def test_kernels_without_shapes_are_like_no_other() -> None:
    con = connect()
    fill(con, "kernels", [kernel(0, 10, 1, type="A"), kernel(50, 30, 1, type="A")])
    fill(con, "comm_ops", [op(45, 10, 1)])
    [row] = query.compute_stretch(con).to_dicts()
    assert (row["overlapped_kernel_count"], row["compared_kernel_count"]) == (1, 0)
    assert row["stretch_ratio"] is row["extra_ns"] is row["net_gain_ns"] is None


def test_the_gain_is_unknown_where_little_can_be_compared() -> None:
    con = connect()
    fill(con, "kernels", [
        kernel(0, 10, 1, **SAME), kernel(50, 10, 1, **SAME),
        kernel(60, 11, 1, type="Add", input_shapes="2"),
    ])  # fmt: skip
    fill(con, "comm_ops", [op(45, 30, 1)])
    [row] = query.compute_stretch(con).to_dicts()
    assert (row["stretch_ratio"], row["net_gain_ns"]) == (1.0, None)


def test_what_only_touches_is_not_beside() -> None:
    con = connect()
    fill(con, "kernels", [kernel(0, 10, 1, **SAME), kernel(20, 10, 1, **SAME)])
    fill(con, "comm_ops", [op(10, 10, 1), op(5, 5, 1, rank=1)])
    [row] = answer(con, "stretched_kernels")
    assert (row["kernel_count"], row["overlapped_kernel_count"]) == (2, 0)


places = st.tuples(st.integers(0, 1), st.integers(0, 50), st.integers(-1, 12))


@given(st.lists(st.tuples(places, st.sampled_from("ab"), st.sampled_from([None, "2"])),
                max_size=15), st.lists(places, max_size=8))  # fmt: skip
@settings(max_examples=50)
def test_overlap_equals_looking_at_every_pair(running: Any, talking: Any) -> None:
    CON.execute("delete from kernels")
    CON.execute("delete from comm_ops")
    fill(CON, "kernels", [kernel(at, dur, 1, rank=rank, type=type_, input_shapes=shapes)
                          for (rank, at, dur), type_, shapes in running])  # fmt: skip
    fill(CON, "comm_ops", [op(at, dur, 1, rank=rank) for rank, at, dur in talking])
    expected = []
    for rank in sorted({rank for rank, _, _ in talking}):
        mine = [
            (dur, (type_, shapes), any(
                r == rank and d > 0 and a < at + dur and at < a + d for r, a, d in talking))
            for (on, at, dur), type_, shapes in running if on == rank and dur > 0
        ]  # fmt: skip
        beside = [(dur, key) for dur, key, is_beside in mine if is_beside]
        alone = [key for _, key, is_beside in mine if not is_beside]
        compared = [dur for dur, key in beside if key[1] is not None and key in alone]
        if mine:
            expected.append((rank, len(mine), len(beside), sum(dur for dur, _ in beside),
                             len(compared), sum(compared)))  # fmt: skip
    names = ("rank", "kernel_count", "overlapped_kernel_count", "overlapped_ns",
             "compared_kernel_count", "compared_ns")  # fmt: skip
    rows = answer(CON, "stretched_kernels")
    assert [tuple(row[name] for name in names) for row in rows] == expected
