"""Passes of generated jobs as they ran."""

from __future__ import annotations

from itertools import pairwise

import polars as pl
import pytest

from npuscope.analysis.pipeline.passes import Pipeline, pipeline
from npuscope.analysis.pipeline.phases import pipeline_masking, pipeline_phases
from npuscope.analysis.pipeline.schedules import Pass, schedule
from npuscope.analysis.ranks.rank_views import open_across
from npuscope.sample_traces.capture import captures
from npuscope.sample_traces.generate import Job, canonical_frames
from npuscope.sample_traces.truth import passes
from tests.analysis.pipeline.random_jobs import (
    TABLES,
    open_job,
    random_job,
    recognise_job,
    verdict_on,
)
from tests.analysis.tables import connect, fill, put


@pytest.fixture(scope="module")
def plain() -> Pipeline:
    return recognise_job(Job(pp=3, dp=1, ep=1, layers=6, micro_batches=5, steps=2, noise=0.03))


def test_passes_stand_in_the_order_of_their_schedule(plain: Pipeline) -> None:
    made = schedule("1f1b", 3, 5)
    for (_, stage), part in plain.passes.group_by(["step", "stage"]):
        seen = part.sort("start_ns").select("kind", "chunk", "micro_batch").rows()
        assert seen == [tuple(one) for entry in made.orders[int(str(stage))] for one in entry]


def test_a_schedule_has_its_name_and_sizes(plain: Pipeline) -> None:
    named = plain.schedule
    assert (named.name, named.distance, named.micro_batches, named.also) == ("1f1b", 0.0, 5, ())


def test_a_backward_takes_longer_than_its_forward(plain: Pipeline) -> None:
    means = plain.passes.group_by("kind").agg(pl.col("compute_ns").mean())
    times = dict(means.iter_rows())
    assert times["BW"] > 1.1 * times["F"]


@pytest.fixture(scope="module")
def overlap() -> Pipeline:
    return recognise_job(
        Job(pp=2, dp=2, ep=2, layers=4, micro_batches=4, steps=1, schedule="fb-overlap")
    )


@pytest.mark.slow
def test_passes_beside_each_other_are_told_apart(overlap: Pipeline) -> None:
    assert (overlap.schedule.name, overlap.schedule.confidence) == ("fb-overlap", "high")
    counts = overlap.passes.group_by("stage", "kind").len()
    assert counts["len"].to_list() == [8] * 4


def test_forwards_hide_behind_backwards_in_the_steady_phase_alone(overlap: Pipeline) -> None:
    rows = pipeline_masking(overlap).filter(stage=0, kind="all")
    other = dict(rows.select("phase", "beside_other_ns").iter_rows())
    ratio = dict(rows.select("phase", "masking_ratio").iter_rows())
    assert (other["warm-up"], other["cool-down"]) == (0, 0)
    assert other["steady"] > 0
    assert ratio["steady"] > 1.3 * ratio["step"]


def test_dispatch_and_combine_stand_apart(overlap: Pipeline) -> None:
    rows = pipeline_masking(overlap).filter(stage=0, phase="step")
    times = dict(rows.select("kind", "communication_ns").iter_rows())
    assert times["ep dispatch"] == pytest.approx(times["ep combine"], rel=0.2)
    assert "ep" not in times


def test_parts_of_a_phase_add_up() -> None:
    job = Job(pp=2, dp=1, ep=1, layers=2, micro_batches=3, steps=1)
    con = open_job(job)
    rows = pipeline_phases(con, pipeline(con, job.name, "planted"))
    parts = ("computing_ns", "exposed_communication_ns", "exposed_transfer_ns", "idle_ns")
    assert rows.select(pl.sum_horizontal(parts)).to_series().to_list() == rows["dur_ns"].to_list()


@pytest.mark.slow
def test_schedules_of_drawn_jobs_are_recognised() -> None:
    """A tenth of what `bench.analysis.recognition_bench` does."""
    told = [verdict_on(job, recognise_job(job)) for job in map(random_job, range(10))]
    assert sum(one.is_right for one in told) == 10
    assert sum(one.is_exact for one in told) >= 8


