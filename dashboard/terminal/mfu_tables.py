"""MFU figures and kernels beside their roofline, for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from npuscope.analysis.wording import UNKNOWN, ms, number, percent, plain

from .tables import Column, FittedTable, decimals, place_columns, several

_tera = decimals("{:,.3f}", 1e12)
_rate = decimals("{:,.1f}")
_ratio = decimals("{:.4f}")


def percent_of_peak(value: float | None) -> str:
    """A share of the peak as per cent, three digits: MFU are compared to tenths of a point."""
    return UNKNOWN if value is None else f"{value * 100:.3f} %"


_KERNEL_MFU = (
    Column("kernel MFU causal", "kernel_mfu_causal_ratio", percent_of_peak),
    Column("full", "kernel_mfu_full_ratio", percent_of_peak),
    Column("matmul only", "matmul_mfu_ratio", percent_of_peak, 1),
)
_MODEL_MFU = (
    Column("model MFU", "model_mfu_ratio", percent_of_peak),
    Column("HFU", "hfu_ratio", percent_of_peak, 1),
)


def mfu_table(frame: pl.DataFrame, conventions: Mapping[str, Sequence[str]]) -> FittedTable:
    """Figures of each rank and step; model figures where there are any."""
    columns = [
        *place_columns(frame),
        Column("step ms", "step_ns", ms),
        Column("matmul TFLOP", "matmul_flops", _tera, 3),
        Column("attention", "attention_flops_full", _tera, 4),
        Column("other", "other_flops", _tera, 6),
        Column("unresolved ms", "unresolved_kernel_ns", ms, 1),
        Column("peak TFLOP/s", "peak_flops_per_s", _tera, 2),
        *_KERNEL_MFU,
        *(_MODEL_MFU if frame["model_flops"].is_not_null().any() else []),
    ]
    peaks = {source: (f"peak: {source}",) for source in frame["peak_source"].drop_nulls()}
    lines = [
        *_convention_lines(frame["conventions"], conventions),
        *_convention_lines(frame["peak_source"], peaks),
    ]
    caption = "; ".join(lines)
    return FittedTable(columns, frame.to_dicts(), "MFU", caption or None)


def gathered_table(frame: pl.DataFrame) -> FittedTable:
    """Figures of stages or of the job, a row per step."""
    columns = [
        *several(frame),
        Column("step", "step", plain),
        *([Column("stage", "stage", plain)] if "stage" in frame.columns else []),
        Column("ranks", "rank_count", number),
        Column("longest ms" if "stage" in frame.columns else "step ms", "step_ns", ms),
        *_KERNEL_MFU,
    ]
    if "model_flops" in frame.columns and frame["model_flops"].is_not_null().any():
        columns += [
            *_MODEL_MFU,
            Column("tokens/s", "tokens_per_s", _rate),
            Column("per NPU", "tokens_per_s_per_rank", _rate),
        ]
    return FittedTable(columns, frame.to_dicts(), "MFU")


def roofline_table(frame: pl.DataFrame) -> FittedTable:
    """Kernels that multiply, by type and shape, with their shares of peak and roofline."""
    columns = [
        *place_columns(frame),
        Column("type", "type"),
        Column("inputs", "input_shapes"),
        Column("output", "output_shapes", None, 6),
        Column("dtype", "dtype", None, 4),
        Column("count", "count", number, 1),
        Column("total ms", "total_ns", ms),
        Column("GFLOP", "flops", decimals("{:,.3f}", 1e9), 3),
        Column("TFLOP/s", "achieved_flops_per_s", _tera),
        Column("of peak", "peak_share_ratio", percent),
        Column("of roofline", "roofline_share_ratio", percent, 2),
        Column("bound", "bound", None, 3),
    ]
    return FittedTable(columns, frame.to_dicts(), "Kernels that multiply matrices")


def log_table(frame: pl.DataFrame) -> FittedTable:
    """Ways of counting beside what the trainer printed, the nearest first: rows of `verdicts`."""
    columns = [
        Column("printed", "figure"),
        Column("counted as", "convention"),
        Column("peak", "peak", None, 2),
        Column("steps", "steps", number, 1),
        Column("printed / ours", "ratio_median", _ratio),
        Column("least", "ratio_min", _ratio, 3),
        Column("most", "ratio_max", _ratio, 3),
        Column("reconciles", "reconciles", _whether),
    ]
    return FittedTable(columns, frame.to_dicts(), "MFU of the training log by counting convention")


def _whether(value: bool | None) -> str:
    return {True: "yes", False: "no", None: UNKNOWN}[value]


def _convention_lines(column: pl.Series, parts_of: Mapping[str, Sequence[str]]) -> list[str]:
    """What the sentences of all rows say, part by part; parts of some rows only are named so."""
    rows = [parts_of[value] for value in column.unique(maintain_order=True).drop_nulls()]
    parts = dict.fromkeys(part for row in rows for part in row)
    return [part if all(part in row for row in rows) else f"of some rows: {part}" for part in parts]
