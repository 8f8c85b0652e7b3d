"""Who is slow in planted jobs, and why; nobody in healthy ones, however noisy."""

from __future__ import annotations

import gc
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from npuscope.analysis.findings.findings import findings
from npuscope.analysis.ranks.rank_views import open_across
from npuscope.analysis.ranks.stragglers.blame import by_rank, suspect_reasons
from npuscope.analysis.ranks.stragglers.stragglers import stragglers
from npuscope.dashboard.locale.language import language_of
from npuscope.sample_traces.job import Job
from tests.analysis.ranks.across_tables import across, beside, job_tables
from tests.analysis.ranks.planted_arrivals import connection, planted_tables
from tests.analysis.ranks.straggler_jobs import FAULTS, Fault, case
from tests.analysis.ranks.straggler_verdicts import (
    CLOCK_ERROR_NS,
    Named,
    blame,
    expected,
    judge,
    verdict_pairs,
)
from tests.analysis.tables import keep_summaries

JOBS_EACH = 5  # a tenth of the 50 that bench/analysis/stragglers_bench.py holds


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["healthy", *FAULTS])
def test_one_of_each(fault: Fault) -> None:
    if fault == "host":
        # One permutation of four in eight ranks is no small chance: the same in each step is.
        few = case("host", 0, tp=1, pp=1, dp=8, ep=4, layers=2, ranks_per_host=4, steps=2)
        assert verdict_pairs(blame(few)) == expected(few) and len(few.ranks) == 4
    planted = case(fault, 3)
    found = blame(planted)
    assert verdict_pairs(found) == expected(planted)
    assert found.height == planted.job.world_size * planted.job.steps
    evidence = found.drop_nulls("verdict")["evidence"].to_list()
    for lines in map(json.loads, evidence):
        assert lines
        for line in lines:
            assert line.keys() >= {"what", "value", "peers", "unit"}
            # `message`: what a text with values is made of, for readers of other languages.
            assert line.keys() <= {
                "what", "value", "peers", "unit", "of", "message", "layer", "expert"
            }  # fmt: skip
            assert "of" not in line or (line["value"] <= line["of"] and line["peers"] is None)
            assert ("expert" in line) is ("layer" in line)
    assert set(found.filter(pl.col("verdict").is_null())["evidence"]) <= {"[]"}
    # What is outside of every step is none of a step, and no further step that means are over.
    beyond = {
        "link_transfers": "", "rank_work": "launch_interval_ns * 9 as launch_interval_ns, ",
        "arrivals": "-1 - instance as instance, start_ns + 1 as start_ns, ",
    }  # fmt: skip
    with connection(planted.job, clock_error_ns=CLOCK_ERROR_NS) as con:
        for table, other in beyond.items():
            con.execute(f"insert into {table} select * replace ({other}null as step) from {table}")
        again = stragglers(con).rank_blame.drop_nulls("step").drop_nulls("verdict")["evidence"]
    told, before = (
        [line["value"] for text in texts for line in json.loads(text)]
        for texts in (again, evidence)
    )
    assert told == pytest.approx(before)


