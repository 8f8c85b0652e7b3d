"""The whole cost of imbalance beside what a simulated job loses: the same one with even experts."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import polars as pl
import pytest

from npuscope.analysis.experts.cost import cost, cost_answer
from npuscope.analysis.experts.load.load import expert_rows
from npuscope.analysis.flops.lengths import step_lengths
from npuscope.dashboard.locale.language import language_of
from npuscope.sample_traces.frames import canonical_frames
from npuscope.sample_traces.job import Job
from tests.analysis.ranks.planted_arrivals import connection

chinese = language_of("zh")

pytestmark = pytest.mark.slow

LOADS = ("expert_load", "expert_placement")
SUMS = (
    "grouped_excess_ns",
    "activation_excess_ns",
    "exchange_excess_ns",
    "exchange_exposed_ns",
    "excess_ns",
)
# One stage, as what a pipeline loses depends on its schedule and on which stage is slowest.
ONE = Job(layers=2, pp=1, ep=4, memory=False, frequency=False, comm_tasks=False)


@cache
def figures(
    job: Job, without: tuple[int, ...] = ()
) -> tuple[float, list[dict[str, float]], list[str]]:
    """Mean length of a step, cost of a step by stage (means over steps, but some), and notes."""
    with connection(job) as con:
        for name, rows in canonical_frames(job, tables=LOADS).items():
            con.register("_rows", rows.to_arrow())
            con.execute(f"insert into {name} by name select * from _rows")
            con.unregister("_rows")
        layers, notes = cost_answer.cost_rows(con, expert_rows(con))
        mean_ns = step_lengths(con).select(pl.col("step_ns").mean()).item()
    layers = layers.filter(~pl.col("step").is_in(without))
    stages = cost.step_cost(layers).group_by("stage").agg(pl.col(SUMS).mean()).sort("stage")
    return mean_ns, stages.to_dicts(), notes


def lost_ns(job: Job) -> float:
    """By how much the job's steps are longer than those of one that routes evenly."""
    return figures(job)[0] - figures(replace(job, expert_skew=0.0))[0]


@pytest.mark.parametrize(
    "job",
    [
        replace(ONE, overlap=0.0),
        ONE,
        replace(ONE, expert_skew=0.4),
        replace(ONE, ep=2),
        replace(ONE, ep=2, expert_skew=1.5, overlap=0.0),
        replace(ONE, experts=16, expert_skew=1.2),
    ],
)
def test_the_whole_cost_is_what_the_step_loses(job: Job) -> None:
    """Compute beside the all-to-alls hides less than their excess leaves: it counts in full."""
    _, (told,), notes = figures(job)
    assert [note for note in notes if chinese(note) == note] == []
    even_job = replace(job, expert_skew=0.0)
    _, (even,), _ = figures(even_job)
    assert told["exchange_exposed_ns"] == pytest.approx(told["exchange_excess_ns"], rel=0.02)
    cost_ns = told["excess_ns"] - even["excess_ns"]
    assert cost_ns == pytest.approx(lost_ns(job), rel=0.05)
    assert 0.03 < told["activation_excess_ns"] / told["excess_ns"] < 0.1


@pytest.mark.parametrize("overlap", [1.2, 1.7])
def test_what_compute_hides_of_the_exchange_costs_nothing(overlap: float) -> None:
    """Compute as long as even all-to-alls and longer. What is told is a bound then: devices that
    are fullest in different layers no longer wait for each other in each."""
    job = replace(ONE, ep=2, overlap=overlap)
    _, (told,), notes = figures(job)
    assert told["exchange_exposed_ns"] < 0.8 * told["exchange_excess_ns"]
    assert 0 < lost_ns(job) < 1.03 * told["excess_ns"]
    whole_ns = told["grouped_excess_ns"] + told["exchange_excess_ns"]
    assert abs(told["excess_ns"] - lost_ns(job)) < 0.5 * abs(whole_ns - lost_ns(job))
    assert any("computation overlaps" in note and "at most" in note for note in notes)
    assert [note for note in notes if chinese(note) == note] == []


def test_a_pipeline_loses_between_its_stages() -> None:
    """A micro-batch passes every stage, the others follow the slowest one, which may be another
    than the one that imbalance costs most."""
    job = Job(memory=False, frequency=False, comm_tasks=False)
    _, (first, last), _ = figures(job)
    least, most = sorted((first["excess_ns"], last["excess_ns"]))
    assert least < lost_ns(job) < most + least / job.micro_batches


def test_a_warm_up_step_is_in_no_mean() -> None:
    job = Job(layers=1, pp=1, dp=2, ep=2, experts=4, micro_batches=1, steps=5, memory=False)
    plain, paused = (figures(one) for one in (job, replace(job, gc_every=12, gc_ns=50_000_000)))
    assert paused[0] > 1.2 * plain[0]

    def share(notes: list[str]) -> float:
        (told,) = re.findall(r"of a step, ([\d.]+) % of it", notes[0])
        return float(told)

    assert share(paused[2]) == pytest.approx(share(plain[2]), rel=0.03)


def test_evaluation_steps_are_in_no_cost() -> None:
    """A token passes a third of the products in them: every other step one, all cost 24 % less."""
    job = Job(layers=1, pp=1, dp=2, ep=2, experts=4, micro_batches=4, steps=6, memory=False)
    _, (plain,), _ = figures(job, without=(12, 14, 16))
    _, (mixed,), _ = figures(replace(job, evaluate_every=2))
    for name in SUMS:
        assert mixed[name] == pytest.approx(plain[name], rel=0.03)
