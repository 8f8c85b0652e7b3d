"""Which operations of which ranks make the steps of a job as long as they are."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import polars as pl

from .captures import CaptureJob, span_of
from .points import Indices, Integers
from .waits import Waits

_Key = tuple[int, str, str | None, str | None]  # position of the rank, part, kind, type


# metric: critical_path
# Which operations of which rank make a step as long as it is?
#
# From what ends a step (the start of the next one on the rank that starts it last, else the last
# end) back through what each start waited for, over all ranks, to where the step began. Rows of a
# step add up to it. Nothing that is not on this path makes the step shorter when it gets faster.
# Communication counts from its last member's start; exogenous: members were not captured, waiting
# for them is part of it. Task: copies and what else is neither. Host: from launch to launch.
# Launch: to an idle device. Overhead: what usually lies between an end and what waits for it. Gap:
# what nothing explains; below 0 where an operation came sooner than usual.
#
# title: Critical path
# meaning: What a step waits for from its start to its end, over all ranks, by rank and operation.
# command: critical-path
#
#   run         varchar  run of the training job
#   capture     varchar  ranks profiled at the same time
#   step        bigint   producer's step number; NULL: the capture has none
#   rank        integer  global rank
#   part        varchar  computing, communication, exogenous, task, host, launch, overhead or gap
#   kind        varchar  parallel kind of communication
#   type        varchar  of the operation, or of the one that waits
#   count       bigint   how often it is on the path
#   path_ns     bigint   its time on the path
#   share_ratio double   of the step
def critical_path(job: CaptureJob) -> pl.DataFrame:
    """Rows of the metric, the longest of each step first."""
    made, ops = job.waits, job.ops
    met = np.full(made.meetings, np.iinfo(np.int64).min)
    comm = ops.is_communication
    np.maximum.at(met, ops.instance[comm], ops.start[comm])
    segments = made.starts()[len(ops.rank) + made.meetings :]
    measured = np.concatenate([ops.start, met, segments])
    rows = []
    paths = _paths(job, made, measured, ops.start + ops.dur)
    for step, spent in zip(ops.steps, paths, strict=True):
        length = sum(ns for _, ns in spent.values())
        rows += [
            (job.run, job.capture, step, ops.ranks[rank], part, kind, of, count, ns,
             ns / length if length else None)
            for (rank, part, kind, of), (count, ns) in spent.items()
        ]  # fmt: skip
    names = {
        "run": pl.String, "capture": pl.String, "step": pl.Int64, "rank": pl.Int32,
        "part": pl.String, "kind": pl.String, "type": pl.String, "count": pl.Int64,
        "path_ns": pl.Int64, "share_ratio": pl.Float64,
    }  # fmt: skip
    found = pl.DataFrame(rows, schema=names, orient="row")
    return found.sort(
        "step", "path_ns", "rank", "part", "type", descending=[False, True, False, False, False]
    )


def time_by_part(job: CaptureJob, made: Waits) -> list[dict[tuple[str, str | None], int]]:
    """Of each step replayed: the time on its critical path by part and parallel kind."""
    ops = job.ops
    at = made.starts()
    begins = at[: len(ops.rank)].copy()
    comm = ops.is_communication
    begins[comm] = at[len(ops.rank) + ops.instance[comm]]
    found = []
    for spent in _paths(job, made, at, begins + made.transfer[:-1]):
        parts: dict[tuple[str, str | None], int] = defaultdict(int)
        for (_, part, kind, _), (_, ns) in spent.items():
            parts[part, kind] += ns
        found.append(dict(parts))
    return found


def _paths(
    job: CaptureJob, made: Waits, at: Integers, ends: Integers
) -> list[dict[_Key, list[int]]]:
    """What is spent on the way to the end of each step, where points are at these times and
    operations end at those."""
    ops = job.ops
    walk = _walk(job, made, at)
    starts = at[: len(ops.rank)]
    span = span_of(ops, starts, ends)
    begins = np.where(span.is_there, span.starts, np.iinfo(np.int64).min)
    found = []
    for number in range(len(ops.steps)):
        begin = int(begins[number].max())
        spent: dict[_Key, list[int]] = defaultdict(lambda: [0, 0])
        if number + 1 < len(ops.steps):
            last = int(begins[number + 1].argmax())
            here = (ops.step == number + 1) & (ops.rank == last)
            first = np.flatnonzero(here & (starts == begins[number + 1, last]))
            walk.back(int(first[0]), begin, spent)
        else:
            inside = np.flatnonzero(ops.step == number)
            latest = int(inside[ends[inside].argmax()])
            walk.back_from_end(latest, int(ends[latest]), begin, spent)
        found.append(spent)
    return found


@dataclass(frozen=True, slots=True)
class _Walk:
    """Times of points, of each the edge that bound it (-1: none), and what edges take."""

    job: CaptureJob
    made: Waits
    at: Integers
    source: Indices
    binding: Integers

    def back_from_end(self, op: int, until: int, begin: int, spent: dict[_Key, list[int]]) -> None:
        """The path to the end of an operation, at `until`, down to `begin`."""
        ops = self.job.ops
        instance = int(ops.instance[op])
        point = op if instance < 0 else len(ops.rank) + instance
        self._spend(spent, self._of(op), until - max(int(self.at[point]), begin))
        self.back(point, begin, spent)

    def back(self, point: int, begin: int, spent: dict[_Key, list[int]]) -> None:
        """The path to a point, down to `begin`. Walks over what is on it, nothing else."""
        made, at = self.made, self.at
        while at[point] > begin:
            edge = int(self.binding[point])
            if edge < 0:  # nothing is known before it
                own = self._of(min(point, len(self.job.ops.rank) - 1))
                self._spend(spent, (own[0], "gap", None, own[3]), int(at[point]) - begin)
                return
            work, lag = int(made.work[edge]), int(made.lag[edge])
            before = int(self.source[edge])
            spanned = int(at[point] - at[before])
            if work < 0:
                busy, launched = int(made.host[-1 - work]), int(made.launched[-1 - work])
                worked: _Key = (self._of(launched)[0], "host", None, None)
                lagged = "launch"
            else:
                busy, lagged = int(made.transfer[work]), "overhead"
                worked = self._of(work) if busy else (0, "overhead", None, None)
            waiting = self._of(point) if point < len(self.job.ops.rank) else worked
            # What lies before the step began is cut off, the earliest first.
            cut = max(begin - int(at[before]), 0)
            pieces = (
                (worked, busy),
                ((waiting[0], lagged, None, waiting[3]), lag),
                ((waiting[0], "gap", None, waiting[3]), spanned - busy - lag),
            )
            for key, piece in pieces:
                taken = min(max(piece, 0), cut)
                cut -= taken
                self._spend(spent, key, piece - taken)
            point = before

    def _of(self, op: int) -> _Key:
        ops = self.job.ops
        kind = int(ops.kind[op])
        is_comm = bool(ops.instance[op] >= 0)
        part = (
            "exogenous" if ops.exogenous[op] else "communication" if is_comm
            else "task" if ops.role[op] else "computing"
        )  # fmt: skip
        return (
            int(ops.rank[op]), part,
            ops.kinds[kind] if is_comm and kind >= 0 else None, ops.types[int(ops.type[op])],
        )  # fmt: skip

    @staticmethod
    def _spend(spent: dict[_Key, list[int]], key: _Key, ns: int) -> None:
        if ns:
            spent[key][0] += 1
            spent[key][1] += ns


def _walk(job: CaptureJob, made: Waits, at: Integers) -> _Walk:
    places = made.points.place
    total = len(places)
    point_at = np.empty(total, np.int32)
    point_at[places] = np.arange(total, dtype=np.int32)
    source = point_at[made.points.source]
    arrived = made.delays()
    arrived += at[source]
    first = made.points.first
    has_edge = np.flatnonzero(np.diff(first) > 0)
    binding = np.full(total, -1)
    if len(has_edge):
        begins = first[:-1][has_edge]
        latest = np.maximum.reduceat(arrived, begins)
        binds = np.flatnonzero(arrived == np.repeat(latest, np.diff(first)[has_edge]))
        binding[point_at[has_edge]] = binds[np.searchsorted(binds, begins)]
    return _Walk(job, made, at, source, binding)
