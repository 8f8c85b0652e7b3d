"""Phases of a pipeline: what each stage does while it fills, runs full, and drains.

warm-up      from a stage's first pass to its first backward
steady       from there to the end of its last forward
cool-down    from there to the end of its last pass
"""

from __future__ import annotations

import duckdb
import numpy as np
import polars as pl
from numpy.typing import NDArray

from ..catalog import column_names
from ..flops.chips import peaks
from ..flops.kernels.count import counted_kernels
from ..replay.beside import Cover, cover_of
from ..replay.points import Flags, Integers
from ..scope import Scope
from . import PHASES, STEP
from .passes import Pipeline, transfers_of

_EXCHANGES = "alltoall"
_KEYS = ["run", "capture", "step", "rank", "stage"]


def phase_bounds(pipeline: Pipeline) -> pl.DataFrame:
    """Keys, lane, phase, start, end (since `ops.zero_ns`), forward_count, backward_count (passes
    that begin in it); of ranks and steps that have forwards and backwards."""
    zero_ns = pipeline.ops.zero_ns
    is_forward = pl.col("kind") == "F"
    of_lane = (
        pipeline.passes.with_columns(
            start=pl.col("start_ns") - zero_ns, end=pl.col("end_ns") - zero_ns
        )
        .group_by(_KEYS, maintain_order=True)
        .agg(
            begin=pl.col("start").min(),
            steady=pl.col("start").filter(~is_forward).min(),
            drain=pl.col("end").filter(is_forward).max(),
            finish=pl.col("end").max(),
            forwards=pl.col("start").filter(is_forward),
            backwards=pl.col("start").filter(pl.col("kind").is_in(["B", "BW"])),
        )
        .drop_nulls(["steady", "drain"])
        .with_columns(drain=pl.max_horizontal("steady", "drain"))
    )
    lanes = pipeline.lanes.select("lane", "rank", "step")
    of_lane = of_lane.join(lanes, on=["rank", "step"], how="left", nulls_equal=True)
    edges = ("begin", "steady", "drain", "finish")
    parts = [
        of_lane.select(*_KEYS, "lane", "forwards", "backwards", phase=pl.lit(phase), start=low,
                       end=high, number=pl.lit(at))
        for at, (phase, low, high) in enumerate(zip(PHASES, edges[:-1], edges[1:], strict=True))
    ]  # fmt: skip

    def inside(name: str) -> pl.Expr:
        begins = pl.col(name)
        is_inside = (begins >= pl.col("start")) & (begins < pl.col("end"))
        return is_inside.sum().over("row").cast(pl.Int64)

    rows = pl.concat(parts).sort("rank", "step", "number").with_row_index("row")
    counts = rows.select("row", "start", "end", "forwards", "backwards")
    for name, column in (("forwards", "forward_count"), ("backwards", "backward_count")):
        bounds = counts.explode(name).select("row", inside(name).alias(column)).unique("row")
        rows = rows.join(bounds, on="row", how="left")
    return rows.drop("row", "number", "forwards", "backwards")


