"""How long the schedule 1F1B takes, from what its stages compute between transfers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...pipeline.execution import precedence
from ...pipeline.schedules import schedule

Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Times in ns by stage: of forward and backward blocks (the last stage's forward holds both),
    one after the other as they were measured; means of transfers to it, and from the end of a block
    until it is ready for the next input, both of forwards and of backwards."""

    blocks: tuple[list[Times], list[Times]]
    moved: tuple[Times, Times]
    ready: tuple[Times, Times]

    def length(self, micro_batches: int, first: int = 0) -> float:
        """From the first forward to the last backward, with blocks from the `first` measured on.

        A transfer begins when the sender has computed and the receiver is ready for it.
        """
        stages = len(self.blocks[0])
        made = precedence(schedule("1f1b", stages, micro_batches))
        durations, gaps = np.zeros(len(made.entries)), np.zeros(len(made.entries))
        for at, (stage, ((kind, _, number),)) in enumerate(made.entries):
            way = int(kind != "F")
            blocks = self.blocks[way][stage]
            is_whole = way and stage == stages - 1
            durations[at] = 0.0 if is_whole else blocks[(first + number) % len(blocks)]
            if not is_whole and (way or stage):
                gaps[at] = self.ready[way][stage] + self.moved[way][stage]
        lags = np.array([self.moved[int(to < source)][to] for source, to in made.links])
        return float((made.starts(durations, gaps, lags) + durations).max())
