"""Replay of phase-level traces: simulated jobs, a twin without arrays, and published figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuscope.analysis.replay.changes import parse_change
from npuscope.analysis.replay.phases import PhaseJob, phase_job
from npuscope.analysis.replay.what_if import contributions, trust_notes, what_if
from npuscope.collector.readers.phase_trace.phase_trace import PhaseTrace, read_phases
from npuscope.errors import TraceFormatError, UsageError
from tests.analysis.replay.brute_force import BruteForce, Event
from tests.analysis.replay.phase_traces import (
    CLIP,
    EMBEDDING,
    GATHER,
    LAYERNORM,
    SCATTER,
    SEPARATE,
    TAIL,
    Op,
    Plan,
    simulate,
)

ST = "straggler_whatif_ST"
APART = ("gc", LAYERNORM, EMBEDDING, SEPARATE, SCATTER, CLIP, "optimizer")
SHAPES = [
    Plan(pp=1, dp=1, micro_batches=1), Plan(pp=1, dp=3, micro_batches=2),
    Plan(pp=4, dp=1, micro_batches=8, steps=1), Plan(pp=3, dp=2, micro_batches=2),
    Plan(pp=2, dp=2, micro_batches=4, chunks=2), Plan(pp=4, dp=2, micro_batches=4, chunks=3),
    Plan(pp=2, dp=2, tail=APART), Plan(pp=2, dp=2, micro_batches=4, chunks=2, tail=APART),
    Plan(pp=2, dp=2, tail=(), gathers=False), Plan(pp=4, dp=2, tail=(SCATTER, "optimizer")),
]  # fmt: skip
plans = st.builds(
    Plan,
    pp=st.integers(1, 3),
    dp=st.integers(1, 3),
    micro_batches=st.just(6),
    chunks=st.integers(1, 2),
    steps=st.integers(1, 2),
    tail=st.sampled_from([TAIL, APART, (SCATTER, CLIP), ("gc", "optimizer")]),
    gathers=st.booleans(),
    noise=st.sampled_from([0.0, 0.3]),
    delay_s=st.sampled_from([0.0, 0.004]),
    seed=st.integers(0, 10**6),
)


def job_of(rows: pl.DataFrame) -> PhaseJob:
    return phase_job(PhaseTrace(Path("made.parquet"), rows))


def row_of(job: PhaseJob, *changes: str) -> dict[str, Any]:
    return what_if(job, [parse_change(word) for word in changes]).row(0, named=True)


@pytest.mark.parametrize("plan", SHAPES, ids=lambda p: f"pp{p.pp} dp{p.dp} v{p.chunks} {p.tail}")
def test_without_launch_delays_the_simulated_times_are_found_back(plan: Plan) -> None:
    job = job_of(simulate(plan))
    assert job.graph.lengths(job.own_s) == pytest.approx(job.measured_s, rel=1e-12)


@pytest.mark.parametrize(("early_s", "counts"), [(0.005, True), (0.015, False)])
def test_a_transfer_that_ends_far_before_it_starts_is_none(early_s: float, counts: bool) -> None:
    rows = simulate(Plan(pp=1, dp=2, steps=1, tail=(SCATTER,), noise=0))
    # One DP rank ends before the other starts: their clocks differ.
    is_it = (pl.col("optype") == SCATTER) & (pl.col("dp_rank") == 0)
    start = rows.filter(optype=SCATTER)["start_ts"][0]
    shifted = rows.with_columns(
        start_ts=pl.when(is_it).then(start - early_s - 0.001).otherwise("start_ts"),
        duration=pl.when(is_it).then(0.001).otherwise("duration"),
    )
    job = job_of(shifted)
    (own,) = job.own_s[job.optypes == SCATTER, 0]
    assert own.tolist() == pytest.approx([-early_s if counts else 0.0, 0.03])


CAUSES: list[tuple[str, Callable[[Op], bool], float]] = [
    ("comm:pp=0.5", lambda op: op.optype.endswith(("-send", "-recv")), 0.5),
    ("comm:dp=0", lambda op: op.optype in (GATHER, SCATTER), 0),
    ("optype:backward-compute=0.67", lambda op: op.optype == "backward-compute", 0.67),
    ("optype:forward-pp-comm=20", lambda op: op.optype in ("forward-send", "forward-recv"), 20),
    ("stage:1=2", lambda op: op.stage == 1, 2),
    ("worker:0,1=1.7", lambda op: op.dp == 0 and op.stage == 1, 1.7),
    ("rank:3=0.5", lambda op: op.dp == 1 and op.stage == 1, 0.5),
    ("dp_rank:1=0.25", lambda op: op.dp == 1, 0.25),
    ("rank:all=3", lambda op: True, 3),
]


@pytest.mark.parametrize(("word", "chosen", "factor"), CAUSES, ids=[one[0] for one in CAUSES])
@pytest.mark.parametrize("chunks", [1, 2])
def test_a_change_is_predicted_as_it_would_have_been(
    word: str, chosen: Callable[[Op], bool], factor: float, chunks: int
) -> None:
    base = Plan(pp=2, dp=2, chunks=chunks, seed=5)
    changed = replace(base, factor=lambda op: factor if chosen(op) else 1.0)
    found = row_of(job_of(simulate(base)), word)
    truth = job_of(simulate(changed)).measured_s.mean() * 1e9
    assert found["predicted_ns"] == pytest.approx(truth, rel=1e-8)
    assert abs(found["predicted_ns"] - found["replayed_ns"]) > 1e-4 * truth, "changes something"


def agrees_with_brute_force(plan: Plan) -> None:
    rows = simulate(plan)
    twin, job = BruteForce(rows), job_of(rows)
    row = row_of(job)
    own, ideal = (lambda e: twin.own[e]), (lambda e: twin.ideal[e.optype])
    assert job.graph.lengths(job.own_s) == pytest.approx(twin.lengths(own), rel=1e-12)
    length, best = fmean(twin.lengths(own)), fmean(twin.lengths(ideal))
    assert row["replayed_ns"] == pytest.approx(length * 1e9, abs=1)
    assert row["ideal_ns"] == pytest.approx(best * 1e9, abs=1)
    assert row["slowdown"] == pytest.approx(length / best, rel=1e-11)

    def is_of(kind: str, name: str) -> Callable[[Event], bool]:
        passes = {f"{way}-pp-comm": (f"{way}-send", f"{way}-recv")
                  for way in ("forward", "backward")}  # fmt: skip
        return {
            "optype": lambda e: e.optype in passes.get(name, (name,)),
            "stage": lambda e: str(e.stage) == name,
            "dp_rank": lambda e: str(e.dp) == name,
            "worker": lambda e: f"{e.dp},{e.stage}" == name,
        }[kind]

    for one in row["contributions"]:
        expected = twin.alone(is_of(one["kind"], one["name"])) / best
        assert one["slowdown"] == pytest.approx(expected, rel=1e-11), one
    kinds = [one["kind"] for one in row["contributions"]]
    assert (kinds.count("stage"), kinds.count("dp_rank")) == (plan.pp, plan.dp)
    assert kinds.count("worker") == plan.pp * plan.dp
    slow = {(one["kind"], one["name"]): one["slowdown"] for one in row["contributions"]}
    scores = {
        (stage, dp): min(slow["stage", str(stage)], slow["dp_rank", str(dp)])
        for stage, dp in product(range(plan.pp), range(plan.dp))
    }
    worst = min(scores, key=lambda at: (-round(scores[at], 10), at))
    assert row["worst_workers"] == [[worst[1], worst[0]]]
    if abs(length - best) < 1e-9:
        return
    for key, chosen in (
        ("last_stage_share", lambda e: e.stage == plan.pp - 1),
        ("worst_workers_share", lambda e: (e.stage, e.dp) == worst),
    ):
        rest = {event for event in twin.own if not chosen(event)}
        without = twin.alone(rest.__contains__)
        assert row[key] == pytest.approx((length - without) / (length - best), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("seed", [1, 2])
def test_vectors_agree_with_brute_force(seed: int) -> None:
    agrees_with_brute_force(Plan(pp=3, dp=2, micro_batches=3, seed=seed, delay_s=0.01))


@pytest.mark.slow
@given(plan=plans)
@settings(max_examples=25)
def test_vectors_agree_with_brute_force_on_any_structure(plan: Plan) -> None:
    agrees_with_brute_force(plan)


def steady(plan: Plan, factor: float) -> None:
    rows = simulate(plan)
    job, before = job_of(rows), row_of(job_of(rows))
    for word in ("comm:pp=1", "comm:dp=1", "optype:*=1", "stage:0=1", "worker:0,0=1", "rank:all=1"):
        found = row_of(job, word, word)
        assert found["predicted_ns"] == found["replayed_ns"] == before["replayed_ns"]
    shifted = job_of(rows.with_columns(pl.col("start_ts") + 7.25))
    slower = job_of(rows.with_columns(pl.col("start_ts", "duration") * factor))
    for other, times in ((shifted, 1.0), (slower, factor)):
        found = row_of(other)
        for key in ("measured_ns", "replayed_ns", "ideal_ns"):
            assert found[key] == pytest.approx(before[key] * times, rel=1e-9), key
        assert found["slowdown"] == pytest.approx(before["slowdown"], rel=1e-9)
    scaled = row_of(job, f"rank:all={factor}")
    assert scaled["predicted_ns"] == pytest.approx(before["replayed_ns"] * factor, rel=1e-8)


@pytest.mark.parametrize("chunks", [1, 2])
def test_what_changes_nothing_and_what_changes_all_alike(chunks: int) -> None:
    steady(Plan(chunks=chunks, delay_s=0.001, seed=3), 2.5)


@pytest.mark.slow
@given(plan=plans, factor=st.floats(1, 8))
@settings(max_examples=40)
def test_what_changes_nothing_in_any_job(plan: Plan, factor: float) -> None:
    steady(plan, factor)


def test_changes_follow_each_other() -> None:
    job = job_of(simulate(Plan(seed=9, dp=3)))
    row = row_of(job)
    assert row["predicted_ns"] is None
    ideal = row_of(job, "ideal")
    assert ideal["predicted_ns"] == row["ideal_ns"] == row_of(job, "stage:all=ideal")["ideal_ns"]
    assert row_of(job, "rank:all=0")["predicted_ns"] == 0
    # Numbers multiply what others left, whichever was written first.
    for words in ("rank:all=0", "ideal"), ("ideal", "rank:all=0"):
        assert row_of(job, *words)["predicted_ns"] == 0
    both = row_of(job, "comm:pp=0.5", "comm:pp=4")["predicted_ns"]
    assert both == row_of(job, "comm:pp=2")["predicted_ns"]
    # Workers of a stage are alike then: one of three that was slow counts for nothing.
    slow = replace(Plan(seed=9, dp=3, noise=0), factor=lambda op: 3.0 if op.dp == 1 else 1.0)
    even = row_of(job_of(simulate(slow)), "rank:all=median")["predicted_ns"]
    usual = row_of(job_of(simulate(replace(slow, factor=lambda op: 1.0))))["replayed_ns"]
    assert usual == even < row_of(job_of(simulate(slow)))["replayed_ns"]
    assert even == row_of(job_of(simulate(slow)), "worker:1,0=median", "worker:1,1=median")[
        "predicted_ns"]  # fmt: skip


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("comm:pp", "the value is a number"),
        ("comm:pp=fast", "the value is a number"),
        ("comm:pp=-1", "the value is a number"),
        ("comm:pp=nan", "the value is a number"),
        ("comm:pp=inf", "the value is a number"),
        ("comm:pp=", "the value is a number"),
        ("comm=1", "TARGET=VALUE"),
        ("=1", "TARGET=VALUE"),
        ("", "TARGET=VALUE"),
        ("ideal=1", "TARGET=VALUE"),
        ("ideal:x", "stands alone"),
        ("comm:ep=1", "there is pp, dp"),
        ("optype:nothing*=1", "there is backward-compute"),
        ("stage:7=1", "there is 0, 1"),
        ("worker:1=1", "there is 0,0, 1,0"),
        ("rank:9=1", "there is 0, 1, 2, 3"),
        ("dp_rank:2=1", "there is 0, 1"),
        ("rank:all=1e300", "would last centuries"),
        ("kernel:MatMul=0.5", "change one of ideal, optype"),
    ],
)
def test_a_change_of_nothing_is_refused(word: str, told: str) -> None:
    job = job_of(simulate(Plan(steps=1)))
    with pytest.raises(UsageError, match=told):
        row_of(job, word)


def test_trust_says_what_beats_the_mean_step() -> None:
    uneven = Plan(steps=6, noise=0.5, delay_s=0.002)
    job = job_of(simulate(uneven))
    row = row_of(job)
    error = np.abs(job.graph.lengths(job.own_s) / job.measured_s - 1)
    mean = np.abs(job.measured_s.mean() / job.measured_s - 1)
    assert row["replay_error_median_ratio"] == pytest.approx(np.median(error))
    assert row["replay_error_max_ratio"] == pytest.approx(error.max())
    assert row["nothing_changes_error_p90_ratio"] == pytest.approx(np.quantile(mean, 0.9))
    assert row["scaled_error_median_ratio"] < row["replay_error_median_ratio"]
    assert "the mean step, taken for every step" in trust_notes(row, job)[1]
    one = job_of(simulate(Plan(steps=1)))
    row = row_of(one)
    assert row["nothing_changes_error_median_ratio"] is row["scaled_error_max_ratio"] is None
    assert trust_notes(row, one)[1].startswith("one step")


def test_types_without_a_rule_are_named() -> None:
    rows = simulate(Plan(steps=1))
    more = rows.filter(optype="gc").with_columns(optype=pl.lit("tea-break"))
    job = job_of(pl.concat([rows, more]))
    assert job.left_out == ("tea-break",) and row_of(job) == row_of(job_of(rows))
    assert trust_notes(row_of(job), job)[-1].endswith("tea-break")


BROKEN: list[tuple[str, Callable[[pl.DataFrame], pl.DataFrame], str]] = [
    ("cut step", lambda rows: rows.filter(~((pl.col("step") == 13) & (pl.col("dp_rank") == 1)
        & (pl.col("stage") == 0) & (pl.col("optype") == "optimizer"))),
     "step 13, DP rank 1, stage 0, optimizer: 0 phases, and 1 in step 3 of DP rank 0"),
    ("no worker", lambda rows: rows.filter(~((pl.col("step") == 13) & (pl.col("dp_rank") == 1))),
     "step 13, DP rank 1, stage 0"),
    ("no stage", lambda rows: rows.filter(pl.col("stage") != 1), "none of stage 1"),
    ("no receives", lambda rows: rows.filter(pl.col("optype") != "forward-recv"),
     "stage 0: 4 forward-send for 0 forward-recv on stage 1"),
    ("no computes", lambda rows: rows.filter(~pl.col("optype").str.ends_with("compute")),
     "stage 0: it has neither forward-compute"),
    ("a compute less", lambda rows: rows.filter((pl.col("optype") != "forward-compute")
        | (pl.col("mb_id") != 2) | (pl.col("stage") != 1)),
     "stage 1: 4 forward-recv for 3 forward-compute"),
    ("twice", lambda rows: pl.concat([rows, rows[5:6]]), "a row stands twice"),
    ("nothing known", lambda rows: rows.with_columns(optype=pl.lit("x")), "none of them is one"),
    ("no time", lambda rows: rows.with_columns(start_ts=0.0, duration=0.0), "takes 0 s"),
    ("no seconds", lambda rows: rows.with_columns(pl.col("start_ts", "duration") * 1e300),
     "seconds are needed"),
    ("overflow", lambda rows: rows.with_columns(duration=1.7e308, start_ts=1.7e308),
     "a step takes inf s"),
    ("sparse", lambda rows: pl.concat([rows, pl.concat([rows[:1]] * 2000).with_columns(
        step=pl.int_range(pl.len()) + 50, dp_rank=pl.int_range(pl.len()) + 50)]),
     "2002 steps of 2002 DP ranks cannot all"),
    ("clips", lambda rows: rows.filter((pl.col("optype") != CLIP) | (pl.col("stage") != 0)).vstack(
        rows.filter(optype=CLIP, stage=1).with_columns(pl.col("start_ts") + 9)),
     "stages do not have as many"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "broken", "told"), BROKEN, ids=[one[0] for one in BROKEN])
def test_a_broken_structure_is_named(
    name: str, broken: Callable[[pl.DataFrame], pl.DataFrame], told: str
) -> None:
    stages = 3 if name == "no stage" else 2
    rows = broken(simulate(Plan(pp=stages)))
    if name == "clips":  # as many on the stages that have it, and no more
        rows = pl.concat([rows, simulate(Plan(pp=stages)).filter(optype=CLIP, stage=0)])
    with pytest.raises(TraceFormatError, match=told):
        job_of(rows)


def test_a_compute_before_what_it_needs_is_named() -> None:
    rows = simulate(Plan(dp=1, steps=1))
    is_it = (pl.col("optype") == "backward-compute") & (pl.col("stage") == 0)
    early = rows.with_columns(
        start_ts=pl.when(is_it & (pl.col("mb_id") == 0)).then(-1.0).otherwise("start_ts")
    )
    with pytest.raises(TraceFormatError, match=r"stage .*wait for each other"):
        job_of(early)


@pytest.mark.parametrize("chunks", [1, 2])
def test_sends_and_receives_that_carry_nothing_are_left_out(chunks: int) -> None:
    rows = simulate(Plan(chunks=chunks, seed=4))
    before = row_of(job_of(rows))
    workers = rows.select("step", "dp_rank", "rank", "stage").unique()
    computes = rows.filter(pl.col("optype").str.ends_with("compute"))
    last = computes["start_ts"].to_numpy().max() + 1e-3
    filled = {name: pl.lit(-1, pl.Int64) for name in ("mc", "gmc", "mb_id", "seq_id")}
    idle = [
        workers.with_columns(optype=pl.lit(optype), start_ts=pl.lit(start), duration=pl.lit(1e-6))
        .with_columns(**filled)
        .select(rows.columns)
        for optype, start in (
            ("forward-send", 0.001), ("backward-send", 0.0), ("forward-recv", last),
            ("backward-recv", last),
        )
    ]  # fmt: skip
    found = row_of(job_of(pl.concat([rows, *idle])))
    assert found == before


@pytest.fixture(scope="module")
def st_job(real_data: Path) -> PhaseJob:
    return phase_job(read_phases(real_data / ST / "trace-ST.parquet"))


def publish(real_data: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((real_data / ST / f"{name}-ST.json").read_text())
    return found


def test_the_published_figures_are_reproduced(real_data: Path, st_job: PhaseJob) -> None:
    result, row = publish(real_data, "result"), row_of(st_job)
    exact = {
        "measured_ns": 1e9 * fmean(result["step_t_base"].values()),
        "replayed_ns": 1e9 * fmean(result["step_t_nodelay"].values()),
        "ideal_ns": 1e9 * fmean(result["step_t_noblk"].values()),
        "slowdown": result["blocking_slowdown"],
        "launch_slowdown": result["launch_slowdown"],
        "last_stage_share": publish(real_data, "ms")["Ms"],
        "worst_workers_share": publish(real_data, "mw")["Mw"],
    }
    assert {key: row[key] for key in exact} == pytest.approx(exact, rel=1e-7)
    assert row["worst_workers"] == [[1, 3]]
    for one in row["steps"]:
        step = str(one["step"])
        for key, of in (("measured", "base"), ("replayed", "nodelay"), ("ideal", "noblk")):
            assert one[f"{key}_ns"] == pytest.approx(1e9 * result[f"step_t_{of}"][step], rel=1e-8)
        assert one["slowdown"] == pytest.approx(result["blocking_step_slowdown"][step], rel=1e-9)
        launch = result["launch_step_slowdown"][step]
        assert one["measured_ns"] / one["replayed_ns"] == pytest.approx(launch, rel=1e-7)
    errors = [round(row[f"replay_error_{one}_ratio"] * 100, 2) for one in ("median", "p90", "max")]
    assert errors == [1.89, 1.94, 2.01]
    for word, factor in (("comm:pp=0", 1.0012516774513), ("comm:dp=0", 1.0392968710937)):
        found = row_of(st_job, word)
        assert found["replayed_ns"] / found["predicted_ns"] == pytest.approx(factor, rel=1e-8)


def test_the_published_contributions_are_reproduced(real_data: Path, st_job: PhaseJob) -> None:
    result = publish(real_data, "result")
    ideal = float(st_job.graph.lengths(st_job.ideal_s[:, None, None])[0])
    compared = 0
    for one in contributions(st_job):
        mean = result.get(f"blocking_decompose_by_{one.kind}", {}).get(one.name)
        if mean is None:
            assert one.kind == "worker"
            continue
        compared += 1
        assert one.lengths_s.mean() / ideal == pytest.approx(mean, rel=1e-9)
        steps = result[f"blocking_decompose_by_{one.kind}_per_step"]
        for step, length in zip(st_job.steps, one.lengths_s, strict=True):
            assert length / ideal == pytest.approx(steps[str(step)][one.name], rel=1e-9)
    assert compared == sum(
        len(result[f"blocking_decompose_by_{kind}"]) for kind in ("optype", "stage", "dp_rank")
    )


def test_added_and_removed_stages_are_as_published(real_data: Path, st_job: PhaseJob) -> None:
    for name, word in (("ms", "stage:3=ideal"), ("mw", "worker:1,3=ideal")):
        figures = publish(real_data, name)
        found = row_of(st_job, word)
        assert found["predicted_ns"] == pytest.approx(figures["trem"] * 1e9, rel=1e-8)
    alone = {(one.kind, one.name): one.lengths_s.mean() for one in contributions(st_job)}
    assert alone["stage", "3"] == pytest.approx(publish(real_data, "ms")["tadd"], rel=1e-8)
    assert alone["worker", "1,3"] == pytest.approx(publish(real_data, "mw")["tadd"], rel=1e-8)


def test_the_published_trace_agrees_with_brute_force_in_its_arithmetic(
    real_data: Path, st_job: PhaseJob
) -> None:
    rows = pl.read_parquet(real_data / ST / "trace-ST.parquet").with_columns(
        pl.col("optype").cast(pl.String), pl.col("start_ts", "duration").cast(pl.Float64)
    )
    rows = rows.filter(pl.col("step") < 30)
    twin, job = BruteForce(rows), job_of(rows)
    found = job.graph.lengths(job.own_s)
    assert found == pytest.approx(twin.lengths(lambda e: twin.own[e]), rel=1e-12)
    assert found == pytest.approx(st_job.graph.lengths(st_job.own_s)[:2], rel=1e-6)
