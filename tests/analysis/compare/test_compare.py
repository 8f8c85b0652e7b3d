"""Two runs compared: planted causes in the right rows, sums to the ns, and honest intervals."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from bench.analysis.compare_bench import judge
from npuscope.analysis.compare.baseline import baseline_bytes, read_baseline
from npuscope.analysis.compare.difference import Comparison, compare, recorded_differently, remarks
from npuscope.analysis.compare.side import (
    KERNEL,
    MEASURES,
    Side,
    kernels_in_full,
    measure,
    together,
)
from npuscope.analysis.flops.mfu import mfu
from npuscope.analysis.memo import remember
from npuscope.analysis.scope import ALL
from npuscope.analysis.views import frame
from npuscope.collector.store import store
from npuscope.errors import UsageError
from npuscope.profile import summary_versions
from npuscope.sample_traces.frames import canonical_frames
from npuscope.sample_traces.job import Job, small
from tests.analysis.tables import connect, keep_summaries, put

TABLES = ("ranks", "groups", "steps", "kernels", "comm_ops", "launches")
# Every rank does the same, so that what is planted is not spread over waiting.
JOB = Job(name="compared", layers=4, tp=2, dp=8, pp=1, ep=4, steps=4, noise=0.03, seed=11)
EXPOSED = ("transfer", "peer_wait", "pipeline_wait", "unknown_communication")
CAUSES: dict[str, tuple[dict[str, Any], Callable[[pl.Expr, pl.Expr, pl.Expr], pl.Expr]]] = {
    "kernel longer": (
        {"slow_kernel": "FlashAttentionScoreGrad"},
        lambda part, name, how: (name == "FlashAttentionScoreGrad") & (how == "duration"),
    ),
    "vector kernel longer": (
        {"slow_kernel": "ApplyAdamWV2", "slow_kernel_factor": 1.6},
        lambda part, name, how: (name == "ApplyAdamWV2") & (how == "duration"),
    ),
    "launched twice": (
        {"repeated_kernel": "ApplyAdamWV2"},
        lambda part, name, how: (name == "ApplyAdamWV2") & (how == "count"),
    ),
    "other shapes": (
        {"ffn": 4096},
        lambda part, name, how: name.is_in(["GroupedMatmul", "SwiGlu", "SwiGluGrad"])
        | part.is_in(EXPOSED),  # gradients of wider experts are more bytes, too
    ),
    "link slower": (
        {"slow_link": (3,), "slow_link_factor": 3.0}, lambda part, name, how: part.is_in(EXPOSED)
    ),
    "overlap lost": (  # matrix multiplications hide it, each as long as what it hides
        {"overlap": 0.0},
        lambda part, name, how: part.is_in(EXPOSED) | (name == "MatMulV3").fill_null(False),
    ),
    "skew of experts": (
        {"expert_skew": 1.6},
        lambda part, name, how: part.is_in(EXPOSED)
        | name.str.contains("Grouped|SwiGlu|Moe").fill_null(False),
    ),
    "slow rank": (
        {"slow_rank": 5},
        lambda part, name, how: part.is_in(EXPOSED)
        | name.str.contains("Mat|Flash").fill_null(False),
    ),
    "slow host": (
        {"slow_host": 1, "slow_host_factor": 20.0},
        lambda part, name, how: part.is_in([*EXPOSED, "host", "idle", "free"]),
    ),
    "more micro-batches": (
        {"micro_batches": 4},
        lambda part, name, how: (how == "count") | part.is_in(EXPOSED) | (how == "shape"),
    ),
    "longer sequences": (
        {"sequence": 4096},
        lambda part, name, how: (how == "shape") | part.is_in(EXPOSED),
    ),
}  # fmt: skip


@cache
def side(job: Job, *, in_full: bool = False) -> Side:
    with connect() as con:
        put(con, canonical_frames(job, tables=TABLES, pipes=False))
        keep_summaries(con)
        remember(con)  # as a command does
        found = measure(con, ALL)
        return found.with_kernels(kernels_in_full(con, ALL)) if in_full else found


def adds_up(found: Comparison) -> None:
    assert found.rows["a_ns"].sum() == found.step_a_ns
    assert found.rows["b_ns"].sum() == found.step_b_ns
    assert found.rows["delta_ns"].sum() == found.delta_ns == found.step_b_ns - found.step_a_ns


@pytest.mark.slow
@pytest.mark.parametrize("cause", CAUSES)
def test_a_planted_cause_stands_in_its_row(cause: str) -> None:
    changes, where = CAUSES[cause]
    found = compare(side(JOB), side(replace(JOB, **changes)))

    adds_up(found)
    assert found.delta_ns > 0.01 * found.step_a_ns
    assert found.delta_low_ns is not None and found.delta_high_ns is not None
    assert found.delta_low_ns <= found.delta_ns <= found.delta_high_ns
    # Steps of this job differ by some 3 %: of small changes four of them cannot be sure.
    assert found.verdict == ("different" if found.delta_low_ns > 0 else "not_enough")
    right = found.rows.filter(where(pl.col("part"), pl.col("name"), pl.col("change")))
    assert right["delta_ns"].sum() == pytest.approx(found.delta_ns, rel=0.05)
    # Of one layout with unknown tokens: whether a step does other work.
    is_said = any(note.startswith("tokens per step may differ") for note in remarks(found))
    other = ("other shapes", "overlap lost", "more micro-batches", "longer sequences")
    assert is_said is (cause in other)


def test_itself_and_backwards() -> None:
    job = small(steps=3)
    ours, theirs = side(job), side(replace(job, repeated_kernel="ApplyAdamWV2"))
    itself = compare(ours, ours)
    adds_up(itself)
    assert itself.verdict != "different" and set(itself.rows["delta_ns"]) == {0}
    steady = steps_only([1e7, 1.001e7, 1.002e7])
    assert compare(steady, steady).verdict == "same"
    there, back = compare(ours, theirs), compare(theirs, ours)
    assert back.delta_ns == -there.delta_ns
    assert there.delta_low_ns is not None and there.delta_high_ns is not None
    assert (back.delta_low_ns, back.delta_high_ns) == (-there.delta_high_ns, -there.delta_low_ns)


def test_use_memory_and_experts_are_measured_where_recorded() -> None:
    job = small(steps=3)
    frames = canonical_frames(job, tables=(*TABLES, "memory", "expert_load"), pipes=False)
    with connect() as con:
        put(con, frames)
        whole = measure(con, ALL)
        ranks = mfu(con, ALL).rows
        windows = frame(con, "select rank, step, window_start_ns, window_end_ns from steps")
        con.execute("delete from memory where rank = 1")
        con.execute("delete from expert_load where step = 12")
        con.execute("update ranks set chip_name = null, ai_core_count = null")
        con.execute("update kernels set type = null, input_shapes = null")
        lacking = measure(con, ALL)

    held = frames["memory"].filter(pl.col("component") == "PTA+GE").join(windows, on="rank")
    held = held.filter(pl.col("timestamp_ns") < pl.col("window_end_ns"))
    # A level stays until the next record: that before the step counts with those inside.
    before = pl.col("timestamp_ns") < pl.col("window_start_ns")
    levels = held.sort("timestamp_ns").group_by("step", "rank").agg(
        pl.max_horizontal(
            pl.col("allocated_bytes").filter(~before).max(),
            pl.col("allocated_bytes").filter(before).last(),
        )
    )  # fmt: skip
    assert whole.steps.select("step", "peak_memory_bytes").rows() == [
        (step, float(most))
        for step, most in levels.group_by("step").agg(pl.col("allocated_bytes").max())
        .sort("step").rows()
    ]  # fmt: skip
    tokens = frames["expert_load"].group_by("step", "layer", "expert").agg(pl.col("tokens").sum())
    of_layers = tokens.group_by("step", "layer").agg(
        pl.col("tokens").max() / pl.col("tokens").mean()
    )
    uneven = of_layers.group_by("step").agg(pl.col("tokens").mean()).sort("step")
    assert whole.steps["expert_max_over_mean"].to_list() == pytest.approx(
        uneven["tokens"].to_list()
    )
    possible = pl.col("step_ns") * pl.col("peak_flops_per_s")
    flops = (pl.col("kernel_mfu_causal_ratio") * possible).sum() / possible.sum()
    use = ranks.group_by("step").agg(flops.alias("use")).sort("step")
    assert whole.steps["kernel_mfu_causal_ratio"].to_list() == pytest.approx(use["use"].to_list())

    # It grows from step to step: a capture of more steps has no more for that.
    assert whole.steps["peak_memory_bytes"].is_sorted() and levels.height == 6
    shorter = replace(whole, steps=whole.steps.head(2))
    told = compare(shorter, whole).figures.row(
        by_predicate=pl.col("measure") == "peak_memory_bytes", named=True
    )
    assert told["a"] == told["b"] == whole.steps["peak_memory_bytes"].head(2).mean()

    # Of a rank of the job nothing is known: of the job neither.
    assert lacking.steps["peak_memory_bytes"].to_list() == [None] * 3
    assert lacking.steps["kernel_mfu_causal_ratio"].to_list() == [None] * 3
    assert lacking.steps["expert_max_over_mean"].is_null().to_list() == [True, False, False]
    figures = compare(whole, lacking).figures.rows_by_key("measure", named=True, unique=True)
    for name in ("peak_memory_bytes", "kernel_mfu_causal_ratio"):
        told = figures[name]
        assert told["a"] and [told[key] for key in ("b", "delta", "low", "high")] == [None] * 4
        assert told["verdict"] == "not_enough"


def test_memory_of_captures_without_steps_is_that_of_the_capture() -> None:
    frames = canonical_frames(small(), tables=(*TABLES, "memory"), pipes=False)
    with connect() as con:
        put(con, {name: rows for name, rows in frames.items() if name != "steps"})
        con.execute("update kernels set step = null; update comm_ops set step = null")
        whole = measure(con, ALL)
        con.execute("delete from memory where allocated_bytes is not null")
        without = measure(con, ALL)
    most = frames["memory"].filter(pl.col("component") == "PTA+GE")["allocated_bytes"].max()
    assert whole.steps.select("step", "peak_memory_bytes").rows() == [(None, most)]
    # All of a capture is no step of another, and what a process reserved is not what the framework
    # allocated.
    found = compare(side(small()), whole)
    assert found.ends == "no_steps" and found.verdict == "not_enough"
    notes = " ".join(remarks(found))
    assert "one side has no steps" in notes and "record steps on both sides" in notes
    other = compare(whole, without)
    assert other.ends is None and other.changes["memory_curve"][0] == "allocated"
    told = other.figures.row(by_predicate=pl.col("measure") == "peak_memory_bytes", named=True)
    assert (told["a"], told["b"]) == (None, None)
    assert without.steps["peak_memory_bytes"].count() == 1


@pytest.mark.slow
def test_kinds_of_kernels_tell_what_kernels_do() -> None:
    ours, theirs = small(steps=3), small(steps=3, repeated_kernel="ApplyAdamWV2", ffn=2048)
    kept = compare(side(ours), side(theirs))
    full = compare(side(ours, in_full=True), side(theirs, in_full=True))
    assert kept.rows.equals(full.rows)


_PAUSE_NS = 1_000_000


def cut(job: Job, kept: pl.Expr | None = None, column: str = "step") -> Side:
    """A side of those rows of a job with the column that are `kept`, a pause after each step."""
    frames = canonical_frames(
        job, tables=("ranks", "groups", "steps", "kernels", "comm_ops"), pipes=False
    )
    first = frames["steps"]["step"].min()
    for name, rows in frames.items():
        if "step" in rows.columns:
            moments = [one for one in ("start_ns", "end_ns") if one in rows.columns]
            rows = rows.with_columns(pl.col(moments) + (pl.col("step") - first) * _PAUSE_NS)
        frames[name] = rows if kept is None or column not in rows.columns else rows.filter(kept)
    with connect() as con:
        put(con, frames)
        keep_summaries(con)
        remember(con)
        return measure(con, ALL)


def test_two_cuts_of_one_capture_do_not_differ(tmp_path: Path) -> None:
    """A last step is measured to its own end: the fewer steps, the more of them are last ones."""
    job = small(steps=6)
    whole = cut(job)
    times = whole.steps["step_ns"].to_list()
    assert whole.steps["is_last"].to_list() == [False] * 5 + [True]
    assert times[-1] < min(times[:-1]) - 0.9 * _PAUSE_NS

    step = whole.steps["step"][0]
    for name, chosen, ends in (
        ("three in a row", pl.col("step") <= step + 2, "to_next"),
        ("every other", (pl.col("step") - step) % 2 == 0, "to_end"),
        ("one", pl.col("step") == step, "to_end"),
    ):
        part = cut(job, chosen, "step")
        found = compare(part, whole)
        adds_up(found)
        assert found.ends == ends, name
        assert found.verdict != "different", name
        assert found.step_a_ns == pytest.approx(found.step_b_ns, rel=0.02), name
        mfu_of = found.figures.filter(measure="kernel_mfu_causal_ratio").row(0, named=True)
        assert mfu_of["a"] == pytest.approx(mfu_of["b"], rel=0.02), name
        assert len(recorded_differently(found)) == 1
        kept = tmp_path / "base.json"
        kept.write_bytes(baseline_bytes(part))
        assert compare(read_baseline(kept), whole).step_b_ns == found.step_b_ns
    assert compare(whole, whole).ends is None

    # Captures of two and six steps beside one of six: half as much passes where half are last ones.
    two = cut(job, pl.col("step") <= step + 1)
    several = together([two, whole])
    kept.write_bytes(baseline_bytes(several))
    for captures in (several, read_baseline(kept)):
        found = compare(captures, whole)
        adds_up(found)
        (between,) = found.rows.filter(part="between_steps").to_dicts()
        assert found.ends == "to_next" and between["a_ns"] > 0.7 * _PAUSE_NS
        assert abs(between["delta_ns"]) < 0.01 * between["a_ns"]


def test_other_ranks_of_a_job_are_no_other_run(tmp_path: Path) -> None:
    job = small(steps=4)
    whole = cut(job)
    ranks = sorted(whole.ranks)
    half = cut(job, pl.col("rank") >= ranks[len(ranks) // 2], "rank")
    found = compare(whole, half)
    adds_up(found)
    assert found.verdict == "not_enough" and not set(found.figures["verdict"]) & {"different"}
    assert found.figures["delta"].drop_nulls().abs().sum() > 0
    (note,) = recorded_differently(found)
    assert note.startswith(f"other ranks of one job (A {ranks[0]}-{ranks[-1]}; B ")
    kept = tmp_path / "base.json"
    kept.write_bytes(baseline_bytes(half))
    assert compare(whole, read_baseline(kept)).ranks == found.ranks


def test_steps_without_communication_have_no_masking() -> None:
    alone = side(small(steps=3, layers=1, tp=1, dp=1, pp=1, ep=1, experts=0))
    assert alone.parts.filter(pl.col("part").is_in(EXPOSED)).is_empty()
    found = compare(alone, alone)
    row = found.figures.row(by_predicate=pl.col("measure") == "masking_ratio", named=True)
    assert [row[name] for name in ("a", "b", "delta", "low", "high")] == [None] * 5


def test_a_side_without_types_and_shapes_is_compared_by_name() -> None:
    """As Level0 against Level1: nothing changed, so nothing is new, gone or of another shape."""
    ours = side(small(steps=3), in_full=True)
    lacking = replace(
        ours,
        kernels=ours.kernels.with_columns(
            pl.lit(None, pl.String).alias("type"), pl.lit(None, pl.String).alias("shape")
        ),
    )
    for found in (compare(ours, lacking), compare(lacking, ours)):
        adds_up(found)
        assert set(found.rows["delta_ns"]) == {0}
        assert set(found.rows["change"].drop_nulls()) <= {"duration", "at_once"}


def test_a_side_without_kernels_has_computing_in_one() -> None:
    ours = side(small(steps=3))
    found = compare(ours, replace(ours, kernels=ours.kernels.clear()))
    adds_up(found)
    told = found.rows.filter(pl.col("part") == "computing", pl.col("change").is_null())
    (row,) = told.to_dicts()
    gone = found.rows.filter(pl.col("change") == "gone")
    assert row["name"] is None and row["delta_ns"] == pytest.approx(-gone["delta_ns"].sum(), abs=99)


def steps_only(times_ns: Collection[float], run: str = "r") -> Side:
    """A side of nothing but times of steps."""
    count = len(times_ns)
    steps = pl.DataFrame(
        {"run": [run] * count, "capture": ["c"] * count, "step": range(count),
         "step_ns": [float(t) for t in times_ns],
         **{name: [None] * count for name in MEASURES}},
        schema_overrides=dict.fromkeys(MEASURES, pl.Float64),
    )  # fmt: skip
    parts = pl.DataFrame(schema={"part": pl.String, "name": pl.String, "ns": pl.Float64})
    kernels = pl.DataFrame(
        schema={**dict.fromkeys(KERNEL, pl.String), "count": pl.Float64, "total_ns": pl.Float64}
    )  # fmt: skip
    return Side(steps, parts, kernels, {})


def test_too_few_steps_are_not_enough() -> None:
    one = compare(steps_only([1e7]), steps_only([2e7]))
    assert (one.verdict, one.delta_ns, one.delta_low_ns) == ("not_enough", 10**7, None)
    assert one.rows.select("part", "delta_ns").rows() == [("latest_rank", 10**7)]
    noisy = compare(steps_only([1.0e7, 1.2e7, 0.9e7]), steps_only([1.1e7, 1.0e7, 1.2e7]))
    assert noisy.verdict == "not_enough" and noisy.more is None  # more than anybody records
    fair = compare(steps_only([1.00e7, 1.03e7, 1.01e7]), steps_only([1.01e7, 1.02e7, 1.00e7]))
    assert fair.verdict == "not_enough" and fair.more is not None and 3 < fair.more < 100


def test_the_interval_by_hand() -> None:
    # Two of four steps, each with the variance 1/3 of 1e5 squared; Welch's degrees are then 6.
    ours, theirs = [1.00e7, 1.01e7, 1.00e7, 1.01e7], [1.10e7, 1.11e7, 1.10e7, 1.11e7]
    found = compare(steps_only(ours), steps_only(theirs))
    half = 2.446912 * (2 * (1e10 / 3) / 4) ** 0.5  # the two-sided 95 % point of 6 degrees
    assert found.verdict == "different" and found.delta_ns == 10**6
    assert found.delta_low_ns == pytest.approx(1e6 - half, abs=2)
    assert found.delta_high_ns == pytest.approx(1e6 + half, abs=2)


def test_captures_are_the_unit_where_there_are_several() -> None:
    """Captures of one side that differ more than their steps: the difference is within them."""
    dice = np.random.default_rng(4)
    monday, tuesday, new = (
        steps_only(level * (1 + 0.001 * dice.standard_normal(10)))
        for level in (1.00e7, 1.06e7, 1.04e7)
    )
    assert compare(monday, new).verdict == "different"
    found = compare(together([monday, tuesday]), new)
    assert found.unit == "capture" and found.verdict == "not_enough"
    assert found.step_a_ns == pytest.approx(1.03e7, rel=0.002)


def test_a_capture_beside_itself_is_no_second_one() -> None:
    """Between the two nothing varies: any difference to another would be called real."""
    one = steps_only([1.00e7, 1.03e7, 1.01e7])
    renamed = replace(one, steps=one.steps.with_columns(run=pl.lit("copy")))
    with pytest.raises(UsageError, match="the same capture twice"):
        together([one, steps_only([1.00e7, 1.02e7, 1.01e7]), renamed])


@pytest.mark.slow
@pytest.mark.parametrize(("rho", "most"), [(0.0, 0.08), (0.5, 0.08)])
def test_alike_is_seldom_called_different(rho: float, most: float) -> None:
    """600 pairs of 40 steps; steps that follow each other's level are no independent witnesses."""
    dice = np.random.default_rng(7)

    def steps() -> Side:
        noise = dice.standard_normal(60)
        for at in range(1, 60):
            noise[at] += rho * noise[at - 1]
        return steps_only(1e7 * (1 + 0.02 * noise[20:]))

    verdicts = [compare(steps(), steps()).verdict for _ in range(600)]
    assert verdicts.count("different") / len(verdicts) <= most + (0.06 if rho else 0.0)


