"""How long the schedule 1F1B takes, from what its stages compute between transfers.

    stage 0   F0 F1 F2 ........ B0 F3 B1 ...
    stage 1      F0 F1 .... B0 F2 B1 ...
    stage 2         F0 B0 F1 B1 ...         the last stage: forward and backward are one block

A transfer begins when both sides are there: the sender has computed, the receiver has finished the
block before, and on both the transfer before it on its stream has ended.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]
Turns = list[tuple[int, int]]
FORWARD, BACKWARD = 0, 1


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Times in ns by stage: of forward and backward blocks (the last stage's forward holds both),
    one after the other as they were measured; means of transfers to it, and from the end of a block
    until it is ready for the next input, both of forwards and of backwards. `streams`: of its
    receives and sends forward, then backward."""

    blocks: tuple[list[Times], list[Times]]
    moved: tuple[Times, Times]
    ready: tuple[Times, Times]
    streams: NDArray[np.int64]

    def length(self, micro_batches: int, first: int = 0) -> float | None:
        """From the first forward to the last backward, with blocks from the `first` measured on;
        None where transfers wait for each other."""
        ran = _Run(self, micro_batches, first)
        while not ran.is_done():
            is_new = [ran.advance(stage) for stage in range(ran.stages)]
            if not any(is_new):
                return None
        return float(ran.block_end.max())


def turns(warm_up: int, micro_batches: int) -> Turns:
    """Forwards and backwards of a stage that computes so many forwards ahead."""
    first = min(warm_up, micro_batches)
    found = [(FORWARD, at) for at in range(first)]
    for at in range(micro_batches - first):
        found += [(FORWARD, at + first), (BACKWARD, at)]
    return found + [(BACKWARD, at) for at in range(micro_batches - first, micro_batches)]


class _Run:
    """A schedule while it runs; NaN is a time that is not known yet.

    Transfers of a stage have four lanes: receives and sends forward, receives and sends backward.
    """

    def __init__(self, pipeline: Pipeline, micro_batches: int, first: int) -> None:
        self.pipeline, self.first = pipeline, first
        self.stages = stages = len(pipeline.blocks[0])
        self.block_end = np.full((2, stages, micro_batches), np.nan)
        self.free_before = np.full((2, stages, micro_batches), np.nan)  # when a block could start
        self.start = np.full((4, stages, micro_batches), np.nan)
        self.end = np.full((4, stages, micro_batches), np.nan)
        self.turns = [turns(stages - at - 1, micro_batches) for at in range(stages)]
        self.free = [0.0] * stages
        self.turn = [0] * stages
        self.queues = [self._queues(stage) for stage in range(stages)]
        self.done = [[0] * len(queues) for queues in self.queues]

    def _queues(self, stage: int) -> list[Turns]:
        """Transfers of each stream in the order of the program: lane and micro-batch."""
        found: dict[int, Turns] = {}
        for way, number in self.turns[stage]:
            for lane in (2 * way, 2 * way + 1):
                if self._partner(lane, stage) is not None:
                    stream = int(self.pipeline.streams[lane, stage])
                    found.setdefault(stream, []).append((lane, number))
        return [*found.values()]

    def _partner(self, lane: int, stage: int) -> tuple[int, int] | None:
        """Lane and stage of the other side; None where there is none."""
        way, is_send = divmod(lane, 2)
        other = stage + (1 if is_send == (way == FORWARD) else -1)
        return (lane ^ 1, other) if 0 <= other < self.stages else None

    def is_done(self) -> bool:
        return all(
            self.turn[at] == len(self.turns[at])
            and all(n == len(q) for n, q in zip(self.done[at], self.queues[at], strict=True))
            for at in range(self.stages)
        )

    def advance(self, stage: int) -> bool:
        """Works out what can be of a stage; whether that was anything."""
        is_new = self._compute(stage)
        for at, queue in enumerate(self.queues[stage]):
            while self.done[stage][at] < len(queue) and self._transfer(stage, at, queue):
                self.done[stage][at] += 1
                is_new = True
        return is_new

    def _compute(self, stage: int) -> bool:
        began = self.turn[stage]
        for way, number in self.turns[stage][began:]:
            self.free_before[way, stage, number] = begin = self.free[stage]
            if self._partner(2 * way, stage) is not None:
                begin = float(self.end[2 * way, stage, number])
                if np.isnan(begin):
                    break
            is_whole = way == BACKWARD and stage == self.stages - 1
            blocks = self.pipeline.blocks[way][stage]
            took = 0.0 if is_whole else float(blocks[(self.first + number) % len(blocks)])
            self.free[stage] = self.block_end[way, stage, number] = begin + took
            self.turn[stage] += 1
        return self.turn[stage] > began

    def _transfer(self, stage: int, at: int, queue: Turns) -> bool:
        """Whether the next transfer of a stream is done with."""
        lane, number = queue[self.done[stage][at]]
        partner = self._partner(lane, stage)
        assert partner is not None
        way, is_send = divmod(lane, 2)
        if np.isnan(self.start[lane, stage, number]):
            own = self.block_end[way, stage, number]
            if not is_send:
                own = self.free_before[way, stage, number] + self.pipeline.ready[way][stage]
            before = 0.0
            if self.done[stage][at]:
                earlier, of = queue[self.done[stage][at] - 1]
                before = float(self.end[earlier, stage, of])
            self.start[lane, stage, number] = own if np.isnan(own) else max(own, before)
        other, to = partner
        met = np.maximum(self.start[lane, stage, number], self.start[other, to, number])
        if np.isnan(met):
            return False
        took = self.pipeline.moved[way][to if is_send else stage]
        self.end[lane, stage, number] = self.end[other, to, number] = met + took
        return True
