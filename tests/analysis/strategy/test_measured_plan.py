"""Memory plans of captures, against jobs that were generated with them."""

from __future__ import annotations

import pytest

from npuscope.analysis.pipeline.passes import pipeline
from npuscope.analysis.strategy import measured_plan
from npuscope.analysis.strategy.constants import default_constants
from npuscope.errors import CannotAnswer
from npuscope.sample_traces.generate import Job
from tests.analysis.strategy.planned_jobs import random_job, replayed, tables

SMALL = Job(name="plan", pp=2, dp=1, ep=1, experts=0, layers=4, micro_batches=3, steps=1, seed=5,
            recompute="parts", comm_tasks=False, frequency=False)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 7])
def test_a_step_takes_what_its_plan_says(seed: int) -> None:
    found = replayed(random_job(seed), 0.6)
    assert any(map(any, found.recomputed))
    assert abs(found.step_error) < 0.03 and abs(found.unchanged_error) > 0.05
    assert found.low_ns <= found.truth_ns <= found.high_ns
    assert abs(found.saved_error) < 0.05


def test_what_the_allocator_leaves_unused_is_told_of_the_fullest_rank() -> None:
    con = tables(SMALL)
    answer = pipeline(con, "plan", "planted")
    expected = con.execute(
        "select arg_max(reserved_bytes - allocated_bytes, allocated_bytes) from memory"
        " join ranks using (run, capture, rank) where component = 'PTA' and source = 'record'"
        " group by pp_rank order by pp_rank"
    ).fetchall()
    assert all(unused > 0 for (unused,) in expected)
    told = measured_plan.plannable(con, answer)
    assert told.unused_bytes == tuple(unused for (unused,) in expected)
    found = measured_plan.measured_plan(told, 1e15, default_constants())
    assert found["unused_bytes"].to_list() == list(told.unused_bytes)
    con.execute("update memory set reserved_bytes = null")
    assert measured_plan.plannable(con, answer).unused_bytes == (None, None)


def test_without_memory_by_operator_it_says_what_to_record() -> None:
    con = tables(SMALL)
    con.execute("delete from operator_memory")
    with pytest.raises(CannotAnswer, match="profile_memory=True"):
        measured_plan.plannable(con, pipeline(con, "plan", "planted"))
