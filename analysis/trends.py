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

from . import query
from .experts.load.imbalance import expert_loads, expert_metrics
from .experts.load.load import expert_rows
from .flops.job_mfu import gathered, mean_use
from .flops.mfu import mfu
from .means import mean_comm, mean_steps, without_warm_up
from .scope import ALL, Scope

_PARTS = ("computing_ns", "exposed_communication_ns", "free_ns")
_AT = ("run", "capture")


@dataclass(frozen=True, slots=True)
class Trends:
    """`captures`: run, capture, start_ns, rank_count, step_count, step_ns (the slowest
    rank's, mean of steps), computing_ns, exposed_communication_ns, free_ns (means of ranks and
    steps), masking_ratio, kernel_mfu_causal_ratio, rank_imbalance (computing of the slowest rank
    over the mean, mean of steps), expert_imbalance (fullest expert over the mean, mean of layers
    and steps); in order of time.
    `exposed`: run, capture, start_ns, kind, exposed_attributed_ns (mean of ranks and steps).
    """

    captures: pl.DataFrame
    exposed: pl.DataFrame


# metric: trends
# How does a run change from capture to capture?
#
# Of all ranks and steps of each capture. A job's step is its slowest rank's; parts are means of
# ranks and steps (mean_steps); MFU is mean_mfu's. The only rank there is cannot be compared.
#
# title: Captures over time
# meaning: A run's captures in order of time: length of a step, its parts, masking, MFU, imbalance.
# by: run, capture
# table: trends
# figure: trends
#
#   start_ns                  bigint   first start of a rank's profiling session
#   rank_count                bigint   ranks that are here
#   step_count                bigint   steps with figures
#   step_ns                   double   length of a step on the slowest rank, mean of steps
#   computing_ns              double   time in which compute kernels run
#   exposed_communication_ns  double   communication that no compute hides
#   free_ns                   double   time of neither
#   masking_ratio             double   communication that compute hides over communication
#   kernel_mfu_causal_ratio   double   FLOPs of kernels over the peak, attention counted as causal
#   rank_imbalance            double   computing of the slowest rank over the mean, mean of steps
#   expert_imbalance          double   fullest expert over the mean, mean of layers and steps


# metric: trends_exposed
# Which kind's exposed communication changes from capture to capture?
#
# The attributed share of mean_comm, so that kinds add up; mean of ranks and steps.
#
# title: Exposed communication over time
# meaning: Exposed communication of each parallel kind in a run's captures.
# by: run, capture
# table: trends_exposed
# figure: trends
#
#   start_ns               bigint   first start of a rank's profiling session
#   kind                   varchar  parallel kind of the group
#   exposed_attributed_ns  double   exposed time attributed to the kind
def trends(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> Trends:
    """All captures of a run side by side; of a scope only the run is heeded."""
    run = Scope(scope.run)
    facts = query.capture_facts(con, run).select(
        *_AT, pl.col("window_start_ns").alias("start_ns"), "rank_count", "step_count"
    )
    means = mean_steps(con, run).select(
        *_AT, pl.col("job_step_ns").alias("step_ns"), *_PARTS, "masking_ratio"
    )
    captures = facts
    for more in (means, _rank_imbalance(con, run), _job_mfu(con, run), _experts(con, run)):
        captures = captures.join(more, on=_AT, how="left")
    captures = captures.sort("start_ns", "capture", nulls_last=True)
    exposed = (
        mean_comm(con, run, by="kind")
        .drop_nulls("exposed_attributed_ns")
        .join(facts.select(*_AT, "start_ns"), on=_AT)
        .select(*_AT, "start_ns", "kind", "exposed_attributed_ns")
        .sort("start_ns", "capture", "kind", nulls_last=True)
    )
    return Trends(captures, exposed)


def _rank_imbalance(con: duckdb.DuckDBPyConnection, run: Scope) -> pl.DataFrame:
    """Mean over steps; the only rank there is cannot be compared with others."""
    ranks = without_warm_up(con, query.steps(con, run).drop_nulls("computing_ns"))
    computing = pl.col("computing_ns")
    of_step = ranks.group_by(*_AT, "step").agg(
        (computing.max() / computing.mean()).alias("rank_imbalance"), pl.len().alias("ranks")
    )
    return of_step.filter(pl.col("ranks") > 1).group_by(_AT).agg(pl.col("rank_imbalance").mean())


def _job_mfu(con: duckdb.DuckDBPyConnection, run: Scope) -> pl.DataFrame:
    job = mean_use(con, gathered(con, mfu(con, run).rows, "job"), _AT)
    name = "kernel_mfu_causal_ratio"
    return job.filter(pl.col("figure") == name).select(*_AT, pl.col("value").alias(name))


def _experts(con: duckdb.DuckDBPyConnection, run: Scope) -> pl.DataFrame:
    figures = expert_metrics(expert_loads(expert_rows(con, run).load))
    return figures.group_by(_AT).agg(pl.col("max_over_mean").mean().alias("expert_imbalance"))
