"""A run over time: one row per capture, from summaries of all of its captures.

steps  -> length, masking, computing of the slowest rank over the mean
mfu    -> kernel MFU of the job
comm   -> exposed time of each parallel kind
experts' tokens -> fullest expert over the mean
trainer's log -> time of each step
captures, log -> where their levels change
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import duckdb
import polars as pl

from npuscope.messages import Message

from . import query
from .compare.change_points import ALARMS, LEAST, change_points
from .compare.side import share_most
from .experts.load.imbalance import expert_loads, expert_metrics
from .experts.load.load import expert_rows
from .flops.job_mfu import mean_use
from .flops.mfu import mfu
from .means import job_steps, mean_comm, mean_steps, without_warm_up
from .scope import ALL, Scope
from .views import frame
from .wording import numbers, percent

_PARTS = ("computing_ns", "exposed_communication_ns", "free_ns")
_AT = ("run", "capture")
_STEP = (*_AT, "step")
_MFU = "kernel_mfu_causal_ratio"
# Whose changes are looked for.
_MEASURES = {
    "captures": ("step_ns", *_PARTS, "masking_ratio", "kernel_mfu_causal_ratio"),
    "train_log": ("step_ns", "tokens_per_s"),
}
_FIGURES = ("before", "after", "delta", "low", "high", "delta_ratio", "low_ratio", "high_ratio")
_MOST_POINTS = 1000
_LOG = """
select run, step, elapsed_s * 1e9 as step_ns,
    case when count(elapsed_s) over (partition by run) = 0 then tokens_per_s end as tokens_per_s