# metric: pipeline_phases
# What does each stage of a pipeline do while it fills, runs full, and drains?
#
# Warm-up lasts from a stage's first pass to its first backward, the steady phase to the end of its
# last forward, cool-down to the end of its last pass. An instant with a compute kernel is
# computing, else with communication that is no transfer between stages exposed communication, else
# with a transfer the transfer's, else idle: the four add up to the phase. Means over the stage's
# ranks and steps. FLOPs are those of the kernels that begin in a phase, by their shapes, attention
# causal, over its length and the peak.
#
# title: Phases of the pipeline
# meaning: Warm-up, steady phase and cool-down of each stage, and where their time goes.
# command: pipeline
# table: pipeline_phases
# gauge: npuscope_pipeline_phase_seconds{stage, phase, part} = computing_ns,
#     exposed_communication_ns, exposed_transfer_ns, idle_ns: Parts of a phase of the pipeline.
#
#   run                       varchar  run of the training job
#   capture                   varchar  ranks profiled at the same time
#   stage                     integer  pipeline stage
#   phase                     varchar  warm-up, steady, cool-down
#   dur_ns                    bigint   how long it lasts
#   forward_count             double   forwards that begin in it
#   backward_count            double   backwards that begin in it
#   computing_ns              bigint   of it, some compute kernel ran
#   exposed_communication_ns  bigint   of the rest, other communication than between stages
#   exposed_transfer_ns       bigint   of the rest, a transfer between stages
#   idle_ns                   bigint   of it, nothing ran
#   kernel_mfu_ratio          double   FLOPs of its kernels over its length x peak; NULL: unknown
def pipeline_phases(con: duckdb.DuckDBPyConnection, pipeline: Pipeline) -> pl.DataFrame:
    """Rows of the metric."""
    sums = rank_phases(con, pipeline).group_by("run", "capture", "stage", "phase").agg(
        pl.col(*_PARTS).sum() // pl.len().cast(pl.Int64),
        pl.col("forward_count", "backward_count").mean(),
        # Unknown of one rank is unknown of the stage; a phase without length has no ratio.
        kernel_mfu_ratio=pl.when(
            pl.col("flops").is_not_null().all() & (pl.col("possible_flops").sum() > 0)
            & pl.col("possible_flops").is_not_null().all()
        ).then(pl.col("flops").sum() / pl.col("possible_flops").sum()),
    )  # fmt: skip
    return (
        sums.with_columns(dur_ns=pl.sum_horizontal(_PARTS))
        .sort("run", "capture", "stage", pl.col("phase").cast(pl.Enum(PHASES)))
        .select(column_names("pipeline_phases"))
    )


_PARTS = ("computing_ns", "exposed_communication_ns", "exposed_transfer_ns", "idle_ns")


def rank_phases(con: duckdb.DuckDBPyConnection, pipeline: Pipeline) -> pl.DataFrame:
    """The same of each rank and step, whole ns: keys, phase, start_ns, dur_ns, counts, parts, flops
    and possible_flops (over its length at the peak; NULL: unknown)."""
    ops, rows = pipeline.ops, phase_bounds(pipeline)
    rank, start, end = _intervals(pipeline, rows)
    is_transfer = np.zeros(len(ops.rank), bool)
    is_transfer[transfers_of(ops)] = True
    kernels = ~ops.is_communication
    computing = _union(pipeline, kernels).within(rank, start, end)
    busy = _union(pipeline, ~is_transfer).within(rank, start, end)
    any_ = _union(pipeline, np.ones(len(ops.rank), bool)).within(rank, start, end)
    flops, peak = _flops(con, pipeline, rank, start, end)
    return rows.select(
        *_KEYS, "phase", start_ns=pl.col("start") + ops.zero_ns,
        dur_ns=pl.col("end") - pl.col("start"), forward_count="forward_count",
        backward_count="backward_count", computing_ns=pl.Series(computing),
        exposed_communication_ns=pl.Series(busy - computing),
        exposed_transfer_ns=pl.Series(any_ - busy), idle_ns=pl.Series(end - start - any_),
        flops=pl.Series(flops, nan_to_null=True),
        possible_flops=pl.Series((end - start) * 1e-9 * peak, nan_to_null=True),
    )  # fmt: skip


