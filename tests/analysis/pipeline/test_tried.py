"""Orders tried with measured times, against running them with the times they were measured from."""

from __future__ import annotations

import numpy as np
import pytest

from npuscope.analysis.pipeline.execution import Entry
from npuscope.analysis.pipeline.measured import measured
from npuscope.analysis.pipeline.schedules import Schedule, schedule
from npuscope.analysis.pipeline.tried import Facts, Part, held, run, spans
from npuscope.errors import CannotAnswer
from tests.analysis.pipeline.pipeline_frames import ran

P, M = 4, 16
F, B, W = 3e6, 3.4e6, 2.6e6
STAGE = (1.1, 1.0, 1.0, 1.25)  # embedding, head


def times_of(chosen: Schedule, pair: float = 1.0):  # type: ignore[no-untyped-def]
    """Layers take alike, the embedding a tenth of a stage, the head a quarter."""
    position = {place: at for route in chosen.routes for at, place in enumerate(route)}
    places = len(chosen.routes[0])

    def duration_ns(device: int, entry: Entry) -> float:
        total = 0.0
        for one in entry:
            at = position[device, one.chunk]
            size = P / places + 0.1 * (at == 0) + 0.25 * (at == places - 1)
            total += size * {"F": F, "B": B, "W": W, "BW": B + W}[one.kind]
        return total * (pair if len(entry) > 1 else 1.0)

    return duration_ns
