"""Figures of small hand-made steps."""

from __future__ import annotations

import pytest

from npuscope.analysis.catalog import metric
from tests.analysis.tables import answer, connect, fill, kernel, op

FIGURES = (
    "computing_ns", "communication_ns", "overlapped_ns", "exposed_communication_ns", "free_ns",
    "stage_ns", "bubble_ns", "profiler_bubble_ns", "preparing_ns",
)  # fmt: skip


def figures(row: dict[str, object]) -> tuple[object, ...]:
    return tuple(row[name] for name in FIGURES)


def test_a_step_is_split_into_its_parts() -> None:
    con = connect()
    #           0    5    10   15   20   25   30   35   40   45   50
    # compute   [=========)    [----)          [=========)            (two overlapping, one alone)
    # comm                [=========)               [=========)
    fill(con, "kernels", [kernel(0, 8, 1), kernel(5, 5, 1), kernel(15, 5, 1), kernel(30, 10, 1)])
    fill(con, "comm_ops", [op(10, 10, 1), op(35, 10, 1)])
    fill(con, "steps", [{"step": 1, "window_start_ns": -7, "window_end_ns": 60}])
    assert answer(con, "steps") == [
        {
            "run": "job",
            "capture": "c",
            "rank": 0,
            "step": 1,
            "basis": "events",
            "start_ns": 0,
            "end_ns": 45,
            "window_start_ns": -7,
            "window_end_ns": 60,
            "computing_ns": 25,
            "communication_ns": 20,
            "overlapped_ns": 10,
            "exposed_communication_ns": 10,
            "free_ns": 10,
            "host_ns": None,
            "idle_ns": None,
            "stage_ns": 45,
            "bubble_ns": 0,
            "profiler_bubble_ns": 0,
            "preparing_ns": 7,
            "preparing_basis": "events",
            "masking_ratio": 0.5,
        }
    ]


def test_an_operation_across_the_edge_is_covered_by_the_next_step() -> None:
    con = connect()
    fill(con, "kernels", [kernel(0, 10, 1), kernel(20, 10, 2)])
    fill(con, "comm_ops", [op(5, 20, 1), op(30, 5, 2)])
    first, second = answer(con, "steps")
    assert figures(first) == (10, 20, 10, 10, 0, 25, 0, 0, None)
    assert figures(second) == (10, 5, 0, 5, 0, 15, 0, 0, None)
    assert (first["start_ns"], first["end_ns"]) == (0, 25)


def test_receives_count_as_the_profiler_counts_and_as_time_really_lost() -> None:
    con = connect()
    fill(con, "kernels", [kernel(0, 10, 1)])
    fill(
        con,
        "comm_ops",
        [op(5, 10, 1, op_type="receive"), op(8, 10, 1, op_type="receive"), op(17, 3, 1)],
    )
    (row,) = answer(con, "steps")
    assert row["profiler_bubble_ns"] == 20  # durations added up
    assert row["bubble_ns"] == 8  # [10, 18)
    assert row["stage_ns"] == 0  # 20 - 0 - 20
    assert row["communication_ns"] == 15


@pytest.mark.parametrize("kind", ["pp", "mp", "world", "unknown", None])
def test_transfers_of_a_pipeline_that_go_both_ways_are_bubble(kind: str | None) -> None:
    con = connect()
    fill(con, "kernels", [kernel(0, 10, 1)])
    fill(con, "groups", [{"group_hash": "7", "parallel_kind": kind}])
    both = {"op_type": "batchSendRecv", "group_hash": "7"}
    fill(con, "comm_ops", [
        op(5, 10, 1, **both), op(8, 10, 1, op_type="receive"), op(18, 2, 1, op_type="send"),
        op(20, 5, 1, op_type="batchSendRecv"),
    ])  # fmt: skip
    (row,) = answer(con, "steps")
    assert row["bubble_ns"] == 13  # [10, 18) and [20, 25)
    assert row["profiler_bubble_ns"] == 10  # the profiler knows receives alone
    assert row["stage_ns"] == 15


@pytest.mark.parametrize("kind", ["cp", "ep", "tp", "dp", "dp_cp", "tp_cp", "tp_dp_cp", "dp_ep"])
def test_transfers_inside_a_stage_are_no_bubble(kind: str) -> None:
    """As of attention over a ring."""
    con = connect()
    fill(con, "kernels", [kernel(0, 10, 1), kernel(0, 10, 1, rank=1)])
    fill(con, "groups", [{"group_hash": "7", "parallel_kind": kind}])
    fill(con, "comm_ops", [
        op(5, 10, 1, op_type="batchSendRecv", group_hash="7", rank=rank) for rank in (0, 1)
    ])  # fmt: skip
    told, untold = answer(con, "steps")
    assert (told["bubble_ns"], untold["bubble_ns"]) == (0, 5)


