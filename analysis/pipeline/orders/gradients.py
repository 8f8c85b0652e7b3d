"""What reducing gradients adds behind the last pass of a pipeline.

A rank reduces gradients of weights as its last micro-batch makes them, beside what it computes
until its last pass ends. Where an order makes them in passes of their own, which come last and are
short, little is left to be beside:

    1F1B    ... F | B W  B W  B W |            ZB-H1   ... | B  B  B | W W W |
                        r~~~ r~~~ r~~~                                 r~~~r~~~r~~~
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ...replay.operations import Operations
from ...replay.points import Integers
from ..execution import Precedence, Times
from ..schedules import Schedule

_REDUCES = ("reducescatter", "allreduce")
_BEHIND = 0.02  # of the passes that make gradients, that a launch is late
_WITH_WEIGHTS = ("W", "BW")  # passes that make gradients of weights


@dataclass(frozen=True, slots=True)
class Creation:
    """Passes that make gradients of weights of the last micro-batch: devices x passes x columns.

    begins_ns: from the end of the device's last pass on (before it: below 0). lasts_ns: 0 where a
    device has no more. end_ns: of the last pass, by device and column.
    """

    begins_ns: Times
    lasts_ns: Times
    end_ns: Times


@dataclass(frozen=True, slots=True)
class GradientReductions:
    """Reductions of gradients of one step, in lanes: those of a device, column and group, which run
    one after another.

    device, column: of each lane. ready: lanes x reductions, from which share on of the passes that
    make the gradients of the last micro-batch (1: behind the last pass of all).
    took_ns: how long each takes once all its members are there; 0 where a lane has no more.
    """

    device: NDArray[np.int64]
    column: NDArray[np.int64]
    ready: Times
    took_ns: Times

    def shift(self, layer_ratio: Times, end: int | None = None) -> GradientReductions:
        """Where devices have so many layers, and gradients, for one that they had: each reduction
        takes as much longer or shorter; with `end`, the first (0, which are then ready earlier) or
        the last ones (-1) alone."""
        took_ns, ready = self.took_ns, self.ready
        done = np.cumsum(took_ns, axis=1)
        total = done[:, -1:] * layer_ratio[self.device, None]
        if end is None:
            took_ns = took_ns * layer_ratio[self.device, None]
        elif end == 0:
            took_ns = np.diff(np.maximum(done + total - done[:, -1:], 0.0), axis=1, prepend=0.0)
            sooner = ready[:, 0] / np.maximum(layer_ratio[self.device], 1.0)
            ready = np.column_stack([np.where(ready[:, 0] < 1, sooner, 1.0), ready[:, 1:]])
        else:
            is_last = done == done[:, -1:]
            took_ns = np.diff(
                np.where(is_last, total, np.minimum(done, total)), axis=1, prepend=0.0
            )
        return replace(self, ready=ready, took_ns=took_ns)

    def behind(self, its: Creation, ready: float | None = None) -> Times:
        """By device and column when the last reduction ends, from the end of the last pass on.

        ready: a share for all instead of their own.
        """
        begins, lasts = (one[self.device, :, self.column] for one in (its.begins_ns, its.lasts_ns))
        done = np.cumsum(lasts, axis=1)
        lanes = np.arange(len(self.device))
        free = begins[:, 0]
        for at in range(self.took_ns.shape[1]):
            share = self.ready[:, at] if ready is None else np.full(len(lanes), ready)
            # What a lane has no more of is always ready.
            share = np.where(self.took_ns[:, at] > 0, share, 0.0)
            moved_ns = share * done[:, -1]
            # Launched just behind a pass it is of that one, not of the next, which may be far.
            sooner = moved_ns - _BEHIND * done[:, -1]
            nth = np.minimum((done < sooner[:, None]).sum(axis=1), done.shape[1] - 1)
            within = np.minimum(moved_ns - done[lanes, nth] + lasts[lanes, nth], lasts[lanes, nth])
            when = begins[lanes, nth] + within
            free = np.maximum(free, np.where(share < 1, when, 0.0)) + self.took_ns[:, at]
        until_ns = np.zeros_like(its.end_ns)
        np.maximum.at(until_ns, (self.device, self.column), free)
        return until_ns


def makes_weights_apart(schedule: Schedule) -> bool:
    """Whether some passes make gradients of weights alone."""
    return any(one.kind == "W" for order in schedule.orders for entry in order for one in entry)


def creation(graph: Precedence, starts_ns: Times, durations_ns: Times) -> Creation:
    """The passes that make gradients of weights of the last micro-batch."""
    devices, columns = len(graph.schedule.orders), starts_ns.shape[1]
    last = max(one.micro_batch for _, entry in graph.entries for one in entry)
    end = np.full((devices, columns), -np.inf)
    own: list[list[int]] = [[] for _ in range(devices)]
    for at, (device, entry) in enumerate(graph.entries):
        end[device] = np.maximum(end[device], starts_ns[at] + durations_ns[at])
        if any(one.kind in _WITH_WEIGHTS and one.micro_batch == last for one in entry):
            own[device].append(at)
    begins, lasts = (np.zeros((devices, max(map(len, own)), columns)) for _ in range(2))
    for device, ats in enumerate(own):
        begins[device, : len(ats)] = starts_ns[ats] - end[device]
        lasts[device, : len(ats)] = durations_ns[ats]
    return Creation(begins, lasts, end)


def reduced_shares(
    ops: Operations,
    passes: pl.DataFrame,
    steps: Sequence[int | None],
    ranks: Sequence[Sequence[int]],
) -> GradientReductions | None:
    """Of columns (a step, and its ranks by device) what they reduced since the last micro-batch
    made gradients; None where that is nothing."""
    subset = _reductions(ops)
    if not len(subset):
        return None
    end = ops.start + ops.dur
    latest = np.full(int(ops.instance.max()) + 1, np.iinfo(np.int64).min)
    np.maximum.at(latest, ops.instance[subset], ops.start[subset])
    # Members that were not captured may have been the last ones: then all of it counts.
    met = np.where(ops.exogenous[subset], ops.start[subset], latest[ops.instance[subset]])
    places = pl.DataFrame(
        [(rank, step, device, column)
         for column, (step, its) in enumerate(zip(steps, ranks, strict=True))
         for device, rank in enumerate(its)],
        schema={"rank": pl.Int32, "step": pl.Int64, "device": pl.Int64, "column": pl.Int64},
        orient="row",
    )  # fmt: skip
    is_last = pl.col("micro_batch") == pl.col("micro_batch").max()
    makes = pl.col("kind").is_in(_WITH_WEIGHTS) & is_last
    lane = ["rank", "step"]
    bounds = passes.group_by(lane).agg(
        first=pl.col("start_ns").filter(makes).min() - ops.zero_ns,
        last=pl.col("end_ns").max() - ops.zero_ns,
    )
    makers = passes.with_columns(makes=makes.over(lane)).filter("makes").select(
        *lane, begin=pl.col("start_ns") - ops.zero_ns, until=pl.col("end_ns") - ops.zero_ns
    )  # fmt: skip
    step_of = pl.Series([*ops.steps, None], dtype=pl.Int64)
    rows = pl.DataFrame({
        "rank": pl.Series(ops.ranks, dtype=pl.Int32)[ops.rank[subset]],
        "step": step_of[ops.step[subset].tolist()],
        "lane": ops.stream[subset], "start": ops.start[subset],
        "took": np.maximum(end[subset] - met, 0),
    }).join(places, on=["rank", "step"], nulls_equal=True).join(
        bounds, on=["rank", "step"], nulls_equal=True
    )  # fmt: skip
    rows = rows.filter(pl.col("start") >= pl.col("first"), pl.col("took") > 0)
    if rows.is_empty():
        return None
    done = (pl.min_horizontal("start", "until") - pl.col("begin")).clip(0).sum()
    share = done / (pl.col("until") - pl.col("begin")).sum()
    rows = rows.with_row_index("at")
    shares = rows.join(makers, on=lane, nulls_equal=True).group_by("at").agg(share=share)
    keys = ["device", "column", "lane"]
    rows = rows.join(shares, on="at").sort(*keys, "start").with_columns(
        ready=pl.when(pl.col("start") < pl.col("last")).then("share").otherwise(1.0),
        nth=pl.int_range(pl.len()).over(keys),
        number=pl.struct(keys).rank("dense").cast(pl.Int64) - 1,
    )  # fmt: skip
    lanes = rows.unique("number", keep="first").sort("number")
    shape = (lanes.height, int(rows["nth"].to_numpy().max()) + 1)
    ready, took = np.zeros(shape), np.zeros(shape)
    at = (rows["number"].to_numpy(), rows["nth"].to_numpy())
    ready[at], took[at] = rows["ready"].to_numpy(), rows["took"].to_numpy()
    return GradientReductions(lanes["device"].to_numpy(), lanes["column"].to_numpy(), ready, took)


def _reductions(ops: Operations) -> Integers:
    """Positions of reductions between replicas."""
    types = [at for at, name in enumerate(ops.types) if name.lower() in _REDUCES]
    kinds = [at for at, name in enumerate(ops.kinds) if name and "dp" in name.split("_")]
    return np.flatnonzero(
        ops.is_communication & np.isin(ops.type, types) & np.isin(ops.kind, kinds)
    )
