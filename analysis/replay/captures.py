"""Replay of a capture: its steps worked out from what waits for what, and how far off that is."""

from __future__ import annotations

from dataclasses import dataclass, replace

import duckdb
import numpy as np
import polars as pl
from numpy.typing import NDArray

from npuscope.analysis.wording import percent
from npuscope.errors import UsageError
from npuscope.messages import Message

from ..scope import JOB, Scope
from ..views import frame
from .contention import Contention, contention
from .operations import Operations, read_operations
from .points import Flags, Integers
from .waiting.edges import RECORDED, RULE
from .waits import Waits, waits

Ratios = NDArray[np.float64]
_UNKNOWN_NS = np.iinfo(np.int64).max
_LONGEST_NS = 1e17  # of all that is changed together: three years


@dataclass(frozen=True, slots=True)
class Span:
    """First start and last end of each step on each rank (by step and rank; `is_there`)."""

    starts: Integers
    ends: Integers
    is_there: Flags

    def lengths(self) -> Integers:
        """Of the job's steps: from the latest start over ranks to that of the next step; of the
        last one to the latest end."""
        begins = np.where(self.is_there, self.starts, -_UNKNOWN_NS).max(axis=1)
        ends = np.where(self.is_there, self.ends, -_UNKNOWN_NS).max(axis=1)
        found: Integers = np.append(begins[1:], ends[-1:]) - begins
        return found

    def lengths_by_rank(self) -> Integers:
        """The same of each rank; of no meaning where it is not there."""
        following = np.concatenate([self.starts[1:], self.ends[-1:]])
        is_next = np.concatenate([self.is_there[1:], np.zeros_like(self.is_there[:1])])
        found: Integers = np.where(is_next, following, self.ends) - self.starts
        return found


@dataclass(frozen=True, slots=True)
class CaptureJob:
    """A capture with what waits for what; `warm_up` are steps that stand out."""

    run: str
    capture: str
    ops: Operations
    waits: Waits
    measured: Span
    warm_up: frozenset[int | None]
    contention: Contention

    @property
    def without_gaps(self) -> Waits:
        """What waits for what, with gaps only where something waits for nothing."""
        is_root = np.diff(self.waits.points.first)[self.waits.points.place] == 0
        return replace(self.waits, gap=np.where(is_root, self.waits.gap, 0))

    def span(self, made: Waits | None = None) -> Span:
        """Steps replayed; `made`: with other durations, times of the host or gaps."""
        return span_of(self.ops, *self.times(made))

    def times(self, made: Waits | None = None) -> tuple[Integers, Integers]:
        """Starts and ends of all operations, replayed; `made` as for `span`."""
        made, ops = made or self.waits, self.ops
        at = made.starts()
        count = len(ops.rank)
        starts = at[:count]
        begins = np.where(ops.is_communication, at[count + np.maximum(ops.instance, 0)], starts) \
            if made.meetings else starts  # fmt: skip
        return starts, begins + made.transfer[:count]


@dataclass(frozen=True, slots=True)
class Other:
    """A capture after changes; `outside`: durations where exogenous operations change as others
    do; `added_ns`: what every step takes beyond its replay; `hidden_ns`: of operations the time
    that transfers are beside them which the replay no longer has (None: none)."""

    waits: Waits
    outside: Integers
    added_ns: int = 0
    hidden_ns: Integers | None = None

    def lasting(self, durations: Integers, outside: Integers) -> Other:
        """The same with other durations."""
        return replace(self, waits=replace(self.waits, transfer=durations), outside=outside)

    def scaled(self, mask: Flags, factor: float, outside: Flags | None = None) -> Other:
        """The same with some durations multiplied; `outside`: which, where exogenous ones change
        as others do. Raises UsageError where a step would last for years."""
        return self.lasting(
            scaled(self.waits.transfer, mask, factor),
            scaled(self.outside, mask if outside is None else outside, factor),
        )


def scaled(values: Integers, mask: Flags, factor: float) -> Integers:
    """Values with some multiplied. Raises UsageError where they become years."""
    if float(np.abs(values[mask]).sum()) * factor > _LONGEST_NS:
        raise UsageError(f"times {factor:g}, a step would last for years")
    found = values.copy()
    found[mask] = np.round(values[mask] * factor).astype(np.int64)
    return found


