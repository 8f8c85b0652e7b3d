"""memory_steps and memory_growth: levels at the ends of steps, and no cry of wolf."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import duckdb
import pytest

from npuscope.analysis import query
from tests.analysis.memory.memory_twins import Record, tables, window
from tests.analysis.tables import Row, fill, kernel, op

MIB = 1 << 20


def ends(con: duckdb.DuckDBPyConnection) -> list[tuple[Any, ...]]:
    frame = query.memory_steps(con)
    names = ("step", "end_bytes", "change_bytes", "peak_bytes", "sample_count", "level")
    return [tuple(row[name] for name in names) for row in frame.to_dicts()]


def test_levels_at_the_end_of_steps() -> None:
    con = tables(
        [Record(5, 10, 90), Record(15, 40, 90), Record(19, 30, 90), Record(20, 99, 99),
         Record(24, 35, 99), Record(45, 20, 99)],
        steps=[window(7, 10, 20), window(8, 20, 30), window(9, 30, 40)],
    )  # fmt: skip

    # What happens at 20 belongs to step 8; in step 9 nothing happens, and the level stays.
    assert ends(con) == [
        (7, 30, None, 40, 2, "allocated"),
        (8, 35, 5, 99, 2, "allocated"),
        (9, 35, 0, 35, 0, "allocated"),
    ]


def test_before_the_first_record_a_level_is_unknown() -> None:
    con = tables([Record(25, 5)], steps=[window(1, 0, 10), window(2, 10, 30)])

    assert ends(con) == [(2, 5, None, 5, 1, "allocated")]


def test_a_curve_without_allocations_is_measured_by_its_reservations() -> None:
    con = tables(
        [Record(5, None, 7, component="APP"), Record(5, 3, 9), Record(15, None, 20),
         Record(6, None, 0, source="module")],
        steps=[window(1, 0, 10), window(2, 10, 20)],
    )  # fmt: skip

    # PTA knows allocations: its record without one does not mix reservations in.
    assert [(*row[:2], row[5]) for row in ends(con)] == [
        (1, 7, "reserved"), (2, 7, "reserved"), (1, 3, "allocated"), (2, 3, "allocated"),
    ]  # fmt: skip


def test_without_a_host_range_the_device_tells_and_without_both_the_kernels() -> None:
    records = [Record(t, t) for t in (5, 15, 25)]
    device: Row = {"step": 1, "device_start_ns": 0, "device_end_ns": 10, "window_start_ns": 0}
    assert [row[:2] for row in ends(tables(records, steps=[device]))] == [(1, 5)]
    con = tables(records)
    fill(con, "kernels", [kernel(0, 3, 1), kernel(8, 9, 1), kernel(20, 5, None)])
    fill(con, "comm_ops", [op(17, 9, 2)])
    assert [row[:2] for row in ends(con)] == [(1, 15), (2, 25)]
    fill(con, "steps", [window(4, 0, 12)])
    assert [row[:2] for row in ends(con)] == [(4, 5)]  # recorded ones win


@pytest.mark.parametrize(
    ("start_ns", "end_ns"), [(None, 10), (0, None), (None, None), (10, 0), (5, 5)]
)
def test_a_step_without_a_length_is_left_out(start_ns: int | None, end_ns: int | None) -> None:
    step: Row = {"step": 3, "window_start_ns": start_ns, "window_end_ns": end_ns}
    assert ends(tables([Record(1, 5)], steps=[step])) == []


def test_steps_that_were_not_kept_have_no_level() -> None:
    con = tables([Record(5, 10), Record(15, 40)], steps=[window(1, 0, 10), window(2, 10, 20)])
    con.execute("update ranks set kept_steps = [2]")

    assert [row[0] for row in ends(con)] == [2]


def grow(levels: Sequence[int]) -> dict[str, Any]:
    """Growth over one step per level."""
    con = tables(
        [Record(10 * n + 5, level) for n, level in enumerate(levels)],
        steps=[window(n + 1, 10 * n, 10 * n + 10) for n in range(len(levels))],
    )
    (row,) = query.memory_growth(con).to_dicts()
    return dict(row)


def test_a_leak_of_the_same_size_in_every_step_is_steady() -> None:
    row = grow([1000 * MIB + n * 3 * MIB for n in range(6)])

    assert row["is_steady"] is True
    assert (row["growth_per_step_bytes"], row["growth_bytes"]) == (3 * MIB, 15 * MIB)
    assert (row["step_count"], row["first_step"], row["last_step"]) == (6, 1, 6)
    assert row["last_bytes"] == 1015 * MIB


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_too_few_steps_tell_no_trend(count: int) -> None:
    row = grow([1000 * MIB + n * 3 * MIB for n in range(count)])

    assert row["is_steady"] is None
    assert (row["growth_bytes"] is None) == (count == 1)


@pytest.mark.parametrize(
    ("reason", "levels"),
    [
        ("it stays", [500] * 6),
        ("it falls once", [500, 510, 520, 519, 530, 540]),
        ("it jumps once", [500, 500, 500, 900, 900, 900]),
        ("warming up", [100, 400, 480, 500, 501, 502]),
        ("its pace is uneven", [500, 501, 521, 522, 542, 543]),
        ("half a KiB in 30 GiB", [30 * 2**30 + 512 * n for n in range(9)]),
    ],
)
def test_no_wolf(reason: str, levels: list[int]) -> None:
    assert grow(levels)["is_steady"] is False, reason
