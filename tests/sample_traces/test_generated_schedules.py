"""Jobs of other schedules than 1F1B: what their stages run, and in which order."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from npuscope.sample_traces.capture import captures
from npuscope.sample_traces.job import Job, layer_micro_batches, order, stage_layers
from npuscope.sample_traces.truth import expert_load, passes, phases

SMALL = Job(pp=2, dp=1, ep=1, layers=4, steps=1, micro_batches=4)


@pytest.mark.parametrize(
    ("schedule", "chunks"),
    [("gpipe", 1), ("interleaved", 2), ("zb-h1", 1), ("zb-v", 1), ("dualpipe", 1)],
)
def test_passes_run_in_the_order_of_the_schedule(schedule: str, chunks: int) -> None:
    job = replace(SMALL, schedule=schedule, chunks=chunks)
    for seen in captures(job):
        ((_, found),) = passes(seen).items()
        expected = [one for entry in order(job).orders[seen.place["pp"]] for one in entry]
        assert [one[0] for one in found] == expected


def test_passes_beside_each_other_overlap_and_others_do_not() -> None:
    job = replace(SMALL, schedule="fb-overlap")
    ((_, found),) = passes(captures(job)[0]).items()
    pairs = {one for entry in order(job).orders[0] if len(entry) > 1 for one in entry}
    times = sorted((start, end, one in pairs) for one, start, end in found)
    meet = [two for two in pairwise(times) if two[1][0] < two[0][1]]
    assert len(meet) == len(pairs) / 2
    assert all(one[2] for two in meet for one in two)


def test_stages_of_a_v_hold_both_ends_of_the_model() -> None:
    job = replace(SMALL, schedule="dualpipev")
    assert [stage_layers(job, stage) for stage in (0, 1)] == [[0, 3], [1, 2]]


def test_phases_follow_each_other() -> None:
    ((_, found),) = passes(captures(SMALL)[0]).items()
    start_ns, steady_ns, cool_ns, end_ns = phases(found)
    assert (start_ns, end_ns) == (found[0][1], found[-1][2])
    assert [one.kind for one, start, _ in found if start < steady_ns] == ["F"] * 2
    assert [one.kind for one, start, _ in found if start >= cool_ns] == ["BW"] * 2


def test_two_copies_of_the_model_share_the_micro_batches() -> None:
    job = replace(SMALL, schedule="dualpipe")
    assert [stage_layers(job, stage) for stage in (0, 1)] == [[0, 1, 2, 3], [2, 3, 0, 1]]
    assert [[*layer_micro_batches(job, stage, 0)] for stage in (0, 1)] == [[0, 2], [1, 3]]
    assert sum(one[3] for one in expert_load(job)) == 4 * 4 * job.sequence * job.top_k
