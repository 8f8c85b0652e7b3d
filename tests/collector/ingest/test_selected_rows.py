"""Figures of kept steps are those of a full reading, whatever lies around them."""

from __future__ import annotations

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuscope.collector.ingest.link import keep_steps
from npuscope.collector.model import ReadLog
from tests.analysis.tables import Event, answer, connect, fill, insert, kernel, op

EVENTS = st.lists(
    st.builds(
        Event,
        rank=st.just(0),
        step=st.sampled_from([None, 1, 2, 3, 4]),
        kind=st.sampled_from(["compute", "compute", "allReduce", "receive"]),
        start_ns=st.integers(0, 80),
        dur_ns=st.integers(0, 25),
    ),
    max_size=14,
)


@pytest.fixture(scope="module")
def con() -> duckdb.DuckDBPyConnection:
    return connect()


def prepare(con: duckdb.DuckDBPyConnection, events: list[Event]) -> None:
    for table in ("ranks", "kernels", "comm_ops", "comm_tasks", "steps", "host_ops"):
        con.execute(f"delete from {table}")
    fill(con, "ranks", [{}])
    insert(con, events)


@pytest.mark.slow
@settings(max_examples=60)
@given(EVENTS, st.sampled_from([((1, 1),), ((2, 3),), ((1, 1), (3, 4))]))
def test_answers_by_step_do_not_change(
    con: duckdb.DuckDBPyConnection, events: list[Event], steps: tuple[tuple[int, int], ...]
) -> None:
    prepare(con, events)
    chosen = {step for first, last in steps for step in range(first, last + 1)}
    expected = {
        name: [row for row in answer(con, name) if row["step"] in chosen]
        for name in ("steps", "kernels", "comm")
    }

    keep_steps(con, steps, ReadLog())

    for name, rows in expected.items():
        assert answer(con, name) == rows, name
    assert answer(con, "outside_steps") == []


def test_a_neighbours_kernel_that_hides_communication_stays(
    con: duckdb.DuckDBPyConnection,
) -> None:
    prepare(con, [])
    fill(con, "kernels", [kernel(0, 10, 1), kernel(40, 20, 2), kernel(100, 20, 2)])
    fill(con, "comm_ops", [op(10, 40, 1), op(110, 5, 2)])

    keep_steps(con, ((1, 1),), ReadLog())

    assert con.execute("select step, start_ns from kernels order by 2").fetchall() == [
        (1, 0), (2, 40)
    ]  # fmt: skip
    (row,) = answer(con, "steps")
    assert (row["step"], row["overlapped_ns"], row["computing_ns"]) == (1, 10, 10)
    assert con.execute("select kept_steps from ranks").fetchall() == [([1],)]


def test_a_step_without_compute_still_computes_nothing(con: duckdb.DuckDBPyConnection) -> None:
    prepare(con, [])
    fill(con, "kernels", [kernel(0, 10, 1)])
    fill(con, "comm_ops", [op(50, 5, 2)])
    (_, full) = answer(con, "steps")

    keep_steps(con, ((2, 2),), ReadLog())

    assert answer(con, "steps") == [full]
    assert (full["computing_ns"], full["exposed_communication_ns"]) == (0, 5)


def test_a_step_without_communication_still_has_none(con: duckdb.DuckDBPyConnection) -> None:
    prepare(con, [])
    fill(con, "kernels", [kernel(0, 10, 1), kernel(50, 10, 2)])
    fill(con, "comm_ops", [op(5, 5, 1, op_id=0)])
    fill(con, "comm_tasks", [{"op_id": 0, "start_ns": 5, "dur_ns": 5}, {"start_ns": 50}])
    (_, full) = answer(con, "steps")

    keep_steps(con, ((2, 2),), ReadLog())

    assert answer(con, "steps") == [full]
    assert full["communication_ns"] == 0


def test_rows_without_a_step_go_by_time(con: duckdb.DuckDBPyConnection) -> None:
    prepare(con, [])
    for table in ("memory", "counters", "marks", "launches", "operator_memory", "comm_times"):
        con.execute(f"delete from {table}")
    window = {"window_start_ns": 100, "window_end_ns": 200}
    fill(con, "steps", [{"step": 5, **window, "device_start_ns": 150, "device_end_ns": 300}])
    fill(con, "steps", [{"step": 6, "window_start_ns": 300, "window_end_ns": 400}])
    spans = [(0, 100), (0, 101), (299, 50), (300, 1), (300, 0), (250, None)]
    fill(con, "host_ops", [{"start_ns": start, "dur_ns": dur} for start, dur in spans])
    fill(con, "marks", [{"start_ns": 100, "dur_ns": 0}, {"start_ns": 300, "dur_ns": 0}])
    fill(con, "memory", [{"timestamp_ns": t} for t in (99, 100, 299, 300)])
    fill(con, "counters", [{"timestamp_ns": t} for t in (99, 100, 299, 300)])
    fill(con, "launches", [
        {"api_start_ns": 90, "api_end_ns": 95, "device_start_ns": 120},
        {"api_start_ns": 290, "api_end_ns": 295, "device_start_ns": 320},
        {"api_start_ns": 310, "api_end_ns": 315, "device_start_ns": 320},
        {"device_start_ns": 120},
    ])  # fmt: skip
    fill(con, "operator_memory", [
        {"name": "held to the end", "allocated_at_ns": 50},
        {"name": "freed before", "allocated_at_ns": 50, "released_at_ns": 90},
        {"name": "from before", "released_at_ns": 120},
        {"name": "after", "allocated_at_ns": 350},
    ])  # fmt: skip
    fill(con, "comm_times", [{"step": 5}, {"step": 6}, {}])

    keep_steps(con, ((5, 5),), ReadLog())

    def column(table: str, name: str) -> list[object]:
        return [v for (v,) in con.execute(f"select {name} from {table} order by 1").fetchall()]

    assert con.execute("select start_ns, dur_ns from host_ops order by 1").fetchall() == [
        (0, 101), (250, None), (299, 50)
    ]  # fmt: skip
    assert column("marks", "start_ns") == [100]
    assert column("memory", "timestamp_ns") == column("counters", "timestamp_ns") == [100, 299]
    assert column("launches", "coalesce(api_start_ns, 0)") == [0, 90, 290]
    assert column("operator_memory", "name") == ["from before", "held to the end"]
    assert column("comm_times", "step") == column("steps", "step") == [5]


def test_tasks_go_with_their_operation(con: duckdb.DuckDBPyConnection) -> None:
    prepare(con, [])
    fill(con, "comm_ops", [op(0, 50, 1, op_id=0), op(40, 50, 2, op_id=1)])
    fill(con, "comm_tasks", [
        {"op_id": 0, "start_ns": 45, "dur_ns": 5}, {"op_id": 1, "start_ns": 45, "dur_ns": 5},
        {"op_name": "of none", "start_ns": 45, "dur_ns": 5},
    ])  # fmt: skip

    keep_steps(con, ((1, 1),), ReadLog())

    assert con.execute("select op_id from comm_tasks order by 1").fetchall() == [(0,), (None,)]


@pytest.mark.parametrize(
    ("step", "told"), [(3, "no step of --steps 7-8: there is 3"), (None, "have no numbers")]
)
def test_steps_that_are_not_there_are_told(
    con: duckdb.DuckDBPyConnection, step: int | None, told: str
) -> None:
    prepare(con, [Event(0, step, "compute", 0, 5)])
    log = ReadLog()

    keep_steps(con, ((7, 8),), log)

    assert [told in warning for warning in log.warnings] == [True]
    assert answer(con, "steps") == []
