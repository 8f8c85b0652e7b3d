"""What passes take longer because of the ranks that run them: it stays there when layers move.

kernels of one type and shapes, on several ranks --> how much longer each rank's are -->
stretches between meetings of ranks, each as long as the slowest of them, with and without that
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from ..replay.operations import WITHIN, Operations
from .execution import Times

_LEAST_RANKS = 2  # that ran kernels of one type and shapes


def slow_shares(
    ops: Operations,
    passes: pl.DataFrame,
    ranks: Sequence[Sequence[int]],
    together: Mapping[int, int],
) -> Times | None:
    """Of columns (their ranks by device) the share of forwards, and of backwards, that slow ranks
    make (below 0: fast ones save): 2 x devices x columns; None where kernels have no shapes.

    together: of each rank what those share that meet in every micro-batch, which wait for the
    slowest.
    """
    if not {"core", "shapes"} <= {*ops.names.columns}:
        return None
    replica = pl.col("rank").replace_strict(together, default=pl.col("rank"))
    place = ["stage", "replica", "is_forward"]
    own = passes.select(
        "rank", "stage", replica=replica, is_forward=pl.col("kind") == "F",
        begin=pl.col("start_ns") - ops.zero_ns, end=pl.col("end_ns") - ops.zero_ns,
    ).sort("begin")  # fmt: skip
    inside = _with_usual(_kernels(ops)).sort("start").join_asof(
        own, left_on="start", right_on="begin", by="rank", check_sortedness=False
    ).filter(pl.col("start") < pl.col("end"))  # fmt: skip
    longer = (
        inside.group_by(*place, "stretch", "rank").agg(pl.col("dur", "usual").sum())
        .group_by(*place, "stretch").agg(pl.col("dur", "usual").max())
        .group_by(place).agg(longer=(pl.col("dur") - pl.col("usual")).sum())
    )  # fmt: skip
    lengths = own.group_by(*place, "rank").agg(length=(pl.col("end") - pl.col("begin")).sum())
    rows = longer.join(lengths.group_by(place).agg(pl.col("length").max()), on=place).rows()
    shares = {row[:3]: row[3] / row[4] for row in rows if row[4]}
    return np.array([
        [[shares.get((device, together.get(one[device], one[device]), is_forward), 0.0)
          for one in ranks] for device in range(len(ranks[0]))]
        for is_forward in (True, False)
    ])  # fmt: skip


def _kernels(ops: Operations) -> pl.DataFrame:
    """Kernels: rank, type, core, shapes, start, dur, and the number of their stretch on the rank:
    how often ranks that share its micro-batches met before."""
    at = np.flatnonzero(ops.is_kernel & (ops.dur > 0))
    within = [number for number, name in enumerate(ops.kinds) if name in WITHIN]
    # Positions are by rank and start: this counts what met before on its rank, and on others.
    met = np.cumsum(ops.is_communication & np.isin(ops.kind, within))
    begin = np.searchsorted(ops.rank, np.arange(len(ops.ranks)))
    return pl.DataFrame({
        "rank": pl.Series(ops.ranks, dtype=pl.Int32)[ops.rank[at]], "type": ops.type[at],
        "core": ops.names["core"][at], "shapes": ops.names["shapes"][at], "start": ops.start[at],
        "dur": ops.dur[at], "stretch": met[at] - met[begin[ops.rank[at]]],
    })  # fmt: skip


def _with_usual(kernels: pl.DataFrame) -> pl.DataFrame:
    """With `usual`: as long as kernels of their type and shapes are on most ranks. Those of shapes
    that no other rank has are off by as much as the others of their rank and core."""
    work = ["type", "core", "shapes"]
    own = kernels.drop_nulls("shapes").group_by("rank", *work).agg(
        median=pl.col("dur").median(), count=pl.len()
    )  # fmt: skip
    alike = own.group_by(work).agg(usual=pl.col("median").median(), ranks=pl.len())
    own = own.join(alike.filter(pl.col("ranks") >= _LEAST_RANKS), on=work, nulls_equal=True)
    ratios = own.group_by("rank", "core").agg(
        ratio=(pl.col("count") * pl.col("usual")).sum() / (pl.col("count") * pl.col("median")).sum()
    )
    found = kernels.join(ratios, on=["rank", "core"], how="left", nulls_equal=True)
    return found.with_columns(usual=pl.col("dur") * pl.col("ratio").fill_null(1.0))
