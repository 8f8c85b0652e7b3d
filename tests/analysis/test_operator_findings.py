"""The finding about slow operators: what a job really gains without the first cause."""

from __future__ import annotations

import random
from dataclasses import replace

import polars as pl
import pytest

from bench.operators.causes_bench import PLANTS, clean
from npuscope.analysis.findings.finding import Finding
from npuscope.analysis.findings.findings import findings
from npuscope.analysis.findings.operator_rules import on_path
from npuscope.analysis.replay.critical_path import types_on_path
from tests.analysis.replay.replayed_jobs import SMALL, replay_of, tables, true_step_ns
from tests.analysis.test_gains import price


@pytest.mark.slow
@pytest.mark.parametrize("cause", ["padding", "layout"])
def test_the_gain_is_what_the_job_takes_less_without_the_cause(cause: str) -> None:
    """Products of other sizes, and what runs beneath an all-to-all, gain nothing."""
    job = clean(2, 90)
    planted = PLANTS[cause](job, random.Random(f"90/{cause}/{job.seed}"))
    [found] = [one for one in findings(tables(planted)) if one.name == "slow_operators"]
    truth_ns = true_step_ns(replace(planted, noise=0.0)) - true_step_ns(replace(job, noise=0.0))
    gain_ns, low_ns, high_ns = price(found)
    assert low_ns <= truth_ns <= high_ns
    assert gain_ns == pytest.approx(truth_ns, rel=0.1)
    assert "of these types' time is on the critical path" in found.statement


@pytest.mark.parametrize(
    ("word", "is_hidden"), [("kernel:DSAGenBitMask=0.5", True), ("kernel:MatMulV3@1,2=0.5", False)]
)
def test_what_runs_beneath_other_work_is_to_be_left(word: str, is_hidden: bool) -> None:
    """The bit mask of dropout is made beside the attention's kernels, on a stream of its own."""
    base = Finding(
        "slow_operators", "moe", "one", "Slow.", 1, 0.1, "estimated", "reason", "Change it.",
        pl.DataFrame(), "", (word,),
    )  # fmt: skip
    kernels = pl.DataFrame({"type": ["DSAGenBitMask", "MatMulV3"], "total_ns": [1e6, 1e6]})
    path = types_on_path(replay_of(SMALL))
    said = on_path(base, kernels, path, 1e9)
    assert said.advice.startswith("Leave it for now") is is_hidden
    assert (said.advice == "Change it.") is not is_hidden
    assert said.statement.endswith("is on the critical path.")
    assert ("None of these types' time" in said.statement) is is_hidden
    # The same of any finding about kernels, and of nothing else.
    moved = on_path(replace(base, name="data_movement"), kernels, path, 1e9)
    assert (moved.advice, moved.statement) == (said.advice, said.statement)
    late = replace(base, name="late_ranks", changes=("rank:1=median",))
    assert on_path(late, kernels, path, 1e9) == late


@pytest.mark.parametrize(
    ("path_ns", "told"), [(900, "nothing."), (1_500, "less than 1.0 %,"), (60_000, "Change it."),
                          (20_000, "Change it.")],
)  # fmt: skip
def test_kernels_that_lie_on_the_path_for_too_little_are_to_be_left(
    path_ns: int, told: str
) -> None:
    """Of 100 us a step of 1 ms gains at most what lies on its path."""
    base = Finding(
        "data_movement", "moe", "one", "Moved.", 1, 0.1, "estimated", "reason", "Change it.",
        pl.DataFrame(), "", ("kernel:Cast=0.8", "kernel:Slice=0.8"),
    )  # fmt: skip
    kernels = pl.DataFrame({"type": ["Cast", "Slice"], "total_ns": [6e4, 4e4]})
    path = pl.DataFrame({"type": ["Cast", "MatMulV3"], "path_ns": [float(path_ns), 1e6]})
    assert told in on_path(base, kernels, path, 1e6).advice
