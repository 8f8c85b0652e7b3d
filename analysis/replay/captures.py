"""Replay of a capture: its steps worked out from what waits for what, and how far off that is."""

from __future__ import annotations

from dataclasses import dataclass, replace

import duckdb
import numpy as np
import polars as pl
from numpy.typing import NDArray

from npuscope.errors import TraceNotFound, UsageError
from npuscope.messages import Message

from ..means import forward_steps
from ..parts import is_told
from ..scope import JOB, Scope
from ..views import frame
from ..wording import percent
from .contention import Contention, contention
from .operations import Operations, read_operations
from .points import Flags, Integers
from .timetable import Span, Timetable, measured_times, parts, replayed_times, span_of
from .waiting.edges import RECORDED, RULE
from .waits import Waits, waits

Ratios = NDArray[np.float64]
# Of a capture that is replayed unasked: about two seconds for the graph and ten changes.
MOST_OPERATIONS = 200_000
LESS = 0.8  # of a time that has nothing to be alike: what a fifth less would gain
_LONGEST_NS = 10**17  # of all that is changed together: three years


@dataclass(frozen=True, slots=True)
class CaptureJob:
    """A capture with what waits for what; `warm_up` are steps that stand out, `forward` those that
    run no gradients, as an evaluation.

    measured, replay: its steps as they were, and replayed with recorded gaps. residue, exogenous:
    of each step and rank the share of gaps that nothing explains, and of such operations.
    """

    run: str
    capture: str
    ops: Operations
    waits: Waits
    measured: Span
    replay: Span
    residue: Ratios
    exogenous: Ratios
    warm_up: frozenset[int | None]
    forward: frozenset[int | None]
    contention: Contention

    @property
    def usual(self) -> list[int]:
        """Places of the steps that means are over: without warm-up where there are others."""
        usual = [at for at, step in enumerate(self.ops.steps) if step not in self.warm_up]
        return usual or [*range(len(self.ops.steps))]

    @property
    def trained(self) -> list[int]:
        """Places of those that run gradients, where any does."""
        return [at for at in self.usual if self.ops.steps[at] not in self.forward] or self.usual

    @property
    def without_gaps(self) -> Waits:
        """What waits for what, with gaps only where something waits for nothing."""
        is_root = np.diff(self.waits.points.first)[self.waits.points.place] == 0
        return replace(self.waits, gap=np.where(is_root, self.waits.gap, 0))

    def times(self, waits: Waits) -> Timetable:
        """When operations run with other durations, times of the host or gaps."""
        return replayed_times(self.ops, waits)

    def span(self, waits: Waits | None = None) -> Span:
        """Steps of the same; of nothing else than what was recorded."""
        return self.replay if waits is None else span_of(self.ops, self.times(waits))


@dataclass(frozen=True, slots=True)
class Other:
    """A capture after changes; `outside`: durations where exogenous operations change as others
    do; `pace`: by what the time of all that an operation moves was multiplied; `added_ns`: what
    each step (one number: every step) takes beyond its replay, by `unsure_ns` less or more, and
    what that is; `micro_batches`: of a step as it ran, and now (None: as many); `hidden_ns`: of
    operations the time that transfers are beside them which the replay no longer has (None: none);
    `is_told`: changes tell how long operations last, none is estimated from others, and nothing
    else changes; `payloads`: `payloads` as changes left them (None: no change of them)."""

    waits: Waits
    outside: Integers
    pace: Ratios
    added_ns: Integers | int = 0
    unsure_ns: tuple[Integers | int, Integers | int] = (0, 0)
    added_as: str = "micro-batches"
    micro_batches: tuple[int, int] | None = None
    hidden_ns: Integers | None = None
    is_told: bool = False
    payloads: pl.DataFrame | None = None

    def unsure_by(self, less_ns: float, more_ns: float) -> Other:
        """The same where each step may take so much less or more, too."""
        less, more = self.unsure_ns
        return replace(self, unsure_ns=(less + round(less_ns), more + round(more_ns)))

    def with_durations(self, durations: Integers, outside: Integers) -> Other:
        """The same with other durations."""
        return replace(self, waits=replace(self.waits, transfer=durations), outside=outside)

    def scale(self, mask: Flags, factor: float, outside: Flags | None = None) -> Other:
        """The same with some durations multiplied; `outside`: which, where exogenous ones change
        as others do. Raises UsageError where a step would last for years."""
        return self.with_durations(
            scale(self.waits.transfer, mask, factor),
            scale(self.outside, mask if outside is None else outside, factor),
        )


def scale(values: Integers, mask: Flags, factor: float) -> Integers:
    """Values with some multiplied. Raises UsageError where they become years."""
    if float(np.abs(values[mask]).sum()) * factor > _LONGEST_NS:
        raise UsageError(
            Message("times {factor}, a step would last for years", factor=f"{factor:g}")
        )
    result = values.copy()
    result[mask] = np.round(values[mask] * factor).astype(np.int64)
    return result


