"""One rate for products of several sizes: what noise leaves open in each alone.

Where the tokens of a product hardly differ beside the noise, its slope is poorly known, but not its
level: the time at its mean tokens. Levels of products of two sizes lie on a line by multiply-adds,
whose slope needs no spread of tokens, only that products of one kind reach about the same rate:

    own     time by tokens, of each product        no assumption, error by noise and spread
    shared  level by multiply-adds, of products    rates alike, within RATE_DIFFERS_RATIO

Both are weighted by their variances, that of the shared one with what rates may differ by: where
own slopes are sharp, they count alone. Where the two contradict each other, rates are not alike.
"""

from __future__ import annotations

import numpy as np
import polars as pl

FITTED: dict[str, type[pl.DataType]] = {
    "run": pl.String, "capture": pl.String, "type": pl.String, "dtype": pl.String,
    "experts": pl.Int64, "inner": pl.Int64, "columns": pl.Int64, "kernels_count": pl.Int64,
    "base_ns": pl.Float64, "ns_per_token": pl.Float64, "error_ns_per_token": pl.Float64,
    "common_error_ns_per_token": pl.Float64, "shared_weight": pl.Float64,
    "floor_tokens": pl.Float64, "floor_ns": pl.Float64, "residual_ratio": pl.Float64,
    "centre_tokens": pl.Float64, "level_ns": pl.Float64, "level_error_ns": pl.Float64,
}  # fmt: skip
# Standard deviation of the rates of products of one kind, where residuals do not say more.
RATE_DIFFERS_RATIO = 0.03
_KIND = ("run", "capture", "type", "dtype", "experts")
_LEAST_SIZE_RATIO = 1.3  # between the largest and the smallest product
_CONTRADICT = 2.5  # standard errors


def with_shared_rate(products: pl.DataFrame) -> pl.DataFrame:
    """Products of `token_times.fitted`, FITTED, their slopes weighted with the shared rate's.

    base_ns follows from level_ns; it is no less than 0 unless that is beyond its error. Slopes that
    are not above 0 then are unknown: NULL with all their figures.
    """
    parts = [_shared(part) for _, part in products.group_by(_KIND, maintain_order=True)]
    if not parts:
        return products
    slope, centre, level = pl.col("ns_per_token"), pl.col("centre_tokens"), pl.col("level_ns")
    error = (pl.col("error_ns_per_token") ** 2 + pl.col("common_error_ns_per_token") ** 2).sqrt()
    most = level / centre  # nothing takes less than no time
    bound = pl.when((slope > most) & (slope <= most + 2 * error)).then(most).otherwise(slope)
    base = level - slope * centre
    figures = [name for name, kind in FITTED.items() if kind == pl.Float64]
    has_floor = pl.col("floor_tokens") > 0
    return (
        pl.concat(parts)
        .with_columns(ns_per_token=bound)
        .with_columns(base_ns=base)
        .with_columns(
            floor_ns=pl.when(has_floor).then("floor_ns").otherwise(base.clip(lower_bound=0)),
            floor_tokens=pl.when(has_floor)
            .then(((pl.col("floor_ns") - base) / slope).clip(lower_bound=0))
            .otherwise("floor_tokens"),
        )
        .with_columns(pl.when(slope > 0).then(pl.col(figures)))
    )


def _shared(part: pl.DataFrame) -> pl.DataFrame:
    """Products of one kind, slopes and errors weighted."""
    known = part.filter(pl.col("ns_per_token").is_not_null(), pl.col("level_ns") > 0)
    size = (known["inner"] * known["columns"]).to_numpy().astype(np.float64)
    centre, level, spread = known.select("centre_tokens", "level_ns", "level_error_ns").to_numpy().T
    work = centre * size
    if len(work) < 2 or work.max() < _LEAST_SIZE_RATIO * work.min():
        return part
    weights = 1 / (spread**2 + (RATE_DIFFERS_RATIO * level) ** 2)
    middle, mean = np.average(work, weights=weights), np.average(level, weights=weights)
    lever = (weights * (work - middle) ** 2).sum()
    rate = (weights * (work - middle) * (level - mean)).sum() / lever
    left = (weights * (level - mean - rate * (work - middle)) ** 2).sum()
    rate_variance = max(1.0, left / max(len(work) - 2, 1)) / lever
    # What all products cost together decides, as that is asked for.
    passed = known["kernels_count"].to_numpy() * centre
    own = (passed * known["ns_per_token"].to_numpy()).sum()
    own_variance = ((passed * known["error_ns_per_token"].to_numpy()) ** 2).sum()
    shared = rate * (passed * size).sum()
    shared_variance = rate_variance * (passed * size).sum() ** 2
    both = own_variance + shared_variance
    if rate <= 0 or (own - shared) ** 2 > _CONTRADICT**2 * both:
        return part
    weight = own_variance / both
    area = pl.col("inner") * pl.col("columns")
    return part.with_columns(
        pl.col("ns_per_token") * (1 - weight) + weight * rate * area,
        pl.col("error_ns_per_token") * (1 - weight),
        common_error_ns_per_token=pl.when(pl.col("ns_per_token").is_not_null()).then(
            weight * float(np.sqrt(rate_variance)) * area
        ),
        shared_weight=pl.when(pl.col("ns_per_token").is_not_null()).then(weight),
    )