def _intervals(
    pipeline: Pipeline, rows: pl.DataFrame
) -> tuple[NDArray[np.int32], Integers, Integers]:
    steps = len(pipeline.ops.steps) + 1
    rank = (rows["lane"].to_numpy() // steps).astype(np.int32)
    return rank, rows["start"].to_numpy(), rows["end"].to_numpy()


def _union(pipeline: Pipeline, mask: Flags) -> Cover:
    ops = pipeline.ops
    return cover_of(ops.rank[mask], ops.start[mask], (ops.start + ops.dur)[mask])


def _flops(
    con: duckdb.DuckDBPyConnection, pipeline: Pipeline, rank: NDArray[np.int32], start: Integers,
    end: Integers,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:  # fmt: skip
    """FLOPs of kernels that begin in each interval, and the peak (NaN: unknown)."""
    ops = pipeline.ops
    counted = counted_kernels(con, Scope(pipeline.run, pipeline.capture))
    done = pl.col("causal_flops") * pl.col("count")
    counted_shapes = counted.drop_nulls("causal_flops")
    each = counted_shapes.group_by("type", shapes="input_shapes").agg(
        flops=done.sum() / pl.col("count").sum()
    )
    at = np.flatnonzero(~ops.is_communication)
    types = pl.Series(ops.types, dtype=pl.String)[ops.type[at]]
    kernels = pl.DataFrame({"type": types, "shapes": ops.names["shapes"][at]})
    flops = kernels.join(each, on=["type", "shapes"], how="left", maintain_order="left")["flops"]
    spent = np.concatenate([[0.0], np.cumsum(flops.fill_null(0).to_numpy())])
    # Operations stand by rank and start.
    span = int((ops.start + ops.dur).max(initial=0)) - int(ops.start.min(initial=0)) + 1
    low = int(ops.start.min(initial=0))
    keys = ops.rank[at].astype(np.int64) * span + ops.start[at] - low
    edges = [np.searchsorted(keys, rank.astype(np.int64) * span + time - low)
             for time in (start, end)]  # fmt: skip
    usual = counted_shapes.group_by("dtype").agg(done.sum()).sort("causal_flops", descending=True)
    dtype = usual["dtype"][0] if usual.height else None
    peak_of = peaks(con)
    peak = [peak_of[pipeline.run, pipeline.capture, one].of(dtype) for one in ops.ranks]
    has = np.array([np.nan if one is None else one for one in peak], np.float64)[rank]
    sums = spent[edges[1]] - spent[edges[0]]
    return np.where(counted_shapes.height > 0, sums, np.nan), has


# metric: pipeline_masking
# How much of the communication is hidden in the steady phase, and in the whole step?
#
# Per stage, mean over its ranks and steps, and per kind of communication; all-to-alls of
# experts apart: the first of two in a pass dispatches tokens, the second combines them. Transfers
# between stages are left out. Hidden beside the other direction: kernels of a backward ran beside
# communication of a forward, or the other way round; else only its own direction's.
#
# title: Masking by phase
# meaning: What share of communication has compute beside it, by phase of the pipeline and kind.
# table: pipeline_masking
# gauge: npuscope_pipeline_masking_ratio{stage, phase, kind} = masking_ratio: Communication with
#     compute beside it, by phase of the pipeline; step: all of the step.
#
#   run                varchar  run of the training job
#   capture            varchar  ranks profiled at the same time
#   stage              integer  pipeline stage
#   phase              varchar  warm-up, steady, cool-down; step: all of the step
#   kind               varchar  ep dispatch, ep combine, tp, ...; all: every kind together
#   communication_ns   bigint   communication of that kind, per rank and step
#   masked_ns          bigint   of it, a compute kernel ran beside it
#   masking_ratio      double   masked_ns over communication_ns
#   beside_other_ns    bigint   of masked_ns, a kernel of the other direction ran
def pipeline_masking(pipeline: Pipeline) -> pl.DataFrame:
    """Rows of the metric."""
    ops = pipeline.ops
    rows = _with_steps(pipeline, phase_bounds(pipeline))
    if rows.is_empty():
        return pl.DataFrame(schema=_MASKING)
    rank, start, end = _intervals(pipeline, rows)
    kinds = _kinds(pipeline)
    direction = np.full(len(ops.rank), "", dtype="<U1")
    direction[pipeline.work["at"].to_numpy()] = pipeline.work["direction"].fill_null("").to_numpy()
    # Kernels outside of all steps have no direction.
    ways = [(direction != "") & (direction != "F"), direction == "F"]
    kernels = ~ops.is_communication
    computing = _union(pipeline, kernels)
    of_way = [_union(pipeline, kernels & way) for way in ways]
    places = ["run", "capture", "stage", "phase"]
    parts = []
    for kind in [*sorted({*kinds.tolist()} - {""}), "all"]:
        mask = (kinds == kind) if kind != "all" else kinds != ""
        total = _union(pipeline, mask).within(rank, start, end)
        either = _union(pipeline, mask | kernels).within(rank, start, end)
        masked = total + computing.within(rank, start, end) - either
        other = np.zeros_like(total)
        for way, opposite, of_other in zip(ways, ways[::-1], of_way[::-1], strict=True):
            own, its = mask & way, (mask & way) | (kernels & opposite)
            other += (
                _union(pipeline, own).within(rank, start, end)
                + of_other.within(rank, start, end)
                - _union(pipeline, its).within(rank, start, end)
            )
        parts.append(rows.select(*places, kind=pl.lit(kind), communication_ns=pl.Series(total),
                                 masked_ns=pl.Series(masked),
                                 beside_other_ns=pl.Series(np.minimum(other, masked))))  # fmt: skip
    summed = pl.concat(parts).group_by(*places, "kind", maintain_order=True).agg(
        (pl.col(name).sum() // pl.len()).cast(pl.Int64)
        for name in ("communication_ns", "masked_ns", "beside_other_ns")
    )  # fmt: skip
    order = pl.Enum([*PHASES, STEP])
    return (
        summed.filter(pl.col("communication_ns") > 0)
        .with_columns(masking_ratio=pl.col("masked_ns") / pl.col("communication_ns"))
        .sort("run", "capture", "stage", pl.col("phase").cast(order), "kind")
        .select(_MASKING.names())
        .cast(_MASKING)
    )


_MASKING = pl.Schema({
    "run": pl.String, "capture": pl.String, "stage": pl.Int32, "phase": pl.String,
    "kind": pl.String, "communication_ns": pl.Int64, "masked_ns": pl.Int64,
    "masking_ratio": pl.Float64, "beside_other_ns": pl.Int64,
})  # fmt: skip


def _with_steps(pipeline: Pipeline, rows: pl.DataFrame) -> pl.DataFrame:
    """Phases, and each step of a rank as a whole: from its first operation to its last end."""
    ops = pipeline.ops
    extent = (
        pl.DataFrame({"lane": ops.lane, "start": ops.start, "end": ops.start + ops.dur})
        .group_by("lane")
        .agg(pl.col("start").min(), pl.col("end").max())
    )  # fmt: skip
    whole = rows.select(*_KEYS, "lane").unique(maintain_order=True).join(extent, on="lane")
    names = [*_KEYS, "lane", "phase", "start", "end"]
    return pl.concat([rows.select(names), whole.with_columns(phase=pl.lit(STEP)).select(names)])


def _kinds(pipeline: Pipeline) -> NDArray[np.str_]:
    """What each operation communicates for; '' for kernels and transfers between stages."""
    ops = pipeline.ops
    names = np.array([*ops.kinds, "unknown"])
    kinds: NDArray[np.str_] = np.where(ops.is_communication, names[ops.kind], "").astype("<U16")
    kinds[transfers_of(ops)] = ""
    types = [at for at, name in enumerate(ops.types) if name.lower().startswith(_EXCHANGES)]
    is_exchange = (kinds == "ep") & np.isin(ops.type, types)
    rows_with_places = pipeline.work.with_row_index("order").filter(
        pl.col("at").is_in(np.flatnonzero(is_exchange))
    )
    number = pl.int_range(pl.len()).over("lane", "direction", "piece", order_by="order")
    count = pl.len().over("lane", "direction", "piece")
    rows = rows_with_places.with_columns(number=number, count=count).filter(
        pl.col("piece").is_not_null() & (pl.col("count") % 2 == 0)
    )
    is_first = (rows["number"] % 2 == 0).to_numpy()
    kinds[rows["at"].to_numpy()] = np.where(is_first, "ep dispatch", "ep combine")
    return kinds
