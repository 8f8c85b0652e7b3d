"""Figures that a trainer logged, reconciled with ours by convention."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npuscope.analysis.flops.log_figures import (
    flops_by_convention,
    reconcile_log,
    verdict_notes,
    verdicts,
)
from npuscope.analysis.flops.model.describe import presets
from npuscope.collector.readers.train_log.train_log import SCHEMA

# FLOPs per token; 1e6 tokens in 10 s on 10 devices: 1e4 tokens/s each, 100 and 150 TFLOP/s.
CONVENTIONS = {"causal": 1e10, "full": 1.5e10}
PEAKS = {"BF16": 400e12, "FP16": 500e12}


def figures(rows: list[dict[str, Any]], **options: Any) -> pl.DataFrame:
    log = pl.DataFrame(rows, schema=SCHEMA)
    told = {"world_size": 10, "tokens_per_step": 1e6, **options}
    return reconcile_log(log, model_flops_by_convention=CONVENTIONS, peaks=PEAKS, **told)


def remarks(frame: pl.DataFrame) -> set[tuple[str, str, str | None]]:
    return set(frame.filter("reconciles").select("figure", "convention", "peak").rows())


def test_each_figure_beside_each_convention() -> None:
    told = figures([{"step": 3, "elapsed_s": 10.0, "tflops_per_s": 150.0, "mfu_ratio": 0.3}])
    assert told.columns == [
        "step", "figure", "convention", "peak", "printed", "ours", "ratio", "reconciles",
    ]  # fmt: skip
    assert told.sort("figure", "convention", "peak").rows() == [
        (3, "mfu_ratio", "causal", "BF16", 0.3, 0.25, 1.2, False),
        (3, "mfu_ratio", "causal", "FP16", 0.3, 0.2, pytest.approx(1.5), False),
        (3, "mfu_ratio", "full", "BF16", 0.3, 0.375, pytest.approx(0.8), False),
        (3, "mfu_ratio", "full", "FP16", 0.3, 0.3, 1.0, True),
        (3, "tflops_per_s", "causal", None, 150.0, 100.0, 1.5, False),
        (3, "tflops_per_s", "full", None, 150.0, 150.0, 1.0, True),
    ]
    assert verdict_notes(told) == [
        "logged mfu_ratio: reconciles with full at FP16",
        "logged tflops_per_s: reconciles with full",
    ]


def test_one_step_that_is_off_decides() -> None:
    rows = [{"step": n, "elapsed_s": 10.0, "tflops_per_s": 100.9} for n in range(5)]
    assert remarks(figures(rows)) == {("tflops_per_s", "causal", None)}
    rows.append({"step": 5, "elapsed_s": 10.0, "tflops_per_s": 101.2})
    told = figures(rows)
    assert remarks(told) == set()
    near = verdicts(told).row(0, named=True)
    assert (near["convention"], near["steps"], near["reconciles"]) == ("causal", 6, False)
    assert (near["ratio_min"], near["ratio_max"]) == pytest.approx((1.009, 1.012))
    assert verdict_notes(told) == [
        "logged tflops_per_s: does not reconcile: nearest is causal, of which the log shows 1.009"
        " times as much"
    ]
    # Each step has its own time.
    rows[-1]["elapsed_s"] = 20.0
    rows[-1]["tflops_per_s"] = 50.0
    assert remarks(figures(rows)) == {("tflops_per_s", "causal", None)}


def test_logged_tokens_show_whose_they_are() -> None:
    of_job = figures([{"step": 1, "elapsed_s": 10.0, "tokens_per_s": 100_000.0}])
    assert remarks(of_job) == {("tokens_per_s", "whole job", None)}
    of_one = figures([{"step": 1, "elapsed_s": 10.0, "tokens_per_s": 10_000.0}])
    assert remarks(of_one) == {("tokens_per_s", "one device", None)}


@pytest.mark.parametrize(("whose", "rate"), [("device", 10_000.0), ("job", 100_000.0)])
def test_a_log_without_times_has_its_rate(whose: str, rate: float) -> None:
    row = {"step": 1, "tokens_per_s": rate, "mfu_ratio": 0.25}
    told = figures([row], tokens_per_step=None, tokens_per_s_of=whose)
    assert remarks(told) == {("mfu_ratio", "causal", "BF16")}


@pytest.mark.parametrize(
    "options", [{"tokens_per_step": None}, {"world_size": None}, {"elapsed_s": None}]
)
def test_what_is_unknown_is_neither_right_nor_wrong(options: dict[str, None]) -> None:
    row: dict[str, float | None] = {"step": 1, "elapsed_s": 10.0, "tflops_per_s": 100.0}
    row |= {name: value for name, value in options.items() if name in row}
    told = figures([row], **{k: v for k, v in options.items() if k not in row})
    assert told.select("ours", "ratio", "reconciles").unique().rows() == [(None, None, None)]
    (note,) = verdict_notes(told)
    assert "cannot be reconciled" in note


def test_a_step_that_is_unknown_leaves_the_rest_unproven() -> None:
    rows = [{"step": 1, "elapsed_s": 10.0, "tflops_per_s": 100.0}, {"step": 2, "tflops_per_s": 9.0}]
    told = figures(rows)
    causal = told.filter(pl.col("convention") == "causal")
    assert causal["reconciles"].to_list() == [None, None]
    assert told.filter(pl.col("convention") == "full")["reconciles"].to_list() == [False, False]


def test_nothing_logged_gives_nothing() -> None:
    for rows in ([], [{"step": 1, "elapsed_s": 10.0, "loss": 1.0}]):
        told = figures(rows)
        assert told.is_empty() and verdict_notes(told) == [] and verdicts(told).is_empty()


@given(
    st.lists(st.tuples(st.floats(0.01, 1e3), st.floats(0.5, 2.0)), min_size=1, max_size=12),
    st.sampled_from(["causal", "full"]),
)
def test_as_step_by_step(steps: list[tuple[float, float]], convention: str) -> None:
    rows = [
        {"step": n, "elapsed_s": s, "mfu_ratio": CONVENTIONS[convention] * 1e5 / s / 400e12 * off}
        for n, (s, off) in enumerate(steps)
    ]
    expected = set()
    for name, flops in CONVENTIONS.items():
        for peak, most in PEAKS.items():
            ratios = [row["mfu_ratio"] / (flops * 1e5 / row["elapsed_s"] / most) for row in rows]
            if any(abs(abs(ratio - 1) - 0.01) < 1e-9 for ratio in ratios):
                return
            if all(abs(ratio - 1) <= 0.01 for ratio in ratios):
                expected.add(("mfu_ratio", name, peak))
    assert remarks(figures(rows)) == expected


def test_conventions_of_a_model() -> None:
    deepseek = flops_by_convention(presets()["deepseek-v3"], sequence_length=4096)
    assert len(deepseek) == 16
    assert deepseek["causal"] == pytest.approx(249.81e9, rel=1e-4)
    assert deepseek["full"] == pytest.approx(280.51e9, rel=1e-4)
    assert deepseek["full, full recompute"] == pytest.approx(deepseek["full"] * 4 / 3)
    dense = flops_by_convention(presets()["llama3-8b"], sequence_length=8192)
    assert list(dense) == ["causal", "full", "causal, full recompute", "full, full recompute"]
