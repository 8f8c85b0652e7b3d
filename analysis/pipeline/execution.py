"""What a schedule costs: each device runs its passes in order, each when what it needs is there.

A forward needs the one before it on its route; a backward, or its half for inputs, the one after it
there, and its own forward. Two passes of one entry run beside each other, from when both may.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import polars as pl

from npuscope.errors import UsageError
from npuscope.messages import Message

from .schedules import Kind, Pass, Schedule

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


def execute(schedule: Schedule, duration_ns: Callable[[int, Entry], float]) -> list[Span]:
    """When each entry of each device runs, the first at 0.

    Raises UsageError where devices would wait for each other forever.
    """
    position = {
        place: (route, number)
        for route, places in enumerate(schedule.routes)
        for number, place in enumerate(places)
    }
    ends_ns: dict[tuple[int, int, str, int], float] = {}
    spans: list[Span] = []
    left = [iter(order) for order in schedule.orders]
    heads = [next(order, None) for order in left]
    free_ns = [0.0] * len(heads)
    is_moving = True
    while is_moving:
        is_moving = False
        for device, rest in enumerate(left):
            while (entry := heads[device]) is not None:
                needs = [
                    need
                    for one in entry
                    for need in _needs(schedule, *position[device, one.chunk], one)
                ]
                if any(need not in ends_ns for need in needs):
                    break
                start_ns = max(free_ns[device], *(ends_ns[need] for need in needs), 0.0)
                end_ns = free_ns[device] = start_ns + duration_ns(device, entry)
                spans.append(Span(device, entry, start_ns, end_ns))
                for one in entry:
                    key = (*position[device, one.chunk], one.kind[0], one.micro_batch)
                    ends_ns[key] = end_ns
                heads[device] = next(rest, None)
                is_moving = True
    if stuck := [device for device, head in enumerate(heads) if head is not None]:
        raise UsageError(
            f"{schedule.name}: devices {', '.join(map(str, stuck))} wait for each other forever"
        )
    return spans


def _needs(
    schedule: Schedule, route: int, place: int, one: Pass
) -> list[tuple[int, int, str, int]]:
    """What must have ended before a pass of that place on its route: its own device's order holds
    the halves of a backward apart already."""
    if one.kind == "W":
        return []
    if one.kind == "F":
        return [(route, place - 1, "F", one.micro_batch)] if place else []
    later = [(route, place + 1, "B", one.micro_batch)]
    own = [(route, place, "F", one.micro_batch)]
    return own + later * (place + 1 < len(schedule.routes[route]))


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
    rows = []
    for device in range(len(schedule.orders)):
        own = [span for span in spans if span.device == device]
        bubble_ns = step_ns - sum(span.end_ns - span.start_ns for span in own)
        rows.append({
            "device": device, "step_ns": step_ns, "bubble_ns": bubble_ns,
            "bubble_ratio": bubble_ns / step_ns if step_ns else None,
            "live_activations": float(schedule.share * _held_at_most(own)),
        })  # fmt: skip
    return pl.DataFrame(rows)


def _held_at_most(spans: list[Span]) -> int:
    """Chunks' activations that a device holds at once, at most."""
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
    moves = sorted([(at, -1) for at in ends.values()] + [(at, 1) for at in starts.values()])
    held = most = 0
    for _, change in moves:
        held += change
        most = max(most, held)
    return most
