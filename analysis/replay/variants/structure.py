"""Changes of what waits for what: a rank nobody waits for, kernels in one, communication hidden."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import NamedTuple

import duckdb
import numpy as np
from numpy.typing import NDArray

from npuscope.errors import UsageError
from npuscope.messages import Message

from ..beside import cover_of, new_parts
from ..captures import CaptureJob, Other
from ..changes import Change
from ..operations import Operations, programs
from ..points import Flags, Integers


def remove(con: duckdb.DuckDBPyConnection, job: CaptureJob, own: Other, change: Change) -> Other:
    """`remove:rank=5`: nobody waits for its work: its kernels, its host and its gaps take no time,
    what it communicates as long as before. Raises CannotAnswer for a rank without a like."""
    ops = job.ops
    if change.name != "rank":
        raise UsageError(
            Message("{change}: what is removed is a rank: remove:rank=5", change=change.word)
        )
    if change.value not in map(str, ops.ranks):
        raise change.no_such(ops.ranks)
    one = ops.ranks.index(int(change.value))
    peers = [at for at in programs(ops) if at.shape[1] and one in ops.rank[at[:, 0]]]
    if not peers or len(peers[0]) < 2:
        raise change.refusal(
            "no other rank ran the same kernels in the same order, so nobody shows"
            " what is left without it: record all ranks of a stage"
        )
    mine = np.append((ops.rank == one) & ops.is_kernel, False)
    job_here = own.scale(mine, 0.0)
    waits = job_here.waits
    host, gap = waits.host.copy(), waits.gap.copy()
    host[ops.rank[waits.launches] == one] = 0
    is_bound = np.diff(waits.points.first)[waits.points.place] > 0
    its = np.flatnonzero((ops.rank == one) & is_bound[: len(ops.rank)])
    gap[its] = np.minimum(gap[its], 0)
    return replace(job_here, waits=replace(waits, host=host, gap=gap))


def fuse(con: duckdb.DuckDBPyConnection, job: CaptureJob, own: Other, change: Change) -> Other:
    """`fuse:TYPE`: kernels of the type run as part of the kernel before them on their stream, where
    they wait for nothing else: no time lies between the two, and they need no launch. Raises
    CannotAnswer without launches, or where no kernel of the type is so."""
    ops, waits = job.ops, own.waits
    if not ops.has_launches:
        raise change.refusal(
            "no launches were recorded, so what a launch costs is not known: record"
            " CPU activities, too (`npuscope doctor`)"
        )
    by_type = [at for at, name in enumerate(ops.types) if fnmatchcase(name, change.name)]
    kernels = ops.is_kernel
    is_hit = kernels & np.isin(ops.type, by_type)
    if not is_hit.any():
        raise change.no_such(sorted({ops.types[at] for at in ops.type[kernels]}))
    count = len(ops.rank)
    point_at = waits.points.by_place()
    target = point_at[np.repeat(np.arange(len(point_at)), np.diff(waits.points.first))]
    is_launch = waits.work < 0
    before = np.maximum(waits.work, 0)
    near = np.flatnonzero(~is_launch & (target < count) & (before < count))
    near = near[ops.stream[target[near]] == ops.stream[before[near]]]
    near = near[kernels[before[near]] & is_hit[target[near]]]
    others = np.bincount(target[~is_launch], minlength=len(point_at))[:count]
    near = near[others[target[near]] == 1]
    if not len(near):
        raise change.refusal(
            "no such kernel waits for the kernel before it alone, so none can be part of it"
        )
    merged = np.zeros(count, bool)
    merged[target[near]] = True
    lag, gap = waits.lag.copy(), waits.gap.copy()
    lag[near] = 0
    gap[:count][merged] = 0
    is_first = np.diff(waits.segment, prepend=-1) != 0
    pauses = np.where(merged[waits.launches] & ~is_first, 0, waits.pauses())
    return replace(own, waits=replace(waits.with_pauses(pauses), lag=lag, gap=gap))


def communication_of(
    ops: Operations, change: Change
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Operations of the kind that a change names, or of `all`, and those of them of which waiting
    for members and moving are known. Raises UsageError where there are none, CannotAnswer where
    nothing is known of any."""
    there = [name for name in ops.kinds if name]
    if change.name != "all" and change.name not in there:
        raise change.no_such(there)
    kinds = [at for at, name in enumerate(ops.kinds) if change.name in ("all", name)]
    mask = ops.is_communication & np.isin(ops.kind, kinds)
    is_changeable = mask & ~ops.exogenous
    if not is_changeable.any():
        raise change.refusal(
            "no operation of this kind was recorded with its times on all its"
            " members, so waiting and moving cannot be told apart: record all ranks of its"
            " groups, with their operations"
        )
    return mask, is_changeable


