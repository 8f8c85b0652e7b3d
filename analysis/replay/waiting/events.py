"""Streams that wait for each other by events: which record a wait waited for.

stream 4   ...  allReduce ] record                  a wait ends some 0.4 us after the record
stream 2   ... kernel ] wait ------->| kernel       of another stream that ended last
"""

from __future__ import annotations

import numpy as np

from ..operations import RECORD, UNKNOWN, WAIT, Operations
from ..points import Flags, Integers

_EARLY_NS = 200  # ends of both are rounded
_LOOKED_AT = 8  # records before a wait's end


def event_waits(ops: Operations, end: Integers) -> tuple[Integers, Integers]:
    """Waits, and of each the record it waited for: of those of its rank on other streams that the
    host enqueued earlier, the last that had ended. Waits without any are left out."""
    waits, records = (np.flatnonzero(ops.role == one) for one in (WAIT, RECORD))
    if not len(waits) or not len(records):
        return waits[:0], records[:0]
    base = int(min(ops.start.min(), 0))
    span = int(end.max()) - base + _EARLY_NS + 1
    records = records[np.lexsort((end[records], ops.rank[records]))]
    keys = ops.rank[records].astype(np.int64) * span + end[records] - base
    until = ops.rank[waits].astype(np.int64) * span + ops.start[waits] + _EARLY_NS - base
    at = np.searchsorted(keys, until, side="right") - 1
    sources = np.full(len(waits), -1)
    for _ in range(_LOOKED_AT):
        one = records[np.maximum(at, 0)]
        has_launches = (ops.launch[one] != UNKNOWN) & (ops.launch[waits] != UNKNOWN)
        fits = (
            (sources < 0) & (at >= 0) & (ops.rank[one] == ops.rank[waits])
            & (ops.stream[one] != ops.stream[waits])
            & (~has_launches | (ops.launch[one] <= ops.launch[waits]))
        )  # fmt: skip
        sources[fits] = one[fits]
        at = at - 1
    keep = sources >= 0
    return waits[keep], sources[keep]


def right_behind(ops: Operations, waits: Integers) -> Flags:
    """Operations that follow one of these waits on their stream."""
    result = np.zeros(len(ops.rank), bool)
    if not len(waits):
        return result
    order = np.argsort(ops.stream, kind="stable")  # by start they are
    before, after = order[:-1], order[1:]
    same = (ops.stream[before] == ops.stream[after]) & ops.is_stream_recorded[after]
    result[after[same]] = np.isin(before[same], waits)
    return result
