"""Reinforcement learning from its log: what each phase takes of the cards, what could be had, how
it scales.

steps (`health_steps`) --> mean phases --> share of device time, idle cards --> bounds
rates on 1, 2, 4 supernodes --> linearity
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl
from scipy.special import stdtrit

from npuscope.errors import UsageError
from npuscope.messages import Message

from .steps import PHASE_COLUMNS

_MOST_STALE = 4
_CONFIDENCE = 0.95
_NEAR = 0.01


@dataclass(frozen=True, slots=True)
class Cards:
    """Of the job, and of them those that generate; None: all of them do both, in turn.

    Raises UsageError where more generate than there are.
    """

    count: int
    generating: int | None = None

    def __post_init__(self) -> None:
        if self.generating is not None and not 0 < self.generating < self.count:
            raise UsageError(
                Message(
                    "{generating} of {count} cards generate: give fewer than all, or leave it out"
                    " where all cards generate and train in turn",
                    generating=self.generating, count=self.count,
                )
            )  # fmt: skip

    def share(self, phase: str) -> float:
        """Of the cards, those that a phase runs on; `other_ns` holds all of them."""
        if self.generating is None or phase == "other_ns":
            return 1.0
        own = self.generating if phase == "generation_ns" else self.count - self.generating
        return own / self.count


def cards_of(steps: pl.DataFrame) -> int | None:
    """As many as the job's tokens per second are of one card's; None where the log tells not."""
    ratio = (steps["tokens_per_second"] / steps["tokens_per_second_per_card"]).drop_nulls()
    cards = ratio.median()
    if not isinstance(cards, float) or round(cards) < 1:
        return None
    return round(cards) if abs(cards / round(cards) - 1) < _NEAR else None


# metric: health_phases
# Which phase of reinforcement learning takes how much of the cards?
#
# Means of all steps that the log tells phases of, cut to whole ns; they add up to the mean step.
# Device time is cards x time. Where some cards generate and the others train, a phase holds its
# own; cards that wait for the slowest generation are idle (slowest less mean generate_sequences),
# and so are those of the other kind. What else is idle within a phase the log does not tell.
#
# title: Phases
# meaning: Mean time of each phase of a step, its share of all device time, and idle cards in it.
# table: health_phases
# gauge: npuscope_health_phase_seconds{phase} = dur_ns: Mean time of a phase of reinforcement
#     learning, by the training log.
#
#   phase         varchar  generation, old_log_prob, ..., other
#   dur_ns        bigint   mean of steps
#   step_share    double   of the step's time
#   device_share  double   of cards x step: what the phase's own cards take
#   idle_ns       bigint   mean time that a card of the job waits in it; NULL: not told
#   idle_share    double   of cards x step
def health_phases(steps: pl.DataFrame, cards: Cards | None = None) -> pl.DataFrame:
    """The rows of the metric; none where the log has no phases."""
    step_rows = steps.drop_nulls(["other_ns", "step_ns"])
    cards = cards or Cards(1)
    if step_rows.is_empty():
        return pl.DataFrame(schema=_PHASES)
    step_ns = _mean_ns(step_rows, "step_ns")
    tail_ns = _mean_tail_ns(step_rows)
    means = {name: _mean_ns(step_rows, name) for name in PHASE_COLUMNS if step_rows[name].count()}
    means["other_ns"] = step_ns - sum(means.values())
    rows = []
    for name, dur_ns in means.items():
        own = cards.share(name)
        idle_ns = (1 - own) * dur_ns
        if name == "generation_ns":
            idle_ns += own * (tail_ns or 0)
        is_told = own < 1 or (name == "generation_ns" and tail_ns is not None)
        rows.append({
            "phase": name.removesuffix("_ns"), "dur_ns": dur_ns, "step_share": dur_ns / step_ns,
            "device_share": own * dur_ns / step_ns,
            "idle_ns": round(idle_ns) if is_told else None,
            "idle_share": idle_ns / step_ns if is_told else None,
        })  # fmt: skip
    return pl.DataFrame(rows, schema=_PHASES)


_PHASES = {
    "phase": pl.String, "dur_ns": pl.Int64, "step_share": pl.Float64, "device_share": pl.Float64,
    "idle_ns": pl.Int64, "idle_share": pl.Float64,
}  # fmt: skip


def _mean_ns(steps: pl.DataFrame, name: str) -> int:
    # A phase that a step does not tell took none of it.
    return int(steps[name].fill_null(0).sum()) // steps.height


def _mean_tail_ns(steps: pl.DataFrame) -> int | None:
    """Of the steps that tell how long cards wait for the longest answer."""
    tails = steps["generation_tail_ns"].drop_nulls()
    return int(tails.sum()) // len(tails) if len(tails) else None


# metric: health_bounds
# How much faster could reinforcement learning be, fused or with a stale rollout?
#
# No step is shorter than this, if phases take the device time they take now and scale with their
# cards. Fused: generation and training use the same cards, and none waits. k steps stale: samples
# are trained on at most k steps after the weights that they are of. So k + 1 steps are no shorter
# than one from weights to update is now, and cards that do not wait have as much to do as now:
# all of it where they generate and train in turn, the longer of both where some cards generate
# and the others train. What stale samples cost in learning is not counted.
#
# title: Bounds
# meaning: The shortest step that fusing and a stale rollout could have, and tokens per second.
# table: health_bounds
#
#   case               varchar  now, fused, stale
#   stale_count        bigint   steps that rollout may be ahead; NULL: not of this case
#   step_ns            bigint   no step is shorter
#   tokens_per_second  double   of the job, no more
#   speedup_ratio      double   step now / step
def health_bounds(steps: pl.DataFrame, cards: Cards | None = None) -> pl.DataFrame:
    """The rows of the metric: none where the log has no phases, `now` alone where it does not tell
    the slowest and the mean generation."""
    phases = health_phases(steps, cards)
    if phases.is_empty():
        return pl.DataFrame(schema=_BOUNDS)
    durations = dict(phases.select("phase", "dur_ns").iter_rows())
    now_ns, generation_ns = sum(durations.values()), durations.get("generation", 0)
    is_split = cards is not None and cards.generating is not None
    step_rows = steps.drop_nulls(["other_ns", "step_ns"])
    rates = _rated_steps(step_rows)
    tokens = _job_rate(rates) * now_ns if rates.height else None
    rows: list[tuple[str, int | None, int]] = [("now", None, now_ns)]
    tail_ns = _mean_tail_ns(step_rows)
    if tail_ns is not None:  # else nobody knows how long cards wait
        rows.append(("fused", None, now_ns - int(phases["idle_ns"].sum())))
        busy_ns, rest_ns = generation_ns - tail_ns, now_ns - generation_ns
        work_ns = max(busy_ns, rest_ns) if is_split else busy_ns + rest_ns
        rows += [
            ("stale", ahead, max(work_ns, -(-now_ns // (ahead + 1))))
            for ahead in range(1, _MOST_STALE + 1)
        ]
    return pl.DataFrame(
        [
            (case, ahead, bound_ns, tokens / bound_ns if tokens else None, now_ns / bound_ns)
            for case, ahead, bound_ns in rows
        ],
        schema=_BOUNDS,
        orient="row",
    )


_BOUNDS = {
    "case": pl.String, "stale_count": pl.Int64, "step_ns": pl.Int64,
    "tokens_per_second": pl.Float64, "speedup_ratio": pl.Float64,
}  # fmt: skip


# metric: health_scaling
# How linear does the job scale over supernodes?
#
# The rate of each log is its tokens over the time of its steps, as in health_bounds; the smallest
# is what the others are held against. Linearity is the rate over what as many times the smallest
# would give; its 95 % interval is Welch's, of how far each step's tokens are from what the rate
# gives in its time; steps are taken as independent.
#
# title: Scaling
# meaning: Tokens per second over supernodes, of each of them, and how linear that is.
#
#   supernodes_count   bigint  supernodes that the log's job ran on
#   steps_count        bigint  lines of the log with a rate
#   tokens_per_second  double  of the job
#   supernode_tokens_per_s  double  of one supernode
#   speedup_ratio      double  rate over the smallest's
#   linear_share       double  speedup over how many times the supernodes are
#   low                double  95 % interval of it, from; NULL: of one step nothing is known
#   high               double  to
def health_scaling(logs: Mapping[int, pl.DataFrame]) -> pl.DataFrame:
    """The rows of the metric, of steps by number of supernodes.

    Raises UsageError for a log without tokens per second.
    """
    rows = []
    samples = {count: _rated_steps(steps) for count, steps in sorted(logs.items())}
    for count, frame in samples.items():
        if frame.is_empty():
            raise UsageError(
                Message(
                    "the log of {count} supernode(s) tells no tokens per second of the job: give"
                    " one that does, or with the length of sequences and batch size in it",
                    count=count,
                )
            )
    least, *_ = samples
    base = samples[least]
    for count, frame in samples.items():
        rate, smallest = _job_rate(frame), _job_rate(base)
        speedup, times = rate / smallest, count / least
        half = _half_width(frame, base) if count != least else None
        share = speedup / times
        rows.append((
            count, len(frame), rate, rate / count, speedup, share,
            share * math.exp(-half) if half is not None else None,
            share * math.exp(half) if half is not None else None,
        ))  # fmt: skip
    return pl.DataFrame(rows, schema=_SCALING, orient="row")


_SCALING = {
    "supernodes_count": pl.Int64, "steps_count": pl.Int64, "tokens_per_second": pl.Float64,
    "supernode_tokens_per_s": pl.Float64, "speedup_ratio": pl.Float64, "linear_share": pl.Float64,
    "low": pl.Float64, "high": pl.Float64,
}  # fmt: skip


def _rated_steps(steps: pl.DataFrame) -> pl.DataFrame:
    """Steps that tell a rate: tokens, time. Where not all tell their time, all count alike."""
    rows = steps.drop_nulls("tokens_per_second")
    time = pl.lit(1.0) if rows["step_ns"].null_count() else pl.col("step_ns").cast(pl.Float64)
    return rows.select(tokens=pl.col("tokens_per_second") * time, time=time)


def _job_rate(steps: pl.DataFrame) -> float:
    """Tokens over time, so that long steps count as long as they take."""
    return float(steps["tokens"].sum()) / float(steps["time"].sum())


def _half_width(ours: pl.DataFrame, theirs: pl.DataFrame) -> float | None:
    """Of the interval of the logarithm of two rates' ratio, by Welch."""
    if min(len(ours), len(theirs)) < 2:
        return None
    parts = []
    for sample in (ours, theirs):
        off = sample["tokens"] - _job_rate(sample) * sample["time"]
        spread = len(sample) / (len(sample) - 1) * float((off**2).sum())
        parts.append(spread / float(sample["tokens"].sum()) ** 2)
    total = sum(parts)
    if not total:
        return 0.0
    freedom = total**2 / sum(
        part**2 / (len(sample) - 1) for part, sample in zip(parts, (ours, theirs), strict=True)
    )
    return float(stdtrit(freedom, (1 + _CONFIDENCE) / 2)) * math.sqrt(total)
