"""Findings about compute kernels that do no arithmetic, or run where they are slow."""

from __future__ import annotations

import re
from collections.abc import Iterator

import polars as pl

from npuscope.messages import Message

from ..wording import ms, percent
from .finding import Finding
from .material import Material
from .weigh import is_worth, share, stated

# Operator types without their version (V2, D) that do nothing but move data, or set it.
MOVING_TYPES = frozenset({
    "TransData", "Transpose", "Cast", "TensorMove", "ViewCopy", "AsStrided", "Concat", "Split",
    "SplitV", "Slice", "StridedSlice", "Pack", "Unpack", "Tile", "BroadcastTo", "Pad", "PadV",
})  # fmt: skip
SETTING_TYPES = frozenset({"ZerosLike", "OnesLike", "Fill", "Fills", "MemSet", "Zero"})
_VERSION = re.compile(r"(V\d+)?D?$")
_AI_CPU = "AI_CPU"


def data_movement(seen: Material) -> Iterator[Finding]:
    """Kernels that copy, convert or rearrange data."""
    yield from _of_types(
        seen,
        "data_movement",
        MOVING_TYPES,
        "{spent} ms per step ({share} of it) go to kernels that only move or convert data,"
        " most to {first}.",
        "Sum of the kernels' durations. Some conversions and copies cannot be avoided.",
        "Keep one layout and one type through a block: contiguous tensors, no .contiguous() or"
        " .to() in the loop, fused operators that take the layout they get.",
    )


def data_setting(seen: Material) -> Iterator[Finding]:
    """Kernels that fill memory with one value."""
    yield from _of_types(
        seen,
        "data_setting",
        SETTING_TYPES,
        "{spent} ms per step ({share} of it) go to kernels that only fill memory with a value,"
        " most to {first}.",
        "Sum of the kernels' durations. Buffers used for accumulation must be cleared once.",
        "Use zero_grad(set_to_none=True), use empty instead of zeros where everything is"
        " overwritten, reuse buffers between steps.",
    )


def ai_cpu_kernels(seen: Material) -> Iterator[Finding]:
    """Kernels on the device's own CPU, slow and a break in the stream."""
    rows = seen.kernels.filter(pl.col("core") == _AI_CPU)
    if rows.is_empty():
        return
    stake_ns = float(rows["total_ns"].sum())
    if not is_worth(stake_ns, seen):
        return
    evidence = _evidence(rows)
    yield stated(
        seen,
        "ai_cpu_kernels",
        Message(
            "{stake} ms per step ({share} of it) go to kernels on the AI CPU, most to {type}.",
            stake=ms(stake_ns),
            share=percent(share(stake_ns, seen)),
            type=evidence["type"][0],
        ),
        stake_ns,
        "estimated",
        "Sum of the kernels' durations: on the AI cores the same work would take a fraction of it.",
        "Other types or an equivalent operator usually bring them to the AI cores: int64 and bool"
        " inputs, dynamic shapes and unusual index operators are frequent causes.",
        evidence,
        "npuscope kernels PATH --by core",
    )


def _of_types(
    seen: Material, name: str, types: frozenset[str], statement: str, reason: str, advice: str
) -> Iterator[Finding]:
    wanted = [t for t in seen.kernels["type"].drop_nulls() if _VERSION.sub("", t) in types]
    rows = seen.kernels.filter(pl.col("type").is_in(wanted))
    if rows.is_empty():
        return
    stake_ns = float(rows["total_ns"].sum())
    if not is_worth(stake_ns, seen):
        return
    evidence = _evidence(rows)
    told = statement.format(
        spent=ms(stake_ns), share=percent(share(stake_ns, seen)), first=evidence["type"][0]
    )
    command = "npuscope kernels PATH --by type"
    yield stated(seen, name, told, stake_ns, "estimated", reason, advice, evidence, command)


def _evidence(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.select("type", "core", count_per_step="count", total_per_step_ns="total_ns")
