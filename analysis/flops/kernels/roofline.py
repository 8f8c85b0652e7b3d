"""What each kernel achieves beside what its chip allows: cube peak, or memory's bandwidth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import duckdb
import polars as pl

from ...catalog import column_names
from ...scope import PLACE, Scope
from ..chips import Place, peaks
from ..peaks import Peak
from .count import counted_kernels


@dataclass(frozen=True, slots=True)
class Roofline:
    """kernels: rows of `kernel_table`; peaks: dtype, peak_flops_per_s, hbm_bytes_per_s
    (NULL where unknown) and source of the chosen ranks' chips; sources: these as messages."""

    kernels: pl.DataFrame
    peaks: pl.DataFrame
    sources: dict[str, str]


# metric: mfu_kernels
# How close do kernels come to the limits of the chip?
#
# A kernel with F FLOPs that moves B bytes takes at least max(F / peak, B / bandwidth): its
# roofline is F over that. B counts every input and output once, as printed; kernels may move more.
#
# title: Kernels under the roofline
# meaning: What kernels that multiply achieve beside what the chip allows, by type and shape.
# by: run, capture, rank, step
# command: mfu --by kernel
# table: roofline, mfu_kernels
# figure: roofline
#
#   type                  varchar  operator type
#   input_shapes          varchar  shapes of its inputs
#   output_shapes         varchar  shapes of its outputs
#   dtype                 varchar  element type of its inputs
#   count                 bigint   kernels
#   total_ns              bigint   sum of their durations
#   flops                 bigint   FLOPs of one of them; NULL: see reason
#   achieved_flops_per_s  double   FLOPs of all over their durations
#   peak_flops_per_s      double   peak of the cube cores in this element type
#   peak_share_ratio      double   achieved / peak
#   moved_bytes           bigint   bytes of inputs and outputs of one of them
#   roofline_flops_per_s  double   what peak and bandwidth allow; NULL where bytes or bandwidth are
#     unknown
#   roofline_share_ratio  double   achieved / roofline
#   bound                 varchar  compute or memory: what limits it
#   reason                varchar  why FLOPs are unknown
def kernel_table(
    counted: pl.DataFrame,
    peaks: Mapping[Place, Peak],
    *,
    attention: str = "causal",
    top: int | None = None,
) -> pl.DataFrame:
    """Kernels that multiply, by type and shape, longest total first; `top` of each rank and step.

    `counted` is from `counted_kernels`, `peaks` from `chips.peaks`. `attention`: causal or full.
    """
    mine = counted.filter(pl.col("family").is_not_null()).with_columns(
        flops=pl.col(f"{attention}_flops")
    )
    limits = [
        (peak.of(row[3]), peak.hbm_bytes_per_s) if (peak := peaks.get(row[:3])) else (None, None)
        for row in mine.select("run", "capture", "rank", "dtype").iter_rows()
    ]
    schema = {"peak_flops_per_s": pl.Float64, "hbm_bytes_per_s": pl.Float64}
    mine = mine.hstack(pl.DataFrame(limits, schema=schema, orient="row"))
    by_memory = pl.col("flops") * pl.col("hbm_bytes_per_s") / pl.col("moved_bytes")
    is_known = by_memory.is_not_null() & pl.col("peak_flops_per_s").is_not_null()
    rows = mine.with_columns(
        achieved_flops_per_s=pl.when(pl.col("total_ns") > 0).then(
            pl.col("flops") * pl.col("count") * 1e9 / pl.col("total_ns")
        ),
        roofline_flops_per_s=pl.when(is_known).then(
            pl.min_horizontal("peak_flops_per_s", by_memory)
        ),
        bound=pl.when(is_known).then(
            pl.when(by_memory < pl.col("peak_flops_per_s"))
            .then(pl.lit("memory"))
            .otherwise(pl.lit("compute"))
        ),
    ).with_columns(
        peak_share_ratio=pl.col("achieved_flops_per_s") / pl.col("peak_flops_per_s"),
        roofline_share_ratio=pl.col("achieved_flops_per_s") / pl.col("roofline_flops_per_s"),
    )
    order = pl.struct(-pl.col("total_ns"), "type", "input_shapes", "output_shapes")
    rows = rows.sort(*PLACE, order, nulls_last=True).select(column_names("mfu_kernels"))
    if top is None:
        return rows
    return rows.group_by(PLACE, maintain_order=True).head(top).select(column_names("mfu_kernels"))


def points(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of `kernel_table` by type, shapes and dtype, over ranks and steps.

    Columns: type, input_shapes, output_shapes, dtype, count, total_ns, flops and moved_bytes of
    one, intensity (FLOP per byte), achieved_flops_per_s, peak_share_ratio, bound; the longest
    first. Kernels without FLOPs or bytes are left out.
    """
    usable = rows.filter(
        pl.col("flops") > 0, pl.col("moved_bytes") > 0, pl.col("achieved_flops_per_s") > 0
    )
    keys = ["type", "input_shapes", "output_shapes", "dtype", "flops", "moved_bytes"]
    achieved = pl.col("flops") * pl.col("count") * 1e9 / pl.col("total_ns")
    return (
        usable.group_by(keys)
        .agg(
            pl.col("count", "total_ns").sum(),
            pl.col("bound").first(),
            pl.col("peak_flops_per_s").max(),
        )
        .with_columns(
            intensity=pl.col("flops") / pl.col("moved_bytes"), achieved_flops_per_s=achieved
        )
        .with_columns(peak_share_ratio=pl.col("achieved_flops_per_s") / pl.col("peak_flops_per_s"))
        .sort("total_ns", *keys, descending=[True, *(False for _ in keys)], nulls_last=True)
    )


def under_roofline(con: duckdb.DuckDBPyConnection, scope: Scope) -> Roofline:
    """Kernels that multiply with their FLOPs and bytes; attention counted as causal."""
    counted = counted_kernels(con, scope)
    peaks_of_ranks = peaks(con)
    kernels = kernel_table(counted, peaks_of_ranks)
    places = {
        place: peaks_of_ranks[place] for place in kernels.select("run", "capture", "rank").rows()
    }
    limits = [
        (dtype, flops, peak.hbm_bytes_per_s, peak.source_of(dtype))
        for peak in places.values()
        for dtype, flops in peak.flops_per_s.items()
    ]
    schema = {
        "dtype": pl.String, "peak_flops_per_s": pl.Float64, "hbm_bytes_per_s": pl.Float64,
        "source": pl.String,
    }  # fmt: skip
    rows = pl.DataFrame(limits, schema=schema, orient="row")
    sources = {str(source): source for *_, source in limits if source is not None}
    return Roofline(kernels, rows.unique(maintain_order=True), sources)
