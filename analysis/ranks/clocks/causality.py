"""What no clock may contradict: a collective ends on no member before it begins on every other.

    member a   |=======================|        so  end on a  >=  start on b  in true time,
    member b             |=============|        and offset[a] - offset[b] <= end[a] - start[b]

A transfer bounds one way only: it is not received before the sending begins. Chains of such bounds
give each clock's bounds against the reference: shortest paths, found by relaxing all bounds at once
until nothing changes. An operation passes on the best that its members know, so that the work per
round grows with the readings and not with pairs of members.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .fit import Flags, Floats, Integers

_LINKS = 64


@dataclass(frozen=True, slots=True)
class Spans:
    """Operations as their members' clocks saw them, in ns, with any drift taken out.

    `begins` tells whose start the others' ends wait for, `ends` whose end waits for the starts.
    """

    instance: Integers
    clock: Integers
    start_ns: Floats
    end_ns: Floats
    begins: Flags
    ends: Flags
    clock_count: int


def bounds(spans: Spans, reference: int) -> tuple[Floats, Floats]:
    """Least and largest offset of each clock to the reference, infinite where nothing bounds it.

    Where they contradict each other (least above largest) so do the readings.
    """
    largest = _largest(spans, reference)
    # Seen in a mirror, ends are starts and the largest offset is the least.
    mirrored = Spans(
        spans.instance, spans.clock, -spans.end_ns, -spans.start_ns, spans.ends, spans.begins,
        spans.clock_count,
    )  # fmt: skip
    return -_largest(mirrored, reference), largest


def _largest(spans: Spans, reference: int) -> Floats:
    largest = np.full(spans.clock_count, np.inf)
    largest[reference] = 0.0
    count = int(spans.instance.max()) + 1 if spans.instance.size else 0
    # A shorter chain's bound is a bound too, and bounds that contradict each other never settle.
    for _ in range(min(spans.clock_count, _LINKS)):
        told = np.full(count, np.inf)
        begun = spans.begins
        reached = largest[spans.clock[begun]] - spans.start_ns[begun]
        np.minimum.at(told, spans.instance[begun], reached)
        lower = largest.copy()
        ended = spans.ends
        reached = spans.end_ns[ended] + told[spans.instance[ended]]
        np.minimum.at(lower, spans.clock[ended], reached)
        lower[reference] = 0.0
        if (lower == largest).all():
            break
        largest = lower
    return largest
