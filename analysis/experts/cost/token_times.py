"""Time of grouped matmuls by tokens, fitted from the capture's own kernels.

Tokens of a grouped matmul by its shapes, and what each of them is multiplied with.

One rate for products of several sizes: what noise leaves open in each alone.

Where the tokens of a product hardly differ beside the noise, its slope is poorly known, but not its
level: the time at its mean tokens. Levels of products of two sizes lie on a line by multiply-adds,
whose slope needs no spread of tokens, only that products of one kind reach about the same rate:

    own     time by tokens, of each product        no assumption, error by noise and spread
    shared  level by multiply-adds, of products    rates alike, within RATE_DIFFERS_RATIO

Both are weighted by their variances, that of the shared one with what rates may differ by: where
own slopes are sharp, they count alone. Where the two contradict each other, rates are not alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import polars as pl

from ...flops.kernels.shapes import Cell, Tensor, tensors
from ...scope import ALL, Scope
from ...views import frame, open_views

Floats = npt.NDArray[np.float64]
CAPTURE = ("run", "capture")
PRODUCT = ("type", "dtype", "experts", "inner", "columns")
# A slope needs tokens that differ by this much of their mean, or it is that of the noise.
_LEAST_SPREAD_RATIO = 0.02
# Residuals beyond so many of their own usual size are hiccups and hardly count.
_TUKEY = 4.685
_ROUNDS = 30
_MOST_POINTS = 20_000


@dataclass(frozen=True, slots=True)
class _Line:
    """base + slope x tokens, standard errors of the slope and of the level at the mean tokens."""

    base: float
    slope: float
    error: float
    centre: float
    level: float
    level_error: float


def grouped_kernels(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> pl.DataFrame:
    """Grouped matmuls by shape: run, capture, rank, step, PRODUCT, tokens, count, total_ns.

    From `shape_summary`; kernels whose shapes do not tell the tokens are left out. `experts`: of
    the rank; `inner` and `columns`: what each expert multiplies.
    """
    open_views(con, ["shapes"])
    clause, values = scope.all_ranks.where()
    clause += f" {'and' if clause else 'where'} type ilike '%groupedmatmul%'"
    rows = frame(
        con,
        "select run, capture, rank, step, type, input_shapes, input_dtypes, output_shapes, count,"
        f" total_ns from shape_summary {clause} order by all",
        values,
    )
    cells = rows.select("input_shapes", "input_dtypes", "output_shapes").unique(maintain_order=True)
    shapes = [grouped_shape(*cell) for cell in cells.iter_rows()]
    names = {"dtype": pl.String, "experts": pl.Int64, "inner": pl.Int64, "columns": pl.Int64,
             "tokens": pl.Int64}  # fmt: skip
    kernels = cells.hstack(
        pl.DataFrame([one or (None,) * len(names) for one in shapes], schema=names, orient="row")
    )
    return (
        rows.join(kernels, on=cells.columns, nulls_equal=True)
        .filter(pl.col("tokens").is_not_null())
        .group_by(*CAPTURE, "rank", "step", *PRODUCT, "tokens")
        .agg(pl.col("count").sum(), pl.col("total_ns").sum())
        .sort(*CAPTURE, "rank", "step", *PRODUCT, "tokens", nulls_last=True)
    )


def fit_times(kernels: pl.DataFrame) -> pl.DataFrame:
    """Time of each product by tokens: CAPTURE, PRODUCT, kernels_count, base_ns, ns_per_token,
    error_ns_per_token and common_error_ns_per_token (standard errors: of this product alone, and of
    what all products share), shared_weight (how much of the slope is the products' shared rate),
    floor_tokens, floor_ns, residual_ratio, centre_tokens, level_ns, level_error_ns.

    time = max(floor_ns, base_ns + ns_per_token x tokens), see `curve`; floor_tokens is where the
    floor ends (0: there is none). residual_ratio: median of |measured / fitted - 1| over kernels.
    Products whose tokens hardly differ have no slope: NULL.
    """
    fits: list[dict[str, Any]] = []
    for key, rows in kernels.group_by(*CAPTURE, *PRODUCT, maintain_order=True):
        weights = rows["count"].to_numpy().astype(np.float64)
        tokens = rows["tokens"].to_numpy().astype(np.float64)
        times = rows["total_ns"].to_numpy() / weights
        record = {**dict(zip((*CAPTURE, *PRODUCT), key, strict=True)),
                "kernels_count": int(weights.sum())}  # fmt: skip
        fits.append({**record, **curve(tokens, times, weights)})
    return _with_shared_rate(pl.DataFrame(fits, schema=_FITS))


def curve(tokens: Floats, times: Floats, weights: Floats) -> dict[str, float | None]:
    """The line through times by tokens, robust against hiccups, with a floor for few tokens.

    Least squares of relative residuals, reweighted by Tukey's biweight (MAD as scale) until steady.
    Of more than _MOST_POINTS a random part stands for all; the errors are those of that part.
    A floor is taken where it makes the sum of absolute residuals less than half of the line's:
    memory-bound kernels take the same time below some number of tokens. Keys as in `fit_times`, all
    None where the tokens hardly differ. The slope of noise may be 0 or less.
    """
    if len(tokens) > _MOST_POINTS:
        # The same ones every time, in no order that layers or steps have.
        places = np.random.default_rng(0).choice(len(tokens), _MOST_POINTS, replace=False)
        tokens, times, weights = tokens[places], times[places], weights[places]
    if _spread(tokens, weights) < _LEAST_SPREAD_RATIO or (times <= 0).any():
        return dict.fromkeys(name for name, kind in _FITS.items() if kind == pl.Float64)
    line = _line(tokens, times, weights)
    floor, most = 0.0, _misfit(times, line.base + line.slope * tokens, weights)
    for end in np.quantile(tokens, np.linspace(0.1, 0.7, 7)):
        low, high = tokens <= end, tokens > end
        if _spread(tokens[high], weights[high]) < _LEAST_SPREAD_RATIO or low.sum() < 3:
            continue
        above = _line(tokens[high], times[high], weights[high])
        level = float(np.median(np.repeat(times[low], weights[low].astype(int))))
        misfit = _misfit(times, np.maximum(level, above.base + above.slope * tokens), weights)
        if above.slope > 0 and misfit < most * (0.5 if floor == 0.0 else 1.0):
            line, floor, most = above, level, misfit
    expected = np.maximum(floor, line.base + line.slope * tokens)
    with np.errstate(divide="ignore"):  # a line may go through nothing at few tokens: without end
        off = np.abs(times / expected - 1)
    return {
        "base_ns": line.base,
        "ns_per_token": line.slope,
        "error_ns_per_token": line.error,
        "common_error_ns_per_token": 0.0,
        "shared_weight": 0.0,
        "floor_tokens": max(0.0, (floor - line.base) / line.slope) if floor else 0.0,
        "floor_ns": floor if floor else max(line.base, 0.0),
        "residual_ratio": _median(off, weights),
        "centre_tokens": line.centre,
        "level_ns": line.level,
        "level_error_ns": line.level_error,
    }


def _line(tokens: Floats, times: Floats, weights: Floats) -> _Line:
    """The line; relative residuals have equal weight.

    The errors are those of a regression M-estimate (Huber, Robust Statistics, 1981, section 7.6).
    """
    # By what is expected, not by what was measured: that would favour the shorter times.
    expected = times
    inside = np.ones_like(times)  # 1 - u^2 of Tukey's biweight
    middle, level = float(np.average(tokens, weights=weights)), 0.0
    base = slope = error = level_error = 0.0
    for _ in range(_ROUNDS):
        plain = weights / expected**2
        weight = plain * inside**2
        total = weight.sum()
        middle, level = (weight * tokens).sum() / total, (weight * times).sum() / total
        spread = (weight * (tokens - middle) ** 2).sum()
        if spread <= 0:
            break
        before = slope
        slope = float((weight * (tokens - middle) * (times - level)).sum() / spread)
        base = float(level - slope * middle)
        line = base + slope * tokens
        if (line <= 0).any():
            break
        pulls = plain * ((times - line) * inside**2) ** 2
        steepness = np.average(inside * (5 * inside - 4), weights=weights)
        variance = pulls.sum() / max(len(times) - 2, 1) / max(steepness, 0.1) ** 2
        error = float(np.sqrt(variance / (plain * (tokens - middle) ** 2).sum()))
        level_error = float(np.sqrt(variance / plain.sum()))
        off = times / line - 1
        scale = 1.4826 * _median(np.abs(off), weights)
        if scale < 1e-9 or abs(slope - before) <= 1e-9 * abs(slope):
            break
        expected = line
        inside = np.clip(1 - (off / (_TUKEY * scale)) ** 2, 0, None)
    return _Line(base, slope, error, float(middle), float(level), level_error)


def _misfit(times: Floats, expected: Floats, weights: Floats) -> float:
    return float((np.abs(times - expected) / times * weights).sum())


def _median(values: Floats, weights: Floats) -> float:
    order = np.argsort(values)
    upto = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(upto, upto[-1] / 2)])


def _spread(tokens: Floats, weights: Floats) -> float:
    """Standard deviation by mean; 0 without tokens."""
    if not len(tokens) or (mean := float(np.average(tokens, weights=weights))) <= 0:
        return 0.0
    return float(np.sqrt(np.average((tokens - mean) ** 2, weights=weights))) / mean


GroupRow = tuple[str | None, int | None, int, int, int]


def grouped_shape(input_shapes: Cell, input_dtypes: Cell, output_shapes: Cell) -> GroupRow | None:
    """dtype, experts (of the rank; None: not told), inner, columns, tokens; None where unclear.

    Three ways, as in `flops.matrices.grouped`: rows of one x split over the matrices of w (tokens
    are rows of x); x and w whose shared rows are split, with one result for each expert (a weight's
    gradient: tokens are these rows); lists of x, w and y, one of each for an expert.
    """
    try:
        input_tensors, outputs = tensors(input_shapes, input_dtypes), tensors(output_shapes)
    except ValueError:
        return None
    inputs = [one for one in input_tensors if one is not None]
    results = [one for one in outputs if one is not None]
    if len(inputs) < 2 or not results:
        return None
    x, w, y = inputs[0], inputs[1], results[0]
    if len(results) > 1:
        return _of_lists(input_tensors[: len(results)], results)
    if len(x.shape) != 2:
        return None
    if len(w.shape) == 2 and len(y.shape) == 3:
        return _of_one_weight(x, w, y)
    if len(w.shape) < 3 or y.shape[0] != x.shape[0]:
        return None
    return x.dtype, w.shape[0], x.shape[1], y.shape[-1], x.shape[0]


def _of_lists(xs: tuple[Tensor | None, ...], ys: list[Tensor]) -> GroupRow | None:
    held = [x for x in xs if x is not None and len(x.shape) == 2]
    if len(held) != len(ys) or len({x.shape[1] for x in held}) != 1:
        return None
    tokens = sum(x.shape[0] for x in held)
    return held[0].dtype, len(held), held[0].shape[1], ys[0].shape[-1], tokens


def _of_one_weight(x: Tensor, w: Tensor, y: Tensor) -> GroupRow | None:
    experts, rows, columns = y.shape
    shared = {
        tokens
        for tokens, inner in (x.shape, x.shape[::-1])
        for other, outer in (w.shape, w.shape[::-1])
        if inner == rows and outer == columns and tokens == other
    }
    return (x.dtype, experts, rows, columns, shared.pop()) if len(shared) == 1 else None


_FITS: dict[str, type[pl.DataType]] = {
    "run": pl.String, "capture": pl.String, "type": pl.String, "dtype": pl.String,
    "experts": pl.Int64, "inner": pl.Int64, "columns": pl.Int64, "kernels_count": pl.Int64,
    "base_ns": pl.Float64, "ns_per_token": pl.Float64, "error_ns_per_token": pl.Float64,
    "common_error_ns_per_token": pl.Float64, "shared_weight": pl.Float64,
    "floor_tokens": pl.Float64, "floor_ns": pl.Float64, "residual_ratio": pl.Float64,
    "centre_tokens": pl.Float64, "level_ns": pl.Float64, "level_error_ns": pl.Float64,
}  # fmt: skip
# Standard deviation of the rates of products of one kind, where residuals do not say more.
_RATE_DIFFERS_RATIO = 0.03
_KIND = ("run", "capture", "type", "dtype", "experts")
_LEAST_SIZE_RATIO = 1.3  # between the largest and the smallest product
_CONTRADICT = 2.5  # standard errors


def _with_shared_rate(products: pl.DataFrame) -> pl.DataFrame:
    """Products with their fitted lines, the slopes weighted with the shared rate's.

    base_ns follows from level_ns; it is no less than 0 unless that is beyond its error. Slopes that
    are not above 0 then are unknown: NULL with all their figures.
    """
    parts = [_shared_of_kind(part) for _, part in products.group_by(_KIND, maintain_order=True)]
    if not parts:
        return products
    slope, centre, level = pl.col("ns_per_token"), pl.col("centre_tokens"), pl.col("level_ns")
    error = (pl.col("error_ns_per_token") ** 2 + pl.col("common_error_ns_per_token") ** 2).sqrt()
    most = level / centre  # nothing takes less than no time
    bound = pl.when((slope > most) & (slope <= most + 2 * error)).then(most).otherwise(slope)
    base = level - slope * centre
    figures = [name for name, kind in _FITS.items() if kind == pl.Float64]
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


def _shared_of_kind(part: pl.DataFrame) -> pl.DataFrame:
    """Products of one kind, slopes and errors weighted."""
    slopes = part.filter(pl.col("ns_per_token").is_not_null(), pl.col("level_ns") > 0)
    size = (slopes["inner"] * slopes["columns"]).to_numpy().astype(np.float64)
    centre, level, spread = (
        slopes.select("centre_tokens", "level_ns", "level_error_ns").to_numpy().T
    )
    work = centre * size
    if len(work) < 2 or work.max() < _LEAST_SIZE_RATIO * work.min():
        return part
    weights = 1 / (spread**2 + (_RATE_DIFFERS_RATIO * level) ** 2)
    middle, mean = np.average(work, weights=weights), np.average(level, weights=weights)
    lever = (weights * (work - middle) ** 2).sum()
    rate = (weights * (work - middle) * (level - mean)).sum() / lever
    left = (weights * (level - mean - rate * (work - middle)) ** 2).sum()
    rate_variance = max(1.0, left / max(len(work) - 2, 1)) / lever
    # What all products cost together decides, as that is asked for.
    passed = slopes["kernels_count"].to_numpy() * centre
    own = (passed * slopes["ns_per_token"].to_numpy()).sum()
    own_variance = ((passed * slopes["error_ns_per_token"].to_numpy()) ** 2).sum()
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
