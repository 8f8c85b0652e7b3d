"""How long the schedule 1F1B takes, from what its stages compute between transfers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...pipeline.execution import precedence
from ...pipeline.schedules import schedule

Times = NDArray[np.float64]
Picks = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Times in ns by stage: of forward and backward blocks (the last stage's forward holds both) by
    step and micro-batch; means of transfers to it, and from the end of a block until it is ready
    for the next input, both of forwards and of backwards."""

    blocks: tuple[list[Times], list[Times]]
    transfers: tuple[Times, Times]
    ready: tuple[Times, Times]

    def lengths(self, step: Picks, micro_batch: Picks) -> Times:
        """From the first forward to the last backward of steps that are made of recorded
        micro-batches: by micro-batch and execution the step and the place of each in it.

        A transfer begins when the sender has computed and the receiver is ready for it.
        """
        stages = len(self.blocks[0])
        graph = precedence(schedule("1f1b", stages, len(step)))
        durations = np.zeros((len(graph.entries), step.shape[1]))
        gaps = np.zeros((len(graph.entries), 1))
        for at, (stage, ((kind, _, number),)) in enumerate(graph.entries):
            way = int(kind != "F")
            is_whole = way and stage == stages - 1
            if not is_whole:
                durations[at] = self.blocks[way][stage][step[number], micro_batch[number]]
                if way or stage:
                    gaps[at] = self.ready[way][stage] + self.transfers[way][stage]
        lags = np.array([self.transfers[int(to < source)][to] for source, to in graph.links])
        lengths: Times = (graph.starts(durations, gaps, lags[:, None]) + durations).max(axis=0)
        return lengths
