"""Other numbers of micro-batches: jobs of other seeds and schedules, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from npuscope.analysis.replay.capture_what_if import changed_work, whatif_notes, whatif_steps
from npuscope.analysis.replay.changes import parse_change
from npuscope.analysis.replay.variants.micro_batches import _draw
from npuscope.analysis.wording import ms
from npuscope.errors import CannotAnswer, UsageError
from npuscope.sample_traces.generate import Job
from npuscope.sample_traces.truth import step_lengths
from tests.analysis.replay.replayed_jobs import (
    SLOW_RANK,
    SMALL,
    check_pair,
    mean_of,
    replay_of,
    tables,
    true_step_ns,
)

DEEP = replace(SMALL, pp=4, dp=1, ep=1, layers=4, expert_skew=0.0, noise=0.01, seed=7_211)


@pytest.mark.slow
@pytest.mark.parametrize(("few", "many"), [(4, 8), (8, 6)])
def test_more_or_fewer_micro_batches_of_another_seed_as_they_ran(few: int, many: int) -> None:
    base = replace(DEEP, micro_batches=few)
    row = mean_of(tables(base), replay_of(base), f"micro_batches={many}")
    other = replace(base, micro_batches=many, seed=base.seed + 191)
    truth = true_step_ns(other)
    assert row["predicted_step_ns"] == pytest.approx(truth, rel=0.015)
    assert abs(row["measured_step_ns"] - truth) > 0.1 * truth


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "many"),
    [
        pytest.param(replace(SMALL, paired_transfers=True, seed=7_213), 8, id="batchSendRecv"),
        pytest.param(
            replace(SMALL, schedule="interleaved", chunks=2, layers=4, seed=7_212), 4,
            id="interleaved",
        ),
        pytest.param(
            replace(SMALL, schedule="zb-v", layers=4, micro_batches=4, seed=7_212), 8, id="ZB-V"
        ),
    ],
)  # fmt: skip
def test_recognised_passes_tell_what_transfers_do_not(job: Job, many: int) -> None:
    check_pair(job, replace(job, micro_batches=many), f"micro_batches={many}", within=0.005)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "every", "evaluations"),
    [(13, 4, [16]), (15, 4, [16]), (16, 2, [16, 18])],  # behind steps of training, before, in turns
)
def test_evaluation_steps_stay_as_they_ran_and_no_gain_of_training_is_spread_over_them(
    first: int, every: int, evaluations: list[int]
) -> None:
    base = replace(
        SMALL, dp=1, ep=1, micro_batches=4, steps=4, first_step=first, evaluate_every=every
    )
    job, change = replay_of(base), [parse_change("micro_batches=8")]
    rows = whatif_steps(tables(base), job, change)
    truth = step_lengths(replace(base, micro_batches=8))
    for at, row in enumerate(rows[:-1].to_dicts()):
        if base.evaluates(row["step"]):
            assert row["predicted_step_ns"] == row["replayed_step_ns"]
        else:
            # That later stages are not done with an evaluation is no lag of their links.
            assert row["predicted_step_ns"] == pytest.approx(truth[at], rel=0.003)
            low, high = row["predicted_low_ns"], row["predicted_high_ns"]
            assert low <= truth[at] <= high < low * 1.04
    trained = rows.filter(~pl.col("step").is_in(evaluations))
    predicted = trained["predicted_step_ns"].mean()
    assert isinstance(predicted, float)
    (work,) = changed_work(tables(base), job, change, rows)
    assert ms(predicted / 8) in work
    (told,) = [one for one in whatif_notes(job, change) if "as they ran" in one]
    assert f"({', '.join(map(str, evaluations))})" in told
    assert not any("as they ran" in one for one in whatif_notes(replay_of(SMALL), change))
    # What evaluations change by less, surely, makes no range wider.
    row = mean_of(tables(base), job, "kernel:GroupedMatmul=2")
    slower = replace(base, slow_kernel="GroupedMatmul", slow_kernel_factor=2.0)
    low, high = row["predicted_low_ns"], row["predicted_high_ns"]
    assert low <= true_step_ns(slower) <= high < 1.02 * low


@pytest.mark.slow
def test_other_changes_stand_beside_other_micro_batches_but_not_of_chunks() -> None:
    base = replace(SMALL, layers=4, micro_batches=4)
    words = ("rank:3=median", "micro_batches=8")
    check_pair(replace(base, **SLOW_RANK), replace(base, micro_batches=8), *words)
    job = replace(base, schedule="zb-v", **SLOW_RANK)
    with pytest.raises(UsageError, match="stands alone"):
        mean_of(tables(job), replay_of(job), *words)


def test_draws_are_of_recorded_micro_batches_and_the_last_of_last_ones() -> None:
    step, place = _draw(np.arange(3), 4, 8)
    assert step.shape == place.shape and len(step) == 8
    assert (place[-1] == 3).all() and set(place[:-1].ravel()) == {0, 1, 2}
    assert set(step.ravel()) == {0, 1, 2}
    assert all(len(set(row.tolist())) > 1 for row in step)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "told"),
    [
        (replace(SMALL, pp=1, dp=1, ep=1, layers=1, steps=1), "without transfers between all"),
        (
            replace(DEEP, layers=4, paired_transfers=True, steps=1, micro_batches=4),
            "4 micro-batches on 4 stages",
        ),
    ],
)
def test_what_tells_no_micro_batches_is_refused(job: Job, told: str) -> None:
    with pytest.raises(CannotAnswer, match=told) as refused:
        mean_of(tables(job), replay_of(job), "micro_batches=8")
    assert "\n" not in str(refused.value) and str(refused.value).startswith("micro_batches=8: ")


def test_as_many_micro_batches_change_nothing_and_more_are_added() -> None:
    same, more = (mean_of(tables(SMALL), replay_of(SMALL), f"micro_batches={m}") for m in (2, 3))
    assert same["predicted_step_ns"] == same["replayed_step_ns"] < more["predicted_step_ns"]
    words = ["micro_batches=3", "kernel:GroupedMatmul=2"]
    row = mean_of(tables(SMALL), replay_of(SMALL), *words)
    assert row == mean_of(tables(SMALL), replay_of(SMALL), *reversed(words))
    twice = replace(SMALL, micro_batches=3, slow_kernel="GroupedMatmul", slow_kernel_factor=2.0)
    truth = true_step_ns(twice)
    assert row["predicted_step_ns"] == pytest.approx(truth, rel=0.02)
    assert [one["part"] for one in more["saved"]] == ["micro-batches"]
    works = []
    for number in (2, 3):
        change = [parse_change(f"micro_batches={number}")]
        steps = whatif_steps(tables(SMALL), replay_of(SMALL), change)
        works.append(changed_work(tables(SMALL), replay_of(SMALL), change, steps))
    assert works[0] == [] and "with 3 micro-batches in place of 2" in works[1][0]
    assert ms(more["predicted_step_ns"] / 3) in works[1][0]
