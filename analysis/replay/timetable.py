"""When the operations of a capture run, told for some of them at a time, and their steps.

Arrays of all operations of a large job are slow to come by: memory that a process has not had
before costs more time than what is computed in it. So times are asked for part by part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from .operations import Operations
from .points import AT_ONCE, Flags, Integers
from .waits import Waits

Part = slice | Integers  # of the operations: from one to another, or these
Timetable = Callable[[Part], tuple[Integers, Integers]]  # their starts and ends
_UNKNOWN_NS = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Span:
    """First start and last end of each step on each rank (by step and rank; `is_there`), and of
    each step whether the one with the next number was captured, too."""

    starts: Integers
    ends: Integers
    is_there: Flags
    is_followed: Flags

    def lengths(self) -> Integers:
        """Of the job's steps: from the latest start over ranks to that of the next step; where that
        was not captured, to the latest end."""
        begins = np.where(self.is_there, self.starts, -_UNKNOWN_NS).max(axis=1)
        ends = np.where(self.is_there, self.ends, -_UNKNOWN_NS).max(axis=1)
        following = np.append(begins[1:], ends[-1:])
        lengths: Integers = np.where(self.is_followed, following, ends) - begins
        return lengths

    def lengths_by_rank(self) -> Integers:
        """The same of each rank; of no meaning where it is not there."""
        following = np.concatenate([self.starts[1:], self.ends[-1:]])
        is_next = np.concatenate([self.is_there[1:], np.zeros_like(self.is_there[:1])])
        is_next &= self.is_followed[:, None]
        lengths: Integers = np.where(is_next, following, self.ends) - self.starts
        return lengths


def parts(count: int) -> Iterator[slice]:
    """One part after another, of so many in all."""
    for begin in range(0, count, AT_ONCE):
        yield slice(begin, min(begin + AT_ONCE, count))


def measured_times(ops: Operations) -> Timetable:
    """As they ran."""
    return lambda part: (ops.start[part], ops.start[part] + ops.dur[part])


def replayed_times(ops: Operations, waits: Waits) -> Timetable:
    """As they would with what they wait for."""
    at = waits.points.walk(waits.delays, waits.gap)
    place, count = waits.points.place, len(ops.rank)

    def times(part: Part) -> tuple[Integers, Integers]:
        starts = at[place[:count][part]]
        durations, instance = waits.transfer[:-1][part], ops.instance[part]
        ends = starts + durations
        comm = np.flatnonzero(instance >= 0)
        ends[comm] = at[place[count + instance[comm]]] + durations[comm]
        return starts, ends

    return times


def span_of(ops: Operations, times: Timetable) -> Span:
    """Steps of operations that run so."""
    shape = (len(ops.steps), len(ops.ranks))
    first, last = np.full(shape, _UNKNOWN_NS), np.full(shape, -_UNKNOWN_NS)
    for part in parts(len(ops.rank)):
        its_step, its_rank = ops.step[part], ops.rank[part]
        # Operations stand by rank: runs of one step are few. Tasks have none.
        begins = np.flatnonzero(
            (np.diff(its_step, prepend=-2) != 0) | (np.diff(its_rank, prepend=-1) != 0)
        )
        step, rank = its_step[begins], its_rank[begins]
        inside = step >= 0
        if inside.any():
            at = (step[inside], rank[inside])
            starts, ends = times(part)
            np.minimum.at(first, at, np.minimum.reduceat(starts, begins)[inside])
            np.maximum.at(last, at, np.maximum.reduceat(ends, begins)[inside])
    is_there = first < _UNKNOWN_NS
    starts, ends = (np.where(is_there, one, 0) for one in (first, last))
    return Span(starts, ends, is_there, ops.is_followed)
