"""Sides whose steps and memory mean the same, however long each was recorded."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import polars as pl

from .side import ENDS, MEMORY_CURVE, Side

# Steps are compared up to the next one's begin, the last of each capture left out, or up to their
# own end; or one side has none, so that all it recorded stands for one.
Ends = Literal["to_next", "to_end", "no_steps"]
_MFU = "kernel_mfu_causal_ratio"  # over the length of its step


def ending_alike(a: Side, b: Side) -> tuple[Side, Side, Ends | None]:
    """The sides with steps that end alike, and how, where as recorded they do not.

    The last step of a capture is measured to its own end: of more steps, fewer are. To compare
    means of them would find a difference between two cuts of one capture."""
    if not all({*ENDS} <= {*side.steps.columns} for side in (a, b)):
        return a, b, None
    if len({bool(side.steps["step"].count()) for side in (a, b)}) > 1:
        return _to_end(a), _to_end(b), "no_steps"
    ratios = [as_figure(side.steps["is_last"].mean()) for side in (a, b)]
    if None in ratios or ratios[0] == ratios[1]:
        return a, b, None
    if all(ratio is not None and ratio < 1 for ratio in ratios):
        return _to_next(a), _to_next(b), "to_next"
    return _to_end(a), _to_end(b), "to_end"


def _to_next(side: Side) -> Side:
    """Without times and MFU of last steps; between steps, what passes is of the others alone (of
    baselines that do not tell it, as if all their captures had as many steps)."""
    is_last = pl.col("is_last").fill_null(False)
    each = side.steps.height / side.steps.select((~is_last).sum()).item()
    told = pl.coalesce(pl.lit(side.between_ns, pl.Float64), pl.col("ns") * each)
    between = pl.when(pl.col("part") == "between_steps").then(told)
    return replace(
        side,
        steps=side.steps.with_columns(pl.when(~is_last).then(pl.col("step_ns", _MFU))),
        parts=side.parts.with_columns(between.otherwise("ns").alias("ns")),
        at={at: _to_next(replace(one, steps=side.steps)) for at, one in side.at.items()},
    )


def _to_end(side: Side) -> Side:
    end_ns = pl.coalesce("to_end_ns", "step_ns")
    return replace(
        side,
        steps=side.steps.with_columns(pl.col(_MFU) * pl.col("step_ns") / end_ns, step_ns=end_ns),
        parts=side.parts.filter(pl.col("part") != "between_steps"),
        at={at: _to_end(one) for at, one in side.at.items()},
    )


def with_memory_alike(*sides: Side) -> list[Side]:
    """With peak memory of the first steps alone, of as many in each capture: where it grows from
    step to step, more of them would read as more of it. None where that is of other curves."""
    since = pl.col("step") - pl.col("step").min().over("run", "capture")
    spans = [side.steps.group_by("run", "capture").agg(since.max())["step"] for side in sides]
    shortest = pl.lit(pl.concat(spans).min(), pl.Int64)
    is_first = (since <= shortest).fill_null(True)
    curves = [side.facts.get(MEMORY_CURVE) for side in sides]
    is_alike = not all(curves) or len(set(curves)) == 1
    memory = pl.when(is_first & pl.lit(is_alike)).then("peak_memory_bytes")
    return [replace(side, steps=side.steps.with_columns(memory)) for side in sides]


def as_figure(value: object) -> float | None:
    """What a mean or a variance is; None of no values."""
    return float(value) if isinstance(value, int | float) else None