def one_capture(con: duckdb.DuckDBPyConnection, scope: Scope) -> tuple[str, str]:
    """Run and capture of a scope. Raises UsageError where it is not one capture."""
    clause, values = scope.where(JOB)
    there = con.execute(
        f"select distinct run, capture from ranks {clause} order by all", values
    ).fetchall()
    if len(there) != 1:
        named = ", ".join(f"--run {run} --capture {capture}" for run, capture in there[:4])
        raise UsageError(
            f"one capture at a time is replayed: choose it by {named or 'another name'}"
        )
    run, capture = there[0]
    return run, capture


def capture_job(con: duckdb.DuckDBPyConnection, scope: Scope) -> CaptureJob:
    """The capture of a scope as a graph. `con` has all ranks compared. Raises UsageError where it
    is not one capture, TraceNotFound where it has nothing to replay."""
    run, capture = one_capture(con, scope)
    ops = read_operations(con, run, capture)
    steps = frame(con, "select step from job_steps where is_warm_up and run = ? and capture = ?",
                  [run, capture])["step"].to_list()  # fmt: skip
    made = waits(ops)
    measured = span_of(ops, ops.start, ops.start + ops.dur)
    crowded = contention(ops, made.transfer)
    return CaptureJob(run, capture, ops, made, measured, frozenset(steps), crowded)


def span_of(ops: Operations, starts: Integers, ends: Integers) -> Span:
    """Steps of operations with these starts and ends."""
    shape = (len(ops.steps), len(ops.ranks))
    # Operations stand by rank: runs of one step are few. Tasks have none.
    begins = np.flatnonzero(
        (np.diff(ops.step, prepend=-2) != 0) | (np.diff(ops.rank, prepend=-1) != 0)
    )
    step, rank = ops.step[begins], ops.rank[begins]
    inside = step >= 0
    at = (step[inside], rank[inside])
    first, last = np.full(shape, _UNKNOWN_NS), np.full(shape, -_UNKNOWN_NS)
    if inside.any():
        np.minimum.at(first, at, np.minimum.reduceat(starts, begins)[inside])
        np.maximum.at(last, at, np.maximum.reduceat(ends, begins)[inside])
    is_there = first < _UNKNOWN_NS
    return Span(np.where(is_there, first, 0), np.where(is_there, last, 0), is_there)


# metric: replay
# How close does the replay of a capture come to what was measured, and what of it is not explained?
#
# Operations of all ranks start when what they wait for has ended: those before them on their
# stream, their launch, the peers of a collective, and what rules or touching times tell. What of a
# start none of these explains is kept as a recorded gap; without such gaps the replay has to
# explain all.
# A row per step of the job (rank is NULL) and per rank and step.
#
# title: Replay
# meaning: Steps replayed with and without recorded gaps, and what of them is not explained.
# command: replay
#
#   run                  varchar  run of the training job
#   capture              varchar  ranks profiled at the same time
#   rank                 integer  global rank; NULL: the job
#   step                 bigint   producer's step number; NULL: the capture has none
#   measured_ns          bigint   latest start over ranks to the next step's; last: to the end
#   replayed_ns          bigint   the same replayed; what nothing explains is kept as recorded
#   without_gaps_ns      bigint   the same with nothing kept
#   error_ratio          double   (replayed - measured) / measured
#   without_gaps_error_ratio double (without gaps - measured) / measured
#   unexplained_ratio    double   gaps that nothing explains, of the time; job: most of a rank
#   exogenous_ratio      double   operations with members not captured; job: most of a rank
#   inferred_edge_ratio  double   share of edges that rules or touching times tell, not records
def replay(job: CaptureJob) -> pl.DataFrame:
    """Rows of the metric."""
    measured, kept = job.measured, job.span()
    bare = job.span(job.without_gaps)
    unexplained, exogenous = shares(job)
    inferred = float(np.mean(job.waits.origin != RECORDED)) if len(job.waits.origin) else 0.0
    spans = (measured, kept, bare)
    of_job = [one.lengths() for one in spans]
    of_ranks = [one.lengths_by_rank() for one in spans]
    rows = []
    for number, step in enumerate(job.ops.steps):
        there = measured.is_there[number]
        job_row = [int(one[number]) for one in of_job]
        rows.append((None, step, *job_row, unexplained[number, there].max(initial=0),
                     exogenous[number, there].max(initial=0)))  # fmt: skip
        rows += [
            (job.ops.ranks[at], step, *(int(one[number, at]) for one in of_ranks),
             unexplained[number, at], exogenous[number, at])
            for at in np.flatnonzero(there).tolist()
        ]  # fmt: skip
    names = ("rank", "step", "measured_ns", "replayed_ns", "without_gaps_ns",
             "unexplained_ratio", "exogenous_ratio")  # fmt: skip
    found = pl.DataFrame(rows, schema=names, orient="row", infer_schema_length=None)

    def off(name: str) -> pl.Expr:
        error = (pl.col(name) - pl.col("measured_ns")) / pl.col("measured_ns")
        return pl.when(pl.col("measured_ns") > 0).then(error)

    return found.select(
        pl.lit(job.run).alias("run"), pl.lit(job.capture).alias("capture"),
        pl.col("rank").cast(pl.Int32), pl.col("step").cast(pl.Int64),
        "measured_ns", "replayed_ns", "without_gaps_ns",
        off("replayed_ns").alias("error_ratio"),
        off("without_gaps_ns").alias("without_gaps_error_ratio"),
        pl.col("unexplained_ratio").cast(pl.Float64), pl.col("exogenous_ratio").cast(pl.Float64),
        pl.lit(inferred).alias("inferred_edge_ratio"),
    )  # fmt: skip


