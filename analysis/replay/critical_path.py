"""Which operations of which ranks make the steps of a job as long as they are."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from npuscope.messages import Message

from ..wording import ms
from .captures import CaptureJob
from .points import Indices, Integers, Points
from .timetable import span_of
from .waits import Waits

_LONG_GAP_NS = 100_000  # shorter ones are looked at by nobody
_Key = tuple[int, str, str | None, str | None]  # position of the rank, part, kind, type


# metric: critical_path
# Which operations of which rank make a step as long as it is?
#
# From what ends a step (the start of the next one on the rank that starts it last; where that was
# not captured, the last end) back through what each start waited for, over all ranks, to where the
# step began. Rows of a step add up to it. Nothing that is not on this path makes the step shorter
# when it gets faster.
# Communication counts from its last member's start; exogenous: members were not captured, waiting
# for them is part of it. Task: copies and what else is neither. Host: from launch to launch.
# Launch: to an idle device. Overhead: what usually lies between an end and what waits for it. What
# usually starts before such an end, or before a call of communication returns, has neither: what it
# waits for counts up to its start. Gap: what nothing explains; alone below 0, where an operation
# came sooner than usual.
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
    return _rows(job, paths(*_measured_points(job))).drop("behind_ns")


def gap_notes(job: CaptureJob) -> list[str]:
    """What of the path's gaps lies beside recorded communication of the rank that waits: it may be
    what was waited for, though neither an event nor the time of its end says so."""
    ops = job.ops
    comm = np.flatnonzero(ops.is_communication & (ops.dur > 0))
    of_rank: dict[int, Indices] = {}
    beside: dict[str, int] = defaultdict(int)
    all_ns = 0
    for path in paths(*_measured_points(job)):
        for (rank, part, _, _), start, ns in path.pieces if path else ():
            if part != "gap" or ns < _LONG_GAP_NS:
                continue
            all_ns += ns
            if rank not in of_rank:
                of_rank[rank] = comm[ops.rank[comm] == rank]
            mine = of_rank[rank]
            ends = np.minimum(ops.start[mine] + ops.dur[mine], start + ns)
            shared = np.maximum(ends - np.maximum(ops.start[mine], start), 0)
            kinds = ops.type[mine]
            for kind in np.unique(kinds[shared > 0]):  # of one type several may run at once
                beside[ops.types[int(kind)]] += min(int(shared[kinds == kind].sum()), ns)
    if not beside:
        return []
    most = max(beside, key=lambda name: beside[name])
    return [
        Message(
            "of gaps on the path, {all} ms of all steps, {most} ms lie beside {type} of the rank"
            " that waits: it may wait for these, though they did not end as it started",
            all=ms(all_ns), most=ms(beside[most]), type=most,
        )
    ]  # fmt: skip


def types_on_path(job: CaptureJob, step: int | None = None) -> pl.DataFrame:
    """Time of each type of kernels on the critical path of a mean step, or of one: type, path_ns
    (0 where it is never there)."""
    path = critical_path(job).filter(pl.col("part") == "computing")
    steps = [job.ops.steps[at] for at in job.usual] if step is None else [step]
    path = path.filter(pl.col("step").is_in(steps, nulls_equal=True))
    mine = path.group_by("type").agg(pl.col("path_ns").sum() / len(steps))
    every = pl.DataFrame({"type": job.ops.types}, schema={"type": pl.String}).unique()
    return every.join(mine, on="type", how="left").select(
        "type", pl.col("path_ns").fill_null(0).cast(pl.Float64)
    )


# metric: critical_path_pieces
# When is which operation what a step waits for?
#
# The pieces of the critical path in order of time, one after the other from where a step begins to
# where it ends: what the rows of critical_path add up. What came sooner than usual makes a gap
# below 0, which takes that time back.
#
# title: Critical path over time
# meaning: What each step waits for, and when.
# figure: timeline
#
#   step      bigint   producer's step number; NULL: the capture has none
#   rank      integer  global rank
#   part      varchar  computing, communication, exogenous, task, host, launch, overhead or gap
#   kind      varchar  parallel kind of communication
#   type      varchar  of the operation, or of the one that waits
#   start_ns  bigint   on the clock of the reference host
#   dur_ns    bigint   its time on the path
def critical_path_pieces(job: CaptureJob) -> pl.DataFrame:
    """Rows of the metric."""
    rows = [
        (step, job.ops.ranks[rank], part, kind, of, start + job.ops.zero_ns, ns)
        for step, path in zip(job.ops.steps, paths(*_measured_points(job)), strict=True)
        if path is not None
        for (rank, part, kind, of), start, ns in path.pieces
    ]
    names = {
        "step": pl.Int64, "rank": pl.Int32, "part": pl.String, "kind": pl.String,
        "type": pl.String, "start_ns": pl.Int64, "dur_ns": pl.Int64,
    }  # fmt: skip
    return pl.DataFrame(rows, schema=names, orient="row")


# metric: runner_up_path
# Which way through the operations of all ranks is the next to make a step as long as it is?
#
# Of all ways to the end of a step the longest one but the critical path: it leaves that one at one
# place for another operation, or ends with another one, and follows what each of its starts waited
# for. By behind_ns it is shorter; rows of a step add up to the step without them. So much can the
# part of the critical path that it does without gain before this one is the longest. Parts are
# those of critical_path.
#
# title: Runner-up path
# meaning: The longest way through a step but the critical path, by rank and operation.
# command: critical-path --runner-up
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
#   share_ratio double   of the path
#   behind_ns   bigint   by how much the whole path is shorter than the critical one
def runner_up_path(job: CaptureJob) -> pl.DataFrame:
    """Rows of the metric, the longest of each step first; none of steps with one way only."""
    return _rows(job, paths(*_measured_points(job), is_second=True))


def _measured_points(job: CaptureJob) -> tuple[CaptureJob, Waits, Integers, Integers]:
    """When points were, and operations ended."""
    waits, ops = job.waits, job.ops
    met = np.full(waits.meetings, np.iinfo(np.int64).min)
    comm = ops.is_communication
    np.maximum.at(met, ops.instance[comm], ops.start[comm])
    segments = waits.starts()[len(ops.rank) + waits.meetings :]
    return job, waits, np.concatenate([ops.start, met, segments]), ops.start + ops.dur


def _rows(job: CaptureJob, paths: list[Path | None]) -> pl.DataFrame:
    rows = []
    for step, path in zip(job.ops.steps, paths, strict=True):
        if path is None:
            continue
        length = sum(ns for _, ns in path.times.values())
        rows += [
            (job.run, job.capture, step, job.ops.ranks[rank], part, kind, of, count, ns,
             ns / length if length else None, path.behind_ns)
            for (rank, part, kind, of), (count, ns) in path.times.items()
        ]  # fmt: skip
    names = {
        "run": pl.String, "capture": pl.String, "step": pl.Int64, "rank": pl.Int32,
        "part": pl.String, "kind": pl.String, "type": pl.String, "count": pl.Int64,
        "path_ns": pl.Int64, "share_ratio": pl.Float64, "behind_ns": pl.Int64,
    }  # fmt: skip
    table = pl.DataFrame(rows, schema=names, orient="row")
    return table.sort(
        "step", "path_ns", "rank", "part", "type", descending=[False, True, False, False, False]
    )


def time_by_part(job: CaptureJob, waits: Waits) -> list[dict[tuple[str, str | None], int]]:
    """Of each step replayed: the time on its critical path by part and parallel kind."""
    ops = job.ops
    at = waits.starts()
    begins = at[: len(ops.rank)].copy()
    comm = ops.is_communication
    begins[comm] = at[len(ops.rank) + ops.instance[comm]]
    frames = []
    for path in paths(job, waits, at, begins + waits.transfer[:-1]):
        parts: dict[tuple[str, str | None], int] = defaultdict(int)
        for (_, part, kind, _), (_, ns) in path.times.items() if path else ():
            parts[part, kind] += ns
        frames.append(dict(parts))
    return frames


@dataclass(frozen=True, slots=True)
class Path:
    """A way to the end of a step: how often and how long it is where, and by how much it is
    shorter than the longest."""

    times: dict[_Key, list[int]]
    behind_ns: int
    pieces: list[tuple[_Key, int, int]]


def paths(
    job: CaptureJob, waits: Waits, at: Integers, ends: Integers, *, is_second: bool = False
) -> list[Path | None]:
    """The longest way to the end of each step, where points are at these times and operations end
    at those; or the second longest, None where there is no other."""
    ops = job.ops
    walk = _walk(job, waits, at)
    pieces = walk.pieces
    starts = at[: len(ops.rank)]
    span = span_of(ops, lambda part: (starts[part], ends[part]))
    begins = np.where(span.is_there, span.starts, np.iinfo(np.int64).min)
    paths_here: list[Path | None] = []
    is_followed = span.is_followed.tolist()
    for number in range(len(ops.steps)):
        begin = int(begins[number].max())
        spent: dict[_Key, list[int]] = defaultdict(lambda: [0, 0])
        turn, other, behind = None, None, 0
        if is_followed[number]:
            last = int(begins[number + 1].argmax())
            here = (ops.step == number + 1) & (ops.rank == last)
            point, latest = int(np.flatnonzero(here & (starts == begins[number + 1, last]))[0]), -1
        else:
            inside = np.flatnonzero(ops.step == number)
            latest = int(inside[ends[inside].argmax()])
            point = walk.start_of(latest)
            others = inside[inside != latest]
            if is_second and len(others):
                other = int(others[ends[others].argmax()])
                behind = int(ends[latest] - ends[other])
        if is_second:
            turn = second_longest(waits.points, at, walk.arrivals, walk.binding, point, begin)
            if turn is not None and (other is None or turn.behind_ns <= behind):
                other, behind = None, turn.behind_ns
            elif other is None:
                paths_here.append(None)
                continue
            else:
                turn = None
        if other is not None:
            walk.back_from_end(other, int(ends[other]), begin, spent)
        elif latest >= 0:
            walk.back_from_end(latest, int(ends[latest]), begin, spent, turn)
        else:
            walk.back(point, begin, spent, turn)
        paths_here.append(Path(spent, behind, pieces[::-1]))
        pieces.clear()
    return paths_here


@dataclass(frozen=True, slots=True)
class Turn:
    """Where a way leaves the longest one: at a point, by an edge that arrives so much earlier."""

    point: int
    edge: int
    behind_ns: int


def second_longest(
    points: Points, at: Integers, arrived: Integers, binding: Integers, point: int, begin: int
) -> Turn | None:
    """Where the second longest way to a point, down to `begin`, leaves the longest: of all edges to
    its points from elsewhere the one that arrives the least earlier. None: there is no other.

    at: times of points; arrived: of edges, with their delay; binding: of points, the last edge.
    """
    place, first, source, point_at = points.place, points.first, points.source, points.by_place()
    walked = []
    while at[point] > begin and binding[point] >= 0:
        walked.append(point)
        point = int(point_at[source[binding[point]]])
    if not walked:
        return None
    its = place[np.array(walked)]
    counts = first[its + 1] - first[its]
    owner = np.repeat(np.arange(len(its)), counts)
    edges = np.repeat(first[its] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
    bound = binding[np.array(walked)][owner]
    behind = arrived[bound] - arrived[edges]
    elsewhere = source[edges] != source[bound]
    if not elsewhere.any():
        return None
    one = int(np.flatnonzero(elsewhere)[behind[elsewhere].argmin()])
    return Turn(walked[int(owner[one])], int(edges[one]), int(behind[one]))


@dataclass(frozen=True, slots=True)
class _Walk:
    """Times of points, of each the edge that bound it (-1: none), when edges arrive."""

    job: CaptureJob
    waits: Waits
    at: Integers
    source: Indices
    binding: Integers
    arrivals: Integers
    pieces: list[tuple[_Key, int, int]] = field(default_factory=list)

    def start_of(self, op: int) -> int:
        """The point from which an operation takes its own time."""
        instance = int(self.job.ops.instance[op])
        return op if instance < 0 else len(self.job.ops.rank) + instance

    def back_from_end(
        self, op: int, until: int, begin: int, spent: dict[_Key, list[int]],
        turn: Turn | None = None,
    ) -> None:  # fmt: skip
        """The path to the end of an operation, at `until`, down to `begin`."""
        point = self.start_of(op)
        start = max(int(self.at[point]), begin)
        own = self._of(op)
        if until < start:  # clocks of ranks are off: it ended before its last member came
            own = (own[0], "gap", None, own[3])
        self._spend(spent, own, until - start, start)
        self.back(point, begin, spent, turn)

    def back(
        self, point: int, begin: int, spent: dict[_Key, list[int]], turn: Turn | None = None
    ) -> None:
        """The path to a point, down to `begin`, or one that takes another edge at a turn. Walks
        over what is on it, nothing else."""
        points, at = self.waits, self.at
        while at[point] > begin:
            is_turn = turn is not None and point == turn.point
            edge = turn.edge if turn is not None and is_turn else int(self.binding[point])
            if edge < 0:  # nothing is known before it
                own = self._of(min(point, len(self.job.ops.rank) - 1))
                self._spend(spent, (own[0], "gap", None, own[3]), int(at[point]) - begin, begin)
                return
            work, lag = int(points.work[edge]), int(points.lag[edge])
            before = int(self.source[edge])
            spanned = int(at[point] - at[before])
            spanned -= turn.behind_ns if turn is not None and is_turn else 0
            if work < 0:
                busy, launched = int(points.host[-1 - work]), int(points.launches[-1 - work])
                worked: _Key = (self._of(launched)[0], "host", None, None)
                lagged = "launch"
            else:
                busy, lagged = int(points.transfer[work]), "overhead"
                worked = self._of(work) if busy else (0, "overhead", None, None)
            waiting = self._of(point) if point < len(self.job.ops.rank) else worked
            # What lies before the step began is cut off, the earliest first.
            cut = max(begin - int(at[before]), 0)
            # What starts before the end of what it waits for takes the path over from there on:
            # calls of communication launch before they return, kernels of a stream overlap.
            busy, lag = max(busy + min(lag, 0), 0), max(lag, 0)
            pieces = (
                (worked, busy),
                ((waiting[0], lagged, None, waiting[3]), lag),
                ((waiting[0], "gap", None, waiting[3]), spanned - busy - lag),
            )
            start, places = int(at[before]), []
            for key, piece in pieces:
                piece_ns = min(max(piece, 0), cut)
                cut -= piece_ns
                places.append((key, piece - piece_ns, start + piece_ns))
                start += piece
            for key, left, from_ns in reversed(places):
                self._spend(spent, key, left, from_ns)
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

    def _spend(self, spent: dict[_Key, list[int]], key: _Key, ns: int, start: int) -> None:
        if ns:
            self.pieces.append((key, start, ns))
            spent[key][0] += 1
            spent[key][1] += ns


def _walk(job: CaptureJob, waits: Waits, at: Integers) -> _Walk:
    source = waits.points.by_place()[waits.points.source]
    arrived = waits.delays()
    arrived += at[source]
    return _Walk(job, waits, at, source, bindings(waits.points, arrived), arrived)


def bindings(points: Points, arrived: Integers) -> Integers:
    """Of each point the edge that arrives last, of equals the first; -1 where it has none."""
    first, point_at = points.first, points.by_place()
    has_edge = np.flatnonzero(np.diff(first) > 0)
    result = np.full(len(point_at), -1)
    if len(has_edge):
        begins = first[:-1][has_edge]
        latest = np.maximum.reduceat(arrived, begins)
        binds = np.flatnonzero(arrived == np.repeat(latest, np.diff(first)[has_edge]))
        result[point_at[has_edge]] = binds[np.searchsorted(binds, begins)]
    return result
