"""What reducing gradients takes behind the last pass, against jobs that were generated so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from npuscope.analysis.findings.findings import findings
from npuscope.analysis.pipeline import tries
from npuscope.analysis.pipeline.execution import precedence
from npuscope.analysis.pipeline.orders.gradients import (
    Creation,
    GradientReductions,
    creation,
    makes_weights_apart,
)
from npuscope.analysis.pipeline.schedules import schedule
from npuscope.analysis.pipeline.tries_notes import tries_notes
from npuscope.sample_traces.generate import COMMITTED_JOB, Job
from tests.analysis.pipeline.test_tries import SMALL, job_of, rows, tables
from tests.analysis.replay.replayed_jobs import true_step_ns

TWO = replace(COMMITTED_JOB, memory=False, micro_batches=2)
FOUR = replace(TWO, slow_rank=None, pp=4, dp=2, layers=8, micro_batches=8, steps=1)

# All experts on each rank: reducing their gradients takes longer than any pass.
ONE_CHUNK = replace(SMALL, ep=1, micro_batches=16, seed=6)
TWO_CHUNKS = replace(ONE_CHUNK, schedule="interleaved", chunks=2)


def window_of(ns: float) -> Creation:
    """One pass of a device, its last."""
    return Creation(np.array([[[-ns]]]), np.array([[[ns]]]), np.array([[0.0]]))


def test_reductions_queue_in_their_lanes_from_when_gradients_are_ready() -> None:
    """Two lanes: 4 ns ready at half of the window and 3 at its end; 1 ns ready at its begin."""
    made = GradientReductions(
        np.array([0, 0]), np.array([0, 0]),
        np.array([[0.5, 1.0], [0.0, 0.0]]), np.array([[4.0, 3.0], [1.0, 0.0]]),
    )  # fmt: skip
    told = {window: made.behind(window_of(window)).item() for window in (20.0, 4.0, 0.0)}
    assert told == {20.0: 3.0, 4.0: 5.0, 0.0: 7.0}
    window = window_of(4.0)
    assert made.behind(window, 0.0).item() == 3.0 and made.behind(window, 1.0).item() == 7.0
    late = GradientReductions(*(np.array([0]),) * 2, np.array([[0.0]]), np.array([[1.0]]))
    assert late.behind(window_of(9.0)).item() == 0.0
    # Two passes of 4 ns with 30 between them: what is ready (as) with the first comes before that.
    apart = Creation(np.array([[[-38.0], [-4.0]]]), np.array([[[4.0], [4.0]]]), np.array([[0.0]]))
    for ready, behind in ((0.25, -2.0), (0.5, 0.0), (0.51, 0.0), (0.75, 32.0), (1.0, 34.0)):
        one = GradientReductions(*(np.array([0]),) * 2, np.array([[ready]]), np.array([[34.0]]))
        assert one.behind(apart).item() == max(behind, 0.0)
    # Layers of half as many more: the same for each, or one more of the first, or of the last.
    more = [made.shift(np.array([1.5]), end) for end in (None, 0, -1)]
    assert [one.took_ns[0].tolist() for one in more] == [[6.0, 4.5], [7.5, 3.0], [4.0, 6.5]]
    assert [one.ready[0].tolist() for one in more] == [[0.5, 1.0], [0.5 / 1.5, 1.0], [0.5, 1.0]]
    less = [made.shift(np.array([0.5]), end) for end in (None, 0, -1)]
    assert [one.took_ns[0].tolist() for one in less] == [[2.0, 1.5], [0.5, 3.0], [3.5, 0.0]]


def test_gradients_come_in_the_last_backward_or_in_the_last_pass_for_weights() -> None:
    for name, expected in (("1f1b", [[5.0], [5.0]]), ("zb-h1", [[2.0], [2.0]])):
        made = precedence(schedule(name, 2, 4))
        assert makes_weights_apart(made.schedule) == (name == "zb-h1")
        times = {"F": 3.0, "B": 3.0, "W": 2.0, "BW": 5.0}
        durations = np.array([[times[entry[0].kind]] for _, entry in made.entries])
        starts = made.starts(durations)
        found = creation(made, starts, durations)
        assert found.lasts_ns[:, 0].tolist() == expected
        assert (-found.begins_ns[:, 0]).tolist() == expected
        assert found.end_ns.max() == (starts + durations).max()


def check(base: Job) -> None:
    *_, row = rows(job_of(base), "zb-h1", None)
    truth = true_step_ns(replace(base, schedule="zb-h1"))
    assert row["predicted_low_ns"] <= truth <= row["predicted_high_ns"]
    assert abs(row["predicted_step_ns"] - truth) < 0.5 * abs(row["measured_step_ns"] - truth)
    assert row["predicted_step_ns"] == pytest.approx(truth, rel=0.0075)


@pytest.mark.slow
def test_a_step_under_zb_h1_waits_for_the_gradients_that_were_hidden() -> None:
    check(TWO)
    ready = job_of(TWO)
    asked = tries.asked_tries(ready, "zb-h1", None)
    assert any("priced as the reductions" in note for note in tries_notes(ready, asked))
    for word in ("1f1b", "gpipe", "vpp:2"):
        other = tries.asked_tries(ready, word, None)
        assert not tries.try_order(ready, other[0]).behind_ns.any()
        assert not any("reductions" in note for note in tries_notes(ready, other))


@pytest.mark.slow
@pytest.mark.parametrize("micro_batches", [4, 8])
def test_of_more_micro_batches_too(micro_batches: int) -> None:
    check(replace(TWO, micro_batches=micro_batches))


@pytest.mark.slow
@pytest.mark.parametrize(("ran", "word"), [(ONE_CHUNK, "vpp:2"), (TWO_CHUNKS, "1f1b")])
def test_chunks_change_when_gradients_are_ready(ran: Job, word: str) -> None:
    """Of the first chunk of two while the second one still runs, of one chunk half as early: of few
    micro-batches, too."""
    for micro_batches in (16, 4):
        check_chunks(replace(ran, micro_batches=micro_batches), word)


def check_chunks(ran: Job, word: str) -> None:
    *_, row = rows(job_of(ran), word, None)
    schedule_, chunks = ("interleaved", 2) if word == "vpp:2" else ("1f1b", 1)
    truth = true_step_ns(replace(ran, schedule=schedule_, chunks=chunks))
    assert row["predicted_step_ns"] == pytest.approx(truth, rel=0.005)
    assert row["predicted_low_ns"] <= truth <= row["predicted_high_ns"]
    assert abs(row["predicted_step_ns"] - truth) < 0.5 * abs(row["measured_step_ns"] - truth)


@pytest.mark.slow
@pytest.mark.parametrize("word", ["vpp:2", "zb-v", "dualpipev"])
def test_devices_reduce_gradients_of_the_layers_that_they_get(word: str) -> None:
    ran = replace(SMALL, ep=1, pp=4, layers=16, micro_batches=8, layers_by_stage=(3, 5, 5, 3))
    *_, row = rows(job_of(ran), word, None)
    named, chunks = ("interleaved", 2) if word == "vpp:2" else (word, 1)
    truth = true_step_ns(replace(ran, schedule=named, chunks=chunks, layers_by_stage=()))
    assert row["predicted_step_ns"] == pytest.approx(truth, rel=0.01)
    assert row["predicted_low_ns"] <= truth <= row["predicted_high_ns"]
    assert abs(row["predicted_step_ns"] - truth) < 0.1 * abs(row["measured_step_ns"] - truth)


@pytest.mark.slow
@pytest.mark.parametrize(("layers", "seed"), [((4, 2), 911), ((2, 4), 911), ((3, 5), 7)])
def test_placed_layers_take_their_reductions_along(layers: tuple[int, ...], seed: int) -> None:
    """One more or less of them is hidden, or is not, which the range holds."""
    even = replace(SMALL, ep=1, layers=sum(layers), seed=seed)
    *_, row = rows(job_of(replace(even, layers_by_stage=layers)), None, None, places_layers=True)
    truth = true_step_ns(even)
    assert row["layers"] == [sum(layers) // 2] * 2
    assert row["predicted_low_ns"] <= truth <= row["predicted_high_ns"]
    assert abs(row["predicted_step_ns"] - truth) < 0.3 * abs(row["measured_step_ns"] - truth)


@pytest.mark.slow
def test_with_more_stages_the_bubble_is_worth_it() -> None:
    check(FOUR)
    told = {one.name: one for one in findings(tables(FOUR))}
    assert told["pipeline_bubble"].changes == ("schedule=zb-h1",)
    assert (told["pipeline_bubble"].predicted_gain_low_ns or 0) > 0


@pytest.mark.slow
def test_a_schedule_that_may_take_longer_is_not_offered() -> None:
    [found] = [one for one in findings(tables(TWO)) if one.name == "pipeline_bubble"]
    assert true_step_ns(replace(TWO, schedule="zb-h1")) > true_step_ns(TWO)
    assert found.predicted_gain_ns is None and found.changes == ()
    assert "schedule=zb-h1 is not sure" in str(found.no_gain_reason)


@pytest.mark.slow
def test_without_reductions_beside_passes_none_are_missed() -> None:
    alone = job_of(replace(SMALL, dp=1, ep=1, experts=0))
    assert alone.facts.reduced is None
    tried = tries.try_order(alone, tries.asked_tries(alone, "zb-h1", None)[0])
    assert not tried.behind_ns.any()
