"""Changes of pipeline stages: all of them computing as long, or the kernels of one taking another
time."""

from __future__ import annotations

import duckdb
import numpy as np

from ..ranks.stages import rank_stages
from .captures import CaptureJob, scale
from .changes import Change
from .points import Integers


def of_stages(
    con: duckdb.DuckDBPyConnection, job: CaptureJob, durations: Integers, change: Change
) -> Integers:
    """Durations after `stage:N=VALUE`: a number multiplies the kernels of a stage; with `mean` they
    take as much longer or less as brings the stage's computing to the mean of stages in each step.
    Raises UsageError and CannotAnswer."""
    ops = job.ops
    value = change.factor("mean")
    stage_of = rank_stages(con, job.run, job.capture)
    there = sorted({stage_of[rank] for rank in ops.ranks if rank in stage_of})
    if change.name != "all" and change.name not in map(str, there):
        raise change.no_such(there)
    stages = [one for one in there if change.name in ("all", str(one))]
    at = np.array([stage_of.get(rank, -1) for rank in ops.ranks])[ops.rank]
    kernels = ops.is_kernel & (ops.step >= 0)
    mask = np.append(kernels & np.isin(at, stages), False)
    if not isinstance(value, str):
        return scale(durations, mask, value)
    spent = np.zeros((len(ops.ranks), len(ops.steps)))
    np.add.at(spent, (ops.rank[kernels], ops.step[kernels]), durations[:-1][kernels])
    computing = {}
    for stage in there:
        own = spent[[stage_of.get(rank) == stage for rank in ops.ranks]]
        if own.any():
            computing[stage] = own[own.any(axis=1)].mean(axis=0)  # light ranks have no kernels
    if len(computing) < 2:
        raise change.refusal(
            "kernels of one pipeline stage at most were recorded: record a rank of every stage"
        )
    mean = np.mean([*computing.values()], axis=0)
    factors = np.ones((max(there) + 1, len(ops.steps)))
    for stage, own in computing.items():
        factors[stage] = mean / np.maximum(own, 1)
    result = durations.copy()
    places = np.flatnonzero(mask)
    result[places] = np.round(durations[places] * factors[at[places], ops.step[places]])
    return result
