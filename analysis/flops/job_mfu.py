"""MFU figures of pipeline stages and of the whole job, from those of their ranks.

A stage or job could do the sum over its ranks of step_ns x peak; what was done is the sum of their
FLOPs. So ranks without figures have no part in either sum, and `rank_count` says how many have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import duckdb
import polars as pl

from npuscope.analysis.means import without_warm_up
from npuscope.analysis.views import frame

Group = Literal["stage", "job"]
_STAGES = "select run, capture, rank, any_value(pp_rank) as stage from ranks group by all"
_RATIOS = (
    "kernel_mfu_causal_ratio", "kernel_mfu_full_ratio", "matmul_mfu_ratio", "model_mfu_ratio",
    "hfu_ratio",
)  # fmt: skip
_KERNEL = ("kernel_mfu_causal_ratio", "kernel_mfu_full_ratio", "matmul_mfu_ratio")


def gathered(con: duckdb.DuckDBPyConnection, rows: pl.DataFrame, by: Group) -> pl.DataFrame:
    """Figures of each step by stage (`pp_rank`; NULL: not recorded) or of the job.

    `rows` are of `mfu.Figures`. Columns: run, capture, step, stage (of stages), rank_count, step_ns
    (the longest), the three kernel ratios and matmul_flops of these ranks; and, of the whole job
    with a model, tokens_per_step, model_flops, model_mfu_ratio, hfu_ratio, tokens_per_s and
    tokens_per_s_per_rank.
    """
    keys = ["run", "capture", "step", *(["stage"] if by == "stage" else [])]
    stages = frame(con, _STAGES)
    possible = pl.col("step_ns") * 1e-9 * pl.col("peak_flops_per_s")
    known = rows.join(stages, on=("run", "capture", "rank"), how="left").with_columns(
        possible=possible
    )

    def ratio(name: str) -> pl.Expr:
        of = pl.col("possible").filter(pl.col(name).is_not_null()).sum()
        return (pl.when(of > 0).then((pl.col(name) * pl.col("possible")).sum() / of)).alias(name)

    found = known.group_by(keys).agg(
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
        seconds = pl.col("step_ns") * 1e-9
        of_job = seconds * pl.col("world_size") * pl.col("peak_flops_per_s")
        found = found.with_columns(
            model_mfu_ratio=pl.col("model_flops") / of_job,
            hfu_ratio=pl.col("hardware_flops") / of_job,
            tokens_per_s=pl.col("tokens_per_step") / seconds,
            tokens_per_s_per_rank=pl.col("tokens_per_step") / seconds / pl.col("world_size"),
        )
    else:
        found = found.drop("model_flops", "tokens_per_step")
    return found.drop("world_size", "hardware_flops", "peak_flops_per_s").sort(
        keys, nulls_last=True
    )


def mean_use(
    con: duckdb.DuckDBPyConnection, rows: pl.DataFrame, keys: Sequence[str]
) -> pl.DataFrame:
    """Ratios of rows of `gathered` or of `mfu` by `keys`, each step weighing as long as it lasts.

    Columns: the keys, figure (the column's name), value. Without warm-up; of single steps, where
    step is among the keys, each as it is.
    """
    counted = rows if "step" in keys else without_warm_up(con, rows)
    weight = pl.col("step_ns")
    return (
        counted.unpivot(
            [name for name in _RATIOS if name in rows.columns],
            index=[*dict.fromkeys([*keys, "step_ns"])], variable_name="figure",
        )
        .filter(pl.col("value").is_not_null(), weight > 0)
        .group_by([*keys, "figure"], maintain_order=True)
        .agg((pl.col("value") * weight).sum() / weight.sum())
    )  # fmt: skip