def test_the_slow_rank_causes_the_waiting_and_its_group_does_not() -> None:
    for seed in (2, 0):
        planted = case("frequency", seed)
        (culprit,) = planted.ranks
        # The median step: a hiccup makes any rank cause much waiting in one of them.
        found = blame(planted)
        median = found.group_by("rank").agg(pl.col("caused_wait_ns").median())
        most = median.sort("caused_wait_ns", descending=True)
        assert most["rank"][0] == culprit
        assert most["caused_wait_ns"][0] > 10 * most["caused_wait_ns"][1]
    # An operation outside of every step is no further step that means are over.
    outside = found.filter(step=found["step"].min()).with_columns(step=pl.lit(None, pl.Int64))
    assert by_rank(pl.concat([found, outside])).equals(by_rank(found))
    assert by_rank(outside)["step_count"].to_list() == [1] * found["rank"].n_unique()
    # What a rank caused is unknown of a step in which nothing could be compared: not 0 of it.
    last = pl.col("step") == pl.col("step").max()
    unknown = found.with_columns(pl.when(~last).then("caused_wait_ns").alias("caused_wait_ns"))
    partly, whole = by_rank(unknown).sort("rank"), by_rank(found.filter(~last)).sort("rank")
    assert partly["step_count"].to_list() == [n + 1 for n in whole["step_count"]]
    assert partly["caused_wait_per_step_ns"].equals(whole["caused_wait_per_step_ns"])
    assert partly["caused_wait_per_step_ns"].gt(0).any()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "ends"),
    [
        ({"pp": 1, "dp": 8, "ep": 4}, (1,)),
        ({"pp": 1, "dp": 8, "ep": 4}, (4, 5)),
        ({"pp": 1, "dp": 8, "ep": 2, "tp": 2}, (4, 5)),
        ({"pp": 2, "dp": 4, "ep": 4, "tp": 2}, (1,)),
    ],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_waiting_for_a_slow_link_goes_back_to_its_ends(
    shape: dict[str, Any], ends: tuple[int, ...], seed: int
) -> None:
    """As much as the same job without it waits less; all of a group end together."""
    job = Job(layers=2, expert_skew=0.0, memory=False, crossing=False, steps=4, noise=0.02,
              slow_link_factor=5.0, seed=seed, **shape)  # fmt: skip
    waited: list[Any] = []
    for one in (job, replace(job, slow_link=ends)):
        with connection(one, clock_error_ns=CLOCK_ERROR_NS) as con:
            found = stragglers(con)
        waited.append(found.last_arrivals["wait_ns"].sum())
    caused = dict(by_rank(found.rank_blame).select("rank", "caused_wait_ns").iter_rows())
    of_ends = [caused[rank] for rank in ends]
    assert sum(of_ends) == pytest.approx(waited[1] - waited[0], rel=0.15)
    assert sum(of_ends) > 0.9 * sum(caused.values())
    assert max(of_ends) < 1.1 * min(of_ends)
    assert verdict_pairs(found.rank_blame) == {(rank, "link") for rank in ends}