@pytest.mark.slow
def test_the_interval_covers_the_truth_and_finds_three_percent() -> None:
    dice = np.random.default_rng(3)
    found = [
        compare(
            steps_only(1e7 * (1 + 0.02 * dice.standard_normal(10))),
            steps_only(1.03e7 * (1 + 0.02 * dice.standard_normal(10))),
        )
        for _ in range(1000)
    ]
    covered = [(one.delta_low_ns or 0) <= 3e5 <= (one.delta_high_ns or 0) for one in found]
    assert 0.92 <= np.mean(covered) <= 0.98
    assert np.mean([one.verdict == "different" for one in found]) >= 0.85


@pytest.mark.slow
def test_a_tenth_of_what_the_bench_holds() -> None:
    """Pairs of generated jobs, as compare_bench --full has 200 of each kind."""
    told = judge(20)
    assert told.false <= 0.08 and told.found >= 0.90 and told.covered >= 0.90


def test_each_setting_that_differs_is_a_fact() -> None:
    def told(*environments: str, model: str | None = None) -> Side:
        facts = {"environment": frozenset(environments), "cann_version": frozenset({"8.3"}),
                 "model_config": frozenset([model] if model else [])}  # fmt: skip
        return replace(steps_only([1e7]), facts=facts)

    expanding = '{"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True", "HCCL_ALGO": "ring"}'
    found = compare(told("{}"), told(expanding, model='{"layers": "4"}'))
    assert found.changes == {
        "HCCL_ALGO": ("not set", "ring"),
        "PYTORCH_NPU_ALLOC_CONF": ("not set", "expandable_segments:True"),
    }
    deeper = compare(
        told(expanding, model='{"layers": "4", "hidden_size": "1"}'),
        told(expanding, "{}", model='{"layers": "8", "hidden_size": "1"}'),
    ).changes
    assert deeper["layers"] == ("4", "8") and deeper["HCCL_ALGO"] == ("ring", "not set, ring")
    assert not compare(told("[[]]"), told('{"a": 1}')).changes  # none of ours


def test_several_runs_are_refused() -> None:
    with connect() as con:
        put(con, canonical_frames(small(), tables=TABLES))
        con.execute("insert into kernels by name select * replace ('other' as run) from kernels")
        with pytest.raises(UsageError, match="several runs here"):
            measure(con, ALL)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["alexnet_ddp_text_level1", "alexnet_ddp_db_level0"])
def test_real_profiles_against_themselves(name: str, real_stores: Callable[[str], Path]) -> None:
    with store.open(real_stores(name), summaries=summary_versions()) as con:
        found = compare(measure(con, ALL), measure(con, ALL))
    adds_up(found)
    assert set(found.rows["delta_ns"]) == {0}
