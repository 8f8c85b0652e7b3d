"""How much longer kernels take while bytes move beside them, measured in the capture itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from .beside import covering
from .operations import Operations
from .points import Integers

_ALONE, _BESIDE = 0.02, 0.2  # of a kernel's time
_LEAST_COUNT = 20  # kernels beside transfers with the same kernel alone


@dataclass(frozen=True, slots=True)
class Contention:
    """`lost_ratio`: what kernels lose of the time that bytes move beside them, NULL where too few
    can be compared; `beside`: of each operation the share of its time that they do."""

    lost_ratio: float | None
    beside: NDArray[np.float64]

    def stretched(self, ops: Operations, durations: Integers, beside: Integers) -> Integers:
        """Durations without what kernels lost where they ran, with what they lose where bytes move
        beside them for so many ns."""
        lost = self.lost_ratio or 0.0
        kernels = ops.is_kernel
        alone = durations[:-1] * (1 - lost * self.beside)
        found = durations.copy()
        new = alone + lost * beside
        found[:-1][kernels] = np.round(new[kernels]).astype(np.int64)
        return found


def beside_ns(ops: Operations, starts: Integers, ends: Integers, transfer: Integers) -> Integers:
    """Of each operation the time that bytes of its rank move: from a collective's last member on
    (`transfer` before its end)."""
    comm = ops.is_communication & (transfer[:-1] > 0)
    met = ends - transfer[:-1]
    low = int(min(starts.min(), met[comm].min(initial=np.iinfo(np.int64).max)))
    high = int(np.maximum(ends, starts).max())
    moving = covering(ops.rank[comm], met[comm], ends[comm], low, high)
    return moving.within(ops.rank, starts, ends)


def contention(ops: Operations, transfer: Integers) -> Contention:
    """Kernels beside transfers against the same kernels (name, core, shapes) of their rank alone.

    What they take longer, by the time that bytes move beside them: 1 - 1/1.3 where they run 1.3
    times as long."""
    ends = ops.start + ops.dur
    beside = beside_ns(ops, ops.start, ends, transfer)
    share = beside / np.maximum(ops.dur, 1)
    kernels = np.flatnonzero(ops.is_kernel & (ops.dur > 0))
    rows = ops.names[kernels].select("name", "core", "shapes").with_columns(
        rank=ops.rank[kernels], ns=ops.dur[kernels], beside_ns=beside[kernels],
        share=share[kernels],
    )  # fmt: skip
    alone = (
        rows.filter(pl.col("share") <= _ALONE)
        .group_by("rank", "name", "core", "shapes")
        .agg(alone_ns=pl.col("ns").median())
    )
    told = rows.filter(pl.col("share") >= _BESIDE, pl.col("shapes").is_not_null()).join(
        alone, on=["rank", "name", "core", "shapes"], nulls_equal=True
    )
    moving = int(told["beside_ns"].sum() or 0)
    if told.height < _LEAST_COUNT or not moving:
        return Contention(None, share)
    # Medians of kinds: a hiccup of one kernel is none of all.
    lost = told.select(
        extra=(pl.col("ns") - pl.col("alone_ns")) / pl.col("beside_ns"), weight="beside_ns"
    ).sort("extra")
    half = lost.filter(pl.col("weight").cum_sum() * 2 >= moving)["extra"][0]
    return Contention(float(min(max(half, 0.0), 0.9)), share)
