"""Published MFU against the conventions that may be behind them."""

from __future__ import annotations

from pathlib import Path

import pytest

from npuscope.analysis.flops.model.describe import model_of
from npuscope.analysis.flops.model.reconcile import (
    Reconciliation,
    out_of_reach,
    published_of,
    reconcile,
)
from npuscope.errors import UsageError

DEEPSEEK = model_of("deepseek-v3")
PANGU = model_of("pangu-ultra-moe-718b")


def best(rows: tuple[Reconciliation, ...]) -> list[tuple[str, str, str, str]]:
    return [
        (
            f"{row.error_ratio:.2%}",
            row.formula,
            f"{row.peak_flops_per_s / 1e12:.1f}",
            " / ".join(f"{value:.2%}" for value in row.predicted_mfu_ratio),
        )
        for row in rows
        if row.reading != "hfu"
    ]


def test_pangu_ultra_moe_is_reconciled() -> None:
    rows = reconcile(PANGU, published_of(PANGU))
    assert best(rows)[:11] == [
        ("0.56%", "8 N, full recompute, N = 39 B", "245.8", "30.17% / 18.91%"),
        ("0.74%", "s = 8192, full, 1 MTP, router", "294.9", "29.93% / 18.76%"),
        ("0.86%", "s = 8192, full, 3 MTP, router", "313.0", "30.26% / 18.96%"),
        ("0.90%", "s = 4096, full, 1 MTP, router", "245.8", "29.89% / 18.73%"),
        ("0.90%", "s = 8192, causal, 1 MTP, router", "245.8", "29.89% / 18.73%"),
        ("1.26%", "s = 8192, full, 0 MTP, router", "280.0", "30.38% / 19.04%"),
        ("1.86%", "s = 8192, full, 3 MTP, router", "320.0", "29.60% / 18.55%"),
        ("3.20%", "s = 4096, causal, 3 MTP, router", "245.8", "29.19% / 18.30%"),
        ("3.39%", "s = 4096, full, 3 MTP, router", "256.0", "31.02% / 19.44%"),
        ("3.39%", "s = 8192, causal, 3 MTP, router", "256.0", "31.02% / 19.44%"),
        ("3.97%", "8 N, full recompute, N = 39 B", "256.0", "28.96% / 18.15%"),
    ]
    assert [row.reconciles for row in rows if row.reading != "hfu"][:6] == [True] * 5 + [False]
    recomputed = {
        (row.formula, f"{row.peak_flops_per_s / 1e12:.0f}"): f"{row.error_ratio:.2%}"
        for row in rows
        if row.reading == "hfu"
    }
    assert recomputed["s = 8192, causal, 1 MTP, router, full recompute", "320"] == "2.01%"
    assert recomputed["s = 8192, full, 1 MTP, router, full recompute", "376"] == "4.35%"


def test_what_is_out_of_reach_of_pangu_ultra_moe() -> None:
    rows = reconcile(PANGU, published_of(PANGU))
    far = {f"{row.peak_flops_per_s / 1e12:.1f}": row for row in out_of_reach(rows)}
    assert set(far) == {"256.0", "280.0", "320.0", "353.9", "363.7", "376.0"}
    nearest = far["353.9"]
    assert nearest.formula == "s = 8192, full, 3 MTP, router"
    assert [f"{value:.1%}" for value in nearest.predicted_mfu_ratio] == ["26.8%", "16.8%"]
    six = [row for row in rows if row.formula.startswith("6 N")]
    assert max(max(row.predicted_mfu_ratio) for row in six) < 0.227


def test_deepseek_v3_is_reconciled() -> None:
    rows = reconcile(DEEPSEEK, published_of(DEEPSEEK))
    first = {row.claim: row for row in reversed(rows) if row.reading != "hfu"}
    assert [
        (row.formula, row.peak_flops_per_s, f"{row.predicted_mfu_ratio[0]:.2%}")
        for row in reversed(first.values())
    ] == [
        ("s = 4096, full, 0 MTP", 989e12, "43.73%"),
        ("s = 4096, causal, 0 MTP", 989e12, "38.94%"),
    ]


def test_reconcile_refuses() -> None:
    with pytest.raises(UsageError, match="no MFU is published"):
        published_of(model_of("qwen3-8b"))


def test_the_table_of_the_docs() -> None:
    """The conventions that reconcile, and no others, stand in docs/mfu.md."""
    text = (Path(__file__).parents[3] / "docs" / "mfu.md").read_text()
    for row in reconcile(PANGU, published_of(PANGU)):
        predicted = " / ".join(f"{value * 100:.2f}" for value in row.predicted_mfu_ratio)
        listed = f"| {predicted} % |" in text
        assert listed == (row.reconciles and row.reading != "hfu"), row.formula
