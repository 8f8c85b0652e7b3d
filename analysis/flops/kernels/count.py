"""The kernels of a capture with their FLOPs: a row per rank, step and distinct shape."""

from __future__ import annotations

from functools import lru_cache

import duckdb
import polars as pl

from ...memo import memoize
from ...scope import ALL, PLACE, RANK, Scope
from ...views import frame, open_views
from .kernel_flops import flops_of

SHAPE = (
    "type", "input_shapes", "input_dtypes", "input_formats", "output_shapes", "output_dtypes",
    "output_formats",
)  # fmt: skip
_GPU = "kineto"
_SCHEMA = {
    "family": pl.String, "full_flops": pl.Int64, "causal_flops": pl.Int64, "dtype": pl.String,
    "moved_bytes": pl.Int64, "tokens": pl.Int64, "sequence_length": pl.Int64,
    "is_rounded": pl.Boolean, "reason": pl.String,
}  # fmt: skip
_NO_TYPE = "the profiler level has no operator types"
_NOT_KNOWN = "operators of a GPU have no rules"


@memoize
def counted_kernels(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> pl.DataFrame:
    """Rows of `shape_summary` with the FLOPs of one kernel each.

    Added: family (matmul, attention, convolution; unknown: it may be any; NULL: no FLOPs),
    full_flops and causal_flops of one kernel, dtype, moved_bytes, tokens, sequence_length,
    is_rounded, and the reason where a kernel with a family has no FLOPs.
    """
    open_views(con, ["shapes"])
    clause, values = scope.where()
    rows = frame(con, f"select * from shape_summary {clause}", values)
    gpus = frame(con, f"select distinct run, capture, rank from ranks where framework = '{_GPU}'")
    shapes = rows.select(SHAPE).unique(maintain_order=True)
    shapes_with_flops = shapes.hstack(
        pl.DataFrame([_cells(*shape) for shape in shapes.iter_rows()], schema=_SCHEMA, orient="row")
    )
    kernels = rows.join(shapes_with_flops, on=SHAPE, how="left", nulls_equal=True)
    of_gpu = pl.col("is_gpu").fill_null(False)
    unknown = pl.col("type").is_null() | of_gpu
    return (
        kernels.join(gpus.with_columns(is_gpu=True), on=RANK, how="left")
        .with_columns(
            family=pl.when(unknown).then(pl.lit("unknown")).otherwise("family"),
            reason=pl.when(of_gpu)
            .then(pl.lit(_NOT_KNOWN))
            .when(unknown)
            .then(pl.lit(_NO_TYPE))
            .otherwise("reason"),
        )
        .drop("is_gpu")
    )


def kernel_work(counted: pl.DataFrame, *, attention: str = "causal") -> pl.DataFrame:
    """What kernels of each type did: PLACE, type, is_cube, total_ns, flops.

    `counted` is from `counted_kernels`. is_cube: the type multiplies matrices, attention or
    convolutions, or may do so. A type stands in two rows where FLOPs (Float64) of some of its
    kernels are known and of others are not (NULL). `attention`: causal or full.
    """
    each = pl.col(f"{attention}_flops")
    return (
        counted.with_columns(
            is_cube=pl.col("family").is_not_null(),
            is_known=each.is_not_null(),
            flops=each.cast(pl.Float64) * pl.col("count"),
        )
        .group_by(*PLACE, "type", "is_cube", "is_known")
        .agg(
            pl.col("total_ns").sum(),
            pl.when(pl.col("is_known").first()).then(pl.col("flops").sum()).alias("flops"),
        )
        .drop("is_known")
        .sort(*PLACE, "type", "flops", nulls_last=True)
    )


def unresolved_kernels(counted: pl.DataFrame) -> pl.DataFrame:
    """Kernels that may have FLOPs, but none known: type, reason, count, total_ns, longest first."""
    return (
        counted.filter(pl.col("family").is_not_null(), pl.col("full_flops").is_null())
        .group_by("type", "reason")
        .agg(pl.col("count").sum(), pl.col("total_ns").sum())
        .sort("total_ns", "type", "reason", descending=[True, False, False])
    )


# A report counts the kernels of a capture three times.
@lru_cache(maxsize=100_000)
def _cells(*shape: str | None) -> tuple[object, ...]:
    """What `_SCHEMA` names of a kernel by its `SHAPE`."""
    flops = flops_of(*shape)
    if flops is None:
        return (None,) * len(_SCHEMA)
    return (
        flops.family, flops.full, flops.causal, flops.dtype, flops.moved_bytes, flops.tokens,
        flops.sequence_length, flops.is_rounded, flops.reason,
    )  # fmt: skip