def hide(con: duckdb.DuckDBPyConnection, job: CaptureJob, own: Other, change: Change) -> Other:
    """`hide:ep`: what of the kind's transfers no kernel of the rank runs beside is hidden behind
    computing of the rank that runs beside no communication. Waiting for members stays.

    A capture does not tell which kernels need what is exchanged, and in a step of unequal
    exchanges long ones have no more beside them than short ones: each is hidden behind the one
    kernel that follows it, as far as that lasts. The range goes on to all computing of the step."""
    ops, waits = job.ops, own.waits
    mask, is_changeable = communication_of(ops, change)
    starts, ends = job.times(waits)(slice(None))
    met = ends - waits.transfer[:-1]
    kernels, comm = ops.is_kernel, ops.is_communication
    computing = cover_of(ops.rank[kernels], starts[kernels], ends[kernels])
    talking = cover_of(ops.rank[comm], starts[comm], ends[comm])
    exposed = np.maximum(ends - met, 0) - computing.within(ops.rank, met, ends)
    exposed = np.where(mask, exposed, 0)
    at, until = new_parts(ops.rank[kernels], starts[kernels], ends[kernels])
    alone = np.zeros(len(ops.rank), np.int64)
    alone[kernels] = until - at - talking.within(ops.rank[kernels], at, until)
    # What kernels lose beside transfers, they last longer to hide them.
    alone = np.round(alone / (1 - (job.contention.lost_ratio or 0.0))).astype(np.int64)
    step = ops.lane
    # Transfers by their ends, kernels by their starts.
    moment = np.where(mask, ends, starts)
    both = np.flatnonzero(mask | kernels)
    both = both[np.lexsort((~mask[both], moment[both], step[both]))]
    is_first = kernels[both] & np.append(False, mask[both][:-1])
    is_first[1:] &= np.diff(step[both]) == 0
    place = np.full(len(ops.rank), -1)
    place[both] = np.where(mask[both] | is_first, np.cumsum(mask[both]), -1)
    follows, anything = (
        _without_hidden(own, _Room(exposed, alone, is_changeable, where)) for where in (place, step)
    )
    usual, most = (
        float(job.span(one.waits).lengths()[job.usual].mean()) for one in (follows, anything)
    )
    return follows.unsure_by(max(usual - most, 0.0), 0.0)


class _Room(NamedTuple):
    """Of operations: what of transfers nothing runs beside, what kernels run beside no
    communication, which transfers are known, and where both are: one hides the other at the same
    place (-1: none)."""

    exposed: Integers
    alone: Integers
    is_known: Flags
    place: Integers


def _without_hidden(own: Other, room: _Room) -> Other:
    """Transfers without what kernels hide of them."""
    at = room.place + 1
    needed, there = (
        np.bincount(at, weights=np.where(at > 0, ns, 0), minlength=1)
        for ns in (room.exposed, room.alone)
    )
    share = np.minimum(there / np.maximum(needed, 1), 1.0)
    hidden = np.round(room.exposed * share[at]).astype(np.int64)
    durations, outside = own.waits.transfer.copy(), own.outside.copy()
    durations[:-1] -= np.where(room.is_known, hidden, 0)
    outside[:-1] -= hidden
    filled = np.minimum(needed / np.maximum(there, 1), 1.0)[at] * room.alone
    before = 0 if own.hidden_ns is None else own.hidden_ns
    behind = before + np.round(filled).astype(np.int64)
    return replace(own.with_durations(durations, outside), hidden_ns=behind)
