"""How much longer each operation may take before a step of the job does."""

from __future__ import annotations

import numpy as np
import polars as pl

from .captures import CaptureJob
from .operations import UNKNOWN
from .points import Integers
from .timetable import span_of
from .waits import Waits

_NEVER = np.iinfo(np.int64).max // 4


# metric: operation_slack
# How much longer may each operation take before a step of the job does?
#
# On the graph of the replay, with one operation longer and all others as they are: until it delays
# the latest start of a step over ranks, or the last end of a step whose next was not captured. Of
# communication: its rank's transfer. Operations on the critical path have none. By how much the
# next longest way is shorter, and what is on it: runner_up_path.
#
# title: Slack
# meaning: How much longer each operation may take before a step does.
# command: critical-path --slack
#
#   run       varchar  run of the training job
#   capture   varchar  ranks profiled at the same time
#   step      bigint   producer's step number; NULL: outside every step, or the capture has none
#   rank      integer  global rank
#   start_ns  bigint   on the clock of the reference host
#   dur_ns    bigint   as measured
#   kind      varchar  parallel kind of communication; NULL: a kernel
#   type      varchar  of the operation
#   name      varchar  of the operation
#   slack_ns  bigint   how much longer it may take; NULL: nothing in the capture waits for it
def operation_slack(job: CaptureJob) -> pl.DataFrame:
    """Rows of the metric, the least slack of each step first."""
    ops = job.ops
    slack = slacks(job)
    steps, kinds = (pl.Series(one, dtype=kind) for one, kind in (
        ([*ops.steps, None], pl.Int64), ([*ops.kinds, None], pl.String)
    ))  # fmt: skip
    frame = pl.DataFrame({
        "run": pl.repeat(job.run, len(slack), eager=True),
        "capture": pl.repeat(job.capture, len(slack), eager=True),
        "step": steps.gather(np.where(ops.step < 0, len(ops.steps), ops.step)),
        "rank": pl.Series(ops.ranks, dtype=pl.Int32).gather(ops.rank),
        "start_ns": ops.start + ops.zero_ns, "dur_ns": ops.dur,
        "kind": kinds.gather(np.where(ops.is_communication, ops.kind, len(ops.kinds))),
        "type": pl.Series(ops.types, dtype=pl.String).gather(ops.type),
        "name": ops.names["name"],
        "slack_ns": pl.Series(slack).replace(_NEVER, None),
    })  # fmt: skip
    return frame.filter(ops.role == 0).sort("step", "slack_ns", "rank", "start_ns", nulls_last=True)


def slacks(job: CaptureJob) -> Integers:
    """ns by operation; `_NEVER` where nothing waits for it."""
    waits, ops = job.waits, job.ops
    count = len(ops.rank)
    at = waits.starts()
    times = job.times(waits)
    starts, ends = times(slice(None))
    span = span_of(ops, times)
    late = np.full(len(at), _NEVER)
    # No rank may start a step later than the last one does.
    begins = np.where(span.is_there, span.starts, UNKNOWN).max(axis=1)
    inside = np.flatnonzero(ops.step >= 0)
    first = inside[starts[inside] == span.starts[ops.step[inside], ops.rank[inside]]]
    late[first] = begins[ops.step[first]]
    own = np.full(count, _NEVER)
    # Where the next step was not captured, a step lasts to its latest end.
    latest = np.where(span.is_there, span.ends, UNKNOWN).max(axis=1)
    last = inside[~span.is_followed[ops.step[inside]]]
    own[last] = latest[ops.step[last]] - ends[last]
    after = np.where(ops.is_communication, count + ops.instance, np.arange(count))
    np.minimum.at(late, after[last], at[after[last]] + own[last])
    room = _room(waits, at, late)
    work = waits.work
    places = np.flatnonzero((work >= 0) & (work < count))
    np.minimum.at(own, work[places], room[places])
    return own


def _room(waits: Waits, at: Integers, late: Integers) -> Integers:
    """Of each edge by how much later what it brings may come; `late`: when points must be."""
    place, source, first = waits.points.place, waits.points.source, waits.points.first
    delays = waits.delays()
    by_place, times, gap = (np.empty(len(place), np.int64) for _ in range(3))
    by_place[place], times[place], gap[place] = late, at, waits.gap
    bounds = waits.points.bounds.tolist()
    room = np.empty(len(source), np.int64)
    for level in range(len(bounds) - 2, 0, -1):
        low, high = bounds[level], bounds[level + 1]
        begin, end = int(first[low]), int(first[high])
        until = np.repeat(by_place[low:high] - gap[low:high], np.diff(first[low : high + 1]))
        until -= delays[begin:end]
        np.minimum.at(by_place, source[begin:end], until)
        room[begin:end] = until - times[source[begin:end]]
    return np.where(room > _NEVER // 2, _NEVER, room)
