"""Generated jobs, replayed; and what says whether a change came as predicted."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from statistics import fmean
from typing import Any

import duckdb
import pytest

from npuscope.analysis.memo import remember
from npuscope.analysis.ranks.rank_views import open_across
from npuscope.analysis.replay.capture_what_if import whatif_steps
from npuscope.analysis.replay.captures import CaptureJob, capture_job, replay
from npuscope.analysis.replay.changes import parse_change
from npuscope.analysis.scope import ALL
from npuscope.sample_traces.generate import Job, canonical_frames
from npuscope.sample_traces.truth import step_lengths
from tests.analysis.tables import connect, keep_summaries, put

TABLES = (
    "ranks", "groups", "steps", "kernels", "comm_ops", "comm_tasks", "launches", "expert_load",
)  # fmt: skip
SMALL = Job(tp=1, pp=2, dp=2, ep=2, layers=2, micro_batches=2, steps=2, seed=3107, memory=False)
LARGE = Job(tp=2, pp=4, dp=2, ep=2, layers=8, micro_batches=4, steps=2, seed=4211, memory=False)
NOISY = replace(LARGE, noise=0.03, seed=5323, clock_offsets_ns=tuple([0] * 8 + [3_000_000] * 8))
SLOW_RANK: dict[str, Any] = {"slow_rank": 3, "slow_factor": 1.6}
SLOW_LINK: dict[str, Any] = {"slow_link": (0, 1), "slow_link_factor": 6.0}
LARGE_LINK: dict[str, Any] = {"slow_link": (4, 6), "slow_link_factor": 6.0}


@lru_cache(maxsize=16)
def tables(job: Job) -> duckdb.DuckDBPyConnection:
    return compare_ranks(connect(), job)


def compare_ranks(
    con: duckdb.DuckDBPyConnection, job: Job, *after: str
) -> duckdb.DuckDBPyConnection:
    """A job's tables with its ranks compared, once statements have changed them."""
    put(con, canonical_frames(job, tables=TABLES, pipes=False))
    for statement in after:
        con.execute(statement)
    keep_summaries(con)
    open_across(None, con)
    remember(con)  # as a command does
    return con


@lru_cache(maxsize=16)
def replay_of(job: Job) -> CaptureJob:
    return capture_job(tables(job), ALL)


@lru_cache(maxsize=64)
def true_step_ns(job: Job) -> float:
    """Of the mean step, as it was simulated."""
    return fmean(step_lengths(job))


def mean_of(con: duckdb.DuckDBPyConnection, job: CaptureJob, *words: str) -> dict[str, Any]:
    """The row of the mean step."""
    found = whatif_steps(con, job, [parse_change(word) for word in words])
    assert found["step"].to_list() == [*job.ops.steps, None]
    return found.row(-1, named=True)


def check_pair(base: Job, other: Job, *words: str, within: float = 0.01) -> None:
    """What changes make of `base` is what the other job really took, within its range and better
    than saying that nothing changes."""
    row = mean_of(tables(base), replay_of(base), *words)
    truth = true_step_ns(other)
    assert row["predicted_step_ns"] == pytest.approx(truth, rel=within)
    assert row["predicted_low_ns"] <= truth <= row["predicted_high_ns"]
    nothing = abs(row["measured_step_ns"] - truth)
    assert abs(row["predicted_step_ns"] - truth) < 0.2 * nothing
    assert nothing > 0.01 * truth


def check_factual(job: Job) -> None:
    rows = replay(replay_of(job))
    assert (rows["error_ratio"].abs() < 0.005).all()
    assert (rows["without_gaps_error_ratio"].abs() < 0.005).all()
    assert (rows["replayed_ns"] != rows["measured_ns"]).any()  # no identity
    assert rows["exogenous_ratio"].max() == 0
    assert 0 < rows["inferred_edge_ratio"][0] < 0.3
