"""Operators by class and tensors as terminal tables."""

from __future__ import annotations

import polars as pl

from npuscope.analysis.operators.causes import CAUSE_WORDS
from npuscope.analysis.wording import ms, number, percent, plain, us
from npuscope.messages import Message

from .tables import Column, FittedTable, decimals, several

CLASS_WORDS = {
    "matmul": Message("matmul"),
    "matmul_batched": Message("batched matmul"),
    "matmul_grouped": Message("grouped matmul"),
    "attention_forward": Message("attention forward"),
    "attention_backward": Message("attention backward"),
    "convolution": Message("convolution"),
    "communication_fused": Message("fused with communication (MC2)"),
    "vector": Message("vector"),
    "ai_cpu": Message("AI CPU"),
    "dsa": Message("DSA"),
    "other": Message("other kernels"),
}
_TITLES = {
    "shape": "Headroom of operators (mean of ranks and steps)",
    "class": "Classes of operators (mean of ranks and steps)",
    "step": "Classes of operators of each step",
    "pmu": "FLOPs over time beside PMU counters",
    "cause": "Causes of slow operators (mean of ranks and steps)",
    "evidence": "Evidence of causes (mean of ranks and steps)",
}
_WIDEST = 40


def table_of(key: str, frame: pl.DataFrame, *, left_out: int = 0) -> FittedTable:
    """Rows of the metric that `npuscope operators --by KEY` answers with."""
    caption = f"{left_out:,} more rows: --top, --json" if left_out else None
    name, words = ("cause", CAUSE_WORDS) if key in ("cause", "evidence") else ("class", CLASS_WORDS)
    rows = frame.with_columns(words=pl.col(name).replace(words))
    if "input_shapes" in frame.columns:
        shapes = pl.col("input_shapes")
        cut = pl.when(shapes.str.len_chars() > _WIDEST).then(shapes.str.head(_WIDEST - 3) + "...")
        rows = rows.with_columns(shapes=cut.otherwise(shapes))
    return FittedTable(_columns(key, frame), rows.to_dicts(), _TITLES[key], caption)


def _columns(key: str, frame: pl.DataFrame) -> list[Column]:
    one = decimals("{:,.1f}")
    if key == "class":
        return [
            *several(frame), Column("class", "words", is_word=True), Column("count", "count", one),
            Column("total ms", "total_ns", ms), Column("of all", "total_share_ratio", percent),
            Column("computing ms", "computing_ns", ms),
            Column("of computing", "share_ratio", percent),
        ]  # fmt: skip
    if key in ("cause", "evidence"):
        return [*several(frame), *_cause_columns(key)]
    if key == "step":
        return [
            *several(frame), Column("rank", "rank", plain), Column("step", "step", plain),
            Column("class", "words", is_word=True), Column("count", "count", number),
            Column("total ms", "total_ns", ms), Column("computing ms", "computing_ns", ms),
        ]  # fmt: skip
    kernel = [
        *several(frame), Column("type", "type"), Column("shapes", "shapes"),
        Column("dtype", "dtype", None, 2), Column("count", "count", one),
        Column("total ms", "total_ns", ms),
    ]  # fmt: skip
    if key == "pmu":
        return [
            *kernel, Column("FLOPs of peak", "flops_ratio", percent),
            Column("cube multiplies", "aic_mac_ratio", percent),
            Column("one over the other", "flops_over_mac_ratio", decimals("{:.3f}")),
            Column("TFLOP/s while it does", "mac_flops_per_s", decimals("{:,.1f}", 1e12)),
        ]  # fmt: skip
    return [
        *kernel, Column("mean us", "mean_ns", us, 1),
        Column("FLOPs of peak", "flops_ratio", percent),
        Column("cube", "aic_mac_ratio", percent, 2), Column("vector", "aiv_vec_ratio", percent, 2),
        Column("headroom ms", "headroom_low_ns", ms), Column("to ms", "headroom_high_ns", ms),
        Column("on path", "on_path_ratio", percent, 1),
        Column("gain ms", "gain_low_ns", ms, 1), Column("to", "gain_high_ns", ms, 1),
        Column("by", "basis", None, 1),
    ]  # fmt: skip


def _cause_columns(key: str) -> list[Column]:
    one = decimals("{:,.1f}")
    gains = [
        Column("headroom ms", "headroom_ns", ms), Column("from", "headroom_low_ns", ms),
        Column("to", "headroom_high_ns", ms),
    ]  # fmt: skip
    cause = Column("cause", "words", is_word=True)
    if key == "cause":
        return [
            cause, Column("count", "count", one), Column("total ms", "total_ns", ms), *gains,
            Column("of a step", "step_share_ratio", percent),
            Column("evidence", "evidence_count", number), Column("why not known", "reason"),
        ]  # fmt: skip
    return [
        cause, Column("type", "type"), Column("shapes", "shapes", None, 2),
        Column("count", "count", one), Column("total ms", "total_ns", ms), *gains,
        Column("evidence", "evidence"), Column("asked by", "asked_by", None, 1),
        Column("replacement", "replacement", None, 1),
    ]  # fmt: skip
