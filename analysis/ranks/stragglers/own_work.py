"""What ranks took themselves between communication operations, compared with their peers.

Own time (metric `comm_progress`) stands still while a rank communicates with no kernel beside, so a
rank that is late because it waited for another has no more of it than its peers. Peers are ranks
of one pipeline stage: they do the same work, so the n-th operation of a kind is the same place in
the program of each.

    rank 0  |== own ==|  wait  |= own =|        own time to the place of each operation
    rank 1  |== own =======|   |= own =|        excess: rank 1 took longer before the first one
                           ^ first operation
"""

from __future__ import annotations

import polars as pl

from .straggler_tests import peers_value

# A step is cut in so many pieces of work, each a trial: fine enough to tell within a few steps,
# coarse enough that each holds many kernels.
PIECES = 8


def placed(progress: pl.DataFrame, stages: pl.DataFrame) -> pl.DataFrame:
    """Operations with their place in the program and the rank's excess up to there.

    progress: rank, step, kind, op_type, group_hash, instance, start_ns, own_ns, exposed_ns, ...
    stages: rank, stage. Adds stage, place (own time of the peers' median), excess_ns (more own time
    than peers since the rank's first operation) and is_common (all the stage's ranks have it).
    """
    in_order = progress.join(stages, on="rank", how="inner").sort("rank", "start_ns", "name")
    first_of_group = pl.col("start_ns").min().over("rank", "kind", "op_type", "group_hash")
    keyed = (
        in_order.with_columns(
            (pl.col("own_ns") - pl.col("own_ns").first().over("rank")).alias("since_first_ns"),
            first_of_group.alias("first_ns"),
        )
        .with_columns(
            pl.col("first_ns").rank("dense").over("rank", "kind", "op_type").alias("slot")
        )
        .with_columns(
            pl.int_range(pl.len()).over("rank", "step", "kind", "op_type", "slot").alias("nth")
        )
    )
    key = ["stage", "step", "kind", "op_type", "slot", "nth"]
    stage_size = pl.col("rank").n_unique().over("stage")
    return keyed.with_columns(
        pl.col("since_first_ns").median().over(key).alias("place"),
        (pl.col("since_first_ns") - peers_value("since_first_ns", *key)).alias("excess_ns"),
        ((pl.len().over(key) == stage_size) & (stage_size > 1)).alias("is_common"),
    ).drop("first_ns", "since_first_ns")


def pieces(ops: pl.DataFrame) -> pl.DataFrame:
    """Pieces of work of each rank: what it took from one place of the program to another.

    ops: as `placed` gives them. Returns rank, stage, step, trial, value (own ns), peers_ns.
    """
    key = ["stage", "step", "kind", "op_type", "slot", "nth"]
    low, high = (getattr(pl.col("place"), f)().over("stage", "step") for f in ("min", "max"))
    cut = (
        ((pl.col("place") - low) / pl.max_horizontal(high - low, 1.0) * PIECES)
        .floor()
        .clip(0, PIECES - 1)
        .alias("piece")
    )
    common = ops.filter("is_common")
    ends = (
        common.select(*key, "place")
        .unique()
        .with_columns(cut)
        .sort("stage", "step", "place", *key[2:])
        .group_by("stage", "step", "piece", maintain_order=True)
        .last()
        .with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("trial"))
    )
    # The own time itself from its differences: `own_ns` of neighbours on one rank.
    return (
        common.join(ends.select(*key, "piece", "trial"), on=key, how="inner", nulls_equal=True)
        .sort("rank", "place", "trial")
        .with_columns((pl.col("own_ns") - pl.col("own_ns").shift(1).over("rank")).alias("value"))
        .drop_nulls("value")
        .with_columns(peers_value("value", "trial").alias("peers_ns"))
        .select("rank", "stage", "step", "trial", "value", "peers_ns")
    )


def load_trials(ops: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Trials of who has most bytes in an all-to-all: among its members, and, by the ratio to the
    other members, among all ranks of the capture (which of n-th all-to-alls of a step are alike).

    ops: rank, step, op_type, instance, start_ns, size_bytes. Returns two frames: trial, rank,
    value.
    """
    mine = (
        ops.filter(pl.col("op_type").is_in(["allToAll", "allToAllV"]), pl.col("size_bytes") > 0)
        .sort("rank", "start_ns")
        .with_columns(pl.int_range(pl.len()).over("rank", "step").alias("nth"))
        .with_columns((pl.col("size_bytes") / peers_value("size_bytes", "instance")).alias("ratio"))
    )
    inside = mine.select(
        pl.col("instance").alias("trial"), "rank", pl.col("size_bytes").alias("value")
    )
    across = mine.filter(pl.col("ratio").is_finite()).select(
        pl.struct("step", "nth").rank("dense").alias("trial"),
        "rank",
        pl.col("ratio").alias("value"),
    )
    return inside, across


def excess_by_rank(found: pl.DataFrame) -> pl.DataFrame:
    """Rows of `pieces` by rank: rank, own_ns and peers_ns per step (medians), excess_ratio (median
    over the steps), late_steps_ratio (share of the steps with an excess)."""
    by_step = (
        found.group_by("rank", "step")
        .agg(pl.col("value").sum(), pl.col("peers_ns").sum())
        .with_columns((pl.col("value") / pl.col("peers_ns") - 1).alias("ratio"))
    )
    return by_step.group_by("rank").agg(
        pl.col("value").median().alias("own_ns"),
        pl.col("peers_ns").median(),
        pl.col("ratio").median().alias("excess_ratio"),
        (pl.col("ratio") > 0).mean().alias("late_steps_ratio"),
    )
