"""When the host launches what: its calls one after another, and where it waited for the device."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from ..operations import Operations
from ..points import Flags, Indices, Integers
from .edges import NEAR_NS, RECORDED, Edges, adjacent_starts

_SYNC_NS = 60_000  # from an end to the first launch of a host that waited for it
_SYNC_SHARE = 0.05  # or of the pause: by chance, an end lies there as seldom
_RETURN_NS = 1_000_000  # from an end to the return of the call that waited for it
_MOST_SOONER = 0.02  # of starts, before what waits for its launch alone
_LONG_PAUSE = 5.0  # median times from launch to launch


def follow_launches(
    ops: Operations,
    end: Integers,
    order: Integers | None,
    best: Integers,
    causes: Integers,
    edges: Edges,
    first_point: int,
) -> tuple[Integers, Indices, list[int], list[tuple[int, int, int]]]:
    """Edges from the host: ns of launches since their host went on, when it went on, and where it
    waited for the end of an operation. `end`, `best` are of each operation, `causes` waits whose
    record is known; points of `edges` are numbered from `first_point`."""
    if order is None:
        return np.zeros(0, np.int64), np.zeros(0, np.int32), [], []
    launch, rank = ops.launch[order], ops.rank[order]
    starts = np.flatnonzero(np.diff(rank, prepend=-1))
    is_first = np.zeros(len(order), bool)
    is_first[starts] = True
    pause = np.diff(launch, prepend=launch[:1])
    pause[is_first] = 0
    goes_on = launch.copy()  # where a segment begins: from when on the host's time counts
    waited_for = np.full(len(order), -1)
    bounds = np.append(starts, len(order))
    for low, high in pairwise(bounds.tolist()):
        own = slice(low, high)
        latest, which = _latest(end[order[own]])
        _host_waits(ops, number_of=int(rank[low]), low=low, launch=launch[own],
                    pause=pause[own], latest=latest, which=which + low,
                    goes_on=goes_on, waited_for=waited_for)  # fmt: skip
    begins = is_first | (waited_for >= 0)
    segment = np.cumsum(begins, dtype=np.int32) - 1
    at = np.flatnonzero(begins)
    segments = goes_on[at]
    host = launch - segments[segment]
    latency = ops.start[order] - launch
    is_touched = np.zeros(len(ops.rank), bool)
    is_touched[adjacent_starts(ops, end, best, causes)[0]] = True
    is_free = (ops.start - best > NEAR_NS)[order] & ~is_touched[order]
    number = np.arange(len(order))
    lags = np.zeros(len(order), np.int64)
    is_comm = ops.is_communication[order]
    for low, high in pairwise(bounds.tolist()):
        its = slice(low, high)
        kernels = ~is_comm[its]
        lags[its] = _usual_latency(latency[its][kernels], is_free[its][kernels])
    # Calls of communication take long and few of them find the device idle: of all ranks together.
    if (is_comm & is_free).any():
        lags[is_comm] = _usual_latency(latency[is_comm], is_free[is_comm])
    edges.add(order, first_point + segment, -1 - number, lags, RECORDED)
    np.maximum.at(best, order, launch + lags)
    # A host goes on no sooner than it had launched before.
    later = at[~is_first[at]]
    segment_edges = [
        (int(segment[i]), int(order[waited_for[i]]), int(goes_on[i] - end[order[waited_for[i]]]))
        for i in later
    ]
    edges.add(
        first_point + segment[later], first_point + segment[later - 1], -1 - (later - 1),
        0, RECORDED,
    )  # fmt: skip
    return host, segment, segments.tolist(), segment_edges


def _usual_latency(latency: Integers, is_free: Flags) -> int:
    """What a launch takes that waits for nothing else on the device: where most of them lie, the
    lowest of such places. Where none is free, or many others came sooner, the least."""
    if not len(latency):
        return 0
    free = np.sort(latency[is_free])
    if len(free):
        beside = np.searchsorted(free, free + NEAR_NS, side="right") - np.arange(len(free))
        low = int(np.argmax(2 * beside >= beside.max()))
        if np.mean(latency < free[low] - NEAR_NS) <= _MOST_SOONER:
            return round(float(free[low : low + beside[low]].mean()))
    return int(np.quantile(latency, 0.002, method="lower"))


def _latest(ends: Integers) -> tuple[Integers, Integers]:
    """The latest of the ends so far, and whose it is."""
    latest = np.maximum.accumulate(ends)
    is_new = ends >= latest
    return latest, np.maximum.accumulate(np.where(is_new, np.arange(len(ends)), 0))


def _host_waits(
    ops: Operations, *, number_of: int, low: int, launch: Integers, pause: Integers,
    latest: Integers, which: Integers, goes_on: Integers, waited_for: Integers,
) -> None:  # fmt: skip
    """Where one rank's host waited for the last of what it had launched."""
    syncs = ops.syncs.get(number_of)
    if syncs is not None:
        at = np.searchsorted(launch, syncs[1])
        inside = (at > 0) & (at < len(launch))
        at, begin, until = at[inside], syncs[0][inside], syncs[1][inside]
        ended = latest[at - 1]
        good = (ended > begin) & (ended <= until) & (until - ended <= _RETURN_NS)
        at, until = at[good], until[good]
        goes_on[low + at] = until
    else:
        usual = float(np.median(pause[1:])) if len(pause) > 1 else 0.0
        at = np.flatnonzero(pause > max(_LONG_PAUSE * usual, _SYNC_NS / 4))
        at = at[at > 0]
        since = launch[at] - latest[at - 1]
        soon = np.maximum(_SYNC_NS + usual, pause[at] * _SYNC_SHARE)
        good = (since >= 0) & (since <= soon) & (since < pause[at])
        at = at[good]
        goes_on[low + at] = latest[at - 1]
    waited_for[low + at] = which[at - 1]
