"""Which pass ran when, and under another schedule: what is drawn of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass

import duckdb
import numpy as np
import polars as pl

from ..replay.captures import one_capture
from ..scope import Scope
from .execution import ORDER, Precedence, Times
from .passes import pipeline
from .tries import Asked, Ready, asked_tries, pipeline_tries, ready, tried, tries_notes

WAITING, TRANSFER, PAUSE = "waiting", "transfer", "pause"
_SCHEMA: dict[str, type[pl.DataType]] = {
    "is_tried": pl.Boolean, "device": pl.Int64, "kind": pl.String, "chunk": pl.Int64,
    "micro_batch": pl.Int64, "start_ns": pl.Float64, "dur_ns": pl.Float64,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PipelineView:
    """`tries`: rows of `pipeline_tries`; `blocks`: of `pipeline_blocks`; `confidence` of the
    schedule's name; `step` that is drawn, of these `ranks`, one of each stage."""

    tries: pl.DataFrame
    blocks: pl.DataFrame
    confidence: str
    step: int | None
    ranks: tuple[int, ...]
    notes: tuple[str, ...]


def pipeline_view(
    con: duckdb.DuckDBPyConnection, scope: Scope, *, words: str | None, micro_batches: int | None
) -> PipelineView:
    """One capture's pipeline, with another schedule or number of micro-batches (None: none), in the
    chosen step, else the first. Raises as `tries.ready` and `tries.asked_tries` do."""
    job = ready(con, pipeline(con, *one_capture(con, scope.job)))
    asked = asked_tries(job, words, micro_batches)
    found = job.measured
    column = next((at for at, step in enumerate(found.steps) if step == scope.step), 0)
    return PipelineView(
        pipeline_tries(job, asked),
        pipeline_blocks(job, asked[0] if asked else None, column),
        job.pipeline.named.confidence,
        found.steps[column],
        found.ranks[column],
        tuple(tries_notes(job)),
    )


# metric: pipeline_blocks
# When does which device of a pipeline run which pass, and why does it pause?
#
# Of one step and one rank of each stage, from the first start of a pass, as measured and as
# executed under another schedule. A pause before a pass is `waiting` until the pass that it needs
# of another device has ended, `transfer` from then on, and `pause` where that ended before the
# device was free or nothing is received. Before its first and after its last pass a device waits.
#
# title: Passes of a pipeline
# meaning: Passes of each device of a pipeline over time, and what lies between them.
# figure: pipeline_chart
#
#   is_tried     boolean  under the other schedule
#   device       bigint   place in the pipeline
#   kind         varchar  F, BW, B, W, or waiting, transfer, pause
#   chunk        bigint   of the device; NULL: no pass
#   micro_batch  bigint   from 0; NULL: no pass
#   start_ns     double   from the first start of a pass
#   dur_ns       double   how long it takes
def pipeline_blocks(job: Ready, asked: Asked | None, column: int) -> pl.DataFrame:
    """The rows of the metric."""
    found = job.measured
    starts, ends = found.starts_ns[:, column], found.ends_ns[:, column]
    rows = _rows(found.made, starts, ends, is_tried=False)
    if asked is not None:
        other = tried(job, asked)
        starts = other.starts_ns[:, column]
        ends = starts + other.durations_ns[:, column]
        rows += _rows(other.made, starts, ends, is_tried=True)
    frame = pl.DataFrame(rows, schema=_SCHEMA, orient="row")
    return frame.filter(pl.col("dur_ns") > 0)


def _rows(
    made: Precedence, starts: Times, ends: Times, *, is_tried: bool
) -> list[tuple[object, ...]]:
    """Passes of each device and what lies between them."""
    count = len(made.entries)
    zero = float(starts.min())
    free = np.full(count, zero)
    is_next = made.link == ORDER
    free[made.target[is_next]] = ends[made.source[is_next]]
    needed = np.full(count, -np.inf)
    is_transfer = made.link >= 0
    np.maximum.at(needed, made.target[is_transfer], ends[made.source[is_transfer]])
    until = np.clip(needed, free, np.maximum(starts, free))
    last = float(ends.max())
    rows: list[tuple[object, ...]] = []

    def add(device: int, kind: str, begin: float, end: float) -> None:
        rows.append((is_tried, device, kind, None, None, begin - zero, end - begin))

    for at, (device, entry) in enumerate(made.entries):
        add(device, WAITING, float(free[at]), float(until[at]))
        kind = TRANSFER if until[at] > free[at] else PAUSE
        add(device, kind, float(until[at]), float(starts[at]))
        rows += [
            (is_tried, device, one.kind, one.chunk, one.micro_batch, float(starts[at]) - zero,
             float(ends[at] - starts[at]))
            for one in entry
        ]  # fmt: skip
        if at + 1 == count or made.entries[at + 1][0] != device:
            add(device, WAITING, float(ends[at]), last)
    return rows
