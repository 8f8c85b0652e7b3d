"""Other schedules of a recognised pipeline, against jobs that were generated with them."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from npuscope.analysis.memo import remember
from npuscope.analysis.pipeline import tries
from npuscope.analysis.pipeline.passes import pipeline
from npuscope.analysis.pipeline.schedules import schedule
from npuscope.analysis.pipeline.tries_notes import tries_notes, work_notes
from npuscope.analysis.ranks.rank_views import open_across
from npuscope.analysis.replay.capture_what_if import whatif_steps
from npuscope.analysis.replay.captures import capture_job
from npuscope.analysis.replay.changes import parse_change
from npuscope.analysis.scope import Scope
from npuscope.analysis.wording import ms
from npuscope.errors import CannotAnswer, UsageError
from npuscope.sample_traces.generate import COMMITTED_JOB, Job, canonical_frames
from tests.analysis.pipeline.pipeline_frames import order_text
from tests.analysis.pipeline.test_placement import every_cut
from tests.analysis.replay.replayed_jobs import true_step_ns
from tests.analysis.tables import connect, keep_summaries, put

TABLES = ("ranks", "groups", "steps", "kernels", "comm_ops", "comm_tasks", "launches", "host_ops")
SMALL = Job(pp=2, dp=2, ep=2, layers=4, micro_batches=4, steps=2, seed=907, memory=False)
DEEP = replace(SMALL, pp=4, layers=8, steps=1)
NOISY = Job(
    pp=4, dp=2, ep=2, layers=16, micro_batches=8, steps=3, seed=42, noise=0.03, memory=False,
    clock_offsets_ns=(0, 0, 0, 0, 2_000_000, 2_000_000, 2_000_000, 2_000_000), ranks_per_host=4,
)  # fmt: skip


def tables(job: Job, *after: str) -> duckdb.DuckDBPyConnection:
    con = connect()
    put(con, canonical_frames(job, tables=TABLES, pipes=False))
    for statement in after:
        con.execute(statement)
    keep_summaries(con)
    open_across(None, con)
    remember(con)  # as a command does
    return con


def of_tables(con: duckdb.DuckDBPyConnection) -> tries.Ready:
    ((run, capture),) = con.execute("select distinct run, capture from ranks").fetchall()
    return tries.ready(con, pipeline(con, run, capture))


@lru_cache(maxsize=4)
def job_of(job: Job) -> tries.Ready:
    return of_tables(tables(job))


def rows(ready: tries.Ready, *words: Any, **more: Any) -> list[dict[str, Any]]:
    asked = tries.asked_tries(ready, *words, **more)
    return tries.pipeline_tries(ready, asked).to_dicts()


@pytest.mark.slow
def test_the_order_that_ran_and_more_micro_batches() -> None:
    ready = job_of(SMALL)
    assert ready.facts.parts is not None
    assert [one.is_layer for one in ready.facts.parts] == [False, *[True] * 4, False]
    measured, more = rows(ready, None, 7)
    assert measured["name"] == "measured" and measured["schedule"] == "1f1b"
    assert measured["predicted_step_ns"] == pytest.approx(measured["measured_step_ns"], rel=0.002)
    assert measured["predicted_step_ns"] != measured["measured_step_ns"]  # no identity
    assert [one["live_activations"] for one in measured["devices"]] == [2, 1]
    truth = true_step_ns(replace(SMALL, micro_batches=7))
    assert more["predicted_step_ns"] == pytest.approx(truth, rel=0.003)
    assert more["predicted_low_ns"] < truth < more["predicted_high_ns"]
    assert more["micro_batches"] == 7


def check(base: Job, word: str, **changes: Any) -> None:
    """Within 1.5 % of the other job, within the range, and better than that nothing changes."""
    *_, row = rows(job_of(base), word, changes.get("micro_batches"))
    truth = true_step_ns(replace(base, **changes))
    assert row["predicted_step_ns"] == pytest.approx(truth, rel=0.015)
    assert row["predicted_low_ns"] <= truth <= row["predicted_high_ns"]
    nothing = abs(row["measured_step_ns"] - truth)
    assert abs(row["predicted_step_ns"] - truth) < 0.3 * nothing


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "changes"),
    [
        ("vpp:2", {"schedule": "interleaved", "chunks": 2}),
        ("vpp:4", {"schedule": "interleaved", "chunks": 4, "micro_batches": 16}),
        ("zb-v", {"schedule": "zb-v"}),
        ("dualpipev", {"schedule": "dualpipev"}),
        ("1f1b", {"micro_batches": 16}),
    ],
)
def test_another_schedule_takes_what_it_takes_when_it_is_generated(
    word: str, changes: dict[str, Any]
) -> None:
    check(NOISY, word, **changes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "word", "changes"),
    [
        (DEEP, "gpipe", {"schedule": "gpipe"}),
        (DEEP, "zb-v", {"schedule": "zb-v"}),
        (DEEP, "vpp:2", {"schedule": "interleaved", "chunks": 2, "micro_batches": 8}),
        (replace(DEEP, schedule="gpipe"), "1f1b", {"schedule": "1f1b", "micro_batches": 8}),
        # Layers go to a slow rank, and from it.
        (replace(COMMITTED_JOB, memory=False), "vpp:2",
         {"schedule": "interleaved", "chunks": 2, "micro_batches": 8}),
        (replace(COMMITTED_JOB, memory=False, micro_batches=4), "vpp:2",
         {"schedule": "interleaved", "chunks": 2}),
        # Layers of one stage alone run forwards again, wherever they go.
        (replace(SMALL, layers=8, seed=61, recompute_parts=((4, 4), (0, 0))), "vpp:2",
         {"schedule": "interleaved", "chunks": 2,
          "recompute_parts": ((2, 2), (2, 2), (0, 0), (0, 0))}),
    ],
)  # fmt: skip
def test_few_micro_batches_and_slow_ranks_tell_it_too(
    base: Job, word: str, changes: dict[str, Any]
) -> None:
    check(base, word, **changes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "word", "changes"),
    [
        (DEEP, "zb-v", {"schedule": "zb-v", "micro_batches": 8}),
        (replace(SMALL, seed=21), "vpp:2", {"schedule": "interleaved", "chunks": 2}),
        (replace(SMALL, seed=17, schedule="interleaved", chunks=2), "1f1b",
         {"schedule": "1f1b", "chunks": 1}),
        (replace(DEEP, dp=1, ep=1, seed=18, schedule="zb-v", micro_batches=8), "1f1b",
         {"schedule": "1f1b"}),
        # One of two passes beside each other sends before both have ended.
        (replace(DEEP, tp=2, dp=1, ep=1, layers=16, schedule="dualpipev", micro_batches=8,
                 noise=0.02), "zb-v", {"schedule": "zb-v"}),
        # Passes that run beside one of another chunk tell nothing of layers.
        (replace(DEEP, dp=1, ep=1, layers=16, schedule="dualpipev", micro_batches=8, noise=0.02),
         "1f1b", {"schedule": "1f1b"}),
    ],
)  # fmt: skip
def test_what_layers_wait_for_is_within_passes_or_between_them_as_these_are_cut(
    base: Job, word: str, changes: dict[str, Any]
) -> None:
    """Each layer ends with a sum over tensor-parallel ranks: the next one waits for it in its pass,
    the next place before its own, which counts once."""
    check(replace(base, tp=2, sequence=4096), word, **changes)


@pytest.mark.slow
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize(("sequence", "experts"), [(2048, 8), (4096, 0)])
def test_weight_gradients_take_what_passes_of_their_own_would(
    recompute: str, sequence: int, experts: int
) -> None:
    """By sizes, also where tokens are as many as features; nearly so where no sizes were recorded
    (the last stage has the head, whose gradient the jobs make of inputs alone)."""
    job = replace(
        DEEP, tp=2, dp=1, ep=1, micro_batches=8, sequence=sequence, experts=experts,
        recompute=recompute,
    )  # fmt: skip
    apart = job_of(replace(job, schedule="zb-h1")).measured.alone_ns
    true = np.nanmean(apart["W"], axis=(1, 2)) / np.nanmean(apart["BW"], axis=(1, 2))
    assert job_of(job).facts.weight_share == pytest.approx(true, rel=0.08)
    unknown = of_tables(tables(job, "update kernels set input_shapes = null")).facts.weight_share
    assert unknown is not None and unknown[:-1] == pytest.approx(true[:-1], rel=0.3)


@pytest.mark.slow
def test_tokens_that_are_as_many_as_features_change_no_prediction() -> None:
    base = replace(DEEP, tp=2, dp=1, ep=1, micro_batches=8)
    check(base, "zb-h1", schedule="zb-h1")
    check(base, "zb-v", schedule="zb-v")


@pytest.mark.slow
def test_a_backward_in_halves_hides_what_a_whole_one_does() -> None:
    job = replace(SMALL, layers=8, micro_batches=8, noise=0.02, schedule="zb-v")
    *_, row = rows(job_of(job), "dualpipev", None)
    truth = true_step_ns(replace(job, schedule="dualpipev"))
    assert row["predicted_low_ns"] <= truth <= row["predicted_high_ns"]
    assert abs(row["predicted_step_ns"] - truth) < 0.2 * (row["measured_step_ns"] - truth)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"tp": 2, "ep": 1, "expert_skew": 0.0},  # nobody to exchange with
        {"tp": 2, "layers": 4},
        {"overlap": 0.0, "expert_skew": 0.0},
        {"recompute": "full", "layers": 8},
    ],
)
def test_passes_beside_each_other_take_turns(changes: dict[str, Any]) -> None:
    """Not as well as can be: whose turn it is computes, on all ranks that meet."""
    job = replace(SMALL, seed=7001, micro_batches=6, **changes)
    *_, row = rows(job_of(job), "dualpipev", None)
    truth = true_step_ns(replace(job, schedule="dualpipev"))
    assert row["predicted_low_ns"] <= truth <= row["predicted_high_ns"]
    assert abs(row["predicted_step_ns"] - truth) < 0.3 * (row["measured_step_ns"] - truth)


@pytest.mark.slow
def test_the_range_of_many_micro_batches_that_repeat_two_holds_what_they_take() -> None:
    check(COMMITTED_JOB, "1f1b", micro_batches=16)


@pytest.mark.slow
def test_two_micro_batches_tell_eight_as_whatif_does() -> None:
    """Ranks that exchange tokens wait for each other once as a step begins, and gradients are
    reduced once: neither repeats."""
    job = replace(COMMITTED_JOB, memory=False)
    slow = job_of(job).facts.slow_share
    assert slow is not None and job.slow_rank == 5
    of_pair, others = slow[:, 1, :2], [slow[:, 0], slow[:, 1, 2:4]]
    assert (of_pair > 0.06).all() and all(abs(one).max() < 0.002 for one in others)
    told = rows(job_of(job), None, 8)[-1]["predicted_step_ns"]
    assert told == pytest.approx(true_step_ns(replace(job, micro_batches=8)), rel=0.003)
    con = tables(job)
    with pytest.raises(CannotAnswer, match="one micro-batch was recorded"):
        rows(job_of(replace(job, micro_batches=1)), None, 8)
    changes = [parse_change("micro_batches=8")]
    row = whatif_steps(con, capture_job(con, Scope().job), changes).row(-1, named=True)
    assert told == pytest.approx(row["predicted_step_ns"], rel=0.003)


@pytest.mark.slow
def test_two_copies_of_the_model_take_what_they_take() -> None:
    """The pipelines alone: how long both copies reduce gradients is not known, as a note says."""
    ready = job_of(NOISY)
    asked = tries.asked_tries(ready, "dualpipe", None)
    *_, row = tries.pipeline_tries(ready, asked).to_dicts()
    truth = job_of(replace(NOISY, schedule="dualpipe"))
    assert truth.pipeline.schedule.name == "dualpipe"
    assert row["pipeline_ns"] == pytest.approx(truth.spans_ns.mean(), rel=0.015)
    assert any("2 copies" in note for note in tries_notes(ready, asked))


@pytest.mark.slow
def test_an_order_of_a_file_is_the_schedule_that_it_writes(tmp_path: Path) -> None:
    ready = job_of(SMALL)
    (tmp_path / "mine.txt").write_text(order_text(schedule("gpipe", 2, 4)))
    _, named, mine = rows(ready, "gpipe", None, [tmp_path / "mine.txt"])
    same = set(named) - {"name", "schedule"}
    assert {key: named[key] for key in same} == {key: mine[key] for key in same}
    assert (mine["name"], mine["schedule"]) == ("mine.txt", "mine")
    assert [one["live_activations"] for one in mine["devices"]] == [4, 4]
    (tmp_path / "two.txt").write_text(order_text(schedule("dualpipe", 2, 4)))
    *_, two = rows(ready, None, None, [tmp_path / "two.txt"])
    assert two["pipeline_ns"] and two["predicted_step_ns"] is two["predicted_high_ns"] is None


def test_a_schedule_that_does_not_go_leaves_the_others() -> None:
    ready = job_of(SMALL)
    words, notes = tries.those_that_go(ready, "gpipe,vpp:3,zz,1f1b", 5)
    assert words == "gpipe,1f1b"
    assert [note.split(" is left out: ")[0] for note in notes] == ["vpp:3", "zz"]
    assert "no multiple of 2" in notes[0] and "no schedule is called" in notes[1]
    with pytest.raises(UsageError, match="no schedule is called"):
        tries.those_that_go(ready, "zz,zy", None)
    assert tries.those_that_go(ready, "zz", None) == ("zz", [])


@pytest.mark.slow
def test_layers_are_placed_where_a_stage_has_too_many() -> None:
    even = replace(SMALL, layers=6, seed=911)
    uneven = replace(even, layers_by_stage=(4, 2))
    _, placed = rows(of_tables(tables(uneven)), None, None, places_layers=True)
    assert placed["layers"] == [3, 3]
    assert placed["predicted_step_ns"] == pytest.approx(true_step_ns(even), rel=0.01)


@pytest.mark.slow
def test_what_a_slow_link_makes_of_exchanges_stays_with_their_stage() -> None:
    job = Job(dp=4, ep=2, layers=8, micro_batches=8, steps=2, seed=5, memory=False,
              slow_link=(4, 5))  # fmt: skip
    *_, row = rows(job_of(job), "vpp:2", None)
    truth = true_step_ns(replace(job, schedule="interleaved", chunks=2))
    assert row["predicted_step_ns"] == pytest.approx(truth, rel=0.015)
    assert row["predicted_low_ns"] <= truth <= row["predicted_high_ns"]
    assert abs(row["predicted_step_ns"] - truth) < abs(row["measured_step_ns"] - truth)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "word", "changes"),
    [
        # Of four pipelines two meet in each layer; one has the link.
        (replace(SMALL, dp=4, slow_link=(1, 5), slow_link_factor=20.0), "vpp:2",
         {"schedule": "interleaved", "chunks": 2}),
        (replace(SMALL, dp=4, slow_link=(1, 5), slow_link_factor=20.0), "zb-v",
         {"schedule": "zb-v"}),
        # Gradients were always waited for there; from the last stage to the first nothing went.
        (replace(DEEP, micro_batches=8, slow_link=(2, 4), slow_link_factor=6.0), "vpp:2",
         {"schedule": "interleaved", "chunks": 2}),
    ],
)  # fmt: skip
def test_each_pipeline_has_links_of_its_own(base: Job, word: str, changes: dict[str, Any]) -> None:
    """The others wait within their passes for the one with the slow link: that is its time."""
    check(base, word, **changes)


@pytest.mark.slow
def test_a_slow_rank_gets_fewer_layers_and_hands_on_no_slowness() -> None:
    """Layers that leave it are as fast as others': placed so, the job really is faster."""
    even = Job(pp=4, dp=2, ep=2, layers=12, micro_batches=8, steps=2, seed=11, hidden=2048,
               expert_skew=0.0, memory=False, slow_rank=5, slow_factor=3.0)  # fmt: skip
    _, placed = rows(of_tables(tables(even)), None, None, places_layers=True)
    truth = true_step_ns(replace(even, layers_by_stage=tuple(placed["layers"])))
    assert placed["layers"][2] == 1
    assert truth < 0.72 * true_step_ns(even)
    assert placed["predicted_low_ns"] <= truth <= placed["predicted_high_ns"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "job",
    [
        replace(DEEP, layers=12, micro_batches=8, slow_rank=4, slow_factor=3.0, seed=5),
        replace(DEEP, dp=1, ep=1, layers=12, micro_batches=8, slow_rank=3, noise=0.03, seed=9),
        replace(SMALL, layers=8, schedule="zb-v", slow_rank=1, slow_factor=2.0),
    ],
)
def test_no_placement_takes_a_shorter_step(job: Job) -> None:
    """Nor does the shortest longest stage, whose step each of these jobs does not have."""
    ready = job_of(job)
    order, places = ready.measured.graph.schedule, ready.measured.places

    def length_ns(layers: tuple[int, ...]) -> float:
        done = tries.try_order(ready, tries.OrderRequest("", order, layers))
        return float(ready.measured.by_step(done.lengths_ns + done.behind_ns).mean())

    placed = tries.placed_layers(ready, None).layers
    assert placed is not None
    assert length_ns(placed) == min(map(length_ns, every_cut(job.layers, places)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tries, "settle_cuts", lambda cuts, *_: cuts[0])
        even = tries.placed_layers(ready, None).layers
    assert even is not None and even != placed
    longer, shorter = (true_step_ns(replace(job, layers_by_stage=its)) for its in (even, placed))
    assert shorter < longer


def test_other_micro_batches_are_other_work() -> None:
    ready = job_of(SMALL)
    ran, asked = SMALL.micro_batches, 2 * SMALL.micro_batches
    found = tries.pipeline_tries(ready, tries.asked_tries(ready, "1f1b", asked))
    _, row = found.to_dicts()
    (told,) = work_notes(found)
    assert f"with {asked} micro-batches in place of {ran} a step holds 2 times the work" in told
    each = [ms(row["predicted_step_ns"] / asked), ms(row["measured_step_ns"] / ran)]
    assert told.endswith("would take {} ms in place of {} ms".format(*each))
    same = tries.asked_tries(ready, "gpipe", None)
    assert not work_notes(tries.pipeline_tries(ready, same))


def test_what_is_no_schedule_is_refused() -> None:
    ready = job_of(SMALL)
    for word, told in (("vpp:x", "number of chunks"), (",", "--try takes"), ("zz", "no schedule")):
        with pytest.raises(UsageError, match=told):
            tries.asked_tries(ready, word, None)
    with pytest.raises(CannotAnswer, match="no memory was recorded"):
        tries.placed_layers(ready, 1e9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("after", "told"),
    [
        ("delete from {} where rank >= 2", "stage 1 of 2 was not captured"),
        ("update ranks set pp_size = 1, pp_rank = 0; delete from groups where parallel_kind = 'pp'",
         "one pipeline stage"),
    ],
)  # fmt: skip
def test_a_capture_that_cannot_tell_is_refused(after: str, told: str) -> None:
    statements = [after.format(name) for name in TABLES] if "{}" in after else [after]
    with pytest.raises(CannotAnswer, match=told):
        of_tables(tables(SMALL, *statements))
