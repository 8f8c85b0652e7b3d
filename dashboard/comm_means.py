"""Communication of a mean step of a rank: sums of the metric `comm` over ranks and steps."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

SUMS = (
    "op_count", "total_ns", "union_ns", "masked_ns", "exposed_ns", "exposed_attributed_ns",
    "transit_ns", "wait_ns", "size_bytes",
)  # fmt: skip


def counted(frame: pl.DataFrame) -> pl.DataFrame:
    """The rows of `comm` that means are made of.

    Those with events, without any all of them; and inside steps, where there are steps.
    """
    told = frame.drop_nulls("union_ns")
    frame = told if told.height else frame
    if frame["step"].null_count() < frame.height:
        frame = frame.drop_nulls("step")  # what is outside of all steps is no part of any
    return frame


def means(frame: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Means over the pairs of rank and step of `counted` rows, most exposed first.

    Columns: keys, SUMS (null where none is known), masking_ratio, share_ratio (of all that is
    exposed, each instant once).
    """
    over = frame.select("rank", "step").n_unique()
    return (
        frame.group_by(keys, maintain_order=True)
        .agg(known_sum(name) / over for name in SUMS)
        .with_columns(
            masking_ratio=pl.col("masked_ns") / positive(pl.col("union_ns")),
            share_ratio=pl.col("exposed_attributed_ns")
            / positive(pl.col("exposed_attributed_ns").sum()),
        )
        .sort(
            "exposed_attributed_ns", "total_ns", *keys,
            descending=[True, True, *(False for _ in keys)], nulls_last=True,
        )
    )  # fmt: skip


def known_sum(name: str) -> pl.Expr:
    """Sum of the known values; null where none is known."""
    return pl.when(pl.col(name).count() > 0).then(pl.col(name).sum()).alias(name)


def positive(value: pl.Expr) -> pl.Expr:
    """The value where it is more than 0, else null: what may be divided by."""
    return pl.when(value > 0).then(value)
