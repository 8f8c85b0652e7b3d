"""What the steps of a capture would take with other durations of its operations, or another host.

Each change works on what those before it left. What a capture does not tell is refused in one
sentence; what has not been validated on jobs that ran both ways is refused, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise

import duckdb
import numpy as np
import polars as pl

from npuscope.collector.store import store
from npuscope.errors import CannotAnswer, UsageError
from npuscope.messages import Message

from .captures import CaptureJob, replay, replay_notes, shares
from .changes import Change
from .critical_path import time_by_part
from .points import Flags, Integers

Part = tuple[str, str | None]  # of a step, and its parallel kind

TARGETS = ("rank", "kernel", "comm", "link", "host")
_LATER = ("ideal", "experts")  # words of phase-level traces and of plans: not validated here
_LEAST_ERROR = 0.005  # of a step that changes at all
_CONTENTION = 0.1  # of a change: kernels beside less traffic, edges that were not seen
_MOST_FOR_PATHS = 5_000_000  # operations: both critical paths of more take too long
_LONGEST_NS = 1e17  # of all that is changed together: three years
_PAYLOADS = """
    select rank, op_id, src_rank, dst_rank, link, sum(dur_ns) as payload_ns from comm_tasks
    where size_bytes > 0 and dur_ns > 0 and src_rank <> dst_rank
        and task_type not ilike 'notify%' and run = $run and capture = $capture
    group by all"""


@dataclass(frozen=True, slots=True)
class Other:
    """Durations of operations and host times by launch after changes; `outside`: durations where
    exogenous operations change as others do."""

    durations: Integers
    host: Integers
    outside: Integers


# metric: whatif_steps
# What would the steps of a capture take with other times of kernels, communication, or the host?
#
# Replayed from what waits for what, gaps that nothing explains kept as recorded. The last row is
# the mean over steps that are no warm-up; its step is NULL. The range holds the error of the
# replay, half a per cent of the step, a tenth of the change (contention, edges that were not seen),
# the change times the share of time that nothing explains, and what members that were not captured
# may or may not do.
#
# title: What if, of a capture
# meaning: Each step of a job as measured, replayed and with changes, and the mean of them.
# command: whatif PATH CHANGE
#
#   run               varchar  run of the training job
#   capture           varchar  ranks profiled at the same time
#   step              bigint   producer's step number; NULL: the mean of the steps
#   measured_step_ns  bigint   latest start over ranks to the next step's; last: to the end
#   replayed_step_ns  bigint   the same replayed with nothing changed
#   predicted_step_ns bigint   the same replayed with the changes
#   predicted_low_ns  bigint   low end of the range
#   predicted_high_ns bigint   high end of the range
#   saved             struct[] part, kind, saved_ns: sum is replayed - predicted; NULL: > 5 M ops
def whatif_steps(
    con: duckdb.DuckDBPyConnection, job: CaptureJob, changes: Sequence[Change]
) -> pl.DataFrame:
    """Rows of the metric. Raises UsageError and CannotAnswer."""
    other = changed(con, job, changes)
    measured = job.measured.lengths()
    replayed = job.span().lengths()
    predicted = job.span(other.durations, other.host).lengths()
    variants = [predicted]
    if job.ops.exogenous.any():
        variants.append(job.span(other.outside, other.host).lengths())
        variants.append(_waiting_for_others(job, predicted, replayed))
    unexplained, _ = shares(job)
    change = np.abs(predicted - replayed)
    margin = np.abs(replayed - measured) + change * (_CONTENTION + unexplained.max(axis=1))
    margin = margin + np.where(change > 0, _LEAST_ERROR * replayed, 0)
    low = np.maximum(np.min(variants, axis=0) - margin, 0)
    high = np.max(variants, axis=0) + margin
    columns = [measured, replayed, predicted, low, high]
    usual = [at for at, step in enumerate(job.ops.steps) if step not in job.warm_up]
    made = job.waits
    before, after = (
        (
            time_by_part(job, made.transfer, made.host),
            time_by_part(job, other.durations, other.host),
        )
        if len(job.ops.rank) <= _MOST_FOR_PATHS
        else (None, None)
    )
    every = range(len(job.ops.steps))
    rows = [
        (step, *(round(float(one[at])) for one in columns), _saved(before, after, [at]))
        for at, step in enumerate(job.ops.steps)
    ]
    means = (round(float(one[usual].mean())) for one in columns)
    rows.append((None, *means, _saved(before, after, usual or [*every])))
    names = ("measured_step_ns", "replayed_step_ns", "predicted_step_ns", "predicted_low_ns",
             "predicted_high_ns")  # fmt: skip
    saved = pl.List(pl.Struct({"part": pl.String, "kind": pl.String, "saved_ns": pl.Int64}))
    schema = {**dict.fromkeys(("step", *names), pl.Int64()), "saved": saved}
    found = pl.DataFrame(rows, schema=schema, orient="row")
    return found.select(
        pl.lit(job.run).alias("run"), pl.lit(job.capture).alias("capture"), "step", *names, "saved"
    )


def _saved(
    before: Sequence[Mapping[Part, int]] | None,
    after: Sequence[Mapping[Part, int]] | None,
    steps: Sequence[int],
) -> list[dict[str, str | int | None]] | None:
    """Means over steps, the largest first; what comes out at 0 is left out."""
    if before is None or after is None:
        return None
    parts = sorted({part for at in steps for part in (*before[at], *after[at])}, key=str)
    means = [
        (part, sum(before[at].get(part, 0) - after[at].get(part, 0) for at in steps) / len(steps))
        for part in parts
    ]
    means.sort(key=lambda one: -abs(one[1]))
    return [{"part": part, "kind": kind, "saved_ns": round(ns)} for (part, kind), ns in means if ns]


def _waiting_for_others(job: CaptureJob, predicted: Integers, replayed: Integers) -> Integers:
    """Members that were not captured do not get faster: what is saved may all become waiting for
    them, in the steps that have such operations."""
    ops = job.ops
    has_others = np.zeros(len(ops.steps), bool)
    has_others[ops.step[ops.exogenous & (ops.step >= 0)]] = True
    return np.where(has_others, np.maximum(predicted, replayed), predicted)


def whatif_notes(job: CaptureJob, changes: Sequence[Change] = ()) -> list[str]:
    """The trust statement of the replay, and what a range is made of."""
    notes = replay_notes(job, replay(job))
    notes.append(
        Message(
            "a range holds the error of the replay, half a per cent of the step, a tenth of the"
            " change for contention and edges that were not seen, and the share of time that"
            " nothing explains"
        )
    )
    if job.ops.exogenous.any():
        notes.append(
            Message(
                "members that were not captured may wait or not: the range goes from their changing"
                " alike to their changing nothing"
            )
        )
    if any(one.value == "median" for one in changes) and job.ops.names["shapes"].is_null().all():
        notes.append(
            Message(
                "no shapes were recorded: kernels whose work differs between ranks became alike,"
                " too, so that the gain may be that of balanced work"
            )
        )
    if job.warm_up:
        notes.append(Message("the mean leaves out warm-up steps"))
    return notes


def changed(con: duckdb.DuckDBPyConnection, job: CaptureJob, changes: Sequence[Change]) -> Other:
    """Raises UsageError where a change is of nothing here, CannotAnswer where the capture does not
    tell."""
    own = Other(job.waits.transfer.copy(), job.waits.host.copy(), job.waits.transfer.copy())
    for one in changes:
        if one.target in _LATER:
            raise CannotAnswer(
                f"{one.word}: not validated on captures yet: change {', '.join(TARGETS)}"
            )
        if one.target not in TARGETS:
            raise UsageError(f"{one.word}: of a capture, change one of {', '.join(TARGETS)}")
        if one.target == "host":
            own = _host(con, job, own, one)
        elif one.target == "link":
            own = _link(con, job, own, one)
        elif one.target == "rank":
            own = _rank(job, own, one)
        else:
            own = _factor(job, own, one)
    return own


def _scaled(values: Integers, mask: Flags, factor: float) -> Integers:
    if float(np.abs(values[mask]).sum()) * factor > _LONGEST_NS:
        raise UsageError(f"times {factor:g}, a step would last for years")
    found = values.copy()
    found[mask] = np.round(values[mask] * factor).astype(np.int64)
    return found


def _factor(job: CaptureJob, own: Other, change: Change) -> Other:
    """`comm:KIND` and `kernel:PATTERN`."""
    ops = job.ops
    factor = change.factor()
    assert not isinstance(factor, str)
    mask = np.zeros(len(ops.rank) + 1, bool)
    if change.target == "comm":
        there = [name for name in ops.kinds if name]
        if change.name != "all" and change.name not in there:
            raise change.unknown(there)
        named = [at for at, name in enumerate(ops.kinds) if change.name in ("all", name)]
        mask[:-1] = ops.is_communication & np.isin(ops.kind, named)
        within = mask.copy()
        within[:-1] &= ~ops.exogenous
        if not within.any():
            raise CannotAnswer(
                f"{change.word}: no operation of this kind was recorded on all its members, so"
                " waiting and moving cannot be told apart: record all ranks of its groups"
            )
        return Other(_scaled(own.durations, within, factor), own.host,
                     _scaled(own.outside, mask, factor))  # fmt: skip
    names = ops.names["name"].fill_null("").unique().to_list()
    alike = [name for name in names if fnmatchcase(name, change.name)]
    by_type = [at for at, name in enumerate(ops.types) if fnmatchcase(name, change.name)]
    mask[:-1] = ~ops.is_communication & (
        np.isin(ops.type, by_type) | ops.names["name"].is_in(alike).to_numpy()
    )
    if not mask.any():
        raise change.unknown(sorted({ops.types[at] for at in ops.type[~ops.is_communication]}))
    return Other(_scaled(own.durations, mask, factor), own.host,
                 _scaled(own.outside, mask, factor))  # fmt: skip


def _host(con: duckdb.DuckDBPyConnection, job: CaptureJob, own: Other, change: Change) -> Other:
    """`host`, or `host:NAME` of the ranks of one host; `host:free` is `host=0`."""
    ops = job.ops
    if not ops.has_launches:
        raise CannotAnswer(
            f"{change.word}: no launches were recorded, so the host's time is not known: record"
            " CPU activities, too (`npuscope doctor`)"
        )
    is_free = change.name == "free" and not change.value
    factor = 0.0 if is_free else change.factor()
    assert not isinstance(factor, str)
    launched = job.waits.launched
    mask = np.ones(len(launched), bool)
    if change.name and not is_free:
        hosts = dict(con.execute(
            "select rank, host_name from ranks where run = ? and capture = ?",
            [job.run, job.capture],
        ).fetchall())  # fmt: skip
        of_rank = np.array([hosts.get(rank) == change.name for rank in ops.ranks])
        if not of_rank.any():
            raise change.unknown(sorted({name for name in hosts.values() if name}))
        mask = of_rank[ops.rank[launched]]
    return Other(own.durations, _scaled(own.host, mask, factor), own.outside)


def _link(con: duckdb.DuckDBPyConnection, job: CaptureJob, own: Other, change: Change) -> Other:
    """`link:3-7` between two ranks, `link:3` of one, `link:HCCS` of a type, `link:all`: what moves
    bytes takes another time; an operation takes as long as its slowest transfer."""
    factor = change.factor()
    assert not isinstance(factor, str)
    ops = job.ops
    tasks = store.frame(con.sql(_PAYLOADS, params={"run": job.run, "capture": job.capture}))
    if tasks.is_empty():
        raise CannotAnswer(
            f"{change.word}: no tasks of communication with peers were recorded, so which link an"
            " operation waits for is not known: record profiler level 1 or higher"
        )
    is_comm = ops.is_communication
    at = np.flatnonzero(is_comm)
    places = (
        ops.names[at].select("op_id").with_columns(at=at, rank=np.array(ops.ranks)[ops.rank[at]])
    )
    moved = places.join(tasks.cast({"rank": places.schema["rank"]}), on=["rank", "op_id"])
    ends = moved.select("src_rank", "dst_rank").to_numpy()
    name = change.name
    parts = name.split("-")
    if all(part.isdigit() for part in parts) and len(parts) <= 2:
        wanted = [int(part) for part in parts]
        hit = np.all([(ends == one).any(axis=1) for one in wanted], axis=0)
    else:
        hit = np.array([name in ("all", link) for link in moved["link"].to_list()], bool)
    if not hit.any():
        pairs = sorted({f"{min(a, b)}-{max(a, b)}" for a, b in ends.tolist()})
        raise change.unknown([*moved["link"].drop_nulls().unique().sort(), *pairs])
    instance = ops.instance[moved["at"].to_numpy()]
    payload = moved["payload_ns"].cast(float).to_numpy().astype(np.int64)
    count = job.waits.meetings
    before, after = np.zeros(count, np.int64), np.zeros(count, np.int64)
    np.maximum.at(before, instance, payload)
    np.maximum.at(
        after, instance, np.where(hit, np.round(payload * factor), payload).astype(np.int64)
    )
    shorter = np.where(is_comm, (before - after)[np.maximum(ops.instance, 0)], 0)
    outside, durations = own.outside.copy(), own.durations.copy()
    outside[:-1] = np.maximum(outside[:-1] - shorter, np.minimum(outside[:-1], 0))
    durations[:-1] = np.where(ops.exogenous, durations[:-1], outside[:-1])
    if not (shorter[~ops.exogenous] != 0).any() and not (before == after).all():
        raise CannotAnswer(
            f"{change.word}: no operation over this link was recorded on all its members: record"
            " all ranks of its groups"
        )
    return Other(durations, own.host, outside)


def _rank(job: CaptureJob, own: Other, change: Change) -> Other:
    """`rank:5=median`, `rank:all=median`: each kernel takes the median of its peers, the ranks that
    run the same program; one whose work differs among them (other shapes) takes as much less as
    the rank's kernels of that core with like shapes do. `rank:5=0.5` multiplies its kernels."""
    ops = job.ops
    value = change.factor("median")
    kernels = ~ops.is_communication
    number = {str(rank): at for at, rank in enumerate(ops.ranks)}
    if change.name != "all" and change.name not in number:
        raise change.unknown(ops.ranks)
    chosen = range(len(ops.ranks)) if change.name == "all" else [number[change.name]]
    if not isinstance(value, str):
        mask = np.append(kernels & np.isin(ops.rank, [*chosen]), False)
        return Other(_scaled(own.durations, mask, value), own.host,
                     _scaled(own.outside, mask, value))  # fmt: skip
    order = np.flatnonzero(kernels)
    order = order[np.lexsort((ops.start[order], ops.stream[order], ops.rank[order]))]
    firsts = np.searchsorted(ops.rank[order], np.arange(len(ops.ranks) + 1))
    mine = [order[low:high] for low, high in pairwise(firsts.tolist())]
    programs: dict[tuple[bytes, bytes], list[int]] = {}
    for one, its in enumerate(mine):
        programs.setdefault((ops.type[its].tobytes(), ops.step[its].tobytes()), []).append(one)
    shapes = ops.names["shapes"].rank("dense").fill_null(0).to_numpy()
    cores = ops.names["core"].rank("dense").fill_null(0).to_numpy()
    durations, found = own.durations.copy(), False
    for peers in programs.values():
        wanted = [one for one in peers if one in chosen]
        if len(peers) < 2 or not wanted:
            continue
        found = True
        at = np.stack([mine[one] for one in peers])
        dur = own.durations[at]
        alike = (shapes[at] == shapes[at][0]).all(axis=0)
        core = cores[at[0]]
        middle = np.median(dur, axis=0)
        for one in wanted:
            row = peers.index(one)
            # Of one rank alone: what the others take; of all: what all do.
            usual = middle if change.name == "all" else np.median(np.delete(dur, row, 0), axis=0)
            new = usual.copy()
            for kind in np.unique(core[~alike]):
                like = alike & (core == kind) & (dur[row] > 0)
                other = ~alike & (core == kind)
                if like.any():
                    new[other] = dur[row, other] * np.median(usual[like] / dur[row, like])
            durations[at[row]] = np.round(new).astype(np.int64)
    if not found:
        raise CannotAnswer(
            f"{change.word}: no other rank ran the same kernels in the same order, so there are no"
            " peers to be alike: record all ranks of a stage"
        )
    outside = own.outside.copy()
    outside[order] = durations[order]
    return Other(durations, own.host, outside)
