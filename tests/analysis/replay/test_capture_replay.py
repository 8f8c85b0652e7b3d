"""Replay of captures: generated jobs that ran both ways, and what must change nothing."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuscope.analysis.catalog import metric
from npuscope.analysis.experts.plan.placement import deployment_json
from npuscope.analysis.replay.capture_changes import apply_change
from npuscope.analysis.replay.capture_what_if import whatif_notes, whatif_steps
from npuscope.analysis.replay.captures import capture_job, replay, replay_notes
from npuscope.analysis.replay.changes import parse_change
from npuscope.analysis.replay.critical_path import critical_path
from npuscope.analysis.replay.points import points
from npuscope.analysis.replay.slack import operation_slack, slacks
from npuscope.analysis.scope import ALL
from npuscope.errors import CannotAnswer, TraceNotFound, UsageError
from npuscope.sample_traces.generate import Job
from npuscope.sample_traces.truth import step_lengths
from tests.analysis.replay.contended_pairs import KINDS, pair
from tests.analysis.replay.replayed_jobs import (
    LARGE,
    LARGE_LINK,
    NOISY,
    SLOW_LINK,
    SLOW_RANK,
    SMALL,
    TABLES,
    check_factual,
    check_pair,
    compare_ranks,
    mean_of,
    replay_of,
    tables,
    true_step_ns,
)  # fmt: skip
from tests.analysis.tables import connect


@pytest.mark.slow
@pytest.mark.parametrize("job", [SMALL, Job(seed=61, memory=False, crossing=False)])
def test_steps_are_found_back_without_their_gaps(job: Job) -> None:
    check_factual(job)
    rows = replay(replay_of(job))
    ranks = job.world_size
    assert rows["rank"].null_count() == job.steps and rows.height == job.steps * (1 + ranks)
    told = dict(tables(job).sql("select step, step_ns from job_steps order by step").fetchall())
    whole = rows.filter(rows["rank"].is_null())
    assert dict(whole.select("step", "measured_ns").iter_rows()) == told
    assert [*told.values()] == step_lengths(job)  # what others are held against


@pytest.mark.slow
def test_a_rank_as_fast_as_its_peers_and_a_link_twice_as_fast_as_they_ran() -> None:
    check_pair(replace(SMALL, **SLOW_RANK), SMALL, "rank:3=median")
    check_pair(replace(SMALL, **SLOW_LINK), SMALL, f"link:0-1={1 / 6}")
    # All links of a rank are slow: none alone shortens an exchange, all of them together do.
    job = replace(SMALL, pp=1, dp=4, ep=4, micro_batches=1)
    one = replace(job, slow_link=(1,), slow_link_factor=6.0)
    links = [f"link:{pair}={1 / 6}" for pair in ("0-1", "1-2", "1-3")]
    check_pair(one, job, *links)
    assert mean_of(tables(one), replay_of(one), *links) == mean_of(
        tables(one), replay_of(one), f"link:1={1 / 6}"
    )
    # What moves bytes takes half as long: so does what a link adds to it, whichever is told first.
    for word in (f"link:1={1 / 6}", "experts:balanced"):
        there, back = (
            mean_of(tables(one), replay_of(one), *words)["predicted_step_ns"]
            for words in (("comm:ep=0.5", word), (word, "comm:ep=0.5"))
        )
        assert there == pytest.approx(back, rel=1e-5)


@pytest.mark.slow
def test_kernels_and_a_slow_host_as_they_ran() -> None:
    check_pair(SMALL, replace(SMALL, slow_kernel="GroupedMatmul", slow_kernel_factor=2.0),
               "kernel:Grouped*=2")  # fmt: skip
    # A launch costs 3 us and 1.05 times its operator's time.
    slow = replace(SMALL, host_op_ns=150_000)
    check_pair(slow, replace(SMALL, host_op_ns=73_571), "host=0.5")
    check_pair(slow, replace(SMALL, host_op_ns=1_000), "host:free", within=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("job", [LARGE, NOISY], ids=["plain", "noise and clocks"])
def test_a_larger_job_as_it_ran_both_ways(job: Job) -> None:
    check_factual(job)
    check_pair(replace(job, **{**SLOW_RANK, "slow_rank": 5}), job, "rank:5=median")
    check_pair(replace(job, **LARGE_LINK), job, f"link:4-6={1 / 6}")
    check_pair(job, replace(job, **LARGE_LINK), "link:4-6=6")
    check_pair(job, replace(job, slow_kernel="MatMulV3", slow_kernel_factor=1.5),
               "kernel:MatMulV3=1.5")  # fmt: skip
    check_pair(replace(job, host_op_ns=60_000), replace(job, host_op_ns=28_571), "host=0.5")
    check_pair(replace(job, slow_host=1), job, "host:node01=0.1131")
    both = replace(job, **SLOW_RANK, **LARGE_LINK)
    check_pair(both, job, "rank:3=median", f"link:4-6={1 / 6}")


@pytest.mark.slow
def test_what_changes_the_structure_of_a_step_as_it_ran_both_ways() -> None:
    job = NOISY
    check_pair(replace(job, **{**SLOW_RANK, "slow_rank": 5}), job, "remove:rank=5")
    check_pair(job, replace(job, micro_batches=8), "micro_batches=8")
    # Of steps that all other changes left, though these are written behind it.
    check_pair(replace(job, **{**SLOW_RANK, "slow_rank": 5}), replace(job, micro_batches=8),
               "micro_batches=8", "rank:5=median")  # fmt: skip
    # Six times 3 us and 1.05 times 25 us; hiccups of the host are none of that.
    check_pair(replace(job, host_op_ns=25_000), replace(job, host_op_ns=164_286), "host=6")
    host = replace(job, host_op_ns=60_000)
    check_pair(host, replace(host, fused_kernel="RmsNorm"), "fuse:RmsNorm")
    # Shared experts long enough to hide all-to-alls, behind them and then beside them.
    wide = replace(job, overlap=1.3)
    check_pair(replace(wide, serial_experts=True), wide, "hide:ep")
    # Of uneven exchanges the long ones outlast what is beside them, also where that lasts longer.
    uneven = replace(SMALL, pp=1, dp=4, ep=4, expert_skew=1.2, overlap=1.3)
    for one in (uneven, replace(uneven, contention=1.3, noise=0.02)):
        check_pair(replace(one, serial_experts=True), one, "hide:ep")


@pytest.mark.slow
def test_experts_placed_otherwise_and_an_ideal_step_as_they_ran(tmp_path: Path) -> None:
    job = NOISY
    skewed = replace(job, expert_skew=1.2)
    check_pair(skewed, replace(job, expert_skew=0.0), "experts:balanced")
    order = [random.Random(layer).sample(range(job.experts), job.experts) for layer in range(8)]
    plan = tmp_path / "plan.json"
    plan.write_text(deployment_json(np.array(order).reshape(8, job.ep, -1), range(8)))
    placed = replace(skewed, placement=tuple(tuple(row) for row in order))
    check_pair(skewed, placed, f"experts:plan={plan}")
    even = replace(job, expert_skew=0.0, noise=0.0)
    rough = replace(even, noise=0.03, **LARGE_LINK)
    check_pair(rough, even, "ideal")
    found = mean_of(tables(rough), replay_of(rough), "ideal")
    first = {one["kind"]: one["name"] for one in reversed(found["contributions"])}
    assert first["optype"] == "communication ep" and first["stage"] == "1"
    assert first["worker"] in ("4", "6")
    assert found["contributions"][0]["slowdown"] > 1.3


@pytest.mark.slow
def test_ranges_contain_the_truth_where_kernels_slow_down_beside_transfers() -> None:
    # Sixty such pairs: bench/replay/whatif_range_bench.py.
    for number in range(3 * KINDS, 4 * KINDS):
        base, other, word = pair(number)
        told = replay_of(base).contention.lost_ratio
        assert told == pytest.approx(1 - 1 / base.contention, abs=0.05)
        row = mean_of(tables(base), replay_of(base), word)
        truth = true_step_ns(other)
        assert row["predicted_low_ns"] <= truth <= row["predicted_high_ns"], word
        assert row["predicted_high_ns"] - row["predicted_low_ns"] < 0.15 * truth
        # Kernels lose where transfers then are: without that, hidden ones would be 5 to 9 % off.
        assert row["predicted_step_ns"] == pytest.approx(truth, rel=0.02), word
        assert sum(one["saved_ns"] for one in row["saved"]) == pytest.approx(
            row["replayed_step_ns"] - row["predicted_step_ns"], abs=100
        )
        same = mean_of(tables(base), replay_of(base), "kernel:*=1")
        assert same["predicted_step_ns"] == same["replayed_step_ns"]


@pytest.mark.slow
def test_another_seed_ran_as_predicted() -> None:
    # Which experts are popular is drawn by the seed, too: here all are alike.
    even = replace(LARGE, expert_skew=0.0)
    slow = replace(even, slow_rank=5, slow_factor=1.6, seed=77)
    row = mean_of(tables(slow), replay_of(slow), "rank:5=median")
    truth = true_step_ns(even)
    assert row["predicted_step_ns"] == pytest.approx(truth, rel=0.015)
    assert abs(row["predicted_step_ns"] - truth) < abs(row["measured_step_ns"] - truth)


@pytest.mark.parametrize(("word", "kernel"), [
    ("kernel:MatMul*=0.5", ("MatMul*", "")), ("kernel:A@4,8;2=0.5", ("A", "4,8;2")),
    ("kernel:my_ops::A@v1=0.5", ("my_ops::A@v1", "")),
    ("kernel:my_ops::A@v1@4,8=0.5", ("my_ops::A@v1", "4,8")),
])  # fmt: skip
def test_kernels_are_named_by_type_and_shapes(word: str, kernel: tuple[str, str]) -> None:
    assert parse_change(word).kernel() == kernel


@pytest.mark.parametrize("word", ["rank:all=1", "kernel:*=1", "comm:all=1", "link:all=1", "host=1"])
def test_a_factor_of_one_changes_nothing(word: str) -> None:
    row = mean_of(tables(SMALL), replay_of(SMALL), word)
    assert row["predicted_step_ns"] == row["replayed_step_ns"]
    off = abs(row["replayed_step_ns"] - row["measured_step_ns"])
    assert row["predicted_high_ns"] - row["predicted_low_ns"] <= 4 * off + 2_000


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [("rank:2=0.5", "comm:ep=0.5"), ("host=3",), ("ideal", "hide:ep", "micro_batches=5")]
)
def test_the_clock_of_a_host_changes_nothing(words: tuple[str, ...]) -> None:
    job = replace(SMALL, ranks_per_host=1)
    late = replace(job, clock_offsets_ns=(0, 0, 7_654_321, 0))
    plain, shifted = (mean_of(tables(one), replay_of(one), *words) for one in (job, late))
    names = [name for name in plain if name.endswith("_ns")]
    assert [shifted[name] for name in names] == pytest.approx([plain[name] for name in names], 1e-3)


@pytest.mark.parametrize("factor", [0.999, 0.8, 1.2])
def test_a_range_goes_no_further_than_what_operations_take_less_or_more(factor: float) -> None:
    job, changed_by = replay_of(SMALL), abs(1 - factor)
    row = mean_of(tables(SMALL), job, f"kernel:ZerosLike={factor}")
    its = job.ops.type == job.ops.types.index("ZerosLike")  # of each rank alike, and once a step
    most = max(int(job.waits.transfer[:-1][its & (job.ops.rank == one)].sum()) for one in range(4))
    most_ns = changed_by * most / len(job.ops.steps)
    error = 2 * float(np.abs(job.replay.lengths() - job.measured.lengths()).mean()) + 2
    below = row["measured_step_ns"] - row["predicted_low_ns"]
    above = row["predicted_high_ns"] - row["measured_step_ns"]
    assert row["predicted_low_ns"] <= row["predicted_step_ns"] <= row["predicted_high_ns"]
    assert most_ns > 0
    assert (below if factor < 1 else above) <= most_ns + error
    assert (above if factor < 1 else below) <= error


def test_estimated_durations_keep_their_whole_range() -> None:
    """What a rank takes as its peers do is no factor: it may be more than is worked out."""
    words = ("rank:3=median",), ("experts:balanced",), ("ideal",), ("host=0.999",)
    for each in words:
        made = apply_change(tables(SMALL), replay_of(SMALL), [parse_change(word) for word in each])
        assert not made.is_told
    both = [parse_change(word) for word in ("kernel:*=0.9", "comm:ep=0.9")]
    assert apply_change(tables(SMALL), replay_of(SMALL), both).is_told


def test_a_kernel_that_takes_longer_within_its_slack_changes_nothing() -> None:
    job = replay_of(SMALL)
    at = [one for one, name in enumerate(job.ops.types) if name == "DSAGenBitMask"]
    row = mean_of(tables(SMALL), job, "kernel:DSAGenBitMask=1.2")
    assert at and row["predicted_step_ns"] == row["replayed_step_ns"]
    longer = mean_of(tables(SMALL), job, "kernel:DSAGenBitMask=500")
    assert longer["predicted_step_ns"] > row["replayed_step_ns"]


@pytest.mark.slow
def test_a_rank_is_found_from_its_data_parallel_peer() -> None:
    job = replay_of(replace(SMALL, expert_skew=0.0, noise=0.03, seed=8_191))
    con = tables(replace(SMALL, expert_skew=0.0, noise=0.03, seed=8_191))
    measured = job.measured.lengths_by_rank()
    for at, rank in enumerate(job.ops.ranks):
        # Of two alike, one takes the other's times.
        other = apply_change(con, job, [parse_change(f"rank:{rank}=median")])
        assert (other.waits.transfer != job.waits.transfer).sum() > 100
        found = job.span(other.waits).lengths_by_rank()
        assert found[:, at] == pytest.approx(measured[:, at], rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    "gone",
    [
        "delete from kernels where hash(rank, start_ns) % 20 = 0",
        "delete from comm_ops where rank = 2 and hash(start_ns) % 10 = 0",
        "update kernels set stream_id = null",
    ],
)  # fmt: skip
def test_what_is_not_recorded_narrows_what_is_answered_and_not_its_truth(gone: str) -> None:
    base = replace(SMALL, slow_kernel="GroupedMatmul", slow_kernel_factor=2.0)
    con = compare_ranks(connect(), base, gone)
    job = capture_job(con, ALL)
    row = mean_of(con, job, "kernel:GroupedMatmul=0.5")
    truth = true_step_ns(SMALL)
    assert row["predicted_low_ns"] <= truth <= row["predicted_high_ns"]


@pytest.mark.parametrize("job", [SMALL, replace(SMALL, noise=0.05, host_op_ns=150_000)])
def test_an_operation_longer_by_its_slack_changes_nothing_and_by_more_it_does(job: Job) -> None:
    made = replay_of(job)
    before, slack = made.span().lengths(), slacks(made)
    assert (slack >= 0).all() and 0.02 < np.mean(slack == 0) < 0.9
    chance = random.Random(5)
    told = np.flatnonzero(slack < 10**12).tolist()
    for at in chance.sample(told, 60):
        for more, is_same in ((0, True), (2_000, False)):
            durations = made.waits.transfer.copy()
            durations[at] += slack[at] + more
            longer = made.span(replace(made.waits, transfer=durations)).lengths()
            assert (longer == before).all() == is_same, (at, more)
    found = operation_slack(made)
    assert found.height == len(slack) and found["slack_ns"].null_count() == (slack > 10**12).sum()
    assert list(found.columns) == [one.name for one in metric("operation_slack").columns]


def test_everything_twice_as_long_makes_steps_twice_as_long() -> None:
    job = replay_of(SMALL)
    made = job.waits
    delays = made.delays()
    once, twice = (made.points.times(k * delays, k * made.gap) for k in (1, 2))
    assert (twice == 2 * once).all()


@settings(max_examples=60)
@given(st.data())
def test_points_are_where_the_longest_path_leads(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    edges = data.draw(st.lists(pairs.filter(lambda two: two[0] < two[1]), max_size=30))
    number = st.integers(-50, 1_000)
    delays = data.draw(st.lists(number, min_size=len(edges), max_size=len(edges)))
    gaps = data.draw(st.lists(number, min_size=count, max_size=count))
    order = np.array(data.draw(st.permutations(range(count))))  # numbers tell nothing
    source = order[np.array([one for one, _ in edges], int)].astype(np.int32)
    target = order[np.array([one for _, one in edges], int)].astype(np.int32)
    made, circular = points(count, source, target)
    own = np.empty(count, np.int64)
    own[order] = gaps
    expected: list[int] = []
    for point in range(count):
        before = [expected[a] + d for (a, b), d in zip(edges, delays, strict=True) if b == point]
        expected.append(gaps[point] + max(before, default=0))
    found = made.times(np.array(delays, np.int64)[made.edge], own)
    assert not circular.any() and found[order].tolist() == expected


def test_points_that_wait_for_each_other_are_told() -> None:
    _, circular = points(4, np.array([0, 1, 2, 1], np.int32), np.array([1, 2, 1, 3], np.int32))
    assert circular.tolist() == [False, True, True, True]


def test_without_launches_the_host_is_refused_and_kernels_are_still_told() -> None:
    base = replace(SMALL, slow_kernel="GroupedMatmul", slow_kernel_factor=2.0)
    con = compare_ranks(connect(), base, "delete from launches")
    job = capture_job(con, ALL)
    for word in ("host=0.5", "host:free", "fuse:RmsNorm"):
        with pytest.raises(CannotAnswer, match="no launches were recorded"):
            mean_of(con, job, word)
    assert any("no launches" in note for note in replay_notes(job, replay(job)))
    row = mean_of(con, job, "kernel:GroupedMatmul=0.5")
    truth = true_step_ns(SMALL)
    assert row["predicted_low_ns"] <= truth <= row["predicted_high_ns"]


@pytest.mark.slow
def test_without_tasks_links_are_refused_and_without_shapes_a_median_is_told_of() -> None:
    shapes = "update kernels set input_shapes = null"
    con = compare_ranks(connect(), SMALL, "delete from comm_tasks", shapes)
    job = capture_job(con, ALL)
    change = [parse_change("rank:all=median")]
    assert any("no shapes" in note for note in whatif_notes(job, change))
    assert not any("no shapes" in note for note in whatif_notes(replay_of(SMALL), change))
    assert not any("no shapes" in note for note in whatif_notes(job))
    with pytest.raises(CannotAnswer, match="which link"):
        mean_of(con, job, "link:0-1=0.5")
    with pytest.raises(CannotAnswer, match="no shapes"):
        mean_of(con, job, "experts:balanced")
    assert mean_of(con, job, "ideal")["predicted_step_ns"] > 0  # kernels by their place


@pytest.mark.slow
def test_members_that_were_not_captured_widen_the_range() -> None:
    base = replace(SMALL, slow_rank=0, slow_factor=1.6)
    gone = [f"delete from {name} where rank = 3" for name in TABLES]
    con = compare_ranks(connect(), base, *gone)
    job = capture_job(con, ALL)
    assert (replay(job)["exogenous_ratio"] > 0.05).any()
    row = mean_of(con, job, "rank:0=median")
    truth = true_step_ns(SMALL)
    assert row["predicted_low_ns"] <= truth <= row["predicted_high_ns"]
    assert any("not captured" in note for note in whatif_notes(job))
    lone = compare_ranks(
        connect(), base, *(f"delete from {name} where rank > 0" for name in TABLES)
    )
    with pytest.raises(CannotAnswer, match="recorded with its times on all its members"):
        mean_of(lone, capture_job(lone, ALL), "comm:ep=0.5")
    for word, told in (
        ("rank:0=median", "no peers"), ("remove:rank=0", "nobody shows"),
        ("hide:ep", "all its members"), ("micro_batches=8", "all stages"),
        ("experts:balanced", "all members"),
    ):  # fmt: skip
        with pytest.raises(CannotAnswer, match=told):
            mean_of(lone, capture_job(lone, ALL), word)


@pytest.mark.parametrize("job", [SMALL, replace(SMALL, noise=0.05, host_op_ns=150_000)])
def test_the_critical_path_adds_up_to_each_step(job: Job) -> None:
    found = critical_path(replay_of(job))
    sums = found.group_by("step").agg(pl.col("path_ns").sum()).sort("step")["path_ns"]
    assert sums.to_list() == replay_of(job).measured.lengths().tolist()
    shares = found.group_by("step").agg(pl.col("share_ratio").sum())["share_ratio"]
    assert shares.to_list() == pytest.approx([1.0] * job.steps)
    of_part = dict(found.group_by("part").agg(pl.col("path_ns").sum()).iter_rows())
    whole = int(found["path_ns"].sum())
    assert abs(of_part.get("gap", 0)) < 0.01 * whole
    assert (of_part["host"] > 0.5 * whole) == (job.host_op_ns > 100_000)


def test_the_critical_path_runs_through_the_slow_rank() -> None:
    def share(job: Job) -> float:
        found = critical_path(replay_of(job))
        mine = found.filter((pl.col("rank") == 3) & (pl.col("part") == "computing"))["path_ns"]
        return float(mine.sum()) / float(found["path_ns"].sum())

    slow = replace(SMALL, slow_rank=3, slow_factor=1.6)
    assert share(slow) > 2 * share(SMALL)


@pytest.mark.parametrize(
    ("word", "part", "kind"),
    [("kernel:*=0.5", "computing", None), ("comm:ep=0.5", "communication", "ep")],
)
def test_what_is_saved_adds_up_and_is_where_it_was(word: str, part: str, kind: str | None) -> None:
    found = whatif_steps(tables(SMALL), replay_of(SMALL), [parse_change(word)])
    assert found.height
    for row in found.iter_rows(named=True):
        whole = row["replayed_step_ns"] - row["predicted_step_ns"]
        assert sum(one["saved_ns"] for one in row["saved"]) == pytest.approx(whole, abs=10)
        most = row["saved"][0]
        assert (most["part"], most["kind"]) == (part, kind) and most["saved_ns"] > 0.7 * whole


def test_what_is_on_no_path_saves_nothing_and_what_is_saves_no_more_than_its_time() -> None:
    job = replay_of(SMALL)
    on_path = critical_path(job).filter(pl.col("part") == "computing")
    for name in sorted({job.ops.types[at] for at in job.ops.type[~job.ops.is_communication]}):
        row = mean_of(tables(SMALL), job, f"kernel:{name}=0")
        there = on_path.filter(pl.col("type") == name)["path_ns"].sum() / len(job.ops.steps)
        assert row["replayed_step_ns"] - row["predicted_step_ns"] <= there + 5_000, name


def test_kernels_of_some_shapes_change_alone() -> None:
    """One by one they gain less than the type does; all together what it does."""
    con = tables(SMALL)
    shapes = [
        one for (one,) in con.execute(
            "select input_shapes from kernels where type = 'MatMulV3' group by all"
            " order by sum(dur_ns) desc, input_shapes"
        ).fetchall()
    ]  # fmt: skip
    assert len(shapes) > 1
    job = replay_of(SMALL)
    found = [mean_of(con, job, f"kernel:MatMulV3@{one}=0.5") for one in shapes]
    words = [f"kernel:MatMulV3@{one}=0.5" for one in shapes]
    every, whole = mean_of(con, job, *words), mean_of(con, job, "kernel:MatMulV3=0.5")
    assert every["predicted_step_ns"] == whole["predicted_step_ns"]
    alone_ns = min(one["predicted_step_ns"] for one in found)
    assert whole["predicted_step_ns"] < alone_ns < whole["replayed_step_ns"]


@pytest.mark.parametrize(
    ("word", "error", "told"),
    [
        ("rank:99=median", UsageError, "no such rank"), ("comm:cp=0.5", UsageError, "dp, ep"),
        ("kernel:Nothing=0.5", UsageError, "no such kernel"),
        ("kernel:MatMulV3@1,2=0.5", UsageError, "no such kernel"),
        ("link:0-9=0.5", UsageError, "no such link"), ("host:moon=1", UsageError, "node00"),
        ("stage:7=0.5", UsageError, "no such stage"), ("plan:1=0.5", UsageError, "change one of"),
        ("comm:ep=-1", UsageError, "from 0 on"),
        ("kernel:*=1e300", UsageError, "for years"), ("host", UsageError, "the value"),
        ("micro_batches=0", UsageError, "number of micro"), ("hide:cp", UsageError, "dp, ep"),
        ("remove:host=1", UsageError, "is a rank"), ("remove:rank=9", UsageError, "no such remove"),
        ("fuse:Nothing", UsageError, "no such fuse"),
        ("fuse:DSAGenBitMask", CannotAnswer, "none can"),
        ("hierarchical:cp", UsageError, "dp, ep"), ("hierarchical:ep", CannotAnswer, "no group"),
        ("ideal:x", UsageError, "stands alone"), ("experts:even", UsageError, "experts:balanced"),
        ("experts:plan=/nowhere.json", TraceNotFound, "no such deployment"),
    ],
)  # fmt: skip
def test_what_is_not_there_or_not_told_is_said(
    word: str, error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        mean_of(tables(SMALL), replay_of(SMALL), word)


@pytest.mark.slow
def test_what_is_done_as_a_whole_takes_no_value() -> None:
    for word in ("hide:ep", "fuse:RmsNorm", "hierarchical:ep"):
        with pytest.raises(UsageError, match=f"write {word}"):
            mean_of(tables(SMALL), replay_of(SMALL), word + "=0.5")


def test_a_capture_without_operations_is_no_replay() -> None:
    con = compare_ranks(connect(), SMALL, "delete from kernels", "delete from comm_ops")
    with pytest.raises(TraceNotFound, match="nothing to replay"):
        capture_job(con, ALL)
