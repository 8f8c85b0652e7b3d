"""Expert load of a capture in short: the worst layers, the hottest experts, what that costs.

For reports and findings: None at once where nothing tells of experts, and no more is read than the
load, or the grouped matmuls where there is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import polars as pl

LAYER = ("phase", "layer")


@dataclass(frozen=True, slots=True)
class Overview:
    """One capture. `item`: whose load is known, single experts' or only devices'.

    loads: run, capture, step, phase, layer, `item`, tokens. layers: phase, layer, steps_count,
    tokens (of a step), max_over_mean (mean over steps), worst_max_over_mean, hottest_expert (with
    most tokens over all steps), hottest_over_mean (its tokens there, by the mean), cold_count
    (mean), device_max_over_mean (mean), hottest_device, excess_ns (of a step; NULL: not known), the
    worst first. cost: excess_ns, grouped_excess_ns, activation_excess_ns, exchange_exposed_ns and
    step_ns of a step's costliest stage (of all layers, unless is_by_stage), means over
    `cost_steps`; None where not known.
    devices_count: of an expert-parallel group.
    """

    run: str
    capture: str
    item: Literal["expert", "device"]
    loads: pl.DataFrame
    layers: pl.DataFrame
    cost: dict[str, float | None] | None
    devices_count: int | None
    cost_steps: tuple[int | None, ...] = ()
    notes: tuple[str, ...] = ()
    is_by_stage: bool = True

    def mean_of(self, column: str) -> float | None:
        """Mean over the layers of which a figure of `layers` is known; None where of none."""
        mean: float | None = self.layers.select(pl.col(column).mean().cast(pl.Float64)).item()
        return mean


def hottest(overview: Overview, count: int) -> pl.DataFrame:
    """The hottest experts of all layers, steps added up: phase, layer, expert, tokens, over_mean
    (of its layer, above 1); empty where only devices are known."""
    if overview.item != "expert":
        return pl.DataFrame()
    return (
        overview.loads.group_by(*LAYER, "expert")
        .agg(pl.col("tokens").sum())
        .with_columns(over_mean=pl.col("tokens") / pl.col("tokens").mean().over(LAYER))
        .filter(pl.col("over_mean") > 1)
        .sort("over_mean", *LAYER, "expert", descending=[True, False, False, False])
        .head(count)
    )
