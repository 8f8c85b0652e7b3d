"""Memory plans of captures, against jobs that were generated with them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from npuscope.analysis.pipeline.passes import pipeline
from npuscope.analysis.strategy import measured_plan
from npuscope.analysis.strategy.constants import default_constants
from npuscope.errors import CannotAnswer
from npuscope.sample_traces.generate import Job
from tests.analysis.strategy.planned_jobs import peaks, plannable_of, random_job, replay, tables

SMALL = Job(name="plan", pp=2, dp=1, ep=1, experts=0, layers=4, micro_batches=3, steps=1, seed=5,
            recompute="parts", comm_tasks=False, frequency=False)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 7])
def test_a_step_takes_what_its_plan_says(seed: int) -> None:
    found = replay(random_job(seed), 0.6)
    assert any(map(any, found.recomputed))
    assert abs(found.step_error) < 0.03 and abs(found.unchanged_error) > 0.05
    assert found.low_ns <= found.truth_ns <= found.high_ns
    assert abs(found.saved_error) < 0.05


@pytest.mark.slow
def test_another_rank_may_be_the_fullest_with_a_plan() -> None:
    """Experts of the fullest rank keep most in layers that run again, another's in the others."""
    job = random_job(9018)
    own = plannable_of(job)
    first = [measured_plan.Decision(place, "ffn", "recompute", 1) for place in range(4)]
    alone = replace(own, holdings=own.holdings[:1])
    planned = replace(job, recompute_parts=((0, 1),) * 4)
    true_bytes = peaks(tables(planned), job.pp)[0]
    saved_bytes = own.peaks[0] - true_bytes
    told = own.peaks[0] - measured_plan.peak_bytes(own, 0, first)
    of_one = own.peaks[0] - measured_plan.peak_bytes(alone, 0, first)
    assert told == pytest.approx(saved_bytes, rel=0.01) and of_one > 1.1 * saved_bytes


@pytest.mark.slow
def test_a_plan_behind_a_warm_up_step_is_that_without_it() -> None:
    plain, paused = (
        plannable_of(replace(SMALL, steps=4, gc_every=at, gc_ns=80_000_000)) for at in (0, 12)
    )
    assert paused.job.measured.steps == (13, 14, 15)
    limit_bytes = 0.99 * max(plain.peaks)
    told = [measured_plan.measured_plan(one, limit_bytes, default_constants(), swaps=False)
            for one in (plain, paused)]  # fmt: skip
    plain_ns, paused_ns = (rows["predicted_step_ns"][0] for rows in told)
    assert "recompute" in told[0]["action"].to_list() and plain_ns > told[0]["measured_step_ns"][0]
    assert paused_ns == pytest.approx(plain_ns, rel=0.01)


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
