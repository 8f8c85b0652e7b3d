"""Who made others wait: each wait is followed back to where the time was lost.

In every instance the members that came early wait for the last one. It may be late because it took
longer than its peers since the operation before (its own excess), or because it waited in that one
itself; then what it does not explain is passed on to the last one there, and so on.

    stage 0, rank 0   |=== slow ===|S                       S send, R receive, A all-reduce
    stage 1, rank 2           R~~~~~~~|==|A                 rank 3 waits for rank 2 in A;
    stage 1, rank 3           R~|==|A~~~~~~~                rank 2 waited for rank 0 in R: rank 0

What nobody's excess explains stays unattributed: the schedule itself (a pipeline fills), transfers
that differ, peers that are unknown.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

_ROUNDS = 200  # a wait is passed on so many times at most; shares vanish long before


@dataclass(frozen=True, slots=True)
class Waits:
    """last: a row per instance: instance, rank and step of the last one, by how much over the
    second (margin_ns), is_evidence (more than the clock error), wait_ns that all others waited with
    nothing else to do, caused_ns of all waits that ended up at it. waits: instance, rank, wait_ns
    of the early members."""

    last: pl.DataFrame
    waits: pl.DataFrame


def waits_of(ops: pl.DataFrame) -> Waits:
    """Waits of one capture.

    ops: a row per operation and rank: instance, rank, step, aligned_start_ns, aligned_end_ns,
    clock_error_ns, is_complete, exposed_ns, excess_ns.
    """
    last_ns = pl.col("aligned_start_ns").max().over("instance")
    met = (
        ops.filter(pl.col("is_complete") & (pl.len().over("instance") > 1))
        .with_columns(last_ns.alias("last_ns"))
        .with_columns((pl.col("last_ns") - pl.col("aligned_start_ns")).alias("early_ns"))
    )
    last = (
        met.sort("instance", "early_ns", "rank")
        .group_by("instance", maintain_order=True)
        .agg(
            pl.col("rank").first(),
            pl.col("step").first(),
            pl.col("aligned_start_ns").first(),
            pl.col("excess_ns").first(),
            pl.col("early_ns").get(1).alias("margin_ns"),
            pl.col("clock_error_ns").max(),
        )
        .with_columns((pl.col("margin_ns") > pl.col("clock_error_ns")).alias("is_evidence"))
    )
    waits = _apart(met)
    shares = _shares(last, waits, ops)
    return Waits(_followed_back(last, waits, shares), waits)


def _apart(met: pl.DataFrame) -> pl.DataFrame:
    """Waits of early members, each instant of a rank in one of them only, and none that a kernel
    of the rank fills."""
    begin, end = pl.col("aligned_start_ns"), pl.col("last_ns")
    reach = end.cum_max().shift(1).over("rank")
    return (
        met.filter(pl.col("early_ns") > pl.col("clock_error_ns"))
        .sort("rank", "aligned_start_ns", "instance")
        .with_columns((end - pl.max_horizontal(begin, reach)).clip(lower_bound=0).alias("wait_ns"))
        .with_columns(
            pl.min_horizontal("wait_ns", pl.col("exposed_ns").fill_null(pl.col("wait_ns")))
        )
        .select("instance", "rank", "step", "wait_ns")
        .filter(pl.col("wait_ns") > 0)
    )


def _shares(last: pl.DataFrame, waits: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """For each instance: what part of the waiting its last member explains itself (own_share), and
    what part is passed on (passed_share) to the instance `before`."""
    ended = (
        ops.filter(pl.col("exposed_ns").fill_null(1) > 0)
        .select("rank", pl.col("instance").alias("before"), "aligned_end_ns",
                pl.col("excess_ns").alias("excess_before_ns"))
        .sort("aligned_end_ns")
    )  # fmt: skip
    late_ns = waits.group_by("instance").agg(pl.col("wait_ns").max().alias("late_ns"))
    waited = waits.select(
        pl.col("instance").alias("before"), "rank", pl.col("wait_ns").alias("waited_ns")
    )
    own_ns = (pl.col("excess_ns") - pl.col("excess_before_ns").fill_null(0)).clip(lower_bound=0)
    return (
        last.sort("aligned_start_ns")
        .join_asof(ended, left_on="aligned_start_ns", right_on="aligned_end_ns", by="rank",
                   strategy="backward", check_sortedness=False)
        .join(late_ns, on="instance")
        .join(waited, on=["before", "rank"], how="left")
        .with_columns((own_ns.fill_null(0) / pl.col("late_ns")).clip(0, 1).alias("own_share"))
        .with_columns(
            pl.min_horizontal(
                1 - pl.col("own_share"), pl.col("waited_ns").fill_null(0) / pl.col("late_ns")
            ).alias("passed_share")
        )
        .select("instance", "before", "own_share", "passed_share")
    )  # fmt: skip


def _followed_back(last: pl.DataFrame, waits: pl.DataFrame, shares: pl.DataFrame) -> pl.DataFrame:
    total = waits.group_by("instance").agg(pl.col("wait_ns").sum())
    table = last.join(total, on="instance", how="left").join(shares, on="instance", how="left")
    table = table.sort("instance").with_columns(
        pl.col("wait_ns").fill_null(0), pl.col("own_share", "passed_share").fill_null(0.0)
    )
    number = table["instance"].to_numpy()
    before = table["before"].fill_null(-1).to_numpy()
    place = np.searchsorted(number, before)
    place[place == len(number)] = 0
    known = (number[place] == before) if len(number) else np.zeros(0, dtype=bool)
    passed = np.where(known, table["passed_share"].to_numpy(), 0.0)
    mass = table["wait_ns"].to_numpy().astype(np.float64)
    reached = mass.copy()
    for _ in range(_ROUNDS):
        mass = np.bincount(place, weights=mass * passed, minlength=len(number)).astype(np.float64)
        if not mass.any() or mass.sum() < 1.0:
            break
        reached += mass
    caused = np.rint(reached * table["own_share"].to_numpy()).astype(np.int64)
    return table.with_columns(pl.Series("caused_ns", caused)).drop(
        "before", "own_share", "passed_share", "excess_ns", "aligned_start_ns"
    )
