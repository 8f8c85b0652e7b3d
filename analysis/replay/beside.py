"""Time that operations of a rank run beside others of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .points import Indices, Integers

_LATEST = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Cover:
    """Intervals of several ranks as their union: keys of starts and ends, lengths summed up."""

    starts: Integers
    ends: Integers
    total: Integers  # lengths before each interval
    span: int
    base: int

    def within(self, rank: Indices, start: Integers, end: Integers) -> Integers:
        """Of each interval of a rank the time that is covered."""
        if not len(self.starts):
            return np.zeros_like(start)
        low, high = self._keys(rank, start), self._keys(rank, np.maximum(end, start))
        at = np.searchsorted(self.starts, low, side="right")
        until = at.copy()
        is_passed = np.append(self.starts, _LATEST)[at] <= high  # few lie across a start
        until[is_passed] = np.searchsorted(self.starts, high[is_passed], side="right")
        union_ns: Integers = self._before(until, high) - self._before(at, low)
        return union_ns

    def _keys(self, rank: Indices, time: Integers) -> Integers:
        keys: Integers = np.clip(time - self.base, 0, self.span - 1)
        keys += rank.astype(np.int64) * self.span
        return keys

    def _before(self, at: Integers, key: Integers) -> Integers:
        """What is covered before a key, with so many starts up to it."""
        beyond = np.where(at > 0, np.maximum(self.ends[np.maximum(at - 1, 0)] - key, 0), 0)
        before_ns: Integers = self.total[at] - beyond
        return before_ns


def cover_of(rank: Indices, start: Integers, end: Integers) -> Cover:
    """The union of intervals of each rank."""
    is_event = end > start
    low = int(start[is_event].min(initial=_LATEST))
    span = int(end[is_event].max(initial=low)) - low + 1
    key = rank[is_event].astype(np.int64) * span
    begins, until = key + (start[is_event] - low), key + (end[is_event] - low)
    order = np.argsort(begins, kind="stable")
    begins = begins[order]
    latest = np.maximum.accumulate(until[order]) if len(order) else until
    is_first = np.ones(len(order), bool)
    is_first[1:] = begins[1:] > latest[:-1]
    first = np.flatnonzero(is_first)
    starts = begins[first]
    ends = latest[np.append(first[1:], len(order)) - 1] if len(order) else latest
    total = np.concatenate([[0], np.cumsum(ends - starts)])
    return Cover(starts, ends, total, span, low)


def new_parts(rank: Indices, start: Integers, end: Integers) -> tuple[Integers, Integers]:
    """Of each interval what begins after all intervals of its rank that start before it have
    ended: starts and ends (of nothing: equal). Their lengths add up to that of the union."""
    order = np.lexsort((start, rank))
    span = int(end.max(initial=0) - start.min(initial=0)) + 1
    key = rank[order].astype(np.int64) * span
    latest = np.maximum.accumulate(end[order] + key) - key
    before = np.append(np.iinfo(np.int64).min, latest[:-1])
    before[np.diff(rank[order], prepend=-1) != 0] = np.iinfo(np.int64).min
    begins = np.empty_like(start)
    begins[order] = np.minimum(np.maximum(start[order], before), end[order])
    return begins, end