from run_log {where} order by run, step"""


@dataclass(frozen=True, slots=True)
class Trends:
    """`captures`: run, capture, start_ns, rank_count, step_count, step_ns (the
    job's, mean of steps), computing_ns, exposed_communication_ns, free_ns (means of ranks and
    steps), masking_ratio, kernel_mfu_causal_ratio, rank_imbalance (computing of the slowest rank
    over the mean, mean of steps), expert_imbalance (fullest expert over the mean, mean of layers
    and steps); in order of time.
    `exposed`: run, capture, start_ns, kind, exposed_attributed_ns (mean of ranks and steps).
    `log`: run, step, step_ns and, where that is never logged, tokens_per_s: steps of the trainer's
    log. `changes`: rows of `trend_changes` of captures and log. `apart`: run, capture, ranks of
    captures that are not among those, as their ranks are others.
    """

    captures: pl.DataFrame
    exposed: pl.DataFrame
    log: pl.DataFrame
    changes: pl.DataFrame
    apart: tuple[tuple[str, str, frozenset[int]], ...] = ()


# metric: trends
# How does a run change from capture to capture?
#
# Of all ranks and steps of each capture. Parts are means of ranks and steps (mean_steps), MFU
# is mean_mfu's. The only rank there is cannot be compared. The last step of a capture lasts to its
# own end: where captures of a run have different shares of last steps, the step's time and MFU
# leave them out, or are up to the own end of all steps where a capture has no others.
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
#   step_ns                   double   time of a step of the job, mean of steps
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
    alike = _lengths_alike(con, run)
    means = mean_steps(con, run).select(*_AT, "job_step_ns", *_PARTS, "masking_ratio")
    lengths = alike.group_by(_AT).agg(pl.col("step_ns").mean())
    captures = facts
    for more in (
        lengths, means, _rank_imbalance(con, run), _job_mfu(con, run, alike), _experts(con, run)
    ):  # fmt: skip
        captures = captures.join(more, on=_AT, how="left")
    captures = captures.with_columns(pl.coalesce("step_ns", "job_step_ns")).drop("job_step_ns")
    captures = captures.sort("start_ns", "capture", nulls_last=True)
    exposed = (
        mean_comm(con, run, by="kind")
        .drop_nulls("exposed_attributed_ns")
        .join(facts.select(*_AT, "start_ns"), on=_AT)
        .select(*_AT, "start_ns", "kind", "exposed_attributed_ns")
        .sort("start_ns", "capture", "kind", nulls_last=True)
    )
    clause, values = run.where(("run",))
    log = frame(con, _LOG.format(where=clause), values)
    apart = _of_other_ranks(con, run)
    is_apart = pl.struct(*_AT).is_in([{"run": one, "capture": at} for one, at, _ in apart])
    changes = trend_changes(captures.filter(~is_apart) if apart else captures, log)
    return Trends(captures, exposed, log, changes, apart)


# metric: trend_changes
# When did a run become slower or faster, and by how much?
#
# Where the level of a measure changes, over a run's captures in order of time and over the steps of
# the trainer's log (their tokens per second where it has no times). Each measure is judged by
# itself; of one that does not change, a change is told in 1 % of all cases. Captures of other ranks
# than most have are passed over: a mean rank of theirs does other work. See docs/compare.md.
#
# title: Changes over time
# meaning: Where the level of a step's time or of its parts changes for good, and by how much.
# by: run
# command: trends
# table: trend_changes
# figure: trends, trends_log
#
#   basis         varchar  captures or train_log
#   measure       varchar  step_ns, computing_ns, exposed_communication_ns, free_ns, masking_ratio,
#     kernel_mfu_causal_ratio, as in trends; of a log step_ns or tokens_per_s
#   capture       varchar  first of the new level; NULL: of a log
#   start_ns      bigint   its start
#   step          bigint   first of the new level; NULL: of captures
#   before        double   level until then, from the change before
#   after         double   level since, until the next change
#   delta         double   how much higher the new level is than the one before
#   low           double   lower end of the 95 % interval of delta; NULL: no noise to tell
#   high          double   its upper end
#   delta_ratio   double   delta over before
#   low_ratio     double   low over before
#   high_ratio    double   high over before
#   before_count  bigint   captures or steps of the level before
#   after_count   bigint   captures or steps of the level after
def trend_changes(captures: pl.DataFrame, log: pl.DataFrame) -> pl.DataFrame:
    """Rows of the metric `trend_changes`; `captures` and `log` as `Trends` has them."""
    rows = [
        {"run": run, "basis": basis, "measure": measure, "capture": at.get("capture"),
         "start_ns": at.get("start_ns"), "step": at.get("step"),
         "before": one.before, "after": one.after,
         "delta": one.delta, "low": one.low, "high": one.high,
         "delta_ratio": one.share(one.delta), "low_ratio": one.share(one.low),
         "high_ratio": one.share(one.high),
         "before_count": one.count_before, "after_count": one.count_after}
        for basis, frame in (("captures", captures), ("train_log", log))
        for (run,), of_run in frame.group_by("run", maintain_order=True)
        for measure in _MEASURES[basis]
        for finite in (of_run.filter(pl.col(measure).cast(pl.Float64).is_finite()),)
        for one in change_points(finite[measure].to_numpy())
        for at in (finite.row(one.at, named=True),)
    ]  # fmt: skip
    return pl.DataFrame(
        rows,
        {"run": pl.String, "basis": pl.String, "measure": pl.String, "capture": pl.String,
         "start_ns": pl.Int64, "step": pl.Int64, **dict.fromkeys(_FIGURES, pl.Float64),
         "before_count": pl.Int64, "after_count": pl.Int64},
    )  # fmt: skip


# metric: trends_log
# How long are the steps that the trainer logged?
#
# Medians of stretches of equally many steps, at most 1,000 of a run.
#
# title: The trainer's log over time
# meaning: Time of the steps in the trainer's log, or tokens per second where it has no times.
# by: run
# figure: trends_log
#
#   step          bigint  first step of the stretch
#   step_ns       double  time of a step as logged; NULL: not logged
#   tokens_per_s  double  tokens per second, as logged, where no step has a time
def log_points(log: pl.DataFrame) -> pl.DataFrame:
    """Rows of the metric `trends_log`; `log` as `Trends` has it."""
    stretch = pl.int_range(pl.len()) * _MOST_POINTS // pl.max_horizontal(pl.len(), _MOST_POINTS)
    return (
        log.group_by("run", stretch.over("run").alias("stretch"), maintain_order=True)
        .agg(pl.col("step").first(), pl.col("step_ns", "tokens_per_s").median())
        .drop("stretch")
    )


def change_notes(history: Trends) -> list[str]:
    """What keeps changes from being found, and how often one is told that is none."""
    notes = [
        Message("{run}: captures so far: {count}; changes are told of {least} or more",
                run=run, count=count, least=LEAST)
        for run, count in history.captures.group_by("run", maintain_order=True).len().iter_rows()
        if count < LEAST
    ]  # fmt: skip
    notes += [
        Message("{run}, {capture}: other ranks than most captures have ({ranks}): no change is told"
                " of it", run=run, capture=capture, ranks=numbers(ranks))
        for run, capture, ranks in history.apart
    ]  # fmt: skip
    if history.log.is_empty():
        notes.append(Message("no training log here: `npuscope ingest --train-log` adds one"))
    note = Message(
        "a measure that does not change is told to do so in {share} of all cases",
        share=percent(ALARMS),
    )
    return [*notes, note]


def _rank_imbalance(con: duckdb.DuckDBPyConnection, run: Scope) -> pl.DataFrame:
    """Mean over steps; the only rank there is cannot be compared with others."""
    ranks = without_warm_up(con, query.steps(con, run).drop_nulls("computing_ns"))
    computing = pl.col("computing_ns")
    of_step = ranks.group_by(*_AT, "step").agg(
        (computing.max() / computing.mean()).alias("rank_imbalance"), pl.len().alias("ranks")
    )
    return of_step.filter(pl.col("ranks") > 1).group_by(_AT).agg(pl.col("rank_imbalance").mean())


def _lengths_alike(con: duckdb.DuckDBPyConnection, run: Scope) -> pl.DataFrame:
    """run, capture, step, step_ns of the job's steps, up to the next one's begin or to their own
    end, as `difference.compare` chooses for two sides: the same in all captures of a run."""
    times = without_warm_up(con, job_steps(con, run)).drop_nulls("step_ns")
    is_last, share = pl.col("is_last"), pl.col("share")
    ends = times.group_by(_AT).agg(share=is_last.cast(pl.Float64).mean())
    ends = ends.group_by("run").agg(
        is_alike=(share.n_unique() == 1) | share.is_null().any(), has_next=(share < 1).all()
    )
    step_ns = (
        pl.when("is_alike").then("step_ns")
        .when("has_next").then(pl.when(~is_last).then("step_ns"))
        .otherwise(pl.coalesce("to_end_ns", "step_ns"))
    )  # fmt: skip
    return times.join(ends, on="run").select(*_STEP, step_ns=step_ns).drop_nulls("step_ns")


def _of_other_ranks(
    con: duckdb.DuckDBPyConnection, run: Scope
) -> tuple[tuple[str, str, frozenset[int]], ...]:
    """Captures whose ranks are others than those of most captures of their run, or of the latest
    among as many."""
    clause, values = run.where(("run",))
    rows = frame(con, f"select distinct run, capture, rank from step_summary {clause}", values)
    found = []
    for _, of_run in rows.group_by("run", maintain_order=True):
        sets = {
            (str(name), str(capture)): frozenset(ranks)
            for name, capture, ranks in of_run.group_by(_AT).agg("rank").sort(_AT).iter_rows()
        }
        counts = Counter(sets.values())
        shared = {
            one: sum(count for other, count in counts.items() if share_most(one, other))
            for one in counts
        }
        most = max(reversed(sets.values()), key=lambda one: shared[one])
        found += [(*at, ranks) for at, ranks in sets.items() if not share_most(ranks, most)]
    return tuple(found)


def _job_mfu(con: duckdb.DuckDBPyConnection, run: Scope, lengths: pl.DataFrame) -> pl.DataFrame:
    """As the metric `mean_mfu`, over the `lengths` that end alike."""
    whole = job_steps(con, run).select(*_STEP, whole_ns="step_ns")
    both = lengths.rename({"step_ns": "alike_ns"}).join(whole, on=_STEP, nulls_equal=True)
    part = pl.when(pl.col("whole_ns") > 0).then(pl.col("alike_ns") / pl.col("whole_ns"))
    alike = mfu(con, run).rows.join(both, on=_STEP, nulls_equal=True).with_columns(
        pl.col("step_ns") * part, pl.col(_MFU) / part
    )  # fmt: skip
    told = mean_use(con, alike, _AT).filter(figure=_MFU)
    return told.select(*_AT, pl.col("value").alias(_MFU))


def _experts(con: duckdb.DuckDBPyConnection, run: Scope) -> pl.DataFrame:
    figures = expert_metrics(expert_loads(expert_rows(con, run).load))
    return figures.group_by(_AT).agg(pl.col("max_over_mean").mean().alias("expert_imbalance"))
