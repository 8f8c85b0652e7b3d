"""Plans for experts and tests of forecasts as terminal tables."""

from __future__ import annotations

import polars as pl

from npuscope.analysis.wording import UNKNOWN, megabytes, ms, number, percent, plain

from ..tables import Column, FittedTable
from .expert_tables import ratio

_PLACE = ("run", "capture", "phase")


def plan_table(frame: pl.DataFrame) -> FittedTable:
    """Each layer's gain, and the total, whose layer is null."""
    columns = [
        *_several(frame),
        Column("layer", "layer", lambda layer: "all" if layer is None else plain(layer)),
        Column("max/mean now", "max_over_mean_before", ratio),
        Column("planned", "max_over_mean_after", ratio),
        Column("gain ms/step", "predicted_gain_ns", ms),
        Column("moved", "moved_experts_count", number),
        Column("MB", "migration_bytes", megabytes, 1),
        Column("low ms", "gain_low_ns", ms, 2),
        Column("high ms", "gain_high_ns", ms, 2),
        Column("now ms", "before_ns", ms, 4),
        Column("move ms", "migration_ns", ms, 3),
    ]
    caption = "tokens of the most loaded device over the mean; gain: expected, with forecast errors"
    return FittedTable(columns, frame.to_dicts(), "Plan for experts", caption)


def backtest_table(frame: pl.DataFrame) -> FittedTable:
    """What each forecast missed."""
    columns = [
        *_several(frame),
        Column("forecast", "method"),
        Column("best", "is_best", lambda best: "yes" if best else ""),
        Column("error", "error_ratio", percent),
        Column("5 %", "low_ratio", _signed, 1),
        Column("95 %", "high_ratio", _signed, 1),
        Column("steps ahead", "tested_steps", number, 2),
        Column("tests", "origins_count", number, 3),
    ]
    caption = "error: mean error of an expert's share of its layer, over the mean share"
    return FittedTable(columns, frame.to_dicts(), "Forecasts of expert load", caption)


def _signed(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value * 100:+.1f} %"


def _several(frame: pl.DataFrame) -> list[Column]:
    """Columns that tell one plan from another."""
    return [Column(key, key) for key in _PLACE if frame[key].n_unique() > 1]
