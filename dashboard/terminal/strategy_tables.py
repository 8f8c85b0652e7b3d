"""Predictions of jobs and strategies, as terminal tables and as rows for JSON."""

from __future__ import annotations

import polars as pl
from rich.console import RenderableType

from npuscope.analysis.strategy.predict import Interval, Prediction
from npuscope.analysis.wording import ms, percent

from .tables import Column, FittedTable, decimals

_gib = decimals("{:,.2f}", 2.0**30)
_ms = decimals("{:,.1f}", 1e6)
_FIGURES = {
    "step_s": ("step (s)", decimals("{:,.3f}", 1)),
    "tokens_per_s": ("tokens/s", decimals("{:,.0f}", 1)),
    "tokens_per_s_per_rank": ("tokens/s per NPU", decimals("{:,.1f}", 1)),
    "mfu": ("MFU", percent),
    "first_peak_bytes": ("peak of the first step (GiB)", _gib),
    "peak_bytes": ("peak of later steps (GiB)", _gib),
    "allocated_bytes": ("allocated after a step (GiB)", _gib),
}


def prediction_table(prediction: Prediction) -> RenderableType:
    """Each figure with its interval."""
    rows = []
    for name, (label, write) in _FIGURES.items():
        interval: Interval = getattr(prediction, name)
        rows.append({"figure": label} | {
            end: write(value) for end, value in interval._asdict().items()
        })  # fmt: skip
    columns = [Column(name, name, str) for name in ("figure", "low", "predicted", "high")]
    return FittedTable(columns, rows, "Predicted, with intervals of 90 %")


def parts_table(parts: pl.DataFrame) -> RenderableType:
    """Rows of the metric `predict`."""
    return FittedTable(
        [Column("part", "part", str), Column("ms", "ns", _ms), Column("share", "ratio", percent)],
        parts.filter(pl.col("ns") > 0).to_dicts(),
        "Step by part",
    )


def memory_table(memory: pl.DataFrame) -> RenderableType:
    """Rows of the metric `predict_memory`."""
    kinds = [
        Column(name.removesuffix("_bytes").replace("_", " "), name, _gib)
        for name in memory.columns[1:]
    ]
    columns = [Column("stage", "stage", str), *kinds]
    return FittedTable(columns, memory.to_dicts(), "Memory of each stage (GiB)")


def figures(prediction: Prediction) -> dict[str, dict[str, float]]:
    """Each figure with its interval, for JSON."""
    return {name: getattr(prediction, name)._asdict() for name in _FIGURES}


def strategies_table(strategies: pl.DataFrame) -> RenderableType:
    """Rows of the metric `search`."""
    sizes = ("tp", "pp", "vpp", "cp", "ep", "dp", "micro_batch", "recompute", "last_layers")
    return FittedTable(
        [
            *(Column(name.replace("_", " "), name, str) for name in sizes),
            Column("step (ms)", "step_ns", _ms),
            Column("peak (GiB)", "peak_bytes", _gib),
            Column("fits", "fits", _yes),
            Column("front", "is_front", _yes),
            Column("limit", "limit", str),
            Column("of the step", "limit_ratio", percent),
        ],
        strategies.to_dicts(),
        "Strategies, those that fit first, fastest first",
    )


def running_table(rows: pl.DataFrame) -> RenderableType:
    """The row of the metric `search_running`."""
    sizes = ("tp", "pp", "vpp", "cp", "ep", "micro_batch")
    return FittedTable(
        [
            *(Column(name.replace("_", " "), name, str) for name in sizes),
            Column("step (ms)", "step_ns", _ms),
            Column("peak (GiB)", "peak_bytes", _gib),
            Column("fits", "fits", _yes),
            Column("place", "place", str),
            Column("saved by the best", "saved_ratio", percent),
        ],
        rows.to_dicts(),
        "The running strategy",
    )


def calibration_table(constants: pl.DataFrame) -> RenderableType:
    """Rows of the metric `calibration`: what captures measured, then what is kept."""
    return FittedTable(
        [
            Column("constant", "constant", str),
            Column("built-in", "usual", _figure),
            Column("measured", "value", _figure),
            Column("change", "changed_ratio", decimals("{:.2f} x", 1)),
            Column("from", "measured_count", lambda count: f"{count:,}" if count else ""),
            Column("of", "source", lambda source: source or "kept"),
            Column("unit", "unit", str),
        ],
        constants.to_dicts(),
        "Constants",
    )


def plan_table(plan: pl.DataFrame) -> RenderableType:
    """Rows of the metric `memory_plan`."""
    return FittedTable(
        [
            Column("stage", "stage", str),
            Column("activations", "kind", lambda kind: kind or ""),
            Column("action", "action", str),
            Column("layers", "layers", str),
            Column("saved (GiB)", "saved_bytes", _gib),
            Column("lost (ms)", "lost_ns", _ms),
            Column("peak (GiB)", "peak_bytes", _gib),
        ],
        plan.to_dicts(),
        "Memory plan",
    )


def measured_plan_table(plan: pl.DataFrame) -> RenderableType:
    """Rows of the metric `measured_memory_plan`."""
    first = plan.row(0, named=True)
    low, high = ms(first["predicted_low_ns"]), ms(first["predicted_high_ns"])
    return FittedTable(
        [
            Column("stage", "stage", str),
            Column("chunk", "chunk", lambda chunk: "" if chunk is None else str(chunk), 2),
            Column("activations", "kind", lambda kind: kind or ""),
            Column("action", "action", str),
            Column("layers", "layers", str),
            Column("of", "of_layers", lambda count: "" if count is None else str(count), 2),
            Column("lost (ms)", "lost_ns", ms),
            Column("peak (GiB)", "measured_peak_bytes", _gib),
            Column("unused", "unused_bytes", lambda n: "" if n is None else _gib(n), 2),
            Column("with the plan", "peak_bytes", _gib),
        ],
        plan.to_dicts(),
        f"Memory plan: a step of {ms(first['measured_step_ns'])} ms takes"
        f" {ms(first['predicted_step_ns'])} ({low} - {high})",
    )


def _yes(value: bool) -> str:
    return "yes" if value else ""


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
