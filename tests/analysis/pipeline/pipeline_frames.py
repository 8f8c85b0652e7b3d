"""Passes of a pipeline that really ran: an order executed with times of its own, as a frame."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl

from npuscope.analysis.pipeline.execution import Entry, precedence
from npuscope.analysis.pipeline.measurement import queued_entries
from npuscope.analysis.pipeline.schedules import Pass, Schedule

ZERO_NS = 1_764_246_877_000_000_000


def order_text(schedule: Schedule) -> str:
    """The text that `order_file.parse_order` reads as this schedule."""

    def word(one: Pass) -> str:
        return f"{one.kind}{one.micro_batch}" + (f".{one.chunk}" if one.chunk else "")

    lines = [
        "path " + " ".join(f"{device}.{chunk}" for device, chunk in route)
        for route in schedule.routes
    ]
    lines += [
        f"{device}: " + " ".join("+".join(map(word, entry)) for entry in order)
        for device, order in enumerate(schedule.orders)
    ]
    return "\n".join(lines) + "\n"


def ran(
    schedule: Schedule,
    duration_ns: Callable[[int, Entry], float],
    *,
    gap_ns: float = 0.0,
    queued_gap_ns: float | None = None,
    lag_ns: float = 0.0,
    noise: float = 0.0,
    replicas: int = 1,
    steps: int = 2,
    seed: int = 1,
) -> pl.DataFrame:
    """A frame as `passes.pipeline` makes it; a pass computes all the time that it takes alone."""
    made = precedence(schedule)
    chance = np.random.default_rng(seed)
    columns = replicas * steps
    times = np.array([duration_ns(*one) for one in made.entries])[:, None]
    times = times * chance.lognormal(0.0, noise, (len(times), columns)) if noise else np.repeat(
        times, columns, axis=1)  # fmt: skip
    gaps = np.full((len(times), 1), gap_ns)
    if queued_gap_ns is not None:
        gaps[queued_entries(made)] = queued_gap_ns
    starts = made.starts(times, gaps, np.full((len(made.links), 1), lag_ns))
    rows = []
    for at, (device, entry) in enumerate(made.entries):
        for column in range(columns):
            step, replica = divmod(column, replicas)
            start = ZERO_NS + step * 10**12 + round(starts[at, column])
            end = ZERO_NS + step * 10**12 + round(starts[at, column] + times[at, column])
            rows += [
                ("run", "c", step, device * replicas + replica, device, one.chunk, one.micro_batch,
                 one.kind, start, end, None, round(duration_ns(device, (one,))), 0, "high")
                for one in entry
            ]  # fmt: skip
    names = ("run", "capture", "step", "rank", "stage", "chunk", "micro_batch", "kind", "start_ns",
             "end_ns", "before_ns", "compute_ns", "exposed_comm_ns", "confidence")  # fmt: skip
    schema = dict.fromkeys(names, pl.Int64) | {
        "run": pl.String, "capture": pl.String, "kind": pl.String, "confidence": pl.String,
        "rank": pl.Int32, "stage": pl.Int32, "chunk": pl.Int32, "micro_batch": pl.Int32,
    }  # fmt: skip
    return pl.DataFrame(rows, schema=schema, orient="row")
