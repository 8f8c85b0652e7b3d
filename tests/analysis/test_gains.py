"""Gains of findings: what the job really gains when it runs again without the cause."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from npuscope.analysis.experts.load.from_trace import trace_load
from npuscope.analysis.findings.finding import Finding, gain_words
from npuscope.analysis.findings.findings import finding_rows, findings
from npuscope.analysis.host.gains import host_gains
from npuscope.analysis.means import job_steps
from npuscope.analysis.pipeline.answer import pipeline_answer
from npuscope.analysis.ranks.rank_views import open_across
from npuscope.analysis.ranks.stragglers.blame import suspects
from npuscope.analysis.replay import captures
from npuscope.analysis.replay.capture_what_if import whatif_steps
from npuscope.analysis.replay.changes import parse_change
from npuscope.analysis.scope import Scope
from npuscope.collector.store import store
from npuscope.dashboard.locale.language import language_of
from npuscope.profile import summary_versions
from npuscope.sample_traces import simulate
from npuscope.sample_traces.frames import canonical_frames
from npuscope.sample_traces.generate import Job
from tests.analysis.host.host_jobs import TABLES as HOST_TABLES
from tests.analysis.host.host_jobs import host_job
from tests.analysis.pipeline.random_jobs import opened_frames
from tests.analysis.replay.replayed_jobs import (
    LARGE,
    LARGE_LINK,
    SLOW_RANK,
    SMALL,
    TABLES,
    compare_ranks,
    mean_of,
    replay_of,
    tables,
    true_step_ns,
)
from tests.analysis.tables import connect, keep_summaries

# One rank of eight: what the others do between steps was not captured.
ALONE = "msprof_timeline_2023"
WIDE = replace(LARGE, micro_batches=2, layers=4)
MANY = replace(SMALL, pp=1, dp=8, ep=8, micro_batches=1)
SLOW_END: dict[str, Any] = {"slow_link": (1,), "slow_link_factor": 6.0}
HEAVY = {"slow_kernel": "GroupedMatmul", "slow_kernel_factor": 3.0}
# As a real job: stage 1 has the LM head and the loss and computes 401 ms, stage 0 231 ms.
EVEN = Job(
    tp=1, pp=2, dp=1, ep=1, experts=0, layers=2, micro_batches=2, steps=1, seed=3107, hidden=4096,
    ffn=11_008, sequence=4096, memory=False, comm_tasks=False, paired_transfers=True,
)  # fmt: skip
UNEVEN = replace(EVEN, compute_by_stage=(231 / 316, 401 / 316))


def test_where_others_decide_no_gain_is_told(real_stores: Callable[[str], Path]) -> None:
    with closing(store.open(real_stores(ALONE), summaries=summary_versions())) as con:
        open_across(real_stores(ALONE), con)
        [found] = [one for one in findings(con) if one.name == "between_steps"]
        [row] = host_gains(con).filter(cause="between_steps").to_dicts() or [{"gain_ns": None}]
    assert found.predicted_gain_ns is None and row["gain_ns"] is None
    assert "not captured" in str(found.no_gain_reason)


def check_first(base: Job, name: str, change: str, **cause: Any) -> Finding:
    """The first finding names the cause, and what it gains is what the job takes less without."""
    first = findings(tables(replace(base, **cause)))[0]
    truth_ns = true_step_ns(replace(base, **cause)) - true_step_ns(base)
    assert first.name == name and first.changes[0].startswith(change)
    gain_ns, low_ns, high_ns = price(first)
    assert low_ns <= truth_ns <= high_ns
    assert gain_ns == pytest.approx(truth_ns, abs=0.015 * true_step_ns(base))
    assert truth_ns > 0.05 * true_step_ns(base)
    return first


def price(one: Finding) -> tuple[int, int, int]:
    gain, low, high = (
        one.predicted_gain_ns, one.predicted_gain_low_ns, one.predicted_gain_high_ns
    )  # fmt: skip
    assert gain is not None and low is not None and high is not None
    assert low <= gain <= high and one.no_gain_reason is None
    return gain, low, high


@pytest.mark.slow
def test_a_wait_of_the_host_that_leaves_little_free_is_told_for_its_gain() -> None:
    """Without it the host regains its lead: that gains more than what was free."""
    quick = replace(host_job("item", 0), host_op_ns=6_000)
    with opened_frames(canonical_frames(quick, tables=HOST_TABLES, pipes=False)) as con:
        listed = findings(con)
        [one] = [one for one in listed if one.name == "synchronisation"]
        # Where no gain is told, what costs less than 1 % of a step is no finding.
        alone = {one.name: one.step_share_ratio for one in findings(con, Scope(rank=0))}
    assert one.step_share_ratio is not None and one.step_share_ratio < 0.01
    gain_ns, _, _ = price(one)
    assert gain_ns > (one.at_stake_ns or 0)
    for each in listed:
        is_beyond = (each.predicted_gain_ns or 0) > (each.at_stake_ns or 1 << 60)
        assert ("A step gains more than the time at stake: " in each.reason) is is_beyond
    assert one.statement.endswith(" It stands here for its gain, 1.2 % of a step.")
    assert [one.name for one in listed if "stands here" in one.statement] == ["synchronisation"]
    assert all(ratio is None or ratio >= 0.01 for ratio in alone.values())


@pytest.mark.slow
def test_a_slow_rank_and_a_slow_kernel_come_first_with_what_they_cost() -> None:
    check_first(SMALL, "late_ranks", "rank:3=median", **SLOW_RANK)
    check_first(SMALL, "slow_kernels", "kernel:GroupedMatmul=", **HEAVY)
    # Who is suspected is mended: nobody being suspected is no reason beside a suspect.
    even = replace(MANY, experts=8, expert_skew=0.0, steps=4, noise=0.03, crossing=False)
    full = findings(tables(replace(even, overloaded=5, overload_factor=2.5)))
    (late,) = (one for one in full if one.name == "late_ranks")
    assert "rank 5: more tokens" in late.statement and late.changes == ("experts:balanced",)
    assert late.predicted_gain_ns is not None and late.predicted_gain_ns > 0
    # Its kernels of more tokens have no like to be brought to: `rank:5=median` would gain nothing.
    (slowest,) = (one for one in full if one.name == "stragglers")
    assert slowest.changes == late.changes and "most of it rank 5" in slowest.statement
    truth_ns = true_step_ns(replace(even, overloaded=5, overload_factor=2.5)) - true_step_ns(even)
    assert price(slowest)[0] == pytest.approx(truth_ns, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_no_change_is_advised_that_is_not_sure_to_gain(seed: int) -> None:
    """One slow kernel makes a rank of an even job the slowest, in another step another one."""
    even = Job(pp=2, tp=2, dp=4, ep=4, layers=2, expert_skew=0.0, steps=4, noise=0.02,
               memory=False, crossing=False, seed=seed)  # fmt: skip
    found = {one.name: one for one in findings(tables(even))}
    assert all(price(one)[1] > 0 for one in found.values() if "rank:" in str(one.changes))
    slowest = found.get("stragglers")
    assert (
        slowest is None or slowest.changes or "is not sure to make" in str(slowest.no_gain_reason)
    )
    assert seed != 1 or (slowest is not None and not slowest.changes)


@pytest.mark.slow
def test_a_slow_link_and_a_slow_host_come_first_with_what_they_cost() -> None:
    check_first(SMALL, "slow_links", "link:0-1=", slow_link=(0, 1), slow_link_factor=6.0)
    check_first(WIDE, "slow_links", "link:4-6=", **LARGE_LINK)
    check_first(WIDE, "late_ranks", "host:node01=", slow_host=1)
    # All links of one rank: their end is slow, and mending some of them would gain nothing.
    first = check_first(MANY, "slow_links", "link:1=", **SLOW_END)
    assert first.statement.startswith("7 of 7 HCCS links of rank 1 move ")
    assert first.step_share_ratio is not None and first.step_share_ratio < 1
    # Between four ranks these are half of all, so the others alone tell what is usual.
    four = replace(MANY, dp=4, ep=4)
    first = check_first(four, "slow_links", "link:1=", **SLOW_END)
    assert first.statement.startswith("3 of 3 HCCS links of rank 1 move ")
    # All of a group end together, so waiting within one is noise; another group waits for it.
    noisy = replace(
        MANY, experts=8, micro_batches=2, expert_skew=0.0, steps=3, noise=0.03, seed=78,
        crossing=False, slow_link=(1,), slow_link_factor=4.0,
    )  # fmt: skip
    for ep, changes in ((8, ()), (4, ("link:1=",))):
        late = {one.name: one for one in findings(tables(replace(noisy, ep=ep)))}["late_ranks"]
        assert [word[:7] for word in late.changes] == [*changes]
        assert ("Suspected: rank 1: slow link." in late.statement) is bool(changes)
    # What a slow link between stages costs, no other schedule of the pipeline gains.
    slow = replace(SMALL, layers=4, dp=4, micro_batches=4, slow_link=(1, 5), slow_link_factor=20.0)
    listed = {one.name: one for one in findings(tables(slow))}
    assert listed["slow_links"].changes and not listed["pipeline_bubble"].changes
    row = mean_of(tables(slow), replay_of(slow), "schedule=zb-h1")
    truth_ns = true_step_ns(replace(slow, schedule="zb-h1"))
    assert row["predicted_step_ns"] == pytest.approx(truth_ns, rel=0.01)


@pytest.mark.slow
def test_what_is_at_stake_in_a_mean_step_is_the_mean_of_what_is_in_each() -> None:
    slow_host: dict[str, Any] = {
        "dp": 4, "ep": 2, "experts": 4, "layers": 4, "overlap": 0.9, "expert_skew": 0.0, "seed": 7,
        "noise": 0.02, "crossing": False, "ranks_per_host": 2, "slow_host": 1,
        "slow_host_factor": 20.0,
    }  # fmt: skip
    # The first step of four is warm-up: what lies between it and the next made it long.
    later = "set start_ns = start_ns + 1_000_000_000 where step > 12"
    for name, cause in (("slow_links", SLOW_END), ("slow_hosts", slow_host)):
        job = replace(MANY, steps=4, **cause)
        con = compare_ranks(connect(), job, f"update kernels {later}", f"update comm_ops {later}")
        assert job_steps(con).filter("is_warm_up")["step"].to_list() == [12]
        every_ns, *each_ns = (
            one.at_stake_ns or 0
            for step in (None, 13, 14, 15)
            for one in findings(con, Scope(step=step))
            if one.name == name
        )
        assert len(each_ns) == 3
        assert every_ns == pytest.approx(sum(each_ns) / 3, abs=2) and every_ns > 100_000
    # Of a step in which nothing could be compared it is not known: the others tell it.
    con = compare_ranks(connect(), job, f"update kernels {later}", f"update comm_ops {later}")
    con.execute("create temp table told as from rank_blame")
    con.execute("update told set caused_wait_ns = null where step = 14")
    con.execute("create or replace temp view rank_blame as from told")
    (host,) = (one for one in findings(con) if one.name == "slow_hosts")
    assert host.at_stake_ns == pytest.approx((each_ns[0] + each_ns[2]) / 2, abs=2)


@pytest.mark.slow
def test_with_a_warm_up_step_is_told_what_is_told_without_it() -> None:
    job = replace(SMALL, **SLOW_RANK, steps=4, gc_every=12, gc_ns=200_000_000, memory=False)
    frames = canonical_frames(job, tables=HOST_TABLES, pipes=False)
    later = {
        name: rows.filter(pl.col("step") > job.first_step) if "step" in rows.columns else rows
        for name, rows in frames.items()
    }
    whole, cut = opened_frames(frames), opened_frames(later)
    assert job_steps(whole).filter("is_warm_up")["step"].to_list() == [job.first_step]
    told, expected = (
        {one.name: (one.at_stake_ns, one.statement) for one in findings(con)}
        for con in (whole, cut)
    )
    assert told.keys() == expected.keys() and "late_ranks" in told
    for name, (stake_ns, statement) in expected.items():
        # Times of tokens are fitted over all steps.
        near = 0.01 if name == "expert_imbalance" else 1e-6
        assert told[name][0] == pytest.approx(stake_ns, rel=near, abs=1), name
        # What kernels of a type have on the critical path, as of their time in a mean step.
        part = statement.rpartition("% of these types' time")[0].rpartition(" ")[2]
        assert f"{part}% of these types' time" in told[name][1] or not part, name
    wide, narrow = (
        mean_of(con, captures.capture_job(con, Scope()), "micro_batches=4") for con in (whole, cut)
    )
    assert wide["predicted_high_ns"] <= 1.05 * narrow["predicted_high_ns"]
    (place,) = cut.execute("select distinct run, capture from ranks").fetchall()
    of_whole, of_cut = (pipeline_answer(con, *place).bubbles for con in (whole, cut))
    assert of_whole is not None and of_cut is not None
    assert of_whole["bubble_ns"].to_list() == pytest.approx(of_cut["bubble_ns"].to_list(), abs=5e4)
    waits, of_later = (suspects(con) for con in (whole, cut))
    assert waits["step_count"].to_list() == of_later["step_count"].to_list() == [3] * 4
    # What waits early in a first later step may go back to before it.
    assert dict(waits.select("rank", "caused_wait_ns").iter_rows()) == pytest.approx(
        dict(of_later.select("rank", "caused_wait_ns").iter_rows()), rel=0.05
    )
    # Of a rank that was read with --steps, kernels of neighbours are there: they are no steps.
    cut.execute("update ranks set kept_steps = [13, 14]")
    keep_summaries(cut)
    chosen = captures.capture_job(cut, Scope())
    assert chosen.ops.steps == [13, 14]
    assert trace_load(cut).rows["step"].unique().sort().to_list() == [13, 14]
    # A step without a next one lasts until its last operation.
    lengths = captures.capture_job(whole, Scope()).measured.lengths()[1:3].tolist()
    assert chosen.measured.lengths().tolist() == pytest.approx(lengths, rel=0.03)


@pytest.mark.slow
def test_a_gain_is_the_answer_of_whatif_to_the_same_changes() -> None:
    slow = replace(SMALL, **SLOW_RANK)
    listed = findings(tables(slow))
    for one in listed:
        assert (one.predicted_gain_ns is None) == (one.no_gain_reason is not None)
        if one.predicted_gain_ns is None:
            continue
        changes = [parse_change(word) for word in one.changes]
        row = whatif_steps(tables(slow), replay_of(slow), changes).row(-1, named=True)
        assert one.predicted_gain_ns == row["replayed_step_ns"] - row["predicted_step_ns"]
        assert one.predicted_gain_high_ns == row["measured_step_ns"] - row["predicted_low_ns"]
    gained = [one.predicted_gain_ns for one in listed]
    assert gained[0] is not None
    values = [-1 if gain is None else gain for gain in gained]
    assert values == sorted(values, reverse=True)
    chosen = next(one for one in findings(tables(slow), Scope(step=13)) if one.name == "late_ranks")
    rows = whatif_steps(tables(slow), replay_of(slow), [parse_change("rank:3=median")])
    own = rows.filter(step=13).row(0, named=True)
    assert chosen.predicted_gain_ns == own["replayed_step_ns"] - own["predicted_step_ns"]


@pytest.mark.slow
def test_where_a_replay_cannot_answer_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    say = language_of("zh")
    con = tables(SMALL)
    for one in findings(con, Scope(rank=1)):
        assert one.predicted_gain_ns is None and one.no_gain_reason
    with monkeypatch.context() as changed:
        changed.setattr(captures, "MOST_OPERATIONS", 100)
        told = {one.name: one.no_gain_reason or "" for one in findings(con)}
    assert "operations: gains are worked out here up to 100" in told["exposed_communication"]
    for reason in told.values():
        assert say(reason) != reason
    with closing(compare_ranks(connect(), SMALL, "delete from launches")) as bare:
        reasons = [one.no_gain_reason or "" for one in findings(bare) if one.name == "device_idle"]
        assert reasons and "no launches were recorded" in reasons[0]


@pytest.mark.slow
def test_stages_evened_out_gain_what_the_even_job_takes_less() -> None:
    first = findings(tables(UNEVEN))[0]
    truth_ns = true_step_ns(UNEVEN) - true_step_ns(EVEN)
    assert (first.name, first.changes) == ("uneven_stages", ("stage:all=mean",))
    assert "stage 1" in first.statement.split(",")[0]
    gain_ns, low_ns, high_ns = price(first)
    assert low_ns <= truth_ns <= high_ns
    assert gain_ns == pytest.approx(truth_ns, abs=0.01 * true_step_ns(EVEN))
    assert truth_ns > 0.05 * true_step_ns(EVEN)
    assert not any("ucket" in one.advice for one in findings(tables(UNEVEN)))


@pytest.mark.slow
def test_a_stage_that_was_not_captured_is_named() -> None:
    gone = [f"delete from {name} where rank = 1" for name in TABLES]
    with closing(compare_ranks(connect(), UNEVEN, *gone)) as con:
        first = findings(con)[0]
    assert (
        first.name == "uncaptured_ranks"
        and "ms of it for a pipeline stage (rank 1)" in first.statement
    )
    assert first.predicted_gain_ns is None and first.no_gain_reason


@pytest.mark.slow
def test_stages_are_evened_out_without_launches_and_coordinates() -> None:
    """As a text export has it: pipeline groups alone tell the stages, and no task tells a peer."""
    told = ("delete from launches", "update ranks set pp_rank = null, tp_rank = null")
    with closing(compare_ranks(connect(), UNEVEN, *told)) as con:
        first = findings(con)[0]
    truth_ns = true_step_ns(UNEVEN) - true_step_ns(EVEN)
    assert first.name == "uneven_stages"
    gain_ns, low_ns, high_ns = price(first)
    assert low_ns <= truth_ns <= high_ns
    assert gain_ns == pytest.approx(truth_ns, abs=0.01 * true_step_ns(EVEN))


@pytest.mark.slow
def test_a_finding_names_the_operator_and_the_line_that_launch_its_kernels() -> None:
    con = tables(SMALL)

    def moved() -> str:
        keep_summaries(con)
        return next(one.statement for one in findings(con) if one.name == "data_setting")

    ended = " 100.0 % of these types' time is on the critical path."
    assert moved().endswith(f" aten::zero_ launches 100.0 % of it.{ended}")
    con.execute(
        "insert into host_ops (run, capture, rank, kind, name, thread_id, start_ns, call_stack)"
        " select run, capture, rank, 'operator', operator_name, operator_thread_id,"
        " operator_start_ns, '/usr/lib/site-packages/torch/optim.py(7): zero' || chr(10)"
        " || 'train.py(42): step' from launches where operator_name = 'aten::zero_'"
    )
    assert moved().endswith(f" aten::zero_ launches 100.0 % of it, at train.py(42): step.{ended}")
    con.execute("delete from host_ops")
    # A call that launches several kernels has a row for each; its time counts once.
    con.execute(
        "update launches set operator_name = 'aten::fill_'"
        " where operator_name = 'aten::zero_' and rank = 0"
    )
    once = moved()
    assert " aten::zero_ launches 100.0 %" not in once
    more = "insert into launches from launches where operator_name = 'aten::fill_'"
    con.execute(";".join([more] * 4))
    assert moved() == once


@pytest.mark.slow
def test_findings_with_changes_of_another_say_that_their_gain_is_within_its() -> None:
    con = tables(replace(SMALL, **SLOW_RANK))
    listed = [one for one in findings(con) if one.predicted_gain_ns is not None]
    told = {one.name: one.within_gain_of for one in listed}
    assert told["late_ranks"] is None and told["stragglers"] == "late_ranks"
    seen: list[tuple[str, set[str]]] = []
    for one in listed:
        holding = [name for name, changes in seen if changes >= set(one.changes)]
        assert one.within_gain_of == (holding[0] if holding else None)
        seen.append((one.name, set(one.changes)))
        assert ("within the gain of late ranks" in gain_words(one)) is (
            one.within_gain_of is not None
        )
    rows = {row["finding"]: row["within_gain_of"] for row in finding_rows(findings(con))}
    assert rows["stragglers"] == "late_ranks" and rows["late_ranks"] is None
    assert "的收益之内" in language_of("zh")(gain_words(listed[[*told].index("stragglers")]))


class _Scattered(int):
    """A time of events that is another for each, and the same in jobs of one structure: 7 us to
    0.7 ms."""

    def __init__(self) -> None:
        self.chance = random.Random(1)

    def __radd__(self, end_ns: int) -> int:
        return end_ns + round(7_000 * math.pow(100, self.chance.random()))


@pytest.mark.slow
def test_gaps_that_nothing_explains_may_wait_for_what_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = replace(SMALL, **SLOW_RANK)
    words = ("rank:3=median", "stage:1=0.9", "kernel:MatMulV3=0.9", "comm:pp=0.5")
    # All of it ten times as long: what starts late does so at one distance, which tells.
    long = opened_frames({
        name: rows.with_columns(
            (pl.col(column) - at) * 10 + at
            for column in rows.columns
            if column.endswith("_ns") and rows[column].dtype == pl.Int64
            for at in [base.start_ns if column.endswith(("start_ns", "end_ns")) else 0]
        )
        for name, rows in canonical_frames(base, tables=TABLES, pipes=False).items()
    })  # fmt: skip
    job = captures.capture_job(long, Scope())
    assert job.residue.max() < 0.01
    for word in words:
        truth_ns = 10 * mean_of(tables(base), replay_of(base), word)["predicted_step_ns"]
        row = mean_of(long, job, word)
        assert row["predicted_low_ns"] < truth_ns < row["predicted_high_ns"], word
        assert row["predicted_step_ns"] == pytest.approx(truth_ns, rel=0.001)
    # Transfers between stages without a number, as in a GPU's trace, and that nobody matches.
    frames = canonical_frames(
        base, tables=[name for name in TABLES if name != "comm_tasks"], pipes=False
    )
    is_transfer = pl.col("op_type").is_in(["send", "receive"])
    truth_ns = mean_of(tables(base), replay_of(base), "rank:3=median")["predicted_step_ns"]
    alike = frames["comm_ops"].with_columns(
        name=pl.when(~is_transfer).then("name").otherwise(pl.lit("ncclDevKernel_SendRecv"))
    )
    unknown = alike.with_columns(group_hash=pl.when(~is_transfer).then("group_hash"))
    for rows, within in ((alike, 0.001), (unknown, 1.0)):
        apart = opened_frames({**frames, "comm_ops": rows})
        row = mean_of(apart, captures.capture_job(apart, Scope()), "rank:3=median")
        assert row["predicted_low_ns"] < truth_ns < row["predicted_high_ns"]
        assert row["predicted_step_ns"] == pytest.approx(truth_ns, rel=within)

    # Starts at any distance tell nothing.
    def scatter() -> None:
        monkeypatch.setattr(simulate, "_EVENT_NS", _Scattered())

    slow, plain = (replace(one, name="scattered") for one in (base, SMALL))
    scatter()
    job = replay_of(slow)
    assert job.residue.max() > 0.5
    for other, word in (
        (plain, "rank:3=median"),
        (replace(slow, compute_by_stage=(1.0, 0.9)), "stage:1=0.9"),
        (replace(slow, slow_kernel="MatMulV3", slow_kernel_factor=0.9), "kernel:MatMulV3=0.9"),
        (replace(slow, compute_by_stage=(0.8, 1.0)), "stage:0=0.8"),
    ):
        row = mean_of(tables(slow), job, word)
        scatter()
        truth_ns = true_step_ns(other)
        assert row["predicted_low_ns"] < truth_ns < row["predicted_high_ns"], word
