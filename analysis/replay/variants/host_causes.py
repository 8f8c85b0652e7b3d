"""The host without one of the causes that keep it from launching: calls, waits, far cores.

Time of calls goes from the pauses between launches. Where the host waited for the device, it goes
on from its launch before: what it ran ahead by then hides what comes later.
"""

from __future__ import annotations

from dataclasses import replace

import duckdb
import numpy as np
import polars as pl

from npuscope.collector.store import store
from npuscope.errors import CannotAnswer
from npuscope.messages import Message

from ...metric import part_sql
from ...views import frame
from ..captures import CaptureJob, Other
from ..changes import Change
from ..operations import Operations
from ..points import Flags, Integers, points
from ..waiting.edges import RULE
from ..waits import Waits

FAR = "far_node"
PRIORITIES = {
    "garbage_collection": [1], "data_loading": [2], "checkpoint": [3], "logging": [4],
    "profiler": [5], "synchronisation": [6, 7],
}  # fmt: skip
CAUSES = (*PRIORITIES, FAR)
_NODES = """
    select rank, timestamp_ns as at_ns, value <> device_node as is_far
    from counters join host_placement using (run, capture, rank)
    where name = 'NUMA node' and series like 'thread %' and run = ? and capture = ?
    order by rank, at_ns"""


def host_cause(
    con: duckdb.DuckDBPyConnection, job: CaptureJob, own: Other, change: Change
) -> Other:
    """`cause:garbage_collection=0`, `cause:synchronisation/aten::item=0` (of one operator), and
    `cause:far_node=0`: launches on cores far from the device take as long as others."""
    cause, _, operator = change.name.partition("/")
    if cause not in CAUSES:
        raise change.no_such(CAUSES)
    factor = change.factor()
    assert not isinstance(factor, str)
    if not job.ops.has_launches:
        raise CannotAnswer(
            Message(
                "{change}: no launches were recorded, so the host's time is not known: record CPU"
                " activities, too (`npuscope doctor`)", change=change.word,
            )
        )  # fmt: skip
    if cause == FAR:
        return _near(con, job, own, factor, change)
    parameters = {"run": job.run, "capture": job.capture, "priorities": PRIORITIES[cause],
             "operator": operator or None}  # fmt: skip
    calls = store.frame(con.sql(part_sql("cause_calls.sql"), params=parameters))
    if calls.is_empty():
        raise CannotAnswer(
            Message("{change}: no such call of the host was recorded", change=change.word)
        )
    blocked = _time_in_calls(con, job, calls)
    pauses = own.waits.pauses()
    if cause != "synchronisation":
        return replace(own, waits=own.waits.with_pauses(_without(pauses, blocked, factor)))
    launch, rank = job.ops.launch[job.waits.launches], job.ops.rank[job.waits.launches]
    waits = (np.diff(own.waits.segment, prepend=0) > 0) & (np.diff(rank, prepend=-1) == 0)
    waits &= blocked > 0
    # All that the host did since its launch before, but for waiting.
    beside = np.maximum(np.diff(launch, prepend=launch[:1]) - blocked, 0)
    pauses = np.where(waits, beside, _without(pauses, np.where(waits, 0, blocked), 0))
    edges = _unbound(job.ops, own.waits, waits)
    if factor:
        pauses = pauses + np.round(blocked * factor).astype(np.int64)
    return replace(own, waits=edges.with_pauses(pauses))


def _without(pauses: Integers, blocked: Integers, factor: float) -> Integers:
    result: Integers = np.maximum(pauses - np.round(blocked * (1 - factor)), 0).astype(np.int64)
    return result


def _unbound(ops: Operations, waits: Waits, mask: Flags) -> Waits:
    """The same where the host does not wait for the device before these launches. What it then
    launched may need what it waited for: the first of each stream waits for that on the device."""
    total, count = len(waits.points.place), len(ops.rank)
    by_place = waits.points.by_place()
    source = by_place[waits.points.source]
    target = by_place[np.repeat(np.arange(total), np.diff(waits.points.first))]
    cut = np.zeros(total, bool)
    segments = count + waits.meetings + waits.segment
    cut[segments[mask]] = True
    gone = cut[target] & (waits.work >= 0)
    awaited, its_source = np.full(total, -1), np.zeros(total, np.int64)
    awaited[target[gone]], its_source[target[gone]] = waits.work[gone], source[gone]
    after = np.flatnonzero(awaited[segments] >= 0)
    stream = ops.stream[waits.launches[after]]
    _, first = np.unique(np.stack([segments[after], stream]), axis=1, return_index=True)
    after = after[first]
    waiting, needed = waits.launches[after], awaited[segments[after]]
    keep = ops.stream[waiting] != ops.stream[needed]
    waiting, needed, after = waiting[keep], needed[keep], after[keep]
    ends = (
        (source[~gone], its_source[segments[after]]), (target[~gone], waiting),
        (waits.lag[~gone], np.zeros(len(after), np.int64)), (waits.work[~gone], needed),
        (waits.origin[~gone], np.full(len(after), RULE, np.int8)),
    )  # fmt: skip
    source, target, lag, work, origin = (np.concatenate(pair) for pair in ends)
    order, _ = points(total, source.astype(np.int32), target.astype(np.int32))
    return replace(
        waits, points=replace(order, edge=order.edge[:0]), lag=lag[order.edge].astype(np.int32),
        work=work[order.edge].astype(np.int32), origin=origin[order.edge],
    )  # fmt: skip