def test_communication_alone_or_computing_alone() -> None:
    con = connect()
    fill(con, "kernels", [kernel(0, 10, 1), kernel(50, 10, 3)])
    fill(con, "comm_ops", [op(5, 5, 2)])
    computing, communication, _ = answer(con, "steps")
    assert figures(computing) == (10, 0, 0, 0, 0, 10, 0, 0, None)
    assert computing["masking_ratio"] is None
    assert figures(communication) == (0, 5, 5, 0, 0, 5, 0, 0, None)
    assert communication["masking_ratio"] == 1.0


def test_what_is_no_compute_covers_nothing() -> None:
    con = connect()
    fill(con, "kernels", [kernel(0, 10, 1), {**kernel(10, 90, 1), "is_compute": False}])
    fill(con, "comm_ops", [op(20, 10, 1)])
    (row,) = answer(con, "steps")
    assert figures(row) == (10, 10, 0, 10, 10, 30, 0, 0, None)


@pytest.mark.parametrize("dur_ns", [0, -5, None])
def test_events_without_length_are_skipped(dur_ns: int | None) -> None:
    con = connect()
    fill(con, "kernels", [kernel(0, 10, 1), kernel(100, dur_ns, 1), kernel(100, dur_ns, 2)])
    fill(con, "comm_ops", [op(-9, dur_ns, 1, op_type="receive")])
    (row,) = answer(con, "steps")
    assert (row["step"], row["start_ns"], row["end_ns"]) == (1, 0, 10)
    assert figures(row) == (10, 0, 0, 0, 0, 10, 0, 0, None)


def test_without_steps_all_is_one_row() -> None:
    con = connect()
    fill(con, "kernels", [kernel(0, 10), kernel(20, 10)])
    fill(con, "comm_ops", [op(5, 10)])
    (row,) = answer(con, "steps")
    assert row["step"] is None
    assert figures(row) == (20, 10, 5, 5, 5, 30, 0, 0, None)
    assert answer(con, "outside_steps") == []


def test_what_lies_outside_the_steps_makes_no_row_but_still_covers() -> None:
    con = connect()
    fill(con, "kernels", [kernel(0, 10, 1), kernel(10, 5), kernel(12, 5)])
    fill(con, "comm_ops", [op(8, 6, 1), op(30, 4), op(32, 4)])
    (row,) = answer(con, "steps")
    assert figures(row) == (10, 6, 6, 0, 0, 14, 0, 0, None)
    (outside,) = answer(con, "outside_steps")
    assert list(outside.values()) == ["job", "c", 0, 2, 7, 2, 6]


def test_a_recorded_step_makes_a_rank_one_with_steps() -> None:
    con = connect()
    fill(con, "kernels", [kernel(0, 10)])
    fill(con, "steps", [{"step": 1, "window_start_ns": 100, "window_end_ns": 200}])
    assert answer(con, "steps") == []
    (outside,) = answer(con, "outside_steps")
    assert (outside["kernel_count"], outside["computing_ns"]) == (1, 10)


def test_ranks_captures_and_runs_stay_apart() -> None:
    con = connect()
    places = [
        {"run": run, "capture": capture, "rank": rank}
        for run in ("a", "b")
        for capture in ("1", "2")
        for rank in (0, 10)
    ]
    fill(con, "kernels", [{**kernel(0, 1 + n, 1), **place} for n, place in enumerate(places)])
    fill(con, "comm_ops", [{**op(0, 8, 1), **place} for place in places])
    rows = answer(con, "steps")
    assert [{name: row[name] for name in places[0]} for row in rows] == places
    assert [row["overlapped_ns"] for row in rows] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_step_recorded_twice_makes_one_row() -> None:
    con = connect()
    fill(con, "kernels", [kernel(10, 10, 1)])
    twice = [
        {"step": 1, "window_start_ns": 5, "window_end_ns": 15},
        {"step": 1, "window_start_ns": 8, "window_end_ns": 30},
    ]
    fill(con, "steps", twice)
    (row,) = answer(con, "steps")
    assert (row["window_start_ns"], row["window_end_ns"], row["preparing_ns"]) == (5, 30, 5)


TABLE_ROW = {
    "device_id": 1,
    "step": 13,
    "computing_ns": 230903720.00000045,
    "communication_not_overlapped_ns": 441708379.99999994,
    "overlapped_ns": 0.0,
    "communication_ns": 441708379.99999994,
    "free_ns": 136819560.000002,
    "stage_ns": 809431750.0,
    "bubble_ns": 0.0,
    "preparing_ns": 205000.0,
}


def test_a_light_rank_answers_from_the_producers_table() -> None:
    con = connect()
    fill(con, "profiler_steps", [TABLE_ROW])
    fill(con, "steps", [{"step": 13, "window_start_ns": 5, "window_end_ns": 15}])
    (row,) = answer(con, "steps")
    assert list(row.values()) == [
        "job", "c", 0, 13, "profiler_table", None, None, None, None,
        230903720, 441708380, 0, 441708380, 136819560, None, None, 809431750, None, 0, 205000,
        "profiler_table", 0.0,
    ]  # fmt: skip


