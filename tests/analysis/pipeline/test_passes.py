"""Passes of generated jobs as they ran."""

from __future__ import annotations

import polars as pl
import pytest

from npuscope.analysis.pipeline.passes import Pipeline, pipeline
from npuscope.analysis.pipeline.schedules import schedule
from npuscope.analysis.ranks.rank_views import open_across
from npuscope.analysis.views import open_views
from npuscope.sample_traces.generate import Job, canonical_frames
from tests.analysis.tables import connect, put

TABLES = ("ranks", "groups", "steps", "kernels", "comm_ops", "launches")


def recognised(job: Job) -> Pipeline:
    con = connect()
    put(con, canonical_frames(job, tables=TABLES))
    open_views(con)
    open_across(None, con)
    return pipeline(con, job.name, "planted")


@pytest.fixture(scope="module")
def plain() -> Pipeline:
    return recognised(Job(pp=3, dp=1, ep=1, layers=6, micro_batches=5, steps=2, noise=0.03))


def test_passes_stand_in_the_order_of_their_schedule(plain: Pipeline) -> None:
    made = schedule("1f1b", 3, 5)
    for (_, stage), part in plain.passes.group_by(["step", "stage"]):
        seen = part.sort("start_ns").select("kind", "chunk", "micro_batch").rows()
        assert seen == [tuple(one) for entry in made.orders[int(str(stage))] for one in entry]


def test_a_schedule_has_its_name_and_sizes(plain: Pipeline) -> None:
    named = plain.named
    assert (named.name, named.distance, named.micro_batches, named.also) == ("1f1b", 0.0, 5, ())


def test_a_backward_takes_longer_than_its_forward(plain: Pipeline) -> None:
    means = plain.passes.group_by("kind").agg(pl.col("compute_ns").mean())
    times = dict(means.iter_rows())
    assert times["BW"] > 1.1 * times["F"]
