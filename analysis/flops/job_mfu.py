"""MFU figures of pipeline stages and of the whole job, from those of their ranks.

A stage or job could do the sum over its ranks of step_ns x peak; what was done is the sum of their
FLOPs. So ranks without figures have no part in either sum, and `rank_count` says how many have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import duckdb
import polars as pl

from ..means import job_steps, within_steps, without_warm_up
from ..views import frame

Group = Literal["stage", "job"]
_STAGES = "select run, capture, rank, any_value(pp_rank) as stage from ranks group by all"
_KERNEL = ("kernel_mfu_causal_ratio", "kernel_mfu_full_ratio", "matmul_mfu_ratio")
_MODEL = ("model_mfu_ratio", "hfu_ratio")


# metric: mfu_stage
# What share of the peak does each pipeline stage reach?
#
# A stage could do the sum over its ranks of step_ns x peak; what was done is the sum of their
# FLOPs.
#
# title: MFU of pipeline stages
# meaning: MFU figures of each step and pipeline stage, from those of its ranks.
# by: run, capture, step, stage
# command: mfu --by stage
#
#   rank_count               bigint  ranks with figures
#   step_ns                  bigint  length of the step on the slowest of them
#   matmul_flops             bigint  FLOPs of matrix multiplications of these ranks
#   kernel_mfu_causal_ratio  double  FLOPs of kernels over what the peak allows, attention causal
#   kernel_mfu_full_ratio    double  likewise, attention full
#   matmul_mfu_ratio         double  likewise, matrix multiplications alone


# metric: mfu_job
# What share of the peak does the job reach?
#
# As of stages. What a model needs is over the time of the job's step, all ranks of the job and
# their mean peak.
#
# title: MFU of the job
# meaning: MFU figures of each step of the whole job, from those of its ranks.
# by: run, capture, step
# command: mfu --by job
#
#   rank_count               bigint  ranks with figures
#   step_ns                  bigint  time of the job's step (job_steps)
#   matmul_flops             bigint  FLOPs of matrix multiplications of these ranks
#   kernel_mfu_causal_ratio  double  FLOPs of kernels over what the peak allows, attention causal
#   kernel_mfu_full_ratio    double  likewise, attention full
#   matmul_mfu_ratio         double  likewise, matrix multiplications alone
#   tokens_per_step          bigint  tokens of the job's step
#   model_flops              bigint  FLOPs that the model needs for them; NULL without a model
#   model_mfu_ratio          double  these over what the peak of all ranks allows
#   hfu_ratio                double  the same with what is computed again
#   tokens_per_s             double  tokens over the time of the step
#   tokens_per_s_per_rank    double  these over the ranks of the job
def gather_figures(con: duckdb.DuckDBPyConnection, rows: pl.DataFrame, by: Group) -> pl.DataFrame:
    """Figures of each step by stage (`pp_rank`; NULL: not recorded) or of the job.

    `rows` are of `mfu.Figures`.
    """
    keys = ["run", "capture", "step", *(["stage"] if by == "stage" else [])]
    stages = frame(con, _STAGES)
    possible = pl.col("step_ns") * 1e-9 * pl.col("peak_flops_per_s")
    rows_with_stages = rows.join(stages, on=("run", "capture", "rank"), how="left").with_columns(
        possible=possible
    )

    def ratio(name: str) -> pl.Expr:
        of = pl.col("possible").filter(pl.col(name).is_not_null()).sum()
        return (pl.when(of > 0).then((pl.col(name) * pl.col("possible")).sum() / of)).alias(name)

    figures = rows_with_stages.group_by(keys).agg(
        pl.col("kernel_mfu_full_ratio").is_not_null().sum().cast(pl.Int64).alias("rank_count"),
        pl.col("step_ns").max(),
        pl.when(pl.col("matmul_flops").is_not_null().any())
        .then(pl.col("matmul_flops").sum())
        .alias("matmul_flops"),
        *(ratio(name) for name in _KERNEL),
        *(pl.col(name).first() for name in ("tokens_per_step", "world_size", "model_flops")),
        pl.col("hardware_flops").first(),
        pl.col("peak_flops_per_s").mean(),
    )
    if by == "job":
        of_job_ns = job_steps(con).select("run", "capture", "step", job_step_ns="step_ns")
        figures = (
            figures.join(of_job_ns, on=keys, how="left", nulls_equal=True)
            .with_columns(step_ns=pl.when(pl.col("step_ns").is_not_null()).then("job_step_ns"))
            .drop("job_step_ns")
        )
        seconds = pl.col("step_ns") * 1e-9
        of_job = seconds * pl.col("world_size") * pl.col("peak_flops_per_s")
        figures = figures.with_columns(
            model_mfu_ratio=pl.col("model_flops") / of_job,
            hfu_ratio=pl.col("hardware_flops") / of_job,
            tokens_per_s=pl.col("tokens_per_step") / seconds,
            tokens_per_s_per_rank=pl.col("tokens_per_step") / seconds / pl.col("world_size"),
        )
    else:
        figures = figures.drop("model_flops", "tokens_per_step")
    return figures.drop("world_size", "hardware_flops", "peak_flops_per_s").sort(
        keys, nulls_last=True
    )


# metric: mean_mfu
# What share of the peak does a mean step reach?
#
# FLOPs of kernels are those of all ranks and steps over what the peak allows in their time, as
# `achieved` of the waterfall; what a model needs is over the time of the job's steps. Warm-up steps
# are left out, so not of single steps. Rank is there for ranks, step for single steps.
#
# title: MFU of a mean step
# meaning: Each ratio of MFU over the steps of the job or of a rank, weighed by their length.
# by: run, capture, rank, step
# gauge: npuscope_mfu_ratio{convention} = value: FLOPs over what the ranks' peak allows in the
#     time of the step. kernel_causal and kernel_full: FLOPs that kernels executed, by their
#     shapes, attention counted as causal or full; matmul: of matrix multiplications alone. model
#     and hfu: what the model of --model needs, and with what is recomputed. Mean of steps, by
#     their length.
# gauge: npuscope_rank_mfu_ratio{rank, convention} = value: FLOPs that the rank's kernels
#     executed, over its peak in the time of its steps.
# figure: mfu
#
#   figure  varchar  which ratio: a column of mfu or mfu_job
#   value   double   the ratio
def mean_use(
    con: duckdb.DuckDBPyConnection, rows: pl.DataFrame, keys: Sequence[str]
) -> pl.DataFrame:
    """Ratios of rows of `mfu` by `keys`, those of a model not by rank: rows of the metric."""
    possible = pl.col("step_ns") * pl.col("peak_flops_per_s")
    kernel = _mean_of_steps(con, rows.with_columns(weight=possible), keys, _KERNEL)
    if "rank" in keys:
        return kernel
    job = gather_figures(con, rows, "job").with_columns(weight="step_ns")
    return pl.concat([kernel, _mean_of_steps(con, job, keys, _MODEL)])


def _mean_of_steps(
    con: duckdb.DuckDBPyConnection, rows: pl.DataFrame, keys: Sequence[str], names: Sequence[str]
) -> pl.DataFrame:
    """Those ratios of the rows, weighed by their `weight`: rows of the metric."""
    counted = within_steps(rows) if "step" in keys else without_warm_up(con, rows)
    weight = pl.col("weight")
    return (
        counted.unpivot(
            [name for name in names if name in rows.columns],
            index=[*dict.fromkeys([*keys, "weight"])], variable_name="figure",
        )
        .filter(pl.col("value").is_not_null(), weight > 0)
        .group_by([*keys, "figure"], maintain_order=True)
        .agg((pl.col("value") * weight).sum() / weight.sum())
    )  # fmt: skip