def _time_in_calls(
    con: duckdb.DuckDBPyConnection, job: CaptureJob, calls: pl.DataFrame
) -> Integers:
    """By launch: time since the rank's launch before that lies in calls."""
    launched = job.waits.launches
    launch, rank = job.ops.launch[launched], job.ops.rank[launched]
    blocked = np.zeros(len(launch), np.int64)
    clocks = _clocks(con, job)
    for (number,), part in calls.partition_by("rank", as_dict=True).items():
        if number not in clocks:
            continue
        its = np.flatnonzero(rank == job.ops.ranks.index(number))
        edges = _on_replay_clock(
            clocks[number], part.select("start_ns", "end_ns").to_numpy().ravel()
        )
        total = np.append(0, np.cumsum(np.diff(edges) * (np.arange(len(edges) - 1) % 2 == 0)))
        spent = np.interp(launch[its], edges, total)
        blocked[its] = np.round(np.diff(spent, prepend=spent[:1]))
    return blocked


def _near(
    con: duckdb.DuckDBPyConnection, job: CaptureJob, own: Other, factor: float, change: Change
) -> Other:
    """Far launches at the pace of near ones, as the capture itself compares them."""
    slow_ranks = frame(con, "select rank, slow_ratio, slow_low_ratio, slow_high_ratio"
                  " from host_placement where run = ? and capture = ?"
                  " and slow_low_ratio > 1", [job.run, job.capture])  # fmt: skip
    if slow_ranks.is_empty():
        raise CannotAnswer(
            Message(
                "{change}: no launch is slower on cores far from its device, as far as was"
                " recorded (`npuscope host --by placement`)", change=change.word,
            )
        )  # fmt: skip
    places = frame(con, _NODES, [job.run, job.capture])
    launched = job.waits.launches
    launch, rank = job.ops.launch[launched], job.ops.rank[launched]
    pauses, clocks = own.waits.pauses(), _clocks(con, job)
    result, unsure = pauses.copy(), 0.0
    for row in slow_ranks.iter_rows(named=True):
        part = places.filter(rank=row["rank"])
        if row["rank"] not in clocks:
            continue
        its = np.flatnonzero(rank == job.ops.ranks.index(row["rank"]))
        at = _on_replay_clock(clocks[row["rank"]], part["at_ns"].to_numpy())
        which = np.searchsorted(at, launch[its], "right") - 1
        far = its[(which >= 0) & part["is_far"].to_numpy()[np.maximum(which, 0)]]
        share = factor + (1 - factor) / row["slow_ratio"]
        result[far] = np.round(pauses[far] * share)
        width = 1 / row["slow_low_ratio"] - 1 / row["slow_high_ratio"]
        unsure = max(unsure, float(pauses[far].sum()) * width / 2)
    unsure *= max(1 - factor, 0.0) / max(len(job.ops.steps), 1)
    return replace(own, waits=own.waits.with_pauses(result)).unsure_by(unsure, unsure)


def _clocks(
    con: duckdb.DuckDBPyConnection, job: CaptureJob
) -> dict[int, tuple[Integers, Integers]]:
    """By rank: two moments on its own clock, and the same on that of the replay."""
    ops = job.ops
    recorded = con.execute(
        "select rank, min(start_ns), max(start_ns) from kernels where is_compute"
        " and start_ns is not null and dur_ns >= 0 and run = ? and capture = ? group by rank",
        [job.run, job.capture],
    ).fetchall()
    clocks = {}
    for rank, low, high in recorded:
        mine = ops.start[ops.is_kernel & (ops.rank == ops.ranks.index(rank))]
        clocks[rank] = np.array([low, high]), np.array([mine.min(), mine.max()])
    return clocks


def _on_replay_clock(clock: tuple[Integers, Integers], times: Integers) -> Integers:
    """Times of a rank's own clock on that of the replay."""
    (low, high), (first, last) = clock
    pace = (last - first) / (high - low) if high > low else 1.0
    result: Integers = first + np.round((times - low) * pace).astype(np.int64)
    return result
