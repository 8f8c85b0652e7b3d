"""Causes of bubbles: planted ones, beside a twin that counts, and their sum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import polars as pl
import pytest

from npuscope.analysis.pipeline.answer import pipeline_answer, recognise
from npuscope.analysis.pipeline.bubbles import CAUSES, pipeline_bubbles, rank_bubbles
from npuscope.analysis.pipeline.passes import Pipeline
from npuscope.analysis.pipeline.schedules import Pass
from npuscope.analysis.pipeline.stage_parts import pipeline_stages
from npuscope.analysis.pipeline.tries import asked_tries, pipeline_tries, ready
from npuscope.analysis.replay.captures import capture_job
from npuscope.analysis.scope import Scope
from npuscope.sample_traces.capture import captures
from npuscope.sample_traces.generate import Job
from npuscope.sample_traces.job import order
from npuscope.sample_traces.truth import passes
from tests.analysis.pipeline.random_jobs import open_job, recognise_job
from tests.analysis.replay.replayed_jobs import mean_of

UNEVEN = Job(
    pp=4, dp=1, ep=1, layers=4, micro_batches=6, steps=1, experts=0,
    compute_by_stage=(1.0, 1.0, 1.3, 1.0),
)  # fmt: skip


@pytest.fixture(scope="module")
def uneven() -> Pipeline:
    return recognise_job(UNEVEN)


def bubbles_ns(job: Job, times: Mapping[tuple[int, str], float]) -> list[float]:
    """Bubble of each stage, counted pass by pass; `times` by stage and kind."""
    orders = order(job).orders
    before = {
        (stage, entry[0]): own[at - 1][0]
        for stage, own in enumerate(orders)
        for at, entry in enumerate(own)
        if at
    }

    @cache
    def end_ns(stage: int, one: Pass) -> float:
        needs = [(stage, before[stage, one])] if (stage, one) in before else []
        other = stage + (-1 if one.kind == "F" else 1)
        needs += [(other, one)] if 0 <= other < job.pp else []
        return max([end_ns(*need) for need in needs], default=0.0) + times[stage, one.kind]

    length = max(end_ns(stage, own[-1][0]) for stage, own in enumerate(orders))
    return [length - sum(times[stage, entry[0].kind] for entry in own)
            for stage, own in enumerate(orders)]  # fmt: skip


def test_a_planted_imbalance_costs_what_counting_says(uneven: Pipeline) -> None:
    spent: dict[tuple[int, str], list[int]] = {}
    for seen in captures(UNEVEN):
        for parts in passes(seen).values():
            for one, start, end in parts:
                spent.setdefault((seen.place["pp"], one.kind), []).append(end - start)
    means = {key: sum(told) / len(told) for key, told in spent.items()}
    even = {key: sum(means[stage, key[1]] for stage in range(4)) / 4 for key in means}
    ideal, real = bubbles_ns(UNEVEN, even), bubbles_ns(UNEVEN, means)
    rows = rank_bubbles(uneven).sort("stage")
    assert rows["schedule"].to_list() == pytest.approx(ideal, rel=1e-4)
    caused = [one - other for one, other in zip(real, ideal, strict=True)]
    assert rows["imbalance"].to_list() == pytest.approx(caused, rel=0.03)


def test_causes_add_up_to_what_no_pass_covers(uneven: Pipeline) -> None:
    rows = rank_bubbles(uneven)
    assert (
        rows.select(pl.sum_horizontal(CAUSES)).to_series().to_list() == rows["bubble_ns"].to_list()
    )
    for seen, row in zip(captures(UNEVEN), rows.sort("rank").to_dicts(), strict=True):
        ((_, parts),) = passes(seen).items()
        worked = sum(end - start for _, start, end in parts)
        assert row["window_ns"] - row["bubble_ns"] == worked


def test_means_of_causes_add_up_too(uneven: Pipeline) -> None:
    wide = pipeline_bubbles(uneven).pivot("cause", index="stage", values="bubble_ns")
    assert wide.select(pl.sum_horizontal(CAUSES)).to_series().to_list() == wide["all"].to_list()


def test_a_slow_rank_is_a_cause_of_its_own() -> None:
    job = Job(pp=2, dp=2, ep=1, layers=2, micro_batches=4, steps=1, experts=0, slow_rank=3)
    rows = rank_bubbles(recognise_job(job))
    by_rank = dict(rows.select("rank", "slow rank").iter_rows())
    # Rank 1 waits for rank 3, which computes longer than its stage's mean; 0 for a faster one.
    assert by_rank[1] > 100_000
    assert by_rank[1] > 4 * abs(by_rank[3])
    assert by_rank[0] == pytest.approx(-by_rank[1], rel=0.05)


def test_work_of_stages_by_part() -> None:
    job = Job(pp=2, dp=1, ep=1, layers=4, micro_batches=4, steps=1, mtp=1, recompute="full")
    rows = pipeline_stages(recognise_job(job)).to_dicts()
    assert [row["layer_count"] for row in rows] == [2, 2]
    assert [row["embedding_ns"] > 0 for row in rows] == [True, True]  # MTP embeds again
    assert [row["further_tokens_ns"] > row["head_ns"] > 0 for row in rows] == [False, True]
    layers, again = rows[0]["layers_ns"], rows[0]["recompute_ns"]
    assert 0.3 < again / layers < 0.9
    assert abs(sum(row["excess_ns"] for row in rows)) <= 1
    # Tokens of experts are other ones on each rank, but layers are no head for that.
    jobs = [Job(dp=2, layers=2, steps=1, experts=experts) for experts in (0, 8)]
    found = [recognise_job(job) for job in jobs]
    heads = [pipeline_stages(one)["head_ns"].to_list() for one in found]
    assert heads[0][1] > 0
    assert heads[1] == pytest.approx(heads[0], rel=0.02)
    # Without shapes, as of a GPU, the head's products look like those of layers.
    names = found[0].ops.names.with_columns(shapes=pl.lit(None, pl.String))
    rows = pipeline_stages(found[0]).to_dicts()
    untold = pipeline_stages(replace(found[0], ops=replace(found[0].ops, names=names))).to_dicts()
    assert [row["head_ns"] for row in untold] == [0, None]
    assert untold[1]["layers_ns"] == rows[1]["layers_ns"] + rows[1]["head_ns"]
    assert untold[0] == rows[0]


@pytest.mark.slow
def test_evaluation_steps_are_in_no_figure_of_passes() -> None:
    job = Job(pp=2, dp=1, ep=1, layers=2, micro_batches=4, steps=3, memory=False)
    plain, mixed = open_job(job), open_job(replace(job, evaluate_every=2))
    one, other = (pipeline_answer(con, job.name, "planted") for con in (plain, mixed))
    # Two evaluations beside one step of training: its order has its name.
    names = ("schedule", "confidence", "micro_batches")
    assert one.facts.select(names).equals(other.facts.select(names))
    for name in ("compute_ns", "layers_ns", "embedding_ns", "head_ns"):
        assert other.stages[name].to_list() == pytest.approx(one.stages[name].to_list(), rel=0.01)
    passes_of = ready(mixed, recognise(mixed, job.name, "planted"))
    assert passes_of.measured.steps == (13,)
    # What a schedule gives is given by that step alone: a third of it by a mean step.
    row = mean_of(mixed, capture_job(mixed, Scope()), "schedule=gpipe")
    given = row["predicted_step_ns"] - row["replayed_step_ns"]
    gpipe = pipeline_tries(passes_of, asked_tries(passes_of, "gpipe", None)).row(1, named=True)
    longer_ns = gpipe["predicted_step_ns"] - gpipe["measured_step_ns"]
    assert given == pytest.approx(longer_ns / 3, abs=1)


def test_an_answer_says_what_it_rests_on() -> None:
    job = Job(pp=2, dp=1, ep=1, layers=2, micro_batches=4, steps=1)
    found = pipeline_answer(open_job(job), job.name, "planted")
    assert "sequence numbers" in found.notes[0]
    (facts,) = found.facts.to_dicts()
    assert (facts["schedule"], facts["confidence"], facts["micro_batches"]) == ("1f1b", "high", 4)