def shares(job: CaptureJob) -> tuple[Ratios, Ratios]:
    """Of each step and rank: the share of unexplained gaps, and of exogenous operations."""
    ops, made = job.ops, job.waits
    count = len(ops.rank)
    shape = job.measured.starts.shape
    is_root = np.diff(made.points.first)[made.points.place][:count] == 0
    gap = np.where(is_root | made.explained[:count], 0, np.abs(made.gap[:count]))
    # What several wait at once is counted once: up to where an earlier one of the rank started.
    before = np.append(0, ops.start[:-1])
    before[np.diff(ops.rank, prepend=-1) != 0] = np.iinfo(np.int64).min // 2
    gap = np.minimum(gap, np.maximum(ops.start - before, 0))
    outside = np.where(ops.exogenous, ops.dur, 0)
    length = np.maximum(job.measured.lengths_by_rank(), 1)
    found = []
    step = ops.step
    if ops.role.any():  # a task is of the step that its rank was in
        at = np.maximum.accumulate(np.where(ops.role == 0, np.arange(count), 0))
        step = np.where(ops.rank[at] == ops.rank, step[at], -1)
    inside = step >= 0
    place = step[inside].astype(np.int64) * shape[1] + ops.rank[inside]
    for value in (gap, outside):
        total = np.bincount(place, weights=value[inside], minlength=length.size)
        found.append(np.minimum(total.reshape(shape) / length, 1.0))
    return found[0], found[1]


def replay_notes(job: CaptureJob, rows: pl.DataFrame) -> list[str]:
    """The trust statement: what a replay of this capture is good for."""
    whole = rows.filter(pl.col("rank").is_null())
    worst = whole.select(
        pl.col("error_ratio", "without_gaps_error_ratio").abs().max(),
        pl.col("unexplained_ratio", "exogenous_ratio", "inferred_edge_ratio").max(),
    ).row(0, named=True)
    notes: list[str] = [
        Message(
            "replayed without recorded gaps, steps are off by at most {bare}; with what nothing"
            " explains kept as recorded, by {kept}: that checks the arithmetic more than the rules",
            bare=percent(worst["without_gaps_error_ratio"]), kept=percent(worst["error_ratio"]),
        ),
        Message(
            "of the time of a step, at most {unexplained} are gaps that nothing explains and"
            " {exogenous} operations whose other members were not captured; {inferred} of the"
            " edges are inferred",
            unexplained=percent(worst["unexplained_ratio"]),
            exogenous=percent(worst["exogenous_ratio"]),
            inferred=percent(worst["inferred_edge_ratio"]),
        ),
    ]  # fmt: skip
    if not job.ops.has_launches:
        notes.append(
            Message("no launches were recorded: what the host does cannot be told apart from gaps")
        )
    if not (job.waits.origin == RULE).any() and job.ops.is_communication.any():
        notes.append(Message("nothing tells what communication waits for: gaps stand for it"))
    return notes
