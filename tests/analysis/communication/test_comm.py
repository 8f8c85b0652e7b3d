"""spread and capture_facts on small tables."""

from __future__ import annotations

from npuscope.analysis import query
from npuscope.analysis.scope import Scope
from tests.analysis.tables import connect, fill, kernel, op


def test_the_spread_names_the_rank_with_the_most() -> None:
    con = connect()
    for rank, dur_ns in enumerate((10, 40, 40, 30)):
        fill(con, "kernels", [kernel(0, dur_ns, 1, rank=rank)])
    rows = query.rows(query.spread(con, Scope(step=1)))
    assert [row["measure"] for row in rows] == [
        "computing",
        "exposed_communication",
        "free",
        "stage",
    ]
    assert list(rows[0].values())[4:] == [4, 10, 35.0, 40, 1, 1.0]
    assert list(rows[1].values())[4:] == [4, 0, 0.0, 0, 0, None]


def test_ranks_without_a_figure_are_not_compared() -> None:
    con = connect()
    fill(con, "kernels", [kernel(0, 10, 1)])
    fill(con, "comm_ops", [op(0, 10, 1, rank=1)])
    counts = {row["measure"]: row["rank_count"] for row in query.rows(query.spread(con))}
    assert counts == {"computing": 1, "exposed_communication": 1, "free": 1, "stage": 2}


def test_facts_of_a_capture() -> None:
    con = connect()
    shared = {"framework": "pytorch", "world_size": 6, "pp_size": 2, "clock": "epoch"}
    fill(
        con,
        "ranks",
        [
            {**shared, "rank": 4, "host_uid": "h1", "window_start_ns": 5, "window_end_ns": 80},
            {**shared, "rank": 1, "host_uid": "h2", "window_start_ns": 9, "window_end_ns": 95},
            {**shared, "rank": 0, "chip_name": "Ascend910B", "profiler_level": "Level1"},
        ],
    )
    fill(con, "kernels", [kernel(0, 1, 8, rank=0), kernel(0, 1, 7, rank=1)])
    fill(con, "profiler_steps", [{"rank": 4, "step": 9, "computing_ns": 1.0}])
    (facts,) = query.rows(query.capture_facts(con))
    assert {name: value for name, value in facts.items() if value is not None and value != []} == {
        "run": "job",
        "capture": "c",
        "rank_count": 3,
        "ranks": [0, 1, 4],
        "world_size": 6,
        "missing_rank_count": 3,
        "missing_ranks": [2, 3, 5],
        "step_count": 3,
        "steps": [7, 8, 9],
        "light_rank_count": 1,
        "frameworks": ["pytorch"],
        "chips": ["Ascend910B"],
        "profiler_levels": ["Level1"],
        "clocks": ["epoch"],
        "host_count": 2,
        "pp_size": 2,
        "window_start_ns": 5,
        "window_end_ns": 95,
    }


def test_without_a_world_size_nobody_is_missing() -> None:
    con = connect()
    fill(con, "ranks", [{"rank": 3}])
    (facts,) = query.rows(query.capture_facts(con))
    assert (facts["missing_rank_count"], facts["missing_ranks"]) == (None, None)
    assert (facts["step_count"], facts["steps"]) == (0, [])
