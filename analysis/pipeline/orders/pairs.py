"""A forward and a backward beside each other: ranks launch the passes' parts in turns.

A device runs what it is given in its order: a part of one pass until its computing has to wait for
other ranks, then one of the other pass, and so on. What a part waits for begins when the last
member is there, however long others have been waiting.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...replay.operations import EXCHANGES, WITHIN, Operations
from ...replay.points import Integers

Spans = Sequence[tuple[int, int, int]]  # of a pass on its ranks: place of the rank, start, end
Times = NDArray[np.int64]  # ranks x parts


@dataclass(frozen=True, slots=True)
class Turns:
    """A pass on the ranks that share its micro-batch, in ns.

    work: computing of each part, the last one without a meeting. early: before the end of a part's
    work, when the rank came to the meeting that the next one waits for. transfer: from its last
    member to its end. meeting: a number, the same on its members.
    """

    work: Times
    early: Times
    transfer: Times
    meeting: Times

    def before(self, other: Turns) -> Turns:
        """The same with another pass right behind it, as halves of a backward."""
        joint = self.work[:, -1:] + other.work[:, :1]
        return Turns(
            np.hstack([self.work[:, :-1], joint, other.work[:, 1:]]),
            np.hstack([self.early, other.early]), np.hstack([self.transfer, other.transfer]),
            np.hstack([self.meeting, other.meeting]),
        )  # fmt: skip


def length_ns(passes: Sequence[Turns]) -> int:
    """How long they take on their ranks, parts in turns."""
    ranks = len(passes[0].work)
    free, moving = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)
    ready = [free] * len(passes)
    for part in range(max(one.work.shape[1] for one in passes)):
        for at, one in enumerate(passes):
            if part >= one.work.shape[1]:
                continue
            free = np.maximum(free, ready[at]) + one.work[:, part]
            ready[at] = free
            if part < one.transfer.shape[1]:
                moving = np.maximum(free - one.early[:, part], moving)
                is_there = np.zeros(int(one.meeting.max()) + 1, np.int64)
                np.maximum.at(is_there, one.meeting[:, part], moving)
                moving = is_there[one.meeting[:, part]] + one.transfer[:, part]
                ready[at] = np.maximum(free, moving)
    return int(np.max(ready))


def pair_ratios(
    ops: Operations, places: Sequence[Mapping[str, Sequence[Spans]]]
) -> tuple[float, float] | None:
    """A forward and a backward beside each other over both alone, means over places: with parts in
    turns, and at best, where nothing waits but for the longer of all computing and all that moves.
    None where passes do not wait for communication. A backward in halves is one behind the other.
    """
    usual, least = (
        np.mean([_ratio(*both, is_best=kinds is WITHIN)
                 for both in _pairs(ops, places, kinds)] or [1.0])
        for kinds in (EXCHANGES, WITHIN)
    )  # fmt: skip
    return (float(usual), float(min(usual, least))) if min(usual, least) < 1 else None


def _pairs(
    ops: Operations, places: Sequence[Mapping[str, Sequence[Spans]]], kinds: Sequence[str]
) -> Iterator[tuple[Turns, Turns]]:
    for place in places:
        forwards, backwards, inputs, weights = (
            [turns(ops, one, kinds) for one in place.get(kind, ())]
            for kind in ("F", "BW", "B", "W")
        )
        backwards += [
            one.before(other)
            for one, other in zip(inputs, weights, strict=False)
            if len(one.work) == len(other.work)
        ]
        for forward, backward in zip(forwards, backwards, strict=False):
            if len(forward.work) == len(backward.work):
                yield forward, backward


def _ratio(forward: Turns, backward: Turns, *, is_best: bool) -> float:
    alone = length_ns([forward]) + length_ns([backward])
    if not is_best:
        return length_ns([forward, backward]) / max(alone, 1)
    sums = [getattr(forward, name).sum(axis=1) + getattr(backward, name).sum(axis=1)
            for name in ("work", "transfer")]  # fmt: skip
    return float(np.max(sums)) / max(alone, 1)


def turns(ops: Operations, spans: Spans, kinds: Sequence[str]) -> Turns:
    """A pass, on those of its ranks that meet as often as the first one."""
    kind_numbers = [at for at, name in enumerate(ops.kinds) if name in kinds and name != "pp"]
    met = [_meetings(ops, kind_numbers, *span) for span in spans]
    alike = [at for at, place in enumerate(met) if len(place) == len(met[0])]
    place = np.array([met[at] for at in alike]).astype(np.int64)
    its = np.array([spans[at] for at in alike])
    start, end = ops.start[place], ops.start[place] + ops.dur[place]
    meeting = np.searchsorted(np.unique(ops.instance[place]), ops.instance[place])
    last = np.zeros(int(meeting.max(initial=-1)) + 1, np.int64)
    np.maximum.at(last, meeting, start)
    stop = np.array([_stops(ops, *own) for own in zip(its[:, 0], its[:, 1], place, strict=True)])
    is_awaited = (stop < end).any(axis=0)
    start, end, stop, meeting = (one[:, is_awaited] for one in (start, end, stop, meeting))
    work = np.maximum(np.hstack([stop, its[:, 2:]]) - np.hstack([its[:, 1:2], end]), 0)
    return Turns(work, np.maximum(stop - start, 0), np.maximum(end - last[meeting], 0), meeting)


def _meetings(ops: Operations, kinds: Sequence[int], rank: int, begin: int, until: int) -> Integers:
    """Communication of a rank that its pass can wait for, in order."""
    at = _begun(ops, rank, begin, until)
    its = ops.is_communication[at] & np.isin(ops.kind[at], kinds)
    return at[its & (ops.start[at] + ops.dur[at] <= until)]


def _stops(ops: Operations, rank: int, begin: int, place: Integers) -> Integers:
    """Since when a rank computes nothing of its pass until each of these ends."""
    start, end = ops.start[place], ops.start[place] + ops.dur[place]
    at = _begun(ops, rank, begin, int(end.max(initial=begin)))
    at = at[ops.is_kernel[at]]
    ends = np.maximum.accumulate(np.append(begin, ops.start[at] + ops.dur[at]))
    stops: Integers = np.clip(ends[np.searchsorted(ops.start[at], end)], start, end)
    return stops


def _begun(ops: Operations, rank: int, begin: int, until: int) -> Integers:
    """What of a rank begins within."""
    low, high = np.searchsorted(ops.rank, (rank, rank + 1))
    begins: Integers = low + np.arange(*np.searchsorted(ops.start[low:high], (begin, until)))
    return begins
