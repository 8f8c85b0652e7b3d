"""Exchanges in two stages, alone and beside other changes, as jobs ran that exchange so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from npuscope.analysis.findings.findings import findings
from npuscope.errors import CannotAnswer
from npuscope.sample_traces.generate import Job
from tests.analysis.replay.replayed_jobs import NOISY, mean_of, replay_of, tables, true_step_ns


@pytest.mark.slow
def test_all_to_alls_in_two_stages_as_they_ran() -> None:
    job = replace(
        NOISY, pp=2, dp=4, ep=4, layers=4, micro_batches=2, ranks_per_host=4, seed=6_151,
        clock_offsets_ns=(0, 0, 0, 0, *[2_000_000] * 4),
    )  # fmt: skip
    row = mean_of(tables(job), replay_of(job), "hierarchical:ep")
    truth = true_step_ns(replace(job, hierarchical=True))
    # What is drawn for the transfers is not the same.
    assert row["predicted_step_ns"] == pytest.approx(truth, rel=0.015)
    assert abs(row["measured_step_ns"] - truth) > 0.2 * truth
    # What is staged is what balanced experts exchange.
    skewed, even = replace(job, expert_skew=1.2), replace(job, expert_skew=0.0, hierarchical=True)
    row = mean_of(tables(skewed), replay_of(skewed), "hierarchical:ep", "experts:balanced")
    truth = true_step_ns(even)
    assert row["predicted_step_ns"] == pytest.approx(truth, rel=0.01)
    # Slow links mended, tokens balanced, exchanges in two stages: each of what the others left, in
    # whatever order they are told.
    even = Job(
        tp=1, pp=1, dp=8, ep=8, experts=8, layers=2, micro_batches=2, steps=3, seed=91,
        memory=False, expert_skew=0.0, crossing=False, ranks_per_host=4,
    )  # fmt: skip
    slow = replace(even, expert_skew=0.8, slow_link=(1,), slow_link_factor=4.0)
    links = [f"link:{pair}=0.25" for pair in ("0-1", "1-2", "1-3")]
    for other, *words in (
        (even, "experts:balanced"),
        (replace(even, expert_skew=0.8, hierarchical=True), "hierarchical:ep"),
        (replace(even, hierarchical=True), "experts:balanced", "hierarchical:ep"),
    ):
        truth = true_step_ns(other)
        for told in ([*links, *words], [*reversed(words), *links]):
            row = mean_of(tables(slow), replay_of(slow), *told)
            assert row["predicted_step_ns"] == pytest.approx(truth, rel=0.01)
            assert row["predicted_low_ns"] <= truth <= row["predicted_high_ns"]


@pytest.mark.slow
def test_what_goes_in_stages_already_is_not_balanced_by_pairs_of_ranks() -> None:
    job = Job(
        layers=1, pp=1, dp=4, ep=4, experts=8, micro_batches=2, memory=False, ranks_per_host=2,
        hierarchical=True,
    )  # fmt: skip
    assert true_step_ns(replace(job, expert_skew=0.0)) < true_step_ns(job)
    for word in ("experts:balanced", "hierarchical:ep"):
        with pytest.raises(CannotAnswer, match="in stages"):
            mean_of(tables(job), replay_of(job), word)
    found = {one.name: one for one in findings(tables(job))}
    assert "in stages" in str(found["expert_imbalance"].no_gain_reason)
    assert all((one.predicted_gain_ns or 0) >= 0 for one in found.values())
    # Pairs move more in the one stage than in the other, all at the rates of their links.
    assert "slow_links" not in found


@pytest.mark.slow
@pytest.mark.parametrize("hierarchical", [False, True])
def test_a_slow_link_is_named_where_exchanges_wait_for_it(hierarchical: bool) -> None:
    job = Job(
        tp=1, pp=1, dp=8, ep=8, experts=8, layers=2, micro_batches=2, steps=2, memory=False,
        ranks_per_host=4, hierarchical=hierarchical, slow_link=(1,), slow_link_type="ROCE",
    )  # fmt: skip
    found = {one.name: one for one in findings(tables(job))}["slow_links"]
    assert "4 of 4 ROCE links of rank 1 move 4.0 GB/s, usual are 11.9" in str(found.statement)
    mended = true_step_ns(replace(job, slow_link=()))
    gain_ns = true_step_ns(job) - mended
    assert found.predicted_gain_ns == pytest.approx(gain_ns, rel=0.03)
    # Of a link that is slower, but faster than those between hosts, which all wait for, none.
    hidden = replace(job, slow_link=(1, 2), slow_link_type="HCCS", slow_link_factor=1.5)
    if not hierarchical:
        assert true_step_ns(hidden) == pytest.approx(mended, rel=0.001)
        assert "slow_links" not in {one.name for one in findings(tables(hidden))}
