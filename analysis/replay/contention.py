"""How much longer kernels take while bytes move beside them, measured in the capture itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from .beside import Cover, cover_of
from .operations import Operations
from .points import Integers
from .timetable import Timetable, measured_times, parts
from .waits import Waits

Ratios = NDArray[np.float64]
_ALONE, _BESIDE = 0.02, 0.2  # of a kernel's time
_LEAST_COUNT = 20  # kernels beside transfers with the same kernel alone


@dataclass(frozen=True, slots=True)
class Contention:
    """`lost_ratio`: what kernels lose of the time that bytes move beside them, NULL where too few
    can be compared; `beside`: of each operation the share of its time that they do, as replayed."""

    lost_ratio: float | None
    beside: Ratios

    def stretch(
        self, ops: Operations, waits: Waits, times: Timetable, hidden_ns: Integers | None
    ) -> Integers:
        """Durations without what kernels lost where they ran, with what they lose where bytes move
        beside them when operations run so; `hidden_ns`: of each, for so much longer."""
        lost = self.lost_ratio or 0.0
        moving = transfers(ops, waits.transfer, times)
        result = waits.transfer.copy()
        for part in parts(len(ops.rank)):
            beside = moving.within(ops.rank[part], *times(part))
            if hidden_ns is not None:
                beside = beside + hidden_ns[part]
            alone = result[part] * (1 - lost * self.beside[part])
            new = np.round(alone + lost * beside).astype(np.int64)
            kernels = (ops.instance[part] < 0) & (ops.role[part] == 0)
            result[part] = np.where(kernels, new, result[part])
        return result


def transfers(ops: Operations, transfer: Integers, times: Timetable) -> Cover:
    """When bytes of each rank move: from a collective's last member on (`transfer` before its
    end)."""
    comm = np.flatnonzero(ops.is_communication & (transfer[:-1] > 0))
    ends = times(comm)[1]
    return cover_of(ops.rank[comm], ends - transfer[comm], ends)


def _by_rank(ops: Operations) -> Iterator[slice]:
    """Parts of whole ranks."""
    ends = np.searchsorted(ops.rank, np.arange(len(ops.ranks)), side="right")
    begin = 0
    for part in parts(len(ops.rank)):
        end = int(ends[np.searchsorted(ends, part.stop)])
        if end > begin:
            yield slice(begin, end)
        begin = end


def _compare_kernels(ops: Operations, part: slice, beside: Integers, share: Ratios) -> pl.DataFrame:
    """Kernels of some ranks beside transfers, with what the same ones take alone."""
    kernels = np.flatnonzero((ops.instance[part] < 0) & (ops.role[part] == 0) & (ops.dur[part] > 0))
    rows = ops.names[part][kernels].select("name", "core", "shapes").with_columns(
        rank=ops.rank[part][kernels], ns=ops.dur[part][kernels], beside_ns=beside[kernels],
        share=share[kernels],
    )  # fmt: skip
    rows_beside = rows.filter(pl.col("share") >= _BESIDE, pl.col("shapes").is_not_null())
    alone = (
        rows.filter(pl.col("share") <= _ALONE)
        .group_by("rank", "name", "core", "shapes")
        .agg(alone_ns=pl.col("ns").median())
    )
    pairs = rows_beside.join(alone, on=["rank", "name", "core", "shapes"], nulls_equal=True)
    return pairs.select("ns", "alone_ns", "beside_ns")


def contention(ops: Operations, transfer: Integers, timetable: Timetable) -> Contention:
    """Kernels beside transfers against the same kernels (name, core, shapes) of their rank alone.

    What they take longer, by the time that bytes move beside them: 1 - 1/1.3 where they run 1.3
    times as long. `timetable`: operations as replayed with nothing changed."""
    times = measured_times(ops)
    moving, moved = (transfers(ops, transfer, one) for one in (times, timetable))
    share = np.empty(len(ops.rank))
    parts_here = []
    for part in _by_rank(ops):
        least = np.maximum(ops.dur[part], 1)
        beside = moving.within(ops.rank[part], *times(part))
        parts_here.append(_compare_kernels(ops, part, beside, beside / least))
        share[part] = moved.within(ops.rank[part], *timetable(part)) / least
    rows = pl.concat(parts_here)
    whole = int(rows["beside_ns"].sum() or 0)
    if rows.height < _LEAST_COUNT or not whole:
        return Contention(None, share)
    # Medians of kinds: a hiccup of one kernel is none of all.
    lost = rows.select(
        extra=(pl.col("ns") - pl.col("alone_ns")) / pl.col("beside_ns"), weight="beside_ns"
    ).sort("extra")
    half = lost.filter(pl.col("weight").cum_sum() * 2 >= whole)["extra"][0]
    return Contention(float(min(max(half, 0.0), 0.9)), share)