@pytest.mark.slow
@pytest.mark.parametrize("name", ["zb-h1", "dualpipev"])
def test_weight_gradients_are_told_apart_without_shapes(name: str) -> None:
    """As in traces of GPUs."""
    job = Job(pp=2, dp=1, ep=1, layers=8, micro_batches=4, steps=1, schedule=name, noise=0.03)
    frames = canonical_frames(job, tables=TABLES)
    hidden = pl.lit(None, pl.String).alias("input_shapes")
    frames["kernels"] = frames["kernels"].with_columns(hidden)
    con = connect()
    put(con, frames)
    open_across(None, con)
    named = pipeline(con, job.name, "planted").schedule
    assert (named.name, named.confidence, named.micro_batches) == (name, "high", 4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["zb-h1", "dualpipev", "1f1b"])
def test_weight_gradients_are_told_apart_where_tokens_are_as_many_as_features(name: str) -> None:
    job = Job(pp=2, tp=2, dp=1, ep=1, layers=8, micro_batches=4, steps=1, schedule=name, noise=0.03)
    assert job.sequence // job.tp == job.hidden
    told = verdict_on(job, recognise_job(job))
    assert (told.name, told.confidence) == (name, "high") and told.is_exact


def test_a_pair_without_transfers_is_a_forward_and_a_backward() -> None:
    """As a trace of one rank of which the middle of overlapped chunks was recorded."""
    job = Job(pp=2, dp=1, ep=1, layers=4, micro_batches=4, steps=1, schedule="fb-overlap")
    (seen, *_) = captures(job)
    ((_, parts),) = passes(seen).items()
    (start, end) = next(
        (max(one[1], other[1]), min(one[2], other[2]))
        for one, other in pairwise(parts)
        if other[1] < one[2]
    )
    frames = canonical_frames(job, tables=TABLES)
    inside = pl.col("start_ns").is_between(start, end) & (pl.col("rank") == 0)
    frames["kernels"] = frames["kernels"].filter(inside)
    frames["comm_ops"] = frames["comm_ops"].filter(inside & (pl.col("op_type") == "allToAllV"))
    con = connect()
    put(con, frames)
    open_across(None, con)
    found = pipeline(con, job.name, "planted").passes
    assert found["kind"].to_list() in (["F", "BW"], ["BW", "F"])
    assert max(found["start_ns"].to_list()) < min(found["end_ns"].to_list())  # beside each other


def test_marked_passes_are_taken_as_marked() -> None:
    """Names of kernels are hidden, and there are no transfers: only the marks tell."""
    job = Job(pp=1, dp=2, ep=1, layers=2, micro_batches=3, steps=1, experts=0)
    frames = canonical_frames(job, tables=TABLES)
    names = pl.lit("kernel").alias("name"), pl.lit("Any").alias("type")
    frames["kernels"] = frames["kernels"].with_columns(*names)
    hidden = pl.lit(None, pl.String).alias("operator_name"), pl.lit(1).alias("operator_thread_id")
    frames["launches"] = frames["launches"].with_columns(*hidden)
    del frames["host_ops"]
    con = connect()
    put(con, frames)
    for seen in captures(job):
        hosts: dict[Pass, list[int]] = {}
        for kernel in seen.kernels:
            if kernel.part is not None:
                hosts.setdefault(kernel.part, []).append(kernel.launch.times.operator_start_ns)
        ranges = [("backward_step" if one.kind == "BW" else "forward_step", times)
                  for one, times in hosts.items()]  # fmt: skip
        fill(con, "marks", [
            {"run": job.name, "capture": "planted", "rank": seen.rank, "kind": "mstx", "name": name,
             "start_ns": min(times), "dur_ns": max(times) - min(times) + 1}
            for name, times in ranges
        ])  # fmt: skip
    open_across(None, con)
    found = pipeline(con, job.name, "planted")
    assert (found.basis, found.schedule.micro_batches) == ("marks", 3)
    assert found.passes.filter(rank=0)["kind"].to_list() == ["F", "BW"] * 3