def one_capture(con: duckdb.DuckDBPyConnection, scope: Scope) -> tuple[str, str]:
    """Run and capture of a scope. Raises UsageError where it is not one capture."""
    clause, values = scope.where(JOB)
    there = con.execute(
        f"select distinct run, capture from ranks {clause} order by all", values
    ).fetchall()
    if len(there) != 1:
        named = ", ".join(f"--run {run} --capture {capture}" for run, capture in there[:4])
        raise UsageError(
            Message(
                "one capture at a time is replayed: choose it by {named}",
                named=named or Message("another name"),
            )
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
    forward = forward_steps(con).filter(run=run, capture=capture).explode("steps")["steps"]
    return job_of(run, capture, ops, frozenset(steps), frozenset(forward.to_list()))


def operation_count(con: duckdb.DuckDBPyConnection, scope: Scope) -> int:
    """Kernels and communication operations of one capture."""
    clause, values = scope.where(JOB)
    tables = [f"(select count(*) from {table} {clause})" for table in ("kernels", "comm_ops")]
    return int(frame(con, f"select {' + '.join(tables)}", [*values, *values]).item())


def job_within_limit(con: duckdb.DuckDBPyConnection, scope: Scope) -> CaptureJob | None:
    """The capture as a graph; None where that would take too long for who did not ask for it, its
    ranks were not compared, or it has nothing to replay."""
    if not is_told(con) or operation_count(con, scope) > MOST_OPERATIONS:
        return None
    try:
        return capture_job(con, scope.job)
    except TraceNotFound:
        return None


def job_of(
    run: str, capture: str, ops: Operations,
    warm_up: frozenset[int | None] = frozenset(), forward: frozenset[int | None] = frozenset(),
) -> CaptureJob:  # fmt: skip
    """The graph of operations, and how well it replays them."""
    edges = waits(ops)
    replayed = replayed_times(ops, edges)
    spans = span_of(ops, measured_times(ops)), span_of(ops, replayed)
    unexplained, exogenous = _shares(ops, edges, spans[0])
    crowded = contention(ops, edges.transfer, replayed)
    return CaptureJob(
        run, capture, ops, edges, *spans, unexplained, exogenous, warm_up, forward, crowded
    )


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
#   measured_ns          bigint   latest start over ranks to the next step's, or to the end
#   replayed_ns          bigint   the same replayed; what nothing explains is kept as recorded
#   without_gaps_ns      bigint   the same with nothing kept
#   error_ratio          double   (replayed - measured) / measured
#   without_gaps_error_ratio double (without gaps - measured) / measured
#   unexplained_ratio    double   gaps that nothing explains, of the time; job: most of a rank
#   exogenous_ratio      double   operations with members not captured; job: most of a rank
#   inferred_edge_ratio  double   share of edges that rules or touching times tell, not records
def replay(job: CaptureJob) -> pl.DataFrame:
    """Rows of the metric."""
    unexplained, exogenous = job.residue, job.exogenous
    inferred = float(np.mean(job.waits.origin != RECORDED)) if len(job.waits.origin) else 0.0
    spans = (job.measured, job.replay, job.span(job.without_gaps))
    of_job = [one.lengths() for one in spans]
    of_ranks = [one.lengths_by_rank() for one in spans]
    rows = []
    for number, step in enumerate(job.ops.steps):
        there = job.measured.is_there[number]
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
    frame = pl.DataFrame(rows, schema=names, orient="row", infer_schema_length=None)

    def off(name: str) -> pl.Expr:
        error = (pl.col(name) - pl.col("measured_ns")) / pl.col("measured_ns")
        return pl.when(pl.col("measured_ns") > 0).then(error)

    return frame.select(
        pl.lit(job.run).alias("run"), pl.lit(job.capture).alias("capture"),
        pl.col("rank").cast(pl.Int32), pl.col("step").cast(pl.Int64),
        "measured_ns", "replayed_ns", "without_gaps_ns",
        off("replayed_ns").alias("error_ratio"),
        off("without_gaps_ns").alias("without_gaps_error_ratio"),
        pl.col("unexplained_ratio").cast(pl.Float64), pl.col("exogenous_ratio").cast(pl.Float64),
        pl.lit(inferred).alias("inferred_edge_ratio"),
    )  # fmt: skip


def _shares(ops: Operations, waits: Waits, span: Span) -> tuple[Ratios, Ratios]:
    """Of each step and rank: the share of unexplained gaps, and of exogenous operations."""
    shape = span.starts.shape
    first, place = waits.points.first, waits.points.place
    gaps, outside = (np.zeros(span.starts.size) for _ in range(2))
    at_step = 0  # the last operation so far that tells its step
    for part in parts(len(ops.rank)):
        rank, step, begin = ops.rank[part], ops.step[part], part.start
        at = place[part]
        is_open = (first[at + 1] > first[at]) & ~waits.explained[part]
        # What several wait at once is counted once: up to where an earlier one of the rank started.
        room = np.diff(ops.start[part], prepend=ops.start[max(begin - 1, 0)])
        room[np.diff(rank, prepend=ops.rank[begin - 1] if begin else -1) != 0] = _LONGEST_NS
        gap = np.where(is_open, np.minimum(np.abs(waits.gap[part]), np.maximum(room, 0)), 0)
        if ops.role[part].any():  # a task is of the step that its rank was in
            own = np.where(ops.role[part] == 0, np.arange(begin, part.stop), at_step)
            own = np.maximum.accumulate(own)
            step, at_step = np.where(ops.rank[own] == rank, ops.step[own], -1), int(own[-1])
        else:
            at_step = part.stop - 1
        inside = step >= 0
        cell = step[inside].astype(np.int64) * shape[1] + rank[inside]
        own_dur = np.where(ops.exogenous[part], ops.dur[part], 0)
        for total, value in ((gaps, gap), (outside, own_dur)):
            total += np.bincount(cell, weights=value[inside], minlength=len(total))
    length = np.maximum(span.lengths_by_rank(), 1)
    unexplained, exogenous = (
        np.minimum(total.reshape(shape) / length, 1.0) for total in (gaps, outside)
    )
    return unexplained, exogenous


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
            " {exogenous} operations whose other members were not captured, which may run in such"
            " gaps; {inferred} of the edges are inferred",
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
