"""A run over time: one row per capture, from summaries of all of its captures.

steps  -> length, masking, computing of the slowest rank over the mean
mfu    -> kernel MFU of the job
comm   -> exposed time of each parallel kind
experts' tokens -> fullest expert over the mean
"""

from __future__ import annotations

from dataclasses import dataclass

import duckdb
import polars as pl

from npuscope.analysis import query
from npuscope.analysis.experts.load import expert_rows
from npuscope.analysis.experts.metrics import expert_loads, expert_metrics
from npuscope.analysis.flops.gathered import gathered
from npuscope.analysis.flops.mfu import mfu

_PARTS = ("computing_ns", "exposed_communication_ns", "free_ns")
_AT = ("run", "capture")


@dataclass(frozen=True, slots=True)
class Trends:
    """`captures`: run, capture, start_ns, rank_count, step_count, step_ns (the slowest rank's,
    mean of steps), computing_ns, exposed_communication_ns, free_ns (means of ranks and steps),
    masking_ratio, kernel_mfu_causal_ratio, rank_imbalance (computing of the slowest rank over the
    mean, mean of steps), expert_imbalance (fullest expert over the mean, mean of layers and steps);
    in order of time.
    `exposed`: run, capture, start_ns, kind, exposed_attributed_ns (mean of ranks and steps).
    """

    captures: pl.DataFrame
    exposed: pl.DataFrame


def trends(con: duckdb.DuckDBPyConnection, *, run: str | None = None) -> Trends:
    """All captures of a run side by side."""
    facts = query.capture_facts(con, run=run).select(
        *_AT, pl.col("window_start_ns").alias("start_ns"), "rank_count", "step_count"
    )
    steps = query.steps(con, run=run)
    lengths = steps.drop_nulls(_PARTS).with_columns(step_ns=pl.sum_horizontal(_PARTS))
    of_step = lengths.group_by(*_AT, "step").agg(
        pl.col("step_ns").max(),
        (pl.col("computing_ns").max() / pl.col("computing_ns").mean()).alias("rank_imbalance"),
        pl.len().alias("ranks"),
    )
    slowest = of_step.group_by(_AT).agg(
        pl.col("step_ns").mean(),
        # The only rank there is cannot be compared with others.
        pl.col("rank_imbalance").filter(pl.col("ranks") > 1).mean(),
    )
    means = lengths.group_by(_AT).agg(*(pl.col(name).mean() for name in _PARTS))
    communicated = steps.drop_nulls(["communication_ns", "overlapped_ns"]).group_by(_AT)
    masking = communicated.agg(
        pl.col("overlapped_ns").sum().alias("hidden"), pl.col("communication_ns").sum().alias("all")
    ).select(*_AT, pl.when(pl.col("all") > 0).then(pl.col("hidden") / pl.col("all"))
             .alias("masking_ratio"))  # fmt: skip
    captures = facts
    for more in (slowest, means, masking, _job_mfu(con, run), _experts(con, run)):
        captures = captures.join(more, on=_AT, how="left")
    captures = captures.sort("start_ns", "capture", nulls_last=True)
    return Trends(captures, _exposed(con, run, lengths, facts))


def _job_mfu(con: duckdb.DuckDBPyConnection, run: str | None) -> pl.DataFrame:
    """Kernel MFU of each capture: of its steps, each weighing as long as it lasts."""
    job = gathered(con, mfu(con, run=run).rows, "job")
    name = "kernel_mfu_causal_ratio"
    known = job.drop_nulls([name, "step_ns"])
    return known.group_by(_AT).agg(
        (pl.col(name) * pl.col("step_ns")).sum() / pl.col("step_ns").sum()
    )


def _experts(con: duckdb.DuckDBPyConnection, run: str | None) -> pl.DataFrame:
    figures = expert_metrics(expert_loads(expert_rows(con, run=run).load))
    return figures.group_by(_AT).agg(pl.col("max_over_mean").mean().alias("expert_imbalance"))


def _exposed(
    con: duckdb.DuckDBPyConnection, run: str | None, lengths: pl.DataFrame, facts: pl.DataFrame
) -> pl.DataFrame:
    """Exposed time of each kind; a rank or step without operations of a kind counts as none."""
    place = (*_AT, "rank", "step")
    found = query.comm(con, by="kind", run=run).drop_nulls("exposed_attributed_ns")
    found = found.join(lengths.select(place), on=place, how="semi", nulls_equal=True)
    counts = lengths.group_by(_AT).agg(pl.len().alias("steps"))
    return (
        found.group_by(*_AT, "kind")
        .agg(pl.col("exposed_attributed_ns").sum())
        .join(counts, on=_AT)
        .join(facts.select(*_AT, "start_ns"), on=_AT)
        .select(*_AT, "start_ns", "kind", pl.col("exposed_attributed_ns") / pl.col("steps"))
        .sort("start_ns", "capture", "kind", nulls_last=True)
    )
