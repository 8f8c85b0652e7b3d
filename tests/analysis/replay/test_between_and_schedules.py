"""Time between steps taken away, and other schedules: what jobs so generated really took."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from npuscope.analysis.findings.findings import findings
from npuscope.analysis.pipeline.passes import pipeline
from npuscope.analysis.pipeline.tries import parse_tries, pipeline_tries, ready
from npuscope.analysis.replay.capture_what_if import whatif_notes
from npuscope.analysis.replay.captures import capture_job, replay
from npuscope.analysis.replay.critical_path import critical_path
from npuscope.analysis.replay.slack import slacks
from npuscope.analysis.scope import ALL
from npuscope.analysis.wording import ms
from npuscope.errors import CannotAnswer, UsageError
from tests.analysis.replay.replayed_jobs import (
    SLOW_RANK,
    SMALL,
    check_pair,
    compare_ranks,
    mean_of,
    replay_of,
    tables,
    true_step_ns,
)  # fmt: skip
from tests.analysis.tables import connect

LOADING = replace(SMALL, between_steps_ns=3_000_000)
ONE = replace(SMALL, steps=1)
DEEP = replace(
    SMALL, pp=4, dp=1, ep=1, layers=8, micro_batches=8, expert_skew=0.0, noise=0.01, seed=6_131
)


@pytest.mark.slow
def test_a_job_without_time_between_its_steps_takes_what_was_predicted() -> None:
    check_pair(LOADING, SMALL, "between_steps=0", within=0.005)


@pytest.mark.slow
def test_all_of_the_time_between_steps_changes_nothing() -> None:
    row = mean_of(tables(LOADING), replay_of(LOADING), "between_steps=1")
    assert row["predicted_step_ns"] == row["replayed_step_ns"]


@pytest.mark.slow
def test_a_faster_host_within_steps_takes_as_long_between_them() -> None:
    gains = {}
    for word in ("host=0.8", "host:steps=0.8"):
        row = mean_of(tables(LOADING), replay_of(LOADING), word)
        gains[word] = row["replayed_step_ns"] - row["predicted_step_ns"]
    # One of two steps has a next one: a fifth of half of 3 ms.
    assert gains["host=0.8"] - gains["host:steps=0.8"] == pytest.approx(300_000, rel=0.02)
    assert 0 <= gains["host:steps=0.8"] < 30_000
    (idle,) = [one for one in findings(tables(LOADING)) if one.name == "device_idle"]
    assert idle.predicted_gain_ns == gains["host:steps=0.8"]


def test_what_a_capture_does_not_tell_is_refused_in_a_sentence() -> None:
    con, job = tables(ONE), replay_of(ONE)
    with pytest.raises(CannotAnswer, match="one step was recorded"):
        mean_of(con, job, "between_steps=0")
    for words in (["schedule=zigzag"], ["schedule=zb-h1,vpp:2"], ["host=0.5", "schedule=zb-h1"],
                  ["schedule=zb-h1", "host=0.5"]):  # fmt: skip
        with pytest.raises(UsageError, match="schedule"):
            mean_of(con, job, *words)


@pytest.mark.slow
def test_a_long_step_in_the_mean_is_told() -> None:
    """The mean is that of all answers; the note has what it is without the long step."""
    calm = replace(SMALL, steps=6, first_step=1)
    paused = replace(calm, gc_every=4, gc_ns=30_000_000)
    assert not any("long steps" in note for note in whatif_notes(replay_of(calm)))
    job = replay_of(paused)
    (told,) = [note for note in whatif_notes(job) if "long steps" in note]
    lengths = job.measured.lengths()
    assert f"(4: up to {ms(lengths[3])} ms, usually {ms(float(np.median(lengths)))} ms)" in told
    assert f"{ms(float(np.delete(lengths, 3).mean()))} ms were measured" in told
    ((mean,),) = tables(paused).execute("select avg(step_ns) from job_steps").fetchall()
    assert mean_of(tables(paused), job, "comm:ep=0.5")["measured_step_ns"] == round(mean)


@pytest.mark.slow
def test_the_finding_of_time_between_steps_gains_what_the_job_without_it_takes_less() -> None:
    found = next(one for one in findings(tables(LOADING)) if one.name == "between_steps")
    lengths = [true_step_ns(job) for job in (LOADING, SMALL)]
    assert found.changes == ("between_steps=0",) and found.predicted_gain_ns is not None
    assert found.predicted_gain_ns == pytest.approx(lengths[0] - lengths[1], rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "other"),
    [("zb-h1", {"schedule": "zb-h1"}), ("vpp:2", {"schedule": "interleaved", "chunks": 2})],
)
def test_another_schedule_takes_what_the_job_that_ran_it_took(
    word: str, other: dict[str, Any]
) -> None:
    con, job = tables(DEEP), replay_of(DEEP)
    row = mean_of(con, job, f"schedule={word}")
    truth = true_step_ns(replace(DEEP, **other))
    assert row["predicted_step_ns"] == pytest.approx(truth, rel=0.005)
    assert row["predicted_low_ns"] <= truth <= row["predicted_high_ns"]
    tried = ready(con, pipeline(con, job.run, job.capture))
    told = pipeline_tries(tried, parse_tries(word, tried.measured, None))
    steps, lows, highs = (told[f"predicted_{one}_ns"] for one in ("step", "low", "high"))
    longer_ns = steps[1] - told["measured_step_ns"][1]
    assert row["predicted_step_ns"] - row["replayed_step_ns"] == round(longer_ns)
    ends = (row["predicted_low_ns"], row["predicted_high_ns"])
    its = (steps[1] - lows[1], highs[1] - steps[1])
    assert (row["predicted_step_ns"] - ends[0], ends[1] - row["predicted_step_ns"]) == (
        pytest.approx(its, abs=2)
    )
    assert (abs(its[0] / its[1] - 1) > 1e-4) == (word == "vpp:2")  # each end is its own


@pytest.mark.slow
@pytest.mark.parametrize(("name", "chunks"), [("zb-v", 1), ("dualpipev", 1), ("interleaved", 2)])
def test_a_rank_as_fast_as_its_peers_where_both_ranks_of_a_pair_send_under_one_number(
    name: str, chunks: int
) -> None:
    job = replace(SMALL, layers=4, micro_batches=4, schedule=name, chunks=chunks)
    check_pair(replace(job, **SLOW_RANK), job, "rank:3=median", within=0.02)


@pytest.mark.slow
def test_a_job_without_a_pipeline_has_no_schedule() -> None:
    alone = replace(ONE, pp=1, layers=1)
    with pytest.raises(CannotAnswer, match="one pipeline stage"):
        mean_of(tables(alone), replay_of(alone), "schedule=zb-h1")


def test_steps_that_were_not_captured_are_no_part_of_the_step_before() -> None:
    """Of five steps the second and the fourth are not there: the others end as a last step does."""
    whole = replace(SMALL, steps=5)
    first = min(replay_of(whole).ops.steps, key=lambda step: step or 0)
    assert first is not None
    lost = f"step in ({first + 1}, {first + 3})"
    gone = [f"delete from {table} where {lost}" for table in ("kernels", "comm_ops", "steps")]
    con = compare_ranks(connect(), whole, *gone)
    job = capture_job(con, ALL)
    assert job.ops.steps == [first, first + 2, first + 4]
    told = [row[0] for row in con.sql("select step_ns from job_steps order by step").fetchall()]
    rows = replay(job)
    assert rows.filter(pl.col("rank").is_null())["measured_ns"].to_list() == told
    ends = (job.measured.ends - job.measured.starts).ravel().tolist()
    assert rows.filter(pl.col("rank").is_not_null())["measured_ns"].to_list() == ends
    path = critical_path(job).group_by("step").agg(pl.col("path_ns").sum()).sort("step")
    assert path["path_ns"].to_list() == told
    critical = np.flatnonzero(slacks(job) == 0)
    assert set(job.ops.step[critical].tolist()) == {0, 1, 2}
    with pytest.raises(CannotAnswer, match="no step and the next one were recorded"):
        mean_of(con, job, "between_steps=0")
