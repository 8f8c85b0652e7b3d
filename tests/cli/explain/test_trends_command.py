"""`npuscope trends`: changes over captures and over the trainer's log."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from npuscope.sample_traces.job import small
from tests.cli.command import Run
from tests.dashboard.app.published_jobs import publish_job

CAPTURES, SLOW_FROM = 10, 6
STEPS, SLOW_STEP = 400, 250
HOUR_NS = 3600 * 10**9


def capture(number: int) -> str:
    return f"20251127T{number:02}3437.000Z"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten captures, the last four with a kernel launched twice; their log is 10 % slower since
    step 250. The first five have its first half alone."""
    folder = tmp_path_factory.mktemp("trends") / "store"
    dice = np.random.default_rng(3)
    factors = np.where(np.arange(STEPS) < SLOW_STEP, 1.0, 1.1)
    times = factors * np.exp(0.02 * dice.standard_normal(STEPS))
    log = pl.DataFrame({"step": range(STEPS), "elapsed_s": times})
    for number in range(CAPTURES):
        changes = {"repeated_kernel": "ApplyAdamWV2"} if number >= SLOW_FROM else {}
        job = small(
            steps=2, layers=1, name="moe", seed=number, noise=0.003,
            start_ns=small().start_ns + number * HOUR_NS, **changes,
        )  # fmt: skip
        seen = log.head(STEPS // 2) if number < CAPTURES // 2 else log
        publish_job(folder, job, capture(number), published_s=number, more={"train_log": seen})
    return folder


@pytest.mark.slow
def test_when_and_how_much(run: Run, store: Path) -> None:
    answer = run("trends", store, "--json").json()
    assert answer["metric"] == "trend_changes"
    changes = {(row["basis"], row["measure"]): row for row in answer["rows"]}
    computing = changes["captures", "computing_ns"]
    assert computing["capture"] == capture(SLOW_FROM) and computing["step"] is None
    assert (computing["before_count"], computing["after_count"]) == (SLOW_FROM, 4)
    assert computing["low"] < computing["delta"] < computing["high"] and computing["low"] > 0
    assert computing["delta"] == pytest.approx(computing["after"] - computing["before"])
    logged = changes["train_log", "step_ns"]
    assert abs(logged["step"] - SLOW_STEP) <= 2 and logged["capture"] is None
    assert logged["low_ratio"] < 0.1 < logged["high_ratio"]
    assert logged["before"] == pytest.approx(1e9, rel=0.01)
    assert logged["before_count"] + logged["after_count"] == STEPS  # each step once

    table = run("trends", store)
    assert capture(SLOW_FROM) in table.out and "logged step (ms)" in table.out
    assert "note: a measure that does not change" in table.err


@pytest.mark.slow
def test_longer_captures_and_other_ranks_are_no_change(run: Run, tmp_path: Path) -> None:
    """Of more steps fewer are last ones, which time between steps does not follow; one rank's
    computing is not the mean rank's."""
    for number, (steps, ranks) in enumerate([(2, None)] * 4 + [(3, None)] * 4 + [(2, {1})] * 2):
        job = small(
            steps=steps, layers=1, name="moe", noise=0.001, memory=False, comm_tasks=False,
            start_ns=small().start_ns + number * HOUR_NS, between_steps_ns=3_000_000,
            slow_rank=1, slow_factor=2.0, seed=7,
        )  # fmt: skip
        publish_job(tmp_path / "store", job, capture(number), published_s=number, ranks=ranks)
    answer = run("trends", tmp_path / "store", "--json").json()
    assert {row["measure"] for row in answer["rows"]} == set()
    told = [note for note in answer["notes"] if "other ranks" in note]
    assert [note.split(":")[0] for note in told] == [f"moe, {capture(n)}" for n in (8, 9)]


def test_one_capture_has_no_trend(run: Run, small_store: Path) -> None:
    answer = run("trends", small_store, "--json").json()
    assert answer["rows"] == []
    assert "captures so far: 1; changes are told of 4 or more" in answer["notes"][0]
    table = run("trends", small_store)
    assert table.out == "Changes over time: no rows\n"
    assert "no training log here" in table.err
