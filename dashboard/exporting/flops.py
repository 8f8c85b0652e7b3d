"""Gauges of FLOPs: MFU of the job and of ranks by convention, and the terms of its losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import duckdb
import polars as pl

from npuscope.analysis.flops.counted import kernel_work
from npuscope.analysis.flops.gathered import gathered
from npuscope.analysis.flops.losses import losses, together
from npuscope.analysis.flops.mfu import ModelUse, mfu

from .steps import Frames

_CONVENTIONS = {
    "kernel_mfu_causal_ratio": "kernel_causal",
    "kernel_mfu_full_ratio": "kernel_full",
    "matmul_mfu_ratio": "matmul",
    "model_mfu_ratio": "model",
    "hfu_ratio": "hfu",
}
# How notes begin that say why figures of the model are not known.
_OF_MODEL = ("model FLOPs", "model MFU", "tokens per step", "HFU")
_OF_RANK = ("kernel_mfu_causal_ratio", "kernel_mfu_full_ratio")


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
    found = mfu(con, use=use, given_peaks=given_peaks)
    job = gathered(con, found.rows, "job")
    for note in found.notes if use is not None else ():
        if note.startswith(_OF_MODEL):
            tell(note)
    frames = {
        "npuscope_mfu_ratio": _weighted(job, keys, tuple(_CONVENTIONS)),
        "npuscope_rank_mfu_ratio": _weighted(found.rows, [*keys, "rank"], _OF_RANK),
    }
    if "step" not in keys:
        rows = losses(con, found.rows, kernel_work(found.counted))
        terms = together(con, rows).group_by([*keys, "term"], maintain_order=True)
        frames["npuscope_loss_ratio"] = terms.agg(pl.col("mfu_points").sum().alias("value"))
    return frames


def _weighted(rows: pl.DataFrame, keys: list[str], columns: tuple[str, ...]) -> pl.DataFrame:
    """Means by step_ns, a row for each convention that is known."""
    long = rows.unpivot(
        columns, index=[*dict.fromkeys([*keys, "step"]), "step_ns"], variable_name="convention"
    ).filter(pl.col("value").is_not_null(), pl.col("step_ns") > 0)
    weighted = (pl.col("value") * pl.col("step_ns")).sum() / pl.col("step_ns").sum()
    return (
        long.with_columns(pl.col("convention").replace_strict(_CONVENTIONS))
        .group_by([*keys, "convention"], maintain_order=True)
        .agg(weighted.alias("value"))
    )
