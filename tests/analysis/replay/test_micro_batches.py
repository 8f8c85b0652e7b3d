"""Other numbers of micro-batches: jobs with other seeds, and what is refused in a sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from npuscope.errors import CannotAnswer
from npuscope.sample_traces.generate import Job
from tests.analysis.replay.replayed_jobs import SMALL, mean_of, replayed, tables

DEEP = replace(SMALL, pp=4, dp=1, ep=1, layers=4, expert_skew=0.0, noise=0.01, seed=7_211)


@pytest.mark.slow
@pytest.mark.parametrize(("few", "many"), [(4, 8), (8, 6)])
def test_more_or_fewer_micro_batches_of_another_seed_as_they_ran(few: int, many: int) -> None:
    base = replace(DEEP, micro_batches=few)
    row = mean_of(tables(base), replayed(base), f"micro_batches={many}")
    other = replace(base, micro_batches=many, seed=base.seed + 191)
    truth = float(replayed(other).measured.lengths().mean())
    assert row["predicted_step_ns"] == pytest.approx(truth, rel=0.015)
    assert abs(row["measured_step_ns"] - truth) > 0.1 * truth


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "told"),
    [
        (replace(SMALL, pp=1, dp=2, layers=1, steps=1), "without transfers between all stages"),
        (replace(SMALL, paired_transfers=True, steps=1), "batchSendRecv"),
        pytest.param(
            replace(SMALL, steps=1, schedule="interleaved", chunks=2, layers=4),
            "which of them",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            replace(DEEP, steps=1, schedule="interleaved", chunks=2, layers=8, micro_batches=4),
            "several chunks",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_tells_no_micro_batches_is_refused(job: Job, told: str) -> None:
    with pytest.raises(CannotAnswer, match=told) as refused:
        mean_of(tables(job), replayed(job), "micro_batches=8")
    assert "\n" not in str(refused.value) and str(refused.value).startswith("micro_batches=8: ")
