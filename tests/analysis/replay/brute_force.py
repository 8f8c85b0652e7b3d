"""The replay once more, event by event in plain Python: dictionaries, recursion, no arrays.

Each worker of each step is laid out by its own events.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from statistics import fmean, median
from typing import Any, NamedTuple

import polars as pl

PASSES = ("forward-send", "forward-recv", "backward-send", "backward-recv")
OVER_DP = ("params-all-gather", "grads-reduce-scatter")


class Event(NamedTuple):
    """The k-th phase of its type on a worker in a step."""

    step: int
    dp: int
    stage: int
    optype: str
    k: int


class BruteForce:
    """A trace with its own and its ideal durations."""

    def __init__(self, rows: pl.DataFrame) -> None:
        self.facts: dict[Event, dict[str, Any]] = {}
        counted: dict[tuple[Any, ...], int] = defaultdict(int)
        for row in rows.sort("start_ts").iter_rows(named=True):
            place = (row["step"], row["dp_rank"], row["stage"], row["optype"])
            self.facts[Event(*place, counted[place])] = row
            counted[place] += 1
        self.steps = sorted({event.step for event in self.facts})
        self.dps = sorted({event.dp for event in self.facts})
        self.stages = sorted({event.stage for event in self.facts})
        self.waits: dict[Event, list[Event]] = defaultdict(list)
        self.together: dict[Event, list[Event]] = {}
        for step in self.steps:
            for dp in self.dps:
                for stage in self.stages:
                    self._worker(step, dp, stage)
        for event in self.facts:
            self.together[event] = self._partners(event)
        self.own = {event: self._own(event) for event in self.facts}
        self.ideal: dict[str, float] = {}
        for optype in {event.optype for event in self.facts}:
            every = [took for event, took in self.own.items() if event.optype == optype]
            is_alone = optype.endswith("-compute") or optype in ("gc", "optimizer")
            self.ideal[optype] = fmean(every) if is_alone else median(every)

    def _listed(self, step: int, dp: int, stage: int, *optypes: str) -> list[Event]:
        found = [e for e in self.facts if e[:3] == (step, dp, stage) and e.optype in optypes]
        return sorted(found, key=lambda e: float(self.facts[e]["start_ts"]))

    def _worker(self, step: int, dp: int, stage: int) -> None:
        def of(*optypes: str) -> list[Event]:
            return self._listed(step, dp, stage, *optypes)

        def line(events: list[Event]) -> None:
            for at in range(1, len(events)):
                self.waits[events[at]].append(events[at - 1])

        computes = of("forward-compute", "backward-compute")
        line(computes)
        line(of(*OVER_DP))
        top = max(self.facts[e]["gmc"] for e in self.facts if e.optype == "forward-compute")
        first_backward = [e.optype for e in computes].index("backward-compute")
        for way, ends in (("forward", (0, top)), ("backward", (top, 0))):
            own = of(f"{way}-compute")
            receives, sends = of(f"{way}-recv"), of(f"{way}-send")
            line(receives)
            line(sends)
            needing = [e for e in own if self.facts[e]["gmc"] != ends[0]]
            sending = [e for e in own if self.facts[e]["gmc"] != ends[1]]
            for send, compute in zip(sends, sending, strict=True):
                self.waits[send].append(compute)
            for receive, compute in zip(receives, needing, strict=True):
                self.waits[compute].append(receive)
                if compute.k:
                    self.waits[receive].append(compute._replace(k=compute.k - 1))
            if way == "backward" and first_backward >= 2:
                for one in (*sends[:1], *receives[:1]):
                    self.waits[one].append(computes[first_backward - 2])
        for gathered in of("params-all-gather"):
            mc = self.facts[gathered]["mc"]
            first = next(e for e in of("forward-compute") if self.facts[e]["mc"] == mc)
            self.waits[first].append(gathered)
        separate = of("separate-grads-all-reduce")
        scatters = of("grads-reduce-scatter")
        middle = of("gc", "layernorm-grads-all-reduce", "embedding-grads-all-reduce",
                    "separate-grads-all-reduce")  # fmt: skip
        closing = [*of("optimizer-clip-main-grad"), *of("optimizer")]
        line([computes[-1], *middle, *([] if separate else scatters), *closing])
        if separate and scatters:
            self.waits[scatters[0]].append(of("backward-compute")[-1])
            for event in closing[:1]:
                self.waits[event].append(scatters[-1])

    def _partners(self, event: Event) -> list[Event]:
        if event.optype in PASSES:
            is_send = event.optype.endswith("send")
            way = 1 if event.optype in ("forward-send", "backward-recv") else -1
            other = event.optype.replace("send", "recv") if is_send else (
                event.optype.replace("recv", "send"))  # fmt: skip
            stage = (event.stage + way) % len(self.stages)
            return [event, event._replace(stage=stage, optype=other)]
        if event.optype in OVER_DP:
            return [event._replace(dp=dp) for dp in self.dps]
        if event.optype == "embedding-grads-all-reduce":
            return [event._replace(stage=stage) for stage in {0, self.stages[-1]}]
        if event.optype == "optimizer-clip-main-grad":
            return [event._replace(dp=dp, stage=s) for dp in self.dps for s in self.stages]
        return []

    def _own(self, event: Event) -> float:
        fact = self.facts[event]
        start, took = float(fact["start_ts"]), float(fact["duration"])
        if not self.together[event]:
            return took
        transfer = start + took - max(self.facts[e]["start_ts"] for e in self.together[event])
        return 0.0 if transfer <= -0.01 else transfer

    def lengths(self, took: Callable[[Event], float]) -> list[float]:
        """Seconds of each step where an event takes so long."""
        starts: dict[Event, float] = {}
        ends: dict[Event, float] = {}

        def start(event: Event) -> float:
            if event not in starts:
                starts[event] = max([end(one) for one in self.waits[event]], default=0.0)
            return starts[event]

        def end(event: Event) -> float:
            if event not in ends:
                begun = max(start(one) for one in self.together[event] or [event])
                ends[event] = begun + took(event)
            return ends[event]

        return [max(end(e) for e in self.facts if e.step == step) for step in self.steps]

    def alone(self, chosen: Callable[[Event], bool]) -> float:
        """Mean seconds where only these take their own time."""
        return fmean(self.lengths(lambda e: self.own[e] if chosen(e) else self.ideal[e.optype]))
