"""The health of a run whose log a store holds, and what it has to do with its captures.

train_log (each capture's) --> of each step the last line --> health --> points of a picture
events of the log + steps of captures + suspected ranks --> which profile is of a bad stretch
"""

from __future__ import annotations

from typing import Any

import duckdb
import polars as pl

from npuscope.collector.readers.train_log.log_facts import LogFacts
from npuscope.collector.readers.train_log.train_log import SCHEMA

from ..scope import ALL, Scope
from ..views import frame
from .health import Health, health
from .steps import PHASE_COLUMNS

_MOST_POINTS = 1000
_ROWS = f"""
select {", ".join(SCHEMA)} from train_log {{where}}
qualify step is null
    or row_number() over (partition by run, step order by capture desc, rank desc) = 1
order by step nulls last"""
_PROFILES = """
select run, capture, min(step) as step, max(step) as end_step
from step_summary {where} group by run, capture having min(step) is not null order by all"""


def run_health(
    con: duckdb.DuckDBPyConnection, scope: Scope = ALL, facts: LogFacts | None = None
) -> Health | None:
    """Of the log that is kept with the run's captures; None where there is none. Of a scope only
    the run is heeded: the first of several where it names none.

    A store keeps each step once: restarts are told by the log itself alone.
    """
    clause, values = Scope(scope.run).where(("run",))
    runs = frame(con, f"select min(run) as run from train_log {clause}", values)["run"].to_list()
    if runs[0] is None:
        return None
    clause, values = Scope(runs[0]).where(("run",))
    return health(frame(con, _ROWS.format(where=clause), values), facts or LogFacts())


# metric: health_captures
# Which captures were taken while the training was ill?
#
# A capture is held beside the log's events by the numbers of its steps: those of the profiler, as
# far as they are the trainer's. A spike, a stretch of skipped steps or of no number, and steps that
# a restart lost count from their first to their last step; a change of level only where steps
# became longer, as long as the new level lasts; a periodic cost where one of its steps is profiled.
#
# title: Captures and events
# meaning: Each capture with the events of the training's log that its steps fall into, and the
#     ranks that others wait for.
# by: run, capture
# table: health_captures
#
#   step             bigint   first profiled step
#   end_step         bigint   last profiled step
#   kind             varchar  kind of the event, as in health_events; NULL: of none
#   metric           varchar  of which column
#   event_step       bigint   first step of the event
#   event_end_step   bigint   last step of the event
#   logged_ns        bigint   time of a profiled step by the log, on average
#   usual_ns         bigint   median of all steps of the log
#   suspects         varchar  ranks that others wait for, with the verdict on each; NULL: none, or
#     ranks were not compared
def health_captures(
    con: duckdb.DuckDBPyConnection, scope: Scope = ALL, *, is_across: bool = False
) -> pl.DataFrame:
    """The rows of the metric; of a scope only the run is heeded. `is_across`: what all ranks tell
    is there (`open_across`)."""
    health = run_health(con, scope)
    clause, values = Scope(scope.run).where(("run",))
    captures = frame(con, _PROFILES.format(where=clause), values)
    if health is None or captures.is_empty():
        return pl.DataFrame(schema=_CAPTURES)
    named = _suspects(con, scope) if is_across else {}
    logged = health.steps.select("step", "step_ns").drop_nulls()
    usual = logged["step_ns"].median()
    rows = []
    for run, capture, first, last in captures.iter_rows():
        own = logged.filter(pl.col("step").is_between(first, last))["step_ns"]
        mean = own.sum() // len(own) if len(own) else None
        figures = (
            mean,
            round(usual) if isinstance(usual, float) else None,
            named.get((run, capture)),
        )
        hits = [
            (one["kind"], one["metric"], one["step"], one["end_step"])
            for one in health.events.iter_rows(named=True)
            if _is_within(one, first, last)
        ]
        rows += [(run, capture, first, last, *hit, *figures) for hit in hits or [(None,) * 4]]
    return pl.DataFrame(rows, schema=_CAPTURES, orient="row")


_CAPTURES = {
    "run": pl.String, "capture": pl.String, "step": pl.Int64, "end_step": pl.Int64,
    "kind": pl.String, "metric": pl.String, "event_step": pl.Int64, "event_end_step": pl.Int64,
    "logged_ns": pl.Int64, "usual_ns": pl.Int64, "suspects": pl.String,
}  # fmt: skip


def _is_within(event: dict[str, Any], first: int, last: int) -> bool:
    """Whether a step of an event is from first to last; not of a level that became faster."""
    begins, ends = event["step"], event["end_step"]
    if event["period_steps"]:
        ahead = -(-max(0, first - begins) // event["period_steps"])
        begins += ahead * event["period_steps"]
        return bool(begins <= min(last, ends))
    is_better = event["kind"] == "change" and event["value"] <= event["usual"]
    return bool(begins <= last and ends >= first and not is_better)


def _suspects(con: duckdb.DuckDBPyConnection, scope: Scope) -> dict[tuple[str, str], str]:
    from ..ranks.stragglers import blame

    suspects = blame.suspects(con, Scope(scope.run)).drop_nulls("verdict")
    words: dict[tuple[str, str], list[str]] = {}
    for run, capture, rank, verdict in suspects.select(
        "run", "capture", "rank", "verdict"
    ).iter_rows():
        words.setdefault((run, capture), []).append(f"{rank} ({verdict})")
    return {key: ", ".join(ranks) for key, ranks in words.items()}


# metric: health_points
# How does a training go, over all of its steps?
#
# Stretches of equally many steps, at most 1,000: medians of times, rates and loss, and the highest
# gradient norm, so that no spike is lost; mean time of phases of reinforcement learning.
#
# title: Training over steps
# meaning: Time, tokens, loss, gradient norm and phases over the steps of the trainer's log.
# figure: health
#
#   step               bigint  first step of the stretch
#   step_ns            bigint  time of a step, median
#   loss               double  median
#   grad_norm          double  the highest
#   tokens_per_second  double  of the job, median
#   generation_ns      bigint  RL: rollout
#   old_log_prob_ns    bigint  RL: log-probabilities under the old policy
#   reference_ns       bigint  RL: log-probabilities under the reference model
#   reward_ns          bigint  RL: rewards
#   advantage_ns       bigint  RL: advantages
#   update_actor_ns    bigint  RL: update of the actor
#   update_critic_ns   bigint  RL: update of the critic
#   other_ns           bigint  RL: the rest of the step
def health_points(steps: pl.DataFrame) -> pl.DataFrame:
    """The rows of the metric, of rows of `health`."""
    rows = steps.drop_nulls("step")
    stretch = pl.int_range(pl.len()) * _MOST_POINTS // pl.max_horizontal(pl.len(), _MOST_POINTS)
    return (
        rows.group_by(stretch.alias("stretch"), maintain_order=True)
        .agg(
            pl.col("step").first(),
            pl.col("step_ns").median().round().cast(pl.Int64),
            pl.col("loss").median(),
            pl.col("grad_norm").max(),
            pl.col("tokens_per_second").median(),
            pl.col(*PHASE_COLUMNS, "other_ns").mean().round().cast(pl.Int64),
        )
        .drop("stretch")
    )
