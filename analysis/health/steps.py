"""What a trainer's log tells of every step: time, tokens, loss, and phases of RL.

lines of a log --> the last of each step --> ns, tokens per second, phases that add up
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from npuscope.collector.readers.train_log.log_facts import LogFacts
from npuscope.collector.readers.train_log.log_lines import PHASES

PHASE_COLUMNS = tuple(f"{name[:-2]}_ns" for name in PHASES)
_NS = 1e9


# metric: health
# What does a trainer's log tell of each step of a training?
#
# One row for each step that the log tells of, the last one where it tells of it several times (a
# restart). Of reinforcement learning, phases are cut to whole ns and the rest is `other_ns`, so
# that they add up to the step; it is unknown where phases run beside each other and are more than
# the step. Tokens per second are tokens of the step over its time where the log tells them or
# batch and sequence length, else as printed.
#
# title: Health
# meaning: Each step of a training as its log tells it: time, loss, gradients, tokens, RL phases.
# command: health
#
#   step               bigint  step of the training; NULL: the log does not number them
#   step_ns            bigint  time of the step, as logged
#   loss               double  as printed; of verl the actor's policy loss
#   grad_norm          double  as printed
#   learning_rate      double  as printed
#   loss_scale         double  as printed
#   mfu_ratio          double  MFU as the trainer counts it
#   memory_bytes       bigint  most memory allocated, as printed
#   skipped_count      bigint  iterations that were skipped since the line before
#   not_finite_count   bigint  loss, gradient norm or iterations that were no number
#   tokens_per_second           double  of the whole job
#   tokens_per_second_per_card  double  of one device
#   generation_ns      bigint  RL: rollout
#   old_log_prob_ns    bigint  RL: log-probabilities under the old policy
#   reference_ns       bigint  RL: log-probabilities under the reference model
#   reward_ns          bigint  RL: rewards
#   advantage_ns       bigint  RL: advantages
#   update_actor_ns    bigint  RL: update of the actor
#   update_critic_ns   bigint  RL: update of the critic
#   other_ns           bigint  RL: the rest of the step: weights, resharding, waiting
#   generation_tail_ns bigint  RL: the slowest generation less the mean one; part of generation_ns
#   weight_sync_ns     bigint  RL: weights sent to generation, as printed; no phase of its own
#   resharding_ns      bigint  RL: the same of resharding
def health_steps(lines: pl.DataFrame, facts: LogFacts) -> pl.DataFrame:
    """The rows of the metric, of `lines` as `read_lines` gives them."""
    once = _last_lines(lines)
    step_ns = (pl.col("elapsed_s") * _NS).round().cast(pl.Int64)
    phases = [
        (pl.col(name) * _NS).floor().cast(pl.Int64).alias(column)
        for name, column in zip(PHASES, PHASE_COLUMNS, strict=True)
    ]
    rows = once.with_columns(
        step_ns.alias("step_ns"),
        *phases,
        ((pl.col("generation_max_s") - pl.col("generation_mean_s")) * _NS)
        .round()
        .cast(pl.Int64)
        .alias("generation_tail_ns"),
        *_tokens(facts),
    )
    beside = [
        (pl.col(f"{name}_s") * _NS).round().cast(pl.Int64).alias(f"{name}_ns")
        for name in ("weight_sync", "resharding")
    ]
    rest = pl.col("step_ns") - pl.sum_horizontal(PHASE_COLUMNS)
    has_phases = pl.any_horizontal(pl.col(*PHASE_COLUMNS).is_not_null())
    whole = [pl.col(name).cast(pl.Int64) for name in ("memory_bytes", "skipped_count")]
    is_told = pl.any_horizontal(
        pl.col("loss", "grad_norm", "nan_count", "not_finite_count").is_not_null()
    )
    strange = pl.when(is_told).then(
        pl.sum_horizontal("not_finite_count", "nan_count").cast(pl.Int64)
    )
    return rows.select(
        "step", "step_ns", "loss", "grad_norm", "learning_rate", "loss_scale", "mfu_ratio",
        *whole, strange.alias("not_finite_count"),
        "tokens_per_second", "tokens_per_second_per_card", *PHASE_COLUMNS,
        pl.when(has_phases & (rest >= 0)).then(rest).alias("other_ns"), "generation_tail_ns",
        *beside,
    )  # fmt: skip


def _last_lines(lines: pl.DataFrame) -> pl.DataFrame:
    """Of each step the last line, in order; then those that number no step."""
    numbered = lines.filter(pl.col("step").is_not_null())
    return pl.concat([
        numbered.unique("step", keep="last", maintain_order=True).sort("step"),
        lines.filter(pl.col("step").is_null()),
    ])  # fmt: skip


def iterations(step: pl.Series) -> NDArray[np.float64]:
    """How many iterations each line stands for, of lines in the order of `health_steps`: one every
    ten steps tells the mean of ten."""
    covered = np.clip(np.diff(step.drop_nulls().to_numpy()), 1, None)
    # Of the first line, and the unnumbered.
    every = float(np.median(covered)) if len(covered) else 1.0
    numbers = np.full(len(step), every)
    numbers[1 : len(covered) + 1] = np.minimum(covered, every)  # steps without a line are unknown
    return numbers


def lost_iterations(lines: pl.DataFrame, steps: pl.DataFrame) -> pl.Series:
    """Iterations without a number, of each row of `health_steps`. A line may tell several figures
    that are no number: that is one iteration, unless it counts them itself."""
    most = pl.Series(iterations(steps["step"]))
    counted = _last_lines(lines)["nan_count"].fill_null(0).clip(1, most)
    is_lost = steps["not_finite_count"] > 0
    return (counted * is_lost).round().cast(pl.Int64)


def _tokens(facts: LogFacts) -> list[pl.Expr]:
    """Tokens per second of the job and of a device: counted, else as printed."""
    grown = pl.col("consumed_tokens").diff() / pl.col("step").diff()
    batch = pl.col("global_batch_size") * facts.sequence_length
    counted = pl.coalesce("step_tokens", pl.when(grown > 0).then(grown), batch) / pl.col(
        "elapsed_s"
    )
    is_of_device = pl.col("per_device").is_not_null()
    printed = pl.col("tokens_per_s")
    of_device = pl.when(is_of_device).then(printed)
    job = pl.coalesce(counted, pl.when(~is_of_device).then(printed), of_device * facts.world_size)
    return [
        job.alias("tokens_per_second"),
        pl.coalesce(of_device, job / facts.world_size).alias("tokens_per_second_per_card"),
    ]
