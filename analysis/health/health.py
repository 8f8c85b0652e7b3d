"""The health of one training, from its log: steps, what went wrong, and the sums of both.

log --> steps (`steps`) --> events (`events`) --> goodput, rate of spikes --> beside another log's
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from scipy.special import betaincinv

from npuscope.collector.readers.train_log.log_facts import LogFacts
from npuscope.messages import Message, join

from ..wording import percent
from . import events
from .speculation import health_heads
from .steps import health_steps, iterations, lost_iterations

_SPIKES = ("grad_norm", "loss")
_NS = 1e9
_CONFIDENCE = 0.95
_OVER = 1.05
_HOUR_S = 3600.0
_PRINTED_S, _VARIATION = 2.0, 0.02  # times are of whole seconds; what a step's own time is off by,
_MOST_OFF_S = 10.0  # at most: else a pause of an hour is a clock's as well
_BACK_S = 600.0  # lines of several ranks are less out of order


@dataclass(frozen=True, slots=True)
class Health:
    """`steps` as the metric `health`, `events` as `health_events`, `heads` as `health_heads`;
    `summary` sums up: see docs/health.md for its figures."""

    steps: pl.DataFrame
    events: pl.DataFrame
    heads: pl.DataFrame
    summary: dict[str, float | int | None]


# metric: health_events
# What went wrong in a training, and when?
#
# Spikes, levels that changed for good, costs that come again, restarts, steps that are no number:
# the rules stand in docs/health.md.
#
# title: Events
# meaning: Spikes, changes of level, periodic costs, restarts and lost steps of a training's log.
# table: health_events
# figure: health
#
#   kind          varchar  spike, change, periodic, restart, not_finite, skipped
#   metric        varchar  of which column
#   step          bigint   first step of it
#   end_step      bigint   last step of it; of a change the last of the new level
#   count         bigint   steps of it; of a restart done twice; how often a periodic cost came
#   value         double   the highest of a spike, the new level of a change, a step with the cost
#   usual         double   the level before
#   low           double   95 % interval of value - usual of a change, from
#   high          double   to
#   period_steps  bigint   of a periodic cost: it comes every so many steps
#   cost_ns       bigint   of a periodic cost, each time; of a restart in all
def health(lines: pl.DataFrame, facts: LogFacts) -> Health:
    """What the lines of a log (`read_lines`) tell."""
    steps = health_steps(lines, facts)
    weighed = steps.with_columns(
        pl.Series("iterations", iterations(steps["step"])),
        lost_iterations(lines, steps).alias("lost_count"),
    )
    periodic, regular = events.periodic_costs(weighed)
    usual = weighed.filter(~pl.col("step").is_in(regular.implode()))
    events_here = pl.concat([
        *(events.spikes(weighed, name) for name in _SPIKES),
        events.level_changes(usual),
        periodic,
        events.restarts(lines, weighed),
        events.not_finite(weighed),
    ]).sort("step", "kind", "metric", maintain_order=True)  # fmt: skip
    return Health(steps, events_here, health_heads(lines), _summary(lines, weighed, events_here))


# metric: health_summary
# How healthy is a training as a whole?
#
# Useful is the time of all steps, each once; wall from the first line's time to the last, where
# lines have times that fit; goodput useful over wall. An hour by which the clock goes on or back
# beside what the step itself took, as daylight saving begins or ends, did not pass; where it goes
# back otherwise, times do not fit. A line for every ten steps stands for ten.
# Spikes are those of health_events, told per 1,000 steps that could have been one: which have 16
# with a figure before them.
#
# title: Health of the training
# meaning: Goodput, spikes, steps without a number, skipped and lost steps of a training's log.
# figure: health_tiles
# gauge: npuscope_health_goodput_ratio = goodput_ratio: Time of steps, each once, of the time that
#     passed, by the training log.
# gauge: npuscope_health_grad_norm_spikes = grad_norm_spikes_count: Spikes of the gradient norm so
#     far, by the training log.
# gauge: npuscope_health_loss_spikes = loss_spikes_count: Spikes of the loss so far, by the training
#     log.
# gauge: npuscope_health_not_finite_steps = not_finite_count: Steps of the training log whose loss
#     or gradients were no number.
# gauge: npuscope_health_skipped_steps = skipped_count: Iterations that were skipped so far, by the
#     training log.
#
#   steps_count       bigint  steps that the log tells of
#   useful_s          double  time of all steps, each once
#   wall_s            double  time that passed; NULL: lines have no times, or these do not fit
#   goodput_ratio     double  useful / wall
#   not_finite_count  bigint  steps whose loss or gradients were no number; NULL: not told
#   skipped_count     bigint  iterations that were skipped; NULL: not told
#   grad_norm_spikes_count           bigint  spikes of the gradient norm; NULL: not told, of
#     steps without a number, or of too few to tell
#   loss_spikes_count                bigint  spikes of the loss; NULL likewise
#   grad_norm_spikes_per_1000_steps  double  of the steps that could have been one
#   loss_spikes_per_1000_steps       double  of the steps that could have been one
def summary_row(health: Health) -> pl.DataFrame:
    """The row of the metric."""
    return pl.DataFrame([health.summary])


_KINDS = {
    "spike": "spikes", "change": "changes of level", "periodic": "periodic costs",
    "restart": "restarts", "not_finite": "stretches without a number",
    "skipped": "stretches of skipped steps",
}  # fmt: skip


def health_verdict(health: Health) -> str:
    """What went wrong how often, and the goodput where it is known."""
    steps, goodput = health.summary["steps_count"], health.summary["goodput_ratio"]
    if steps and not health.steps["step"].count():
        return Message("The log does not number its steps: spikes and changes are unknown.")
    counts = dict(health.events["kind"].value_counts().iter_rows())
    events = join(
        Message("{what}: {count}", what=words, count=f"{counts[kind]:,}")
        for kind, words in _KINDS.items()
        if kind in counts
    )
    sentence = (
        Message("In {steps} steps: {events}.", steps=f"{steps:,}", events=events)
        if events
        else Message("Nothing went wrong in {steps} steps that the rules know.", steps=f"{steps:,}")
    )
    sentences = [sentence]
    by_step = health.steps
    short = [name for name in _SPIKES
             if by_step[name].count() and not _count_candidates(by_step, name)]  # fmt: skip
    if short:
        sentences.append(Message("Steps are too few to tell spikes of {names}.", names=join(short)))
    if goodput is not None:
        sentences.append(Message("Goodput is {share}.", share=percent(goodput)))
    return join(sentences, " ")


def _sum_or_none(values: pl.Series) -> int | None:
    """Their sum; None where no step tells any."""
    return int(values.sum()) if values.count() else None


def _summary(
    lines: pl.DataFrame, steps: pl.DataFrame, events: pl.DataFrame
) -> dict[str, float | int | None]:
    weights = steps["iterations"].to_numpy()
    useful_s = float(steps["step_ns"].fill_null(0).to_numpy() @ weights) / _NS
    wall_s = _wall_s(lines, float(weights[0]))
    if wall_s is not None and useful_s > _OVER * wall_s:  # these times are not of these steps
        wall_s = None
    spikes = events.filter(pl.col("kind") == "spike")["metric"].value_counts(sort=True)
    counts = dict(spikes.iter_rows())
    judged = {name: _count_candidates(steps, name) for name in _SPIKES}
    return {
        "steps_count": round(float(weights.sum())),
        "useful_s": useful_s or None,
        "wall_s": wall_s,
        "goodput_ratio": useful_s / wall_s if wall_s else None,
        "not_finite_count": _sum_or_none(steps["lost_count"]),
        "skipped_count": _sum_or_none(steps["skipped_count"]),
        **{
            f"{name}_spikes_count": counts.get(name, 0) if count else None
            for name, count in judged.items()
        },
        **{
            f"{name}_spikes_per_1000_steps": 1000 * counts.get(name, 0) / count if count else None
            for name, count in judged.items()
        },
    }


def _wall_s(lines: pl.DataFrame, first_count: float) -> float | None:
    """From the first line's steps, so many, to the last line, on a clock that is not set; None
    where lines have no such times."""
    times = lines["at_s"].fill_nan(None)
    # Else the useful time is not all, or of more than these times span.
    if lines["elapsed_s"].null_count() or None in (*times.head(1), *times.tail(1)):
        return None
    own_s = pl.Series("own_s", lines["elapsed_s"].to_numpy() * iterations(lines["step"]))
    rows = pl.DataFrame([lines["step"], times, own_s]).drop_nulls("at_s")
    passed_s = pl.col("at_s").diff()
    is_next = pl.col("step").diff() > 0
    near_s = (_PRINTED_S + _VARIATION * pl.col("own_s")).clip(upper_bound=_MOST_OFF_S)
    set_by = (
        pl.when(is_next & ((passed_s - pl.col("own_s")).abs() - _HOUR_S).abs().le(near_s))
        .then((passed_s - pl.col("own_s")).sign() * _HOUR_S)
        .otherwise(0.0)
    )
    clock_s = rows.select(pl.col("at_s") - set_by.fill_null(0.0).cum_sum())["at_s"].to_numpy()
    span_s = float(np.ptp(clock_s)) if len(clock_s) else 0.0
    if not span_s or np.diff(clock_s).min() < -_BACK_S:
        return None
    return span_s + float(lines["elapsed_s"][0]) * first_count


def _count_candidates(steps: pl.DataFrame, name: str) -> int:
    """Steps that could have been a spike."""
    return round(float(iterations(steps["step"])[events.may_spike(steps, name).to_numpy()].sum()))


def spike_change(ours: Health, theirs: Health, name: str) -> dict[str, float | str | None]:
    """How much seldomer a column's spikes are in `ours` than in `theirs`: `change` of the rate per
    step as a share, its 95 % interval from `low` to `high`, and `text`.

    Spikes are taken as independent (Poisson); the interval is the exact one of a ratio of two rates
    (Clopper and Pearson's, of ours among all spikes). No verdict where it holds 0.
    """
    counts = [int(one.summary[f"{name}_spikes_count"] or 0) for one in (ours, theirs)]
    candidates = [_count_candidates(one.steps, name) for one in (ours, theirs)]
    entry: dict[str, float | str | None] = {
        "metric": name,
        "change": None,
        "low": None,
        "high": None,
    }
    if not all(candidates) or not sum(counts):
        return entry | {"text": Message("{name}: no spikes to compare", name=name)}
    tail = (1 - _CONFIDENCE) / 2
    k, n = counts[0], sum(counts)
    least = float(betaincinv(k, n - k + 1, tail)) if k else 0.0
    most = float(betaincinv(k + 1, n - k, 1 - tail)) if k < n else 1.0
    per_step = candidates[1] / candidates[0]
    low = least / (1 - least) * per_step - 1
    high = most / (1 - most) * per_step - 1 if most < 1 else None
    change = counts[0] / counts[1] * per_step - 1 if counts[1] else None
    entry |= {"change": change, "low": low, "high": high}
    if low < 0 and (high is None or high > 0):
        text = Message(
            "{name}: {ours} spikes in {steps} steps against {theirs} in {others}: not enough to"
            " tell whether there are more or fewer",
            name=name, ours=counts[0], steps=candidates[0], theirs=counts[1], others=candidates[1],
        )  # fmt: skip
    elif change is None or high is None:
        text = Message(
            "{name}: at least {low} more spikes per step than in the other log",
            name=name, low=percent(low),
        )  # fmt: skip
    elif change > 0:
        text = Message(
            "{name}: {change} more spikes per step than in the other log (95 %: {low} to {high})",
            name=name, change=percent(change), low=percent(low), high=percent(high),
        )  # fmt: skip
    else:
        text = Message(
            "{name}: {change} fewer spikes per step than in the other log (95 %: {low} to {high})",
            name=name, change=percent(-change), low=percent(-high), high=percent(-low),
        )  # fmt: skip
    return entry | {"text": text}