@pytest.mark.slow
@pytest.mark.parametrize("lowers_clock", [False, True])
@pytest.mark.parametrize("seed", [1, 2])
def test_three_slow_ranks_of_one_host_are_named(
    seed: int, lowers_clock: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take turns at being the slowest of eight."""
    ranks = {4, 5, 6}

    def slowness(job: Job, rank: int, kernel: str, *, on_cube: bool, on_ai_core: bool) -> float:
        return 1.3 if rank in ranks and on_ai_core else 1.0

    def clock_slowness(job: Job, rank: int) -> float:
        return 1.3 if rank in ranks and lowers_clock else 1.0

    monkeypatch.setattr(Job, "slowness", slowness)
    monkeypatch.setattr(Job, "clock_slowness", clock_slowness)
    job = Job(pp=1, dp=8, ep=4, layers=2, expert_skew=0.0, memory=False, crossing=False, steps=4,
              noise=0.02, ranks_per_host=4, seed=seed)  # fmt: skip
    with connection(job, clock_error_ns=CLOCK_ERROR_NS) as con:
        found = stragglers(con).rank_blame
    assert verdict_pairs(found) == {
        (rank, "frequency" if lowers_clock else "compute") for rank in ranks
    }
    caused = dict(by_rank(found).select("rank", "share_ratio").iter_rows())
    assert sum(caused[rank] for rank in ranks) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("pp", [1, 2])
@pytest.mark.parametrize("slow", [{}, {"slow_rank": 2}])
def test_programs_beside_each_other_are_judged_each_by_itself(
    pp: int, slow: dict[str, Any]
) -> None:
    """Training beside what generates for it: nobody is slow or caused waiting for having more to do
    than the other program."""
    even = Job(layers=4, expert_skew=0.0, memory=False, crossing=False, steps=4, noise=0.02, pp=pp)
    training = replace(even, **slow)
    generating = replace(even, layers=2, micro_batches=1, hidden=512, seed=7)
    found, first, second = (
        {(row["rank"], row["step"]): (row["caused_wait_ns"], row["verdict"])
         for row in across(con, "rank_blame")}
        for con in (beside(training, generating), job_tables(training), job_tables(generating))
    )  # fmt: skip
    by = training.world_size
    assert found == first | {(rank + by, step): told for (rank, step), told in second.items()}
    assert {(rank, told[1]) for (rank, _), told in found.items() if told[1]} == {
        (rank, "frequency") for rank in slow.values()
    }
    with beside(training, generating) as con:
        keep_summaries(con)
        open_across(None, con)
        said = {one.name: one.at_stake_ns for one in findings(con)}
    assert "uneven_stages" not in said
    # Of one stage, not of the difference to the other program, which is 3 ms and more.
    assert (said.get("stragglers") or 0) < (3_000_000 if slow else 500_000)


_SLOWLY = pytest.mark.slow


@pytest.mark.slow
@pytest.mark.parametrize(
    ("percent", "seed"),
    [(3, 0), (2, 1),
     *(pytest.param(low, seed, marks=_SLOWLY) for low in (2, 3, 4, 6, 8, 10) for seed in (0, 1))],
)  # fmt: skip
def test_a_low_clock_is_told_as_a_clock(percent: int, seed: int) -> None:
    """From 2 % on, although noise hides what it costs its kernels."""
    factor = 1 / (1 - percent / 100)
    planted = case("frequency", seed)
    planted = replace(planted, job=replace(planted.job, slow_clock_factor=factor))
    assert verdict_pairs(blame(planted)) == expected(planted)


def test_slow_kernels_at_a_clock_that_scatters_are_no_low_clock() -> None:
    """As clocks by cycles do: 1.5 % here, of every rank."""
    planted = case("compute", 3, slow_factor=1.1)
    (culprit,) = planted.ranks
    dice = random.Random(5)
    with connection(planted.job, clock_error_ns=CLOCK_ERROR_NS) as con:
        for rank in range(planted.job.world_size):
            factor = 0.98 if rank == culprit else dice.gauss(1.0, 0.015)
            con.execute(
                "update counters set value = value * ? where rank = ? and name = 'AI Core Freq'",
                [factor, rank],
            )
        assert verdict_pairs(stragglers(con).rank_blame) == expected(planted)


def test_stages_are_told_apart_without_coordinates() -> None:
    planted = case("compute", 3)
    with connection(planted.job, clock_error_ns=CLOCK_ERROR_NS) as con:
        con.execute("update ranks set pp_rank = null")
        assert verdict_pairs(stragglers(con).rank_blame) == expected(planted)


def test_host_is_told_from_gaps_where_launches_are_unknown() -> None:
    planted = case("host", 3)
    with connection(planted.job, clock_error_ns=CLOCK_ERROR_NS, without=("launches",)) as con:
        assert verdict_pairs(stragglers(con).rank_blame) == expected(planted)


def test_ranks_without_communication_are_no_error() -> None:
    job = Job(name="alone", layers=1, pp=1, dp=1, ep=1, experts=0, memory=False)
    with connection(job) as con:
        found = stragglers(con)
    assert found.rank_blame.is_empty() and found.last_arrivals.is_empty()


def test_several_ranks_of_one_verdict_have_plural_words() -> None:
    verdicts = ["alltoall_bytes", "alltoall_bytes", "host", None]
    ranked = pl.DataFrame({"rank": [0, 2, 1, 3], "verdict": verdicts})
    unknown = pl.DataFrame(
        {"rank": [1], "host_name": [None]}, schema_overrides={"host_name": pl.String}
    )
    told = suspect_reasons(ranked, unknown)
    assert told == "ranks 0, 2: more tokens in their all-to-alls; rank 1: its host launches late"
    assert language_of("zh")(told).startswith("rank 0, 2：各自 all-to-all 中 token 更多")
    known = pl.DataFrame({"rank": [0, 1], "host_name": ["node00", "node01"]})
    assert suspect_reasons(ranked, known).endswith("rank 1: launches come late on host node01")


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Without the garbage collector, which takes a third of the time of a generated job."""
    gc.disable()
    yield
    gc.enable()
    gc.collect()


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_named(fault: Fault, uncollected: None) -> None:
    """Random jobs of 16 ranks; offsets of up to 50 ms are aligned as planted."""
    told = judge(fault, range(JOBS_EACH))
    assert told.precision == 1.0 and told.recall >= 0.95


@pytest.mark.slow
def test_nobody_is_named_in_healthy_jobs(uncollected: None) -> None:
    assert judge("healthy", range(JOBS_EACH)) == Named(right=0, wrong=0, missed=0)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["healthy", "compute", "link", "host"])
def test_sixty_four_ranks_on_fitted_clocks(fault: Fault, uncollected: None) -> None:
    """Ten steps of PP x TP x EP x DP; clocks as the capture's own fit aligns them."""
    shape = {"tp": 2, "pp": 2, "dp": 16, "ep": 4, "layers": 2, "ranks_per_host": 8}
    planted = case(fault, 1, **shape, steps=10)
    con = planted_tables(planted.job)
    rows = across(con, "rank_blame")
    con.close()
    found = {(row["rank"], row["verdict"]) for row in rows if row["verdict"] is not None}
    assert len(rows) == 640
    assert found == expected(planted)
