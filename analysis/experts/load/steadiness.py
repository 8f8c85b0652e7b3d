"""Whether the same experts stay hot from one step to the next: what a forecast can build on."""

from __future__ import annotations

import polars as pl

from .imbalance import PLACE

# The hottest experts are this share of those there are, one at least.
HOT_SHARE_RATIO = 1 / 8
_SERIES = ("run", "capture", "phase", "layer")


def steadiness(loads: pl.DataFrame) -> pl.DataFrame:
    """Each step beside the one before it in its phase and layer, a row per pair.

    `loads` is from `metrics.expert_loads`; rows without a step have no order and are left out.
    Over the experts of both steps: PLACE, previous_step, experts_count, rank_correlation (Spearman,
    ties share their mean rank; NULL where all loads of a step are equal), hot_count and
    hot_overlap_ratio (share of the hot_count hottest experts that were among the hottest before;
    of equals the first are the hotter ones).
    """
    steps = loads.filter(pl.col("step").is_not_null()).with_columns(
        position=pl.col("step").rank("dense").over(*_SERIES)
    )
    before = steps.select(
        *_SERIES, "expert", pl.col("position") + 1,
        pl.col("step").alias("previous_step"), pl.col("tokens").alias("before"),
    )  # fmt: skip
    pairs = steps.join(
        before, on=[*_SERIES, "expert", "position"], how="inner", nulls_equal=True
    ).sort(*PLACE, "expert", nulls_last=True)
    count = (pl.len().over(*PLACE) * HOT_SHARE_RATIO).ceil().cast(pl.Int64)
    hot = {
        f"{name}_is_hot": pl.col(name).rank("ordinal", descending=True).over(*PLACE) <= count
        for name in ("tokens", "before")
    }
    return (
        pairs.with_columns(**hot, hot_count=count)
        .group_by(PLACE)
        .agg(
            pl.col("previous_step").first(),
            pl.len().cast(pl.Int64).alias("experts_count"),
            pl.corr(pl.col("tokens").rank(), pl.col("before").rank())
            .fill_nan(None)
            .alias("rank_correlation"),
            pl.col("hot_count").first(),
            (pl.col("tokens_is_hot") & pl.col("before_is_hot")).sum().alias("both"),
        )
        .with_columns(hot_overlap_ratio=pl.col("both") / pl.col("hot_count"))
        .drop("both")
        .sort(PLACE, nulls_last=True)
    )
