"""Which pass ran when, and under another schedule: what is drawn of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import duckdb
import numpy as np
import polars as pl

from ..memo import memoize
from ..replay.captures import one_capture
from ..scope import Scope
from .answer import Answer, pipeline_answer, recognise
from .bubbles import order_pauses, pipeline_bubbles, step_pauses
from .execution import Precedence, Times
from .measurement import measure_passes
from .tries import OrderRequest, Ready, asked_tries, pipeline_tries, ready, try_order
from .tries_notes import tries_notes

_SCHEMA: dict[str, type[pl.DataType]] = {
    "is_tried": pl.Boolean, "device": pl.Int64, "kind": pl.String, "chunk": pl.Int64,
    "micro_batch": pl.Int64, "start_ns": pl.Float64, "dur_ns": pl.Float64, "share_ns": pl.Float64,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PipelineView:
    """`tries`: rows of `pipeline_tries`; `blocks`: of `pipeline_blocks`; `bubbles`: of
    `pipeline_bubbles`; `confidence` of the schedule's name; `step` that is drawn, of these `ranks`,
    one of each stage."""

    tries: pl.DataFrame
    blocks: pl.DataFrame
    bubbles: pl.DataFrame
    confidence: str
    step: int | None
    ranks: tuple[int, ...]
    notes: tuple[str, ...]


@memoize
def pipeline_view(
    con: duckdb.DuckDBPyConnection, scope: Scope, *, words: str | None, micro_batches: int | None
) -> PipelineView:
    """One capture's pipeline, with another schedule or number of micro-batches (None: none), in the
    chosen step, else the first. Raises as `tries.ready` and `tries.asked_tries` do."""
    job = ready(con, recognise(con, *one_capture(con, scope.job)))
    orders = asked_tries(job, words, micro_batches)
    passes = job.measured
    column = next((at for at, step in enumerate(passes.steps) if step == scope.step), 0)
    return PipelineView(
        pipeline_tries(job, orders),
        pipeline_blocks(job, orders[0] if orders else None, column),
        pipeline_bubbles(job.pipeline),
        job.pipeline.schedule.confidence,
        passes.steps[column],
        passes.ranks[column],
        tuple(tries_notes(job, orders)),
    )


def what_ran(con: duckdb.DuckDBPyConnection, scope: Scope) -> Answer:
    """What is known of one capture's pipeline where no pass of it can be drawn. Raises as
    `pipeline_answer`."""
    return pipeline_answer(con, *one_capture(con, scope.job))


# metric: pipeline_blocks
# When does which device of a pipeline run which pass, and why does it pause?
#
# Of one step and one rank of each stage, from the first start of a pass in that step, as measured
# and as executed under another schedule. A pause has the causes of pipeline_bubbles, each with its
# share in ns: over all pauses of a rank and step they add up to its bubble there. Shares may be
# negative; drawn are the positive ones, in order, scaled to the pause. Under another schedule there
# is nothing that remains (other) and no window of a step (late start, late end).
#
# title: Passes of a pipeline
# meaning: Passes of each device of a pipeline over time, and why it pauses between them.
# figure: pipeline_chart
#
#   is_tried     boolean  under the other schedule
#   device       bigint   place in the pipeline
#   kind         varchar  F, BW, B, W, or a cause of bubbles
#   chunk        bigint   of the device; NULL: no pass
#   micro_batch  bigint   from 0; NULL: no pass
#   start_ns     double   from the first start of a pass
#   dur_ns       double   how long it takes; of a cause, as it is drawn
#   share_ns     double   what the cause makes of the pause; NULL: a pass
def pipeline_blocks(job: Ready, order: OrderRequest | None, column: int) -> pl.DataFrame:
    """The rows of the metric."""
    passes = job.measured
    # Without hosts and replicas, as for `pipeline_bubbles`.
    every = measure_passes(job.pipeline.passes, passes.graph.schedule)
    places = [*zip(every.steps, every.ranks, strict=True)]
    own = places.index((passes.steps[column], passes.ranks[column]))
    shares = {cause: one[:, own] for cause, one in step_pauses(job.pipeline, every).items()}
    starts, ends = every.starts_ns[:, own], every.ends_ns[:, own]
    late = float(shares["late start"].max())
    rows = _rows(every.graph, starts + late, ends + late, shares, is_tried=False)
    if order is not None:
        other = try_order(job, order)
        times = np.rint(other.durations_ns)
        shares = {cause: one[:, column]
                  for cause, one in order_pauses(passes, other.graph, times).items()}  # fmt: skip
        starts = other.starts_ns[:, column]
        ends = starts + other.durations_ns[:, column]
        rows += _rows(other.graph, starts, ends, shares, is_tried=True)
    frame = pl.DataFrame(rows, schema=_SCHEMA, orient="row")
    return frame.filter((pl.col("dur_ns") > 0) | (pl.col("share_ns") != 0))


def _rows(
    graph: Precedence, starts: Times, ends: Times, shares: Mapping[str, Times], *, is_tried: bool
) -> list[tuple[object, ...]]:
    """Passes of each device and the causes of the pauses before, between and behind them."""
    count = len(graph.entries)
    total = np.sum([*shares.values()], axis=0)
    positive = np.sum([np.maximum(one, 0) for one in shares.values()], axis=0)
    scale = np.divide(total, positive, out=np.zeros_like(total), where=positive > 0)
    rows: list[tuple[object, ...]] = []

    def pause(device: int, at: int, begin: float) -> None:
        for cause, values in shares.items():
            share = float(values[at])
            length = max(share, 0.0) * max(float(scale[at]), 0.0)
            rows.append((is_tried, device, cause, None, None, begin, length, share))
            begin += length

    for at, (device, entry) in enumerate(graph.entries):
        pause(device, at, float(starts[at] - total[at]))
        rows += [
            (is_tried, device, one.kind, one.chunk, one.micro_batch, float(starts[at]),
             float(ends[at] - starts[at]), None)
            for one in entry
        ]  # fmt: skip
        if at + 1 == count or graph.entries[at + 1][0] != device:
            pause(device, count + device, float(ends[at]))
    return rows