def test_the_producers_table_is_rounded_half_to_even() -> None:
    con = connect()
    fill(con, "profiler_steps", [{"computing_ns": 0.5, "free_ns": 1.5, "stage_ns": -2.5}])
    (row,) = answer(con, "steps")
    assert (row["computing_ns"], row["free_ns"], row["stage_ns"]) == (0, 2, -2)
    assert (row["communication_ns"], row["masking_ratio"], row["step"]) == (None, None, None)


@pytest.mark.parametrize(("own_device", "expected"), [(2, 20), (None, 10), (9, 10)])
def test_of_several_devices_the_ranks_own_counts(own_device: int | None, expected: int) -> None:
    con = connect()
    fill(con, "ranks", [{"device_id": own_device}])
    fill(
        con,
        "profiler_steps",
        [{"device_id": device, "step": 1, "computing_ns": 10.0 * device} for device in (3, 2, 1)],
    )
    (row,) = answer(con, "steps")
    assert row["computing_ns"] == expected


def test_kernels_win_over_the_producers_table() -> None:
    con = connect()
    fill(con, "kernels", [kernel(0, 10, 13)])
    fill(con, "profiler_steps", [TABLE_ROW])
    (row,) = answer(con, "steps")
    assert (row["basis"], row["computing_ns"]) == ("events", 10)


def test_preparing_time_that_no_recorded_step_tells_is_the_producers() -> None:
    con = connect()
    fill(con, "ranks", [{"device_id": 2}])
    fill(con, "kernels", [kernel(10, 10, 13), kernel(30, 10, 14), kernel(50, 10, 15)])
    fill(con, "steps", [{"step": 14, "window_start_ns": 23, "window_end_ns": 40}])
    fill(con, "profiler_steps", [
        {**TABLE_ROW, "device_id": 1, "preparing_ns": 9.0},
        {**TABLE_ROW, "device_id": 2, "preparing_ns": -206.5},
        {**TABLE_ROW, "device_id": 2, "step": 14},
    ])  # fmt: skip
    rows = answer(con, "steps")
    told = [(row["basis"], row["preparing_ns"], row["preparing_basis"]) for row in rows]
    assert told == [
        ("events", -206, "profiler_table"), ("events", 7, "events"), ("events", None, None),
    ]  # fmt: skip
    assert [row["window_start_ns"] for row in rows] == [None, 23, None]
    con.execute("update profiler_steps set step = null")
    con.execute("update kernels set step = null")
    con.execute("delete from steps")
    (row,) = answer(con, "steps")
    assert (row["preparing_ns"], row["preparing_basis"]) == (-206, "profiler_table")


def test_preparing_time_is_known_where_communication_is_not() -> None:
    con = connect()
    fill(con, "kernels", [kernel(0, 10, 13)])
    fill(con, "comm_tasks", [{"op_name": "hcom_x"}])
    fill(con, "profiler_steps", [TABLE_ROW])
    (row,) = answer(con, "steps")
    assert (row["start_ns"], row["preparing_ns"]) == (None, 205_000)
    assert row["preparing_basis"] == "profiler_table"


def test_operations_without_any_kernel_leave_computing_unknown() -> None:
    con = connect()
    fill(con, "comm_ops", [op(0, 10, 1), op(20, 10, 1, op_type="receive")])
    (row,) = answer(con, "steps")
    assert figures(row) == (None, 20, None, None, None, 20, None, 10, None)
    assert row["masking_ratio"] is None


def test_nothing_recorded_gives_nothing() -> None:
    assert answer(connect(), "steps") == []


def test_columns_are_those_others_rely_on() -> None:
    assert [column.name for column in metric("steps").columns] == (
        "run capture rank step basis start_ns end_ns window_start_ns window_end_ns computing_ns"
        " communication_ns overlapped_ns exposed_communication_ns free_ns host_ns idle_ns stage_ns"
        " bubble_ns profiler_bubble_ns preparing_ns preparing_basis masking_ratio"
    ).split()


@pytest.mark.parametrize("trace", ["comm_tasks", "comm_times"])
def test_communication_that_left_traces_but_no_operation_is_unknown(trace: str) -> None:
    con = connect()
    fill(con, "kernels", [kernel(0, 10, 1), kernel(20, 10, 1), kernel(0, 5, 1, rank=1)])
    fill(con, "comm_ops", [op(3, 4, 1, rank=1)])
    fill(con, "steps", [{"step": 1, "window_start_ns": -7, "window_end_ns": 60}])
    fill(con, trace, [{"start_ns": 12}, {"start_ns": 3, "rank": 1}])

    unknown, known = answer(con, "steps")

    assert figures(unknown) == (20, None, None, None, None, None, None, None, None)
    assert unknown["start_ns"] is unknown["end_ns"] is unknown["masking_ratio"] is None
    assert figures(known) == (5, 4, 2, 2, 0, 7, 0, 0, None)
