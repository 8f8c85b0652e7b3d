"""Speculative heads: how many of their tokens are accepted, and what that is worth.

losses of MTP heads in training --> the least acceptance they allow
counters of serving engines     --> acceptance by head, accepted length --> tokens per second
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import polars as pl

from npuscope.collector.readers.train_log.log_lines import MTP_LOSSES
from npuscope.collector.readers.train_log.serving_text import Speculation

_LAST = 100


# metric: health_heads
# How many tokens of its MTP heads would a model accept, by its training losses?
#
# Of the last 100 lines that tell both losses. With sampling a draft is accepted with probability
# 1 - TV(p, q), p the model's distribution and q the head's. If the model is calibrated, the head's
# loss over the model's own is the mean KL(p || q), and TV is at most sqrt(KL / 2) (Pinsker) and
# sqrt(1 - exp(-KL)) (Bretagnolle and Huber), of means too, as both are concave. So acceptance is at
# least that much less than 1; the truth lies above. A head counts where those before it were
# accepted; acceptances are taken as independent.
#
# title: MTP heads
# meaning: Loss of each MTP head beside the model's, and the least acceptance and length it allows.
# table: health_heads
#
#   head               bigint  1: the token after next
#   steps_count        bigint  lines of the log that the means are of
#   loss               double  the model's own
#   head_loss          double  the head's
#   acceptance_share   double  accepted of those that it drafts, at least
#   accepted_length    double  tokens of a step with this head and those before it, at least
def health_heads(lines: pl.DataFrame) -> pl.DataFrame:
    """The rows of the metric, of `lines` as `read_lines` gives them."""
    rows, length, chain = [], 1.0, 1.0
    for number, name in enumerate(MTP_LOSSES, 1):
        last_rows = lines.drop_nulls(["loss", name]).tail(_LAST)
        if last_rows.is_empty():
            break
        own, head = (float(last_rows[column].sum()) / last_rows.height for column in ("loss", name))
        acceptance = least_acceptance(head - own)
        chain *= acceptance
        length += chain
        rows.append((number, last_rows.height, own, head, acceptance, length))
    return pl.DataFrame(rows, schema=_HEADS, orient="row")


_HEADS = {
    "head": pl.Int64, "steps_count": pl.Int64, "loss": pl.Float64, "head_loss": pl.Float64,
    "acceptance_share": pl.Float64, "accepted_length": pl.Float64,
}  # fmt: skip


def least_acceptance(divergence: float) -> float:
    """Of a draft whose distribution has this mean divergence KL(p || q) in nats."""
    divergence = max(0.0, divergence)
    return 1 - min(math.sqrt(divergence / 2), math.sqrt(-math.expm1(-divergence)))


# metric: health_speculation
# How many drafted tokens does a serving engine accept, and what is that worth?
#
# Accepted length is the tokens of a decoding step: 1 + accepted / drafts by counters, else as the
# engine tells it. The acceptance of a head is of drafts in which all heads before it were accepted.
# Without drafts a step gives one token and is shorter by what drafting takes
# (`--draft-cost`, of a step without; 0 where it is not told, so that worth is the most it can be).
#
# title: Speculative decoding
# meaning: Acceptance by head, accepted length, and tokens per second that speculation is worth.
#
#   engine             varchar  prefix of its metrics: vllm, sglang, ...
#   head               bigint   1: the first drafted token; NULL: all of them
#   drafted_tokens     double   drafted; NULL: not told
#   accepted_tokens    double   of them accepted
#   acceptance_share   double   accepted of drafted; of a head where those before it were accepted
#   accepted_length    double   tokens of a step; of a head with it and those before it
#   tokens_per_second  double   of the engine, now
#   worth_tokens_per_s double   of it due to drafts; NULL where the rate is not told
def health_speculation(rates: Sequence[Speculation], *, draft_cost: float = 0.0) -> pl.DataFrame:
    """The rows of the metric."""
    rows: list[tuple[object, ...]] = []
    for one in rates:
        shares = dict(sorted(one.shares.items()))
        if one.drafts and one.at_positions:
            shares = {at: count / one.drafts for at, count in sorted(one.at_positions.items())}
        length = one.length
        if one.drafts and one.accepted is not None:
            length = 1 + one.accepted / one.drafts
        worth = None
        if one.rate and length:
            worth = one.rate * (1 - (1 + draft_cost) / length)
        share = one.accepted / one.drafted if one.accepted is not None and one.drafted else None
        rows.append((one.engine, None, one.drafted, one.accepted, share, length, one.rate, worth))
        before, sum_of = 1.0, 1.0
        for at, reached in shares.items():
            sum_of += reached
            drafts = one.drafts or None
            rows.append((
                one.engine, at + 1, before * drafts if drafts else None,
                reached * drafts if drafts else None, reached / before if before else None,
                sum_of, None, None,
            ))  # fmt: skip
            before = reached
    return pl.DataFrame(rows, schema=_SPECULATION, orient="row")


_SPECULATION = {
    "engine": pl.String, "head": pl.Int64, "drafted_tokens": pl.Float64,
    "accepted_tokens": pl.Float64, "acceptance_share": pl.Float64, "accepted_length": pl.Float64,
    "tokens_per_second": pl.Float64, "worth_tokens_per_s": pl.Float64,
}  # fmt: skip
