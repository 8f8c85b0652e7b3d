"""kernels: keys, shares and exact percentiles."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analysis.tables import Row, answer, clear, connect, fill, kernel

CON = connect()


def gather(by: str, rows: Sequence[Row]) -> list[tuple[object, ...]]:
    clear(CON)
    fill(CON, "kernels", rows)
    return [
        tuple(row[name] for name in ("step", "key", "core", "count", "total_ns", "max_ns"))
        for row in answer(CON, "kernels")
        if row["by_key"] == by
    ]


KERNELS = [
    kernel(0, 10, 1, type="MatMul", name="a", core="AI_CORE", input_shapes="2,3"),
    kernel(10, 30, 1, type="MatMul", name="b", core="MIX_AIC", input_shapes="2,3"),
    kernel(20, 20, 1, type="Add", name="c", core="AI_CORE", input_shapes=None),
    kernel(90, 5, 2, type="Add", name="c", core=None, input_shapes="4"),
    kernel(95, 5, 2, type="Add", name="c", core="AI_CORE", input_shapes="4"),
    {**kernel(0, 99, 1, type="Notify", name="n"), "is_compute": False},
]


def test_keys() -> None:
    assert gather("type", KERNELS) == [
        (1, "MatMul", None, 2, 40, 30),
        (1, "Add", "AI_CORE", 1, 20, 20),
        (2, "Add", None, 2, 10, 5),
    ]
    assert gather("name", KERNELS) == [
        (1, "b", "MIX_AIC", 1, 30, 30),
        (1, "c", "AI_CORE", 1, 20, 20),
        (1, "a", "AI_CORE", 1, 10, 10),
        (2, "c", None, 2, 10, 5),
    ]
    assert gather("core", KERNELS) == [
        (1, "AI_CORE", "AI_CORE", 2, 30, 20),
        (1, "MIX_AIC", "MIX_AIC", 1, 30, 30),
        (2, "AI_CORE", "AI_CORE", 1, 5, 5),
        (2, None, None, 1, 5, 5),
    ]
    assert gather("shape", KERNELS) == [
        (1, "2,3", None, 2, 40, 30),
        (1, None, "AI_CORE", 1, 20, 20),
        (2, "4", None, 2, 10, 5),
    ]


def test_kernels_outside_every_step_stand_under_null() -> None:
    rows = [kernel(0, 10, 1, type="A"), kernel(10, 5, None, type="A")]
    assert gather("type", rows) == [(1, "A", None, 1, 10, 10), (None, "A", None, 1, 5, 5)]


def test_shares_are_of_the_union() -> None:
    gather("type", KERNELS)
    shares = {
        (row["step"], row["key"]): row["computing_share_ratio"]
        for row in answer(CON, "kernels")
        if row["by_key"] == "type"
    }
    assert shares == {(1, "MatMul"): 1.0, (1, "Add"): 0.5, (2, "Add"): 1.0}


def test_kernels_of_no_length_are_counted_but_have_no_share() -> None:
    assert gather("type", [kernel(0, 0, 1, type="A")]) == [(1, "A", None, 1, 0, 0)]
    assert answer(CON, "kernels")[0]["computing_share_ratio"] is None
    assert gather("type", [kernel(0, None, 1, type="A")]) == []


def nearest_rank(durations: list[int], percent: int) -> int:
    return sorted(durations)[math.ceil(percent * len(durations) / 100) - 1]


@pytest.mark.slow
@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=500))
@settings(max_examples=60)
def test_percentiles_are_nearest_ranks(durations: list[int]) -> None:
    clear(CON)
    fill(CON, "kernels", [kernel(n, dur_ns, 1, type="A") for n, dur_ns in enumerate(durations)])
    row = next(row for row in answer(CON, "kernels") if row["by_key"] == "type")
    assert row["p50_ns"] == nearest_rank(durations, 50)
    assert row["p99_ns"] == nearest_rank(durations, 99)
    assert row["max_ns"] == max(durations)
    assert row["total_ns"] == sum(durations)
    assert row["mean_ns"] == sum(durations) / len(durations)


def test_percentiles_are_exact_for_every_count() -> None:
    """0.99 is no binary fraction: n * 0.99 in floating point can land beside the whole number."""
    clear(CON)
    CON.execute(
        "insert into kernels by name select 'job' as run, 'c' as capture, 0 as rank, n as step,"
        " true as is_compute, 'A' as type, i as start_ns, i as dur_ns"
        " from range(1, 1501) t(n), lateral (select unnest(range(1, n + 1)) as i)"
    )
    rows = [row for row in answer(CON, "kernels") if row["by_key"] == "type"]
    assert [(row["p50_ns"], row["p99_ns"]) for row in rows] == [
        (math.ceil(n * 50 / 100), -(-n * 99 // 100)) for n in range(1, 1501)
    ]


def test_totals_by_any_key_are_the_same() -> None:
    gather("type", KERNELS)
    totals: dict[object, int] = {}
    for row in answer(CON, "kernels"):
        totals[row["by_key"]] = totals.get(row["by_key"], 0) + row["total_ns"]
    assert totals == {"type": 70, "name": 70, "core": 70, "shape": 70}
