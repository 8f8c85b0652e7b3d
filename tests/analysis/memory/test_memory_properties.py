"""The memory metrics equal their brute-force twins, whatever the order of rows."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuscope.analysis import query
from tests.analysis.memory import memory_twins as twins
from tests.analysis.memory.memory_twins import Block, Record, Step
from tests.analysis.tables import answer, connect, fill

CON = connect()
TABLES = ("memory", "operator_memory", "steps", "kernels", "comm_ops")
SHIFT_NS = 1_736_405_443_862_052_130

sizes = st.none() | st.integers(0, 9)
devices = st.sampled_from([0, 0, 0, 1, None])
records = st.builds(
    Record,
    timestamp_ns=st.integers(0, 40),
    allocated_bytes=sizes,
    reserved_bytes=sizes,
    active_bytes=sizes,
    rank=st.integers(0, 1),
    device_id=devices,
    source=st.sampled_from(["record", "record", "module"]),
    component=st.sampled_from(["PTA", "GE", "PTA+GE"]),
)
blocks = st.builds(
    Block,
    name=st.sampled_from(["a", "b", None]),
    size_bytes=st.none() | st.integers(-5, 9),
    allocated_at_ns=st.none() | st.integers(0, 40),
    released_at_ns=st.none() | st.integers(0, 40),
    rank=st.integers(0, 1),
    device_id=devices,
)
windows = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 6), st.integers(-3, 42), st.integers(1, 15)),
    max_size=10,
    unique_by=lambda window: window[:2],
)
properties = settings(max_examples=40)


def put(
    found: Sequence[Record], held: Sequence[Block] = (), steps: Iterable[Step] = (), seed: int = 0
) -> None:
    """Fill the tables, in any order, at today's epoch."""
    for table in TABLES:
        CON.execute(f"delete from {table}")
    dice = random.Random(seed)
    fill(CON, "memory", dice.sample([move(r.row) for r in found], len(found)))
    fill(CON, "operator_memory", dice.sample([move(b.row) for b in held], len(held)))
    fill(CON, "steps", [
        {"rank": s.rank, "step": s.step, "window_start_ns": s.start_ns + SHIFT_NS,
         "window_end_ns": s.end_ns + SHIFT_NS}
        for s in steps
    ])  # fmt: skip


def move(row: Any) -> dict[str, Any]:
    times = ("timestamp_ns", "allocated_at_ns", "released_at_ns")
    return {
        name: value + SHIFT_NS if name in times and value is not None else value
        for name, value in row.items()
    }


def back(time_ns: int | None) -> int | None:
    return None if time_ns is None else time_ns - SHIFT_NS


def curve_of(row: dict[str, Any]) -> twins.Curve:
    return row["rank"], row["device_id"], row["source"], row["component"]


@given(st.lists(records, max_size=60), st.integers(0, 99))
@properties
def test_peaks(found: list[Record], seed: int) -> None:
    put(found, seed=seed)

    assert {
        curve_of(row): (
            row["peak_bytes"], back(row["peak_ns"]), row["peak_allocated_bytes"],
            back(row["peak_allocated_ns"]), row["peak_active_bytes"], row["fragmentation_bytes"],
        )
        for row in answer(CON, "memory")
    } == twins.peaks(found)  # fmt: skip


@given(st.lists(records, max_size=30), st.lists(blocks, max_size=40), st.integers(0, 99))
@properties
def test_holders(found: list[Record], held: list[Block], seed: int) -> None:
    put(found, held, seed=seed)
    answered: dict[Any, dict[Any, Any]] = {}

    for row in answer(CON, "memory_holders"):
        here = answered.setdefault((row["rank"], row["device_id"]), {})
        here[row["holder"], row["name"]] = (
            row["held_bytes"], row["block_count"], row["largest_block_bytes"],
            back(row["since_ns"]), back(row["released_ns"]),
        )  # fmt: skip

    assert answered == twins.holders(found, held)


@pytest.mark.slow
@given(st.lists(records, max_size=30), st.lists(blocks, max_size=40))
@properties
def test_holders_add_up_to_the_peak_and_blocks_to_holders(
    found: list[Record], held: list[Block]
) -> None:
    put(found, held)
    singles = query.memory_blocks(CON).to_dicts()
    totals: dict[Any, tuple[int, int]] = {}

    for row in answer(CON, "memory_holders"):
        key = row["rank"], row["device_id"], row["peak_allocated_bytes"]
        known, everything = totals.get(key, (0, 0))
        own = row["held_bytes"] if row["holder"] != "unexplained" else 0
        totals[key] = known + own, everything + row["held_bytes"]

    for (rank, device, allocated), (known, everything) in totals.items():
        assert everything == allocated
        here = [b for b in singles if (b["rank"], b["device_id"]) == (rank, device)]
        assert sum(block["size_bytes"] for block in here) == known


@pytest.mark.slow
@given(st.lists(records, max_size=60), windows, st.integers(0, 99))
@properties
def test_steps_and_growth(found: list[Record], shapes: Any, seed: int) -> None:
    recorded = [Step(step, start, start + length, rank) for rank, step, start, length in shapes]
    put(found, steps=recorded, seed=seed)
    expected = twins.steps(found, recorded)
    ends: dict[twins.Curve, list[tuple[int, int]]] = {}
    for (curve, step), (level, _, _) in sorted(expected.items(), key=lambda item: item[0][1]):
        ends.setdefault(curve, []).append((step, level))

    rows = answer(CON, "memory_steps")

    assert {
        (curve_of(row), row["step"]): (row["end_bytes"], row["peak_bytes"], row["sample_count"])
        for row in rows
    } == expected
    for curve, known in ends.items():
        changes = [row["change_bytes"] for row in rows if curve_of(row) == curve]
        assert changes == [None] + [after[1] - before[1] for before, after in pairwise(known)]
    assert {
        curve_of(row): (row["growth_per_step_bytes"], row["growth_bytes"], row["is_steady"])
        for row in query.memory_growth(CON).to_dicts()
    } == {curve: twins.growth(known) for curve, known in ends.items()}


@pytest.mark.slow
@given(
    st.lists(
        st.integers(-3, 12), min_size=1, max_size=12
    ),
    st.integers(0, 40),
    st.integers(1, 3),
)  # fmt: skip
@properties
def test_growth_of_whole_curves(changes: list[int], first: int, apart: int) -> None:
    """Steps may be several numbers apart; levels stay positive."""
    levels = [50 + first]
    for change in changes:
        levels.append(max(levels[-1] + change, 1))
    found = [Record(10 * n + 5, level * 10**6) for n, level in enumerate(levels)]
    put(found, steps=[Step(n * apart, 10 * n, 10 * n + 10) for n in range(len(levels))])

    (row,) = query.memory_growth(CON).to_dicts()

    known = [(n * apart, level * 10**6) for n, level in enumerate(levels)]
    assert (row["growth_per_step_bytes"], row["growth_bytes"], row["is_steady"]) == twins.growth(
        known
    )


@given(st.lists(records, max_size=60), st.integers(1, 50), st.integers(0, 99))
@properties
def test_curves(found: list[Record], bins: int, seed: int) -> None:
    put(found, seed=seed)

    rows = query.memory_curve(CON, bins=bins).to_dicts()

    assert {
        (curve_of(row), row["bin"]): (
            row["allocated_min_bytes"], row["allocated_max_bytes"], row["reserved_min_bytes"],
            row["reserved_max_bytes"], row["sample_count"],
        )
        for row in rows
    } == twins.curve(found, bins)  # fmt: skip
    assert all(row["bin"] < bins for row in rows)
