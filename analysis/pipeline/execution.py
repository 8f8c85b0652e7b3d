"""What a schedule costs: each device runs its passes in order, each when what it needs is there.

A forward needs the one before it on its route; a backward, or its half for inputs, the one after it
there, and its own forward. Two passes of one entry run beside each other, from when both may.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from npuscope.errors import UsageError
from npuscope.messages import Message

from ..replay.points import Indices, Points, points
from .schedules import Kind, Pass, Schedule

Times = NDArray[np.float64]
Entry = tuple[Pass, ...]
FORMULA_NOTES: list[str] = [
    Message("times are those given, nothing is measured; transfers take none")
]


class Span(NamedTuple):
    """One entry of a device, from when to when it runs."""

    device: int
    entry: Entry
    start_ns: float
    end_ns: float


def even_durations(
    schedule: Schedule,
    forward_ns: float,
    backward_ns: float,
    weight_ns: float,
    pair_ns: float | None = None,
) -> Callable[[int, Entry], float]:
    """All stages alike: F, B (gradients of inputs) and W of a whole stage and one micro-batch.

    pair_ns: of a forward and a whole backward beside each other; else the sum of both.
    """
    share = float(schedule.share)
    times: dict[Kind, float] = {
        "F": forward_ns, "BW": backward_ns + weight_ns, "B": backward_ns, "W": weight_ns
    }  # fmt: skip

    def duration_ns(_: int, entry: Entry) -> float:
        if len(entry) > 1 and pair_ns is not None:
            return share * pair_ns
        return share * sum(times[one.kind] for one in entry)

    return duration_ns


ORDER, _OWN = -1, -2  # edges that are no transfer: the entry before; the other half of a pass


@dataclass(frozen=True, slots=True)
class Precedence:
    """What each entry waits for: entries of the first device, of the second, ... one after another.

    link: of each edge the transfer in `links` (from a device to another), or what it is else.
    """

    schedule: Schedule
    entries: tuple[tuple[int, Entry], ...]
    links: tuple[tuple[int, int], ...]
    source: Indices
    target: Indices
    link: Indices
    points: Points

    def starts(
        self,
        durations_ns: Times,
        gaps_ns: Times | None = None,
        lags_ns: Times | None = None,
        late_ns: Times | None = None,
    ) -> Times:
        """When each entry begins, the first at 0; durations by entry, gaps (what lies at least
        between an entry and the one before it on its device) too, lags by link; `late_ns` that
        entries begin later than these let them. All may have a second axis of as many executions
        at once."""
        delays = durations_ns[self.source]
        if gaps_ns is not None:
            is_next = self.link == ORDER
            delays[is_next] += gaps_ns[self.target[is_next]]
        if lags_ns is not None and len(self.links):
            is_transfer = self.link >= 0
            delays[is_transfer] += lags_ns[self.link[is_transfer]]
        return self.points.times(
            delays[self.points.edge], np.zeros_like(durations_ns) if late_ns is None else late_ns
        )


def precedence(schedule: Schedule) -> Precedence:
    """What waits for what. Raises UsageError where devices would wait for each other forever, or
    for a pass that nobody runs."""
    position = schedule.positions()
    last = [len(places) - 1 for places in schedule.routes]
    entries = [(device, entry) for device, order in enumerate(schedule.orders) for entry in order]
    number_of = {
        (*position[device, one.chunk], one.kind[0], one.micro_batch): at
        for at, (device, entry) in enumerate(entries)
        for one in entry
    }
    edges: list[tuple[int, int, int]] = []
    links: dict[tuple[int, int], int] = {}
    for at, (device, entry) in enumerate(entries):
        if at and entries[at - 1][0] == device:
            edges.append((at - 1, at, ORDER))
        for one in entry:
            route, place = position[device, one.chunk]
            needs = []
            if one.kind == "F":
                needs += [(route, place - 1, "F")] if place else []
            elif one.kind == "W":
                needs.append((route, place, "B"))
            else:
                needs.append((route, place, "F"))
                needs += [(route, place + 1, "B")] if place < last[route] else []
            for need in needs:
                source = number_of.get((*need, one.micro_batch))
                if source is None:
                    raise UsageError(
                        f"{schedule.name}: device {device} waits for a pass of micro-batch"
                        f" {one.micro_batch} that nobody runs"
                    )
                there = entries[source][0]
                link = _OWN if there == device else links.setdefault((there, device), len(links))
                edges.append((source, at, link))
    triples = np.array(edges, np.int32).reshape(-1, 3)
    graph, is_open = points(len(entries), triples[:, 0], triples[:, 1])
    if is_open.any():
        stuck = dict.fromkeys(entries[at][0] for at in np.flatnonzero(is_open).tolist())
        raise UsageError(
            f"{schedule.name}: devices {', '.join(map(str, stuck))} wait for each other forever"
        )
    return Precedence(
        schedule, tuple(entries), tuple(links), triples[:, 0], triples[:, 1], triples[:, 2], graph
    )


def execute(schedule: Schedule, duration_ns: Callable[[int, Entry], float]) -> list[Span]:
    """When each entry of each device runs, the first at 0, transfers taking no time.

    Raises UsageError as `precedence`.
    """
    graph = precedence(schedule)
    durations_ns = np.array([duration_ns(*one) for one in graph.entries], np.float64)
    starts_ns = graph.starts(durations_ns)
    times = zip(graph.entries, starts_ns.tolist(), (starts_ns + durations_ns).tolist(), strict=True)
    return [Span(*one, start_ns, end_ns) for one, start_ns, end_ns in times]


# metric: pipeline_formula
# What would a schedule cost on even stages?
#
# The named schedule is executed with the times given: nothing is measured. F, B (gradients of
# inputs) and W (of weights) are of a whole stage and one micro-batch; a chunk takes its share of
# them. Peer-to-peer transfers take no time. A micro-batch is held from the start of its forward to
# the end of its backward, where weights wait to the end of these.
#
# title: Cost of a schedule
# meaning: Step, bubble and held activations of each device, when a schedule runs on even stages.
# command: pipeline --formula
#
#   device            bigint  place in the pipeline
#   step_ns           double  from the first start of any device to the last end
#   bubble_ns         double  of it, what this device does not work
#   bubble_ratio      double  bubble_ns / step_ns
#   live_activations  double  micro-batches of a stage held at most at a time
def schedule_cost(schedule: Schedule, spans: list[Span]) -> pl.DataFrame:
    """The rows of the metric, one for each device."""
    step_ns = max(span.end_ns for span in spans)
    own: list[list[Span]] = [[] for _ in schedule.orders]
    for span in spans:
        own[span.device].append(span)
    rows = []
    for device, its in enumerate(own):
        bubble_ns = step_ns - sum(span.end_ns - span.start_ns for span in its)
        rows.append({
            "device": device, "step_ns": step_ns, "bubble_ns": bubble_ns,
            "bubble_ratio": bubble_ns / step_ns if step_ns else None,
            "live_activations": float(schedule.share * held_at_most(its, {})),
        })  # fmt: skip
    return pl.DataFrame(rows)


def held_at_most(spans: list[Span], sizes: Mapping[int, Any]) -> Any:
    """Of one device: the most that its activations take at once, sizes by chunk (else 1)."""
    ends: dict[tuple[int, int], float] = {}
    starts: dict[tuple[int, int], float] = {}
    for span in spans:
        for one in span.entry:
            place = (one.chunk, one.micro_batch)
            if one.kind == "F":
                starts[place] = span.start_ns
            else:
                ends[place] = max(span.end_ns, ends.get(place, 0.0))
    # What ends when another starts makes room for it.
    moves = [(at, -sizes.get(chunk, 1)) for (chunk, _), at in ends.items()]
    moves += [(at, sizes.get(chunk, 1)) for (chunk, _), at in starts.items()]
    held = most = 0
    for _, change in sorted(moves):
        held += change
        most = max(most, held)
    return most
