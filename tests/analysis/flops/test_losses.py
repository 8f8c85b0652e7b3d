"""The waterfall of whole jobs: it adds up, and what was planted is lost where it was planted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest

from npuscope.analysis.flops.kernels.count import counted_kernels, kernel_work
from npuscope.analysis.flops.losses import losses, together
from npuscope.analysis.flops.mfu import mfu
from npuscope.analysis.ranks.rank_views import open_across
from npuscope.collector.store import store
from npuscope.sample_traces.job import Job
from tests.analysis.ranks.planted_arrivals import planted_tables
from tests.analysis.tables import keep_summaries

JOB = Job(
    name="losses", layers=2, tp=1, pp=2, dp=4, ep=4, steps=3, micro_batches=2, seed=5,
    ranks_per_host=4, memory=False, comm_tasks=False, expert_skew=0.0,
)  # fmt: skip
Lost = dict[tuple[int, str], float]


def _rows(con: duckdb.DuckDBPyConnection, **peaks: float) -> pl.DataFrame:
    found = mfu(con, given_peaks=peaks)
    return losses(con, found.rows, kernel_work(counted_kernels(con)))


def _adds_up(con: duckdb.DuckDBPyConnection, rows: pl.DataFrame) -> None:
    """Every step, rank and stage loses all that it does not achieve, and nothing twice."""
    for level, found in {
        "step": rows,
        "rank": together(con, rows, by="rank"),
        "stage": together(con, rows, by="stage"),
        "job": together(con, rows),
    }.items():
        keys = [c for c in found.columns if c not in ("term", "part", "ns", "mfu_points")]
        sums = found.group_by(keys).agg(pl.col("mfu_points").sum())["mfu_points"].to_list()
        assert sums == pytest.approx([1.0] * len(sums), abs=1e-9) and sums, level


@pytest.fixture(scope="module")
def losses_of() -> Callable[..., Lost]:
    """Us of a mean step that each rank of a planted job loses to each term."""

    def of(**changes: Any) -> Lost:
        with closing(planted_tables(replace(JOB, **changes))) as con:
            keep_summaries(con)
            open_across(None, con)
            rows = _rows(con)
            _adds_up(con, rows)
            steps = rows.select("step").n_unique()
        sums = rows.group_by("rank", "term").agg(pl.col("ns").sum() / steps / 1e3)
        return {(rank, term): us for rank, term, us in sums.iter_rows()}

    return of


def grow(now: Lost, before: Lost, term: str) -> dict[int, float]:
    """How much more each rank loses to a term."""
    return {
        rank: now.get((rank, term), 0.0) - before.get((rank, term), 0.0)
        for rank in range(JOB.world_size)
    }


@pytest.fixture(scope="module")
def healthy(losses_of: Callable[..., Lost]) -> Lost:
    return losses_of()


STAGE_0, STAGE_1 = range(4), range(4, 8)  # rank 5 is in the second; so is the second host


@pytest.mark.slow
def test_a_low_clock_is_lost_where_it_is_low(losses_of: Callable[..., Lost], healthy: Lost) -> None:
    now = losses_of(slow_clock=5)
    assert {rank for rank, term in now if term == "frequency"} == {5}
    assert now[5, "frequency"] == pytest.approx(0.2 * now[5, "achieved"], rel=1e-3)
    waits, stalls = (grow(now, healthy, term) for term in ("peer_wait", "pipeline_wait"))
    assert min(waits[rank] for rank in (4, 6, 7)) > 200 > 0 > waits[5]
    assert min(stalls[rank] for rank in STAGE_0) > 200 > max(stalls[rank] for rank in STAGE_1)


@pytest.mark.slow
def test_slow_kernels_are_the_cubes_inefficiency(
    losses_of: Callable[..., Lost], healthy: Lost
) -> None:
    now = losses_of(slow_rank=5, slow_rank_lowers_clock=False)
    slower = grow(now, healthy, "cube_inefficiency")
    assert slower.pop(5) > 400 and max(map(abs, slower.values())) < 5
    assert not any(term == "frequency" for _, term in now)
    assert max(map(abs, grow(now, healthy, "other_compute").values())) < 5


@pytest.mark.slow
def test_more_tokens_are_work_for_one_and_waiting_for_its_group(
    losses_of: Callable[..., Lost], healthy: Lost
) -> None:
    now = losses_of(overloaded=5)
    work, waits = (grow(now, healthy, term) for term in ("achieved", "peer_wait"))
    assert work[5] > 200 and max(work[rank] for rank in (4, 6, 7)) < 0
    assert min(waits[rank] for rank in (4, 6, 7)) > 300 > 20 > abs(waits[5])


@pytest.mark.slow
def test_a_slow_host_idles_its_devices(losses_of: Callable[..., Lost], healthy: Lost) -> None:
    now = losses_of(slow_host=1)
    free = [grow(now, healthy, term) for term in ("host", "idle", "free")]
    idle = {rank: sum(term[rank] for term in free) for rank in (*STAGE_0, *STAGE_1)}
    assert min(idle[rank] for rank in STAGE_1) > 1000 > 5 > max(idle[rank] for rank in STAGE_0)


@pytest.mark.slow
def test_a_slow_link_is_time_that_moves_bytes(
    losses_of: Callable[..., Lost], healthy: Lost
) -> None:
    now = losses_of(slow_link=(5,))
    exposed, waits = (grow(now, healthy, term) for term in ("transfer", "peer_wait"))
    assert min(exposed[rank] for rank in STAGE_1) > 1500 > 50 > max(exposed[r] for r in STAGE_0)
    assert max(map(abs, waits.values())) < 20


@pytest.mark.slow
def test_less_overlap_is_more_time_that_moves_bytes(
    losses_of: Callable[..., Lost], healthy: Lost
) -> None:
    assert min(grow(losses_of(overlap=0.3), healthy, "transfer").values()) > 200


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("alexnet_ddp_db_level1", marks=pytest.mark.slow),
        pytest.param("alexnet_ddp_text_level1", marks=pytest.mark.slow),
        "qwen3_pp2_dp2_text_level2",
    ],
)
def test_real_profiles_add_up(name: str, real_stores: Callable[[str], Path]) -> None:
    path = real_stores(name)
    with closing(store.open(path)) as con:
        open_across(path, con)
        # What alexnet computes in, its chip's name tells no peak of.
        rows = _rows(con) if name.startswith("qwen3") else _rows(con, fp32=83e12)
        _adds_up(con, rows)
    if name.startswith("qwen3"):
        achieved = rows.filter(pl.col("term") == "achieved")["mfu_points"].to_list()
        assert achieved == pytest.approx([0.08018], abs=5e-6)
