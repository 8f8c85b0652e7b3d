"""A job's steps before and after changes, with the operations of one step as they would run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import numpy as np
import polars as pl

from ..scope import Scope
from .capture_changes import apply_change
from .capture_what_if import changed_work, crowded_by, whatif_notes, whatif_steps
from .captures import CaptureJob, Other, capture_job
from .changes import parse_change
from .timetable import measured_times

MOST_EVENTS = 900  # of a side: of more, the longest


@dataclass(frozen=True, slots=True)
class BeforeAfter:
    """`steps`: rows of `whatif_steps`; `row`: the one that is looked at, of the chosen step or of
    the mean one. `lanes`: rows of `whatif_lanes` of `step`, whose longer side takes `length_ns`;
    `has_all`: none was left out. `work`: that a step holds other work now. `notes`: how far all
    that can be trusted."""

    steps: pl.DataFrame
    row: dict[str, object]
    lanes: pl.DataFrame
    step: int | None
    length_ns: int
    has_all: bool
    work: tuple[str, ...]
    notes: tuple[str, ...]


def before_after(
    con: duckdb.DuckDBPyConnection, scope: Scope, *, words: tuple[str, ...], ranks: tuple[int, ...]
) -> BeforeAfter:
    """What changes make of one capture, and of some ranks in the chosen step, else in the first of
    training that is no warm-up. `con` has all ranks compared.

    Raises UsageError, CannotAnswer and TraceNotFound as `npuscope whatif` does.
    """
    job = capture_job(con, scope.job)
    changes = [parse_change(word) for word in words]
    steps = whatif_steps(con, job, changes)
    rows = steps.filter(pl.col("step").eq_missing(pl.lit(scope.step, pl.Int64)))
    row = (rows if rows.height else steps).row(-1, named=True)
    there = row["step"] is not None
    at = job.ops.steps.index(row["step"]) if there else job.trained[0]
    other = apply_change(con, job, changes)
    lanes = whatif_lanes(job, crowded_by(job, other, job.times(other.waits)), at, ranks)
    length_ns = int(lanes.select((pl.col("start_ns") + pl.col("dur_ns")).max()).item() or 1)
    sides = lanes.partition_by("is_after")
    longest = [
        side.sort("dur_ns", descending=True, maintain_order=True)[:MOST_EVENTS] for side in sides
    ]
    order = ["is_after", "rank", "kind", "lane", "start_ns"]
    return BeforeAfter(
        steps,
        row,
        pl.concat(longest).sort(order, maintain_order=True) if longest else lanes,
        job.ops.steps[at],
        length_ns,
        all(side.height <= MOST_EVENTS for side in sides),
        tuple(changed_work(con, job, changes, steps, job.ops.steps[at] if there else None)),
        tuple(whatif_notes(job, changes)),
    )


# metric: whatif_lanes
# When would the operations of a step run after changes, beside when they ran?
#
# Kernels and communication operations of chosen ranks in one step: as they were measured, and as a
# replay with the changes has them. A communication operation lasts from its own start to the end,
# waiting for members included.
#
# title: A step before and after changes
# meaning: Operations of a step as measured, and as replayed with changes.
# figure: whatif_lanes
#
#   rank      integer  global rank
#   kind      varchar  compute or communication
#   lane      varchar  its stream, numbered on the rank; of communication the parallel kind
#   name      varchar  operator or operation type
#   type      varchar  the same
#   detail    varchar  core of a kernel
#   step      bigint   producer's step number
#   start_ns  bigint   from the first start of the step over all ranks
#   dur_ns    bigint   duration
#   is_after  boolean  with the changes
def whatif_lanes(job: CaptureJob, other: Other, at: int, ranks: Sequence[int]) -> pl.DataFrame:
    """Rows of the metric: `at` is the step's place in `job.ops.steps`."""
    ops = job.ops
    inside = ops.step == at
    number = {rank: place for place, rank in enumerate(ops.ranks)}
    mine = np.flatnonzero(inside & np.isin(ops.rank, [number[r] for r in ranks if r in number]))
    comm = ops.is_communication[mine]
    kinds = [*ops.kinds, None]
    stream = pl.Series(ops.stream[mine])
    rank = pl.Series([ops.ranks[one] for one in ops.rank[mine]], dtype=pl.Int32)
    lanes = pl.DataFrame(
        {
            "rank": rank,
            "kind": np.where(comm, "communication", "compute"),
            "number": stream,
            "name": [ops.types[one] for one in ops.type[mine]],
            "detail": ops.names["core"][mine],
            "group": [kinds[one] for one in ops.kind[mine]],
        }
    ).with_columns(
        lane=pl.when(pl.col("kind") == "communication")
        .then(pl.col("group").fill_null("?"))
        .otherwise("stream " + pl.col("number").rank("dense").over("rank", "kind").cast(pl.String))
    )
    sides = []
    own = np.flatnonzero(inside)
    for is_after, times in ((False, measured_times(ops)), (True, job.times(other.waits))):
        zero = int(times(own)[0].min()) if len(own) else 0
        starts, ends = times(mine)
        sides.append(
            lanes.select(
                "rank", "kind", "lane", "name", pl.col("name").alias("type"), "detail",
                pl.lit(ops.steps[at], pl.Int64).alias("step"),
                pl.Series("start_ns", starts - zero, pl.Int64),
                pl.Series("dur_ns", ends - starts, pl.Int64),
                pl.lit(is_after).alias("is_after"),
            )
        )  # fmt: skip
    return pl.concat(sides).filter(pl.col("dur_ns") > 0)
