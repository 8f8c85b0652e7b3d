"""What to know beside figures of MFU: what is unknown, how much time it holds, what to do."""

from __future__ import annotations

import polars as pl

from npuscope.analysis.wording import ms
from npuscope.messages import Message

from .kernels.count import unresolved

_SHOWN = 5
_ONE_TYPE = 0.99  # of the FLOPs, and a step counts as one of one element type


def kernel_notes(found: pl.DataFrame, counted: pl.DataFrame) -> list[str]:
    """What of the kernels' FLOPs and of the peak is unknown, and what to do.

    `found`: a row per rank and step, with its peak; `counted`: its kernels.
    """
    notes: list[str] = []
    missing = unresolved(counted)
    for row in missing.head(_SHOWN).to_dicts():
        held = "FLOPs of {kernels} ({ms} ms) are unknown: {reason}"
        kernels = f"{row['count']} {row['type']}"
        if not row["type"]:
            kernels = Message("{count} kernels without a type", count=row["count"])
        took = ms(row["total_ns"])
        notes.append(Message(held, kernels=kernels, ms=took, reason=Message(row["reason"])))
    if missing.height > _SHOWN:
        rest = ms(int(missing.slice(_SHOWN)["total_ns"].sum()))
        notes.append(
            Message(
                "and of {count} more kinds of kernels ({ms} ms)",
                count=missing.height - _SHOWN,
                ms=rest,
            )
        )
    if not missing.is_empty() and missing["type"].is_null().any():
        notes.append("collect with profiler level Level1 to have types and shapes")
    if found["causal_unknown"].any():
        notes.append(
            "causal attention: the numbers of keys and queries differ, and shapes do not show the"
            " mask"
        )
    rounded = counted.filter(pl.col("is_rounded"))
    if not rounded.is_empty():
        kinds = ", ".join(sorted(set(rounded["type"].drop_nulls()))[:_SHOWN])
        notes.append(
            Message(
                "sizes as the layout rounds them up, so FLOPs are upper bounds: {kinds}",
                kinds=kinds,
            )
        )
    without = found.filter(pl.col("peak_flops_per_s").is_null())["peak_source"]
    notes += [Message("peak: {source}", source=source) for source in without.unique().sort()]
    if found["has_flops"].is_null().any():
        notes.append("steps without kernels of their own have no kernel FLOPs")
    mixed = found.filter(pl.col("dtype_share") < _ONE_TYPE)
    if not mixed.is_empty():
        notes.append(
            "kernels of several data types are compared with the peak of the type with the most"
            " FLOPs"
        )
    return notes


def model_notes(found: pl.DataFrame) -> list[str]:
    """What cannot be: a model that needs more than the chips can do."""
    if found.filter(pl.col("model_mfu_ratio") > 1).is_empty():
        return []
    return ["model MFU would exceed 1: check model, tokens per step, number of ranks and peak"]
