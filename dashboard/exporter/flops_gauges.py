"""Gauges of FLOPs: MFU of the job and of ranks by convention, and the terms of its losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import duckdb
import polars as pl

from npuscope.analysis.flops.job_mfu import mean_use
from npuscope.analysis.flops.kernels.count import counted_kernels, kernel_work
from npuscope.analysis.flops.losses import by_term, losses, together
from npuscope.analysis.flops.mfu import ModelUse, mfu

from .gauges import Frames

_CONVENTIONS = {
    "kernel_mfu_causal_ratio": "kernel_causal",
    "kernel_mfu_full_ratio": "kernel_full",
    "matmul_mfu_ratio": "matmul",
    "model_mfu_ratio": "model",
    "hfu_ratio": "hfu",
}
# How notes begin that say why figures of the model are not known.
_OF_MODEL = ("model FLOPs", "model MFU", "tokens per step", "HFU")


def flops_gauges(
    con: duckdb.DuckDBPyConnection,
    keys: Sequence[str],
    *,
    use: ModelUse | None = None,
    given_peaks: Mapping[str, float] | None = None,
    tell: Callable[[str], None] = lambda message: None,
) -> Frames:
    """Values of each of `keys` by metric, as `npuscope mfu` tells them.

    MFU of the model and HFU with the model that is in `use`; `tell` gets why they are not known.
    The waterfall tells waiting apart where `con` has what all ranks tell (`open_across`).
    """
    keys = list(keys)
    kernels = counted_kernels(con)
    figures = mfu(con, use=use, given_peaks=given_peaks, known=kernels)
    for note in figures.notes if use is not None else ():
        if note.startswith(_OF_MODEL):
            tell(note)
    frames = {
        "npuscope_mfu_ratio": _by_convention(mean_use(con, figures.rows, keys)),
        "npuscope_rank_mfu_ratio": _by_convention(
            mean_use(con, figures.rows.drop("matmul_mfu_ratio"), [*keys, "rank"])
        ),
    }
    if "step" not in keys:
        rows = losses(con, figures.rows, kernel_work(kernels))
        terms = by_term(together(con, rows))
        frames["npuscope_loss_ratio"] = terms.select(
            *keys, "term", pl.col("mfu_points").alias("value")
        )
    return frames


def _by_convention(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.with_columns(
        pl.col("figure").replace_strict(_CONVENTIONS).alias("convention")
    ).drop("figure")
