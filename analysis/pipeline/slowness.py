"""What passes take longer because of the ranks that run them: it stays there when layers move.

kernels of one type and shapes, on several ranks --> how much longer each rank's are -->
stretches between meetings of ranks, each as long as the slowest of them, with and without that
exchanges of one type, in several groups --> what those over a slow link take longer
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from ..replay.beside import cover_of
from ..replay.operations import UNKNOWN, WITHIN, Operations
from ..replay.points import Integers
from .execution import Times

_LEAST_RANKS = 2  # that ran kernels of one type and shapes
_SLOW_PACE = 1.5  # times the usual one: a link, and not what is left of unequal exchanges
_PLACE = ["stage", "replica", "is_forward"]


def slow_shares(
    ops: Operations,
    passes: pl.DataFrame,
    ranks: Sequence[Sequence[int]],
    together: Mapping[int, int],
) -> tuple[Times, Times] | None:
    """Of columns (their ranks by device) the share of forwards, and of backwards, that slow ranks
    and links make (below 0: fast ones save), and at least: 2 x devices x columns each; None where
    kernels have no shapes.

    At least without what exchanges hide of slow kernels here: those of other layers may hide less.
    together: of each rank what those share that meet in every micro-batch, which wait for
    the slowest.
    """
    if not {"core", "shapes"} <= {*ops.names.columns}:
        return None
    replica = pl.col("rank").replace_strict(together, default=pl.col("rank"))
    own = passes.select(
        "rank", "stage", replica=replica, is_forward=pl.col("kind") == "F",
        begin=pl.col("start_ns") - ops.zero_ns, end=pl.col("end_ns") - ops.zero_ns,
    ).sort("begin")  # fmt: skip
    inside = _with_usual(_kernels(ops)).sort("start").join_asof(
        own, left_on="start", right_on="begin", by="rank", check_sortedness=False
    ).filter(pl.col("start") < pl.col("end"))  # fmt: skip
    exchanges = _exchanges(ops, own)
    lengths = own.group_by(*_PLACE, "rank").agg(length=(pl.col("end") - pl.col("begin")).sum())
    lengths = lengths.group_by(_PLACE).agg(pl.col("length").max()).filter(pl.col("length") > 0)

    def shares(kernels: pl.DataFrame) -> Times:
        longer = pl.concat([_longer(kernels), exchanges]).group_by(_PLACE).sum()
        shares = {row[:3]: row[3] / row[4] for row in longer.join(lengths, on=_PLACE).rows()}
        return np.array([
            [[shares.get((device, together.get(one[device], one[device]), is_forward), 0.0)
              for one in ranks] for device in range(len(ranks[0]))]
            for is_forward in (True, False)
        ])  # fmt: skip

    usual = shares(inside.with_columns(beside=pl.lit(0)))
    return usual, np.minimum(usual, shares(inside))


def _longer(kernels: pl.DataFrame) -> pl.DataFrame:
    """Places and what kernels make passes `longer`. Of a stream beside the main one, exchanges hide
    of all that it runs between two meetings."""
    return (
        kernels.with_columns(is_beside=(pl.col("beside") > 0) | ~pl.col("is_main"))
        .group_by(*_PLACE, "stretch", "rank", "stream", "is_beside")
        .agg((pl.col("dur", "usual").sum() - pl.col("beside").sum()).clip(0))
        .group_by(*_PLACE, "stretch", "rank").agg(pl.col("dur", "usual").sum())
        .group_by(*_PLACE, "stretch").agg(pl.col("dur", "usual").max())
        .group_by(_PLACE).agg(longer=(pl.col("dur") - pl.col("usual")).sum().cast(pl.Float64))
    )  # fmt: skip


def _near(ops: Operations) -> Integers:
    """Operations of ranks that share micro-batches, but for transfers between stages."""
    near = [at for at, name in enumerate(ops.kinds) if name in WITHIN and name != "pp"]
    return np.flatnonzero(ops.is_communication & np.isin(ops.kind, near))


def _exchanges(ops: Operations, own: pl.DataFrame) -> pl.DataFrame:
    """Places and what exchanges of groups with a slow link take `longer` in their passes than
    others of their type do, beyond what kernels beside them hide."""
    moves = _near(ops)
    last = np.full(int(ops.instance.max(initial=-1)) + 1, UNKNOWN)
    np.maximum.at(last, ops.instance[moves], ops.start[moves])
    # Bytes move once the last member has come.
    begin, end = last[ops.instance[moves]], (ops.start + ops.dur)[moves]
    at = np.flatnonzero(ops.is_kernel)
    kernels = cover_of(ops.rank[at], ops.start[at], (ops.start + ops.dur)[at])
    rows = pl.DataFrame({
        "rank": pl.Series(ops.ranks, dtype=pl.Int32)[ops.rank[moves]], "start": begin,
        "type": ops.type[moves], "kind": ops.kind[moves], "instance": ops.instance[moves],
        "moving": end - begin, "beside": kernels.within(ops.rank[moves], begin, end),
        "size_bytes": ops.names["size_bytes"][moves],
    })  # fmt: skip
    rows = rows.filter(pl.col("moving") > 0).sort("start").join_asof(
        own, left_on="start", right_on="begin", by="rank", check_sortedness=False
    ).filter(pl.col("start") < pl.col("end"))  # fmt: skip
    each = rows.group_by("instance", "type", "kind").agg(
        pl.col(*_PLACE).first(), pl.col("moving", "beside", "size_bytes").max(),
        group=pl.col("rank").min(),
    )  # fmt: skip
    work = ["type", "kind"]
    is_told = pl.col("size_bytes").is_not_null()
    each = each.filter(is_told | ~is_told.any().over(work))
    pace = pl.col("moving") / pl.col("size_bytes").fill_null(1).clip(1)
    paces = each.group_by(*work, "group").agg(pace=pace.median())
    # Of two the faster: links break, and do not mend.
    usual = pl.col("pace").quantile(0.5, "lower").over(work)
    slow = paces.with_columns(ratio=pl.col("pace") / usual).filter(pl.col("ratio") >= _SLOW_PACE)
    least = pl.max_horizontal(pl.col("moving") / pl.col("ratio"), "beside")
    return each.join(slow, on=[*work, "group"]).select(*_PLACE, longer=pl.col("moving") - least)


def _kernels(ops: Operations) -> pl.DataFrame:
    """Kernels: rank, type, core, shapes, start, dur, `beside` (of that what exchanges of ranks
    that share its micro-batches wait or move beside them), stream, whether that is the rank's main
    one, and the number of their stretch on the rank: how often these met before."""
    at = np.flatnonzero(ops.is_kernel & (ops.dur > 0))
    within = [number for number, name in enumerate(ops.kinds) if name in WITHIN]
    # Positions are by rank and start: this counts what met before on its rank, and on others.
    met = np.cumsum(ops.is_communication & np.isin(ops.kind, within))
    begin = np.searchsorted(ops.rank, np.arange(len(ops.ranks)))
    moves = _near(ops)
    moving = cover_of(ops.rank[moves], ops.start[moves], (ops.start + ops.dur)[moves])
    beside = moving.within(ops.rank[at], ops.start[at], (ops.start + ops.dur)[at])
    spent = pl.DataFrame({"rank": ops.rank[at], "stream": ops.stream[at], "dur": ops.dur[at]})
    busiest = (
        spent.group_by("rank", "stream").agg(pl.col("dur").sum()).sort("rank", "dur", "stream")
    )
    main = np.full(len(ops.ranks), -1)
    main[busiest["rank"].to_numpy()] = busiest["stream"].to_numpy()  # of each rank the last stays
    return pl.DataFrame({
        "rank": pl.Series(ops.ranks, dtype=pl.Int32)[ops.rank[at]], "type": ops.type[at],
        "core": ops.names["core"][at], "shapes": ops.names["shapes"][at], "start": ops.start[at],
        "dur": ops.dur[at], "beside": beside,
        "stream": ops.stream[at], "is_main": ops.stream[at] == main[ops.rank[at]],
        "stretch": met[at] - met[begin[ops.rank[at]]],
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
    rows = kernels.join(ratios, on=["rank", "core"], how="left", nulls_equal=True)
    return rows.with_columns(usual=pl.col("dur") * pl.col("ratio").fill_null(1.0))
