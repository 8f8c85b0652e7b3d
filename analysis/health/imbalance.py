"""Sequences of unequal lengths: what they cost data-parallel ranks, and what other places save.

lengths by step, micro-batch and rank + time of each rank's compute --> cost of a sequence
--> the slowest rank against the mean --> the same after an arrangement (`arrangement`)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl
from scipy.optimize import nnls

from npuscope.errors import CannotAnswer
from npuscope.messages import Message

from ..wording import percent
from .arrangement import Floats, greedy

Sync = Literal["step", "micro-batch"]
_FEWEST = 6  # times that three unknowns are fitted to, at least


@dataclass(frozen=True, slots=True)
class SequenceCost:
    """ns of a rank's compute in a step: `fixed_ns` + sum over its sequences of `per_token_ns` x
    length + `per_pair_ns` x length^2.

    `error_share`: median of what a rank and step is off by, of its time; of `count` of them.
    """

    fixed_ns: float
    per_token_ns: float
    per_pair_ns: float
    error_share: float
    count: int

    def of(self, lengths: Floats) -> Floats:
        """Cost of each sequence, ns."""
        return self.per_token_ns * lengths + self.per_pair_ns * lengths**2


def fitted_cost(lengths: pl.DataFrame, times: pl.DataFrame) -> SequenceCost:
    """The cost that explains the times best, none of its parts below 0.

    `lengths`: step, micro_batch, rank, length, a row for each sequence; `times`: step, rank,
    computing_ns. Raises CannotAnswer where too few steps and ranks have both, or all are alike.
    """
    length = pl.col("length").cast(pl.Float64)
    sums = lengths.group_by("step", "rank").agg(
        length.sum().alias("tokens"), (length**2).sum().alias("pairs")
    )
    rows = sums.join(times, on=["step", "rank"]).drop_nulls().sort("step", "rank")
    matrix = rows.select(pl.lit(1.0), "tokens", "pairs").to_numpy()
    measured = rows["computing_ns"].cast(pl.Float64).to_numpy()
    if len(measured) < _FEWEST or np.ptp(matrix[:, 1]) == np.ptp(matrix[:, 2]) == 0:
        raise CannotAnswer(
            Message(
                "the cost of a sequence cannot be told: {count} steps of ranks have both lengths"
                " and a profile, of at least {fewest} with different lengths: record lengths with"
                " the profiler's step numbers, over more ranks or steps",
                count=len(measured), fewest=_FEWEST,
            )
        )  # fmt: skip
    scale = matrix.max(axis=0)
    parts, _ = nnls(matrix / scale, measured)
    fixed_ns, per_token_ns, per_pair_ns = (parts / scale).tolist()
    off = np.abs(matrix @ (parts / scale) - measured) / measured
    return SequenceCost(fixed_ns, per_token_ns, per_pair_ns, float(np.median(off)), len(measured))


# metric: sequence_balance
# How much of a step is due to unequal sequences, and what would other places of them save?
#
# Compute of a rank = a + sum over its sequences of b x length + c x length^2, fitted to profiled
# steps (least squares, no part below 0). Ranks wait for the slowest at the end of a step, or of
# each micro-batch (`--sync micro-batch`, where experts are exchanged over data-parallel ranks). The
# arrangement gives the same sequences to the same ranks and micro-batches in other places: of a
# step to any rank, or of a micro-batch to any rank. What moving data costs is not counted.
#
# title: Sequence lengths
# meaning: What unequal lengths cost each step, and what arranging sequences over ranks saves.
#
#   step             bigint  step of the training
#   ranks_count      bigint  data-parallel ranks with lengths
#   sequences_count  bigint  of all of them
#   tokens           bigint  of all of them
#   mean_ns          bigint  compute of a rank by its lengths, on average
#   max_ns           bigint  of the slowest rank, by its lengths
#   imbalance_ns     bigint  max - mean: what equal work would save at most
#   imbalance_share  double  of max
#   arranged_ns      bigint  of the slowest rank after the arrangement
#   saved_ns         bigint  max - arranged; 0 where it does not help
#   saved_share      double  of max
def sequence_balance(
    lengths: pl.DataFrame, cost: SequenceCost, sync: Sync = "step"
) -> pl.DataFrame:
    """The rows of the metric. `lengths` as `fitted_cost` takes them, of data-parallel ranks."""
    costs = lengths.with_columns(
        pl.Series("cost", cost.of(lengths["length"].cast(pl.Float64).to_numpy()))
    )
    rows = []
    for (step,), own in costs.group_by("step", maintain_order=True):
        ranks = own["rank"].unique().sort()
        parts = own.partition_by("micro_batch") if sync == "micro-batch" else [own]
        mean = most = arranged = 0.0
        for part in parts:
            values = part["cost"].to_numpy()
            now = np.bincount(ranks.search_sorted(part["rank"]).to_numpy(), values, len(ranks))
            then = np.bincount(greedy(values, len(ranks)), values, len(ranks))
            mean += float(now.mean())
            most += float(now.max())
            arranged += min(float(then.max()), float(now.max()))
        rows.append((
            step, len(ranks), own.height, int(own["length"].sum()), cost.fixed_ns + mean,
            cost.fixed_ns + most, most - mean, (most - mean) / (cost.fixed_ns + most),
            cost.fixed_ns + arranged, most - arranged, (most - arranged) / (cost.fixed_ns + most),
        ))  # fmt: skip
    frame = pl.DataFrame(rows, schema=list(_ROWS), orient="row")
    return frame.with_columns(
        (pl.col(name).round().cast(kind) if name.endswith("_ns") else pl.col(name).cast(kind))
        for name, kind in _ROWS.items()
    ).sort("step")


_ROWS = {
    "step": pl.Int64, "ranks_count": pl.Int64, "sequences_count": pl.Int64, "tokens": pl.Int64,
    "mean_ns": pl.Int64, "max_ns": pl.Int64, "imbalance_ns": pl.Int64,
    "imbalance_share": pl.Float64, "arranged_ns": pl.Int64, "saved_ns": pl.Int64,
    "saved_share": pl.Float64,
}  # fmt: skip


def cost_note(cost: SequenceCost) -> Message:
    """What a sequence costs, in words."""
    return Message(
        "compute of a rank = {fixed} ms + {per_token} ns x tokens + {per_pair} ns x length^2 of"
        " each sequence, off by {error} in the median of {count} steps of ranks",
        fixed=f"{cost.fixed_ns / 1e6:.3f}", per_token=f"{cost.per_token_ns:.4g}",
        per_pair=f"{cost.per_pair_ns:.4g}", error=percent(cost.error_share), count=cost.count,
    )  # fmt: skip
