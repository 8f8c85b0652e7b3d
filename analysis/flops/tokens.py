"""Tokens that a job trains on in one step, as far as its kernels tell.

Each layer runs the gradient of its attention once for each micro batch, recomputed or not; so the
queries of all these kernels on all ranks, divided by the layers and by the ranks that share the
heads of one token (TP), are the tokens. That needs every rank of the job, no context parallel, and
micro batches of one size, of which each data-parallel rank has as many.
"""

from __future__ import annotations

import duckdb
import polars as pl

from npuscope.analysis.views import frame

from .counted import counted_kernels
from .model import ModelFlops

STEP = ("run", "capture", "step")
_GRADIENT = "flashattentionscoregrad"
_JOB = """
select run, capture, count(distinct rank) as rank_count, max(world_size) as world_size,
    max(tp_size) as tp_size, max(cp_size) as cp_size, max(dp_size) as dp_size
from ranks group by all
"""


def tokens_of_steps(
    con: duckdb.DuckDBPyConnection, *, layers: int
) -> tuple[pl.DataFrame, list[str]]:
    """(run, capture, step, tokens) of the steps where that is certain, and why of others not.

    `layers`: with attention, of the whole model, MTP blocks included.
    """
    reasons: list[str] = []
    sizes = frame(con, _JOB)
    certain = []
    for row in sizes.to_dicts():
        if not row["world_size"] or row["rank_count"] != row["world_size"]:
            reasons.append("tokens per step: not every rank of the job was recorded")
        elif None in (row["tp_size"], row["cp_size"], row["dp_size"]) or row["cp_size"] > 1:
            reasons.append("tokens per step: parallel sizes are unknown, or context is parallel")
        else:
            certain.append((row["run"], row["capture"], row["tp_size"] * layers, row["dp_size"]))
    schema = {"run": pl.String, "capture": pl.String, "times": pl.Int64, "dp_size": pl.Int64}
    kernels = counted_kernels(con).filter(
        pl.col("type").str.to_lowercase().str.starts_with(_GRADIENT)
    )
    if certain and kernels.is_empty():
        reasons.append("tokens per step: no backward of fused attention was recorded")
    summed = (
        kernels.join(
            pl.DataFrame(certain, schema=schema, orient="row"), on=("run", "capture")
        )
        .group_by(*STEP, "times", "dp_size")
        .agg(
            (pl.col("tokens") * pl.col("count")).sum().alias("queries"),
            pl.col("tokens").is_null().any().alias("is_partial"),
            pl.col("tokens").n_unique().alias("size_count"),
            pl.col("tokens").first().alias("micro_batch"),
        )
    )  # fmt: skip
    # Each data-parallel rank has as many micro batches, of one size.
    unit = pl.col("times") * pl.col("dp_size") * pl.col("micro_batch")
    whole = summed.filter(
        ~pl.col("is_partial"), pl.col("size_count") == 1, pl.col("queries") % unit == 0
    )
    if summed.height > whole.height:
        reasons.append(
            f"tokens per step: attention's queries are not those of equal micro batches in"
            f" {layers} layers, or not known of all kernels"
        )
    remedy = "; give --tokens-per-step N"
    return (
        whole.select(*STEP, tokens=pl.col("queries") // pl.col("times")),
        [f"{reason}{remedy}" for reason in dict.fromkeys(reasons)],
    )


def sequence_length_of(counted: pl.DataFrame) -> int | None:
    """Length of the sequences attention works on; None where shapes tell none or several."""
    found = counted["sequence_length"].drop_nulls().unique()
    return int(found[0]) if len(found) == 1 else None


def layers_with_attention(model: ModelFlops) -> int:
    """Layers of a model whose attention runs once for each micro batch, counted MTP blocks too."""
    return sum(
        term.layer_count
        for term in model.terms
        if term.kind == "attention" and term.part in ("layers", "mtp")
    )
