"""Free time is the host's where it had not launched what came next, and idle where it had."""

from __future__ import annotations

import duckdb
import pytest

from npuscope.analysis.parts import step_parts
from tests.analysis.ranks.across_tables import across
from tests.analysis.tables import answer, connect, fill, kernel, op

# Kernels of 10 ns at 0, 100, 300 and an operation at 400: gaps of 90, 190 and 90 ns.
STARTS = (0, 100, 300)


def capture(launched: dict[int, int], **more: object) -> duckdb.DuckDBPyConnection:
    """What started at a key was launched at its value."""
    con = connect()
    fill(con, "ranks", [{"rank": 0}])
    fill(con, "kernels", [kernel(at, 10, 1) for at in STARTS])
    fill(con, "comm_ops", [op(400, 10, 1)])
    fill(con, "launches", [
        {"device_start_ns": at, "api_start_ns": by, "latency_ns": at - by, **more}
        for at, by in launched.items()
    ])  # fmt: skip
    return con


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launched", "host_ns", "idle_ns"),
    [
        # Free from 10, 110 and 310 on. Launched before: idle.
        ({0: -50, 100: 5, 300: 110, 400: 20}, 0, 370),
        # Launched at 80 and 360: 20 and 40 ns after that they started; 20 is their median. The
        # host's: 10..100 and 310..380.
        ({0: -50, 100: 80, 300: 50, 400: 360}, 160, 210),
        # What started at 300 was launched by nobody: 190 ns are neither.
        ({0: -50, 100: 80, 400: 20}, 90, 90),
        # Clocks that differ by 3 ns: a launch after its start took 0 ns, and its gap is the host's.
        ({0: -50, 100: 103, 300: 290, 400: 20}, 90 + 180, 10 + 90),
        # Clocks that do not go together at all, or no launch: unknown, not 0.
        ({0: 9000, 100: 9100, 300: 9300, 400: 20}, None, None),
        ({}, None, None),
    ],
)
def test_a_gap_is_told_by_the_launch_of_what_ends_it(
    launched: dict[int, int], host_ns: int | None, idle_ns: int | None
) -> None:
    con = capture(launched)
    [row] = answer(con, "steps")
    assert (row["free_ns"], row["host_ns"], row["idle_ns"]) == (370, host_ns, idle_ns)
    for rows in (across(con, "step_parts"), step_parts(con).to_dicts()):
        parts = {row["part"]: row["ns"] for row in rows if row["part"] in ("host", "idle", "free")}
        rest_ns = 370 - (host_ns or 0) - (idle_ns or 0)
        known = {"host": host_ns, "idle": idle_ns, "free": rest_ns}
        assert parts == {name: ns for name, ns in known.items() if ns}


def test_launches_of_other_ranks_tell_nothing() -> None:
    con = capture({100: 5, 300: 110, 400: 20}, rank=1)
    [row] = answer(con, "steps")
    assert row["host_ns"] is row["idle_ns"] is None


def test_gaps_without_a_launch_are_no_gaps() -> None:
    """Time between steps is nobody's."""
    con = capture({100: 5, 300: 110, 400: 20, 10_000: 9_000})
    fill(con, "kernels", [kernel(10_000, 10, 2)])
    assert [(row["step"], row["host_ns"], row["idle_ns"]) for row in answer(con, "steps")] == [
        (1, 0, 370), (2, None, None),
    ]  # fmt: skip
