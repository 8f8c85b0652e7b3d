"""Expert load of a capture in short: the worst layers, the hottest experts, what that costs.

For reports and findings: None at once where nothing tells of experts, and no more is read than the
load, or the grouped matmuls where there is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import duckdb
import polars as pl

from npuscope.analysis.scope import Scope

from ..cost.cost import step_cost
from ..cost.cost_answer import cost_rows
from .dropped_tokens import sum_notes
from .from_trace import is_short_enough, trace_load
from .imbalance import expert_loads, expert_metrics
from .load import ExpertTables, expert_rows, with_trace
from .load_notes import load_notes
from .load_rows import by_device, unseen_notes

_LAYER = ("phase", "layer")
_COSTS = ("excess_ns", "grouped_excess_ns", "activation_excess_ns", "exchange_exposed_ns",
          "step_ns")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Overview:
    """One capture. `item`: whose load is known, single experts' or only devices'.

    loads: run, capture, step, phase, layer, `item`, tokens. layers: phase, layer, steps_count,
    tokens (of a step), max_over_mean (mean over steps), worst_max_over_mean, hottest_expert (with
    most tokens over all steps), hottest_over_mean (its tokens there, by the mean), cold_count
    (mean), device_max_over_mean (mean), hottest_device, excess_ns (of a step; NULL: not known), the
    worst first. cost: excess_ns, grouped_excess_ns, activation_excess_ns, exchange_exposed_ns and
    step_ns of a step's costliest stage, means over steps; None where not known. devices_count: of
    an expert-parallel group.
    """

    run: str
    capture: str
    item: Literal["expert", "device"]
    loads: pl.DataFrame
    layers: pl.DataFrame
    cost: dict[str, float | None] | None
    devices_count: int | None
    notes: tuple[str, ...] = ()

    def mean_of(self, column: str) -> float | None:
        """Mean over the layers of which a figure of `layers` is known; None where of none."""
        mean: float | None = self.layers.select(pl.col(column).mean().cast(pl.Float64)).item()
        return mean


def overview(
    con: duckdb.DuckDBPyConnection, *, run: str, capture: str, step: int | None = None
) -> Overview | None:
    """What is known of one capture's expert load; None where nothing is, or no layer is told."""
    tables = _tables(con, run, capture, step)
    if tables is None:
        return None
    loads = expert_loads(tables.load)
    devices = by_device(tables)
    layers = _of_devices(devices)
    if not loads.is_empty():
        layers = _of_experts(loads).join(layers, on=_LAYER, how="left", nulls_equal=True)
    if layers.is_empty():
        return None
    costs, _ = cost_rows(con, tables, Scope(run, capture, step=step))
    item: Literal["expert", "device"] = "device" if loads.is_empty() else "expert"
    spread = "max_over_mean" if item == "expert" else "device_max_over_mean"
    cost = costs.group_by(_LAYER).agg(pl.col("excess_ns").mean())
    return Overview(
        run,
        capture,
        item,
        devices if loads.is_empty() else loads,
        layers.join(cost, on=_LAYER, how="left", nulls_equal=True).sort(
            "excess_ns", spread, *_LAYER, descending=[True, True, False, False], nulls_last=True
        ),
        _costliest(costs),
        devices["device"].n_unique() or None,
        (*load_notes(tables.load), *_sum_notes(loads), *unseen_notes(tables)),
    )


def _tables(
    con: duckdb.DuckDBPyConnection, run: str, capture: str, step: int | None
) -> ExpertTables | None:
    clause, values = Scope(run, capture, step=step).where()
    if con.execute(f"select 1 from expert_load {clause} limit 1", values).fetchall():
        return expert_rows(con, Scope(run, capture, step=step))
    if not is_short_enough(con, run=run, capture=capture, step=step):
        return None
    found = trace_load(con, Scope(run, capture, step=step)).rows
    held = with_trace(expert_rows(con, Scope(run, capture)), found)
    return None if held.load.is_empty() else held


def _of_experts(loads: pl.DataFrame) -> pl.DataFrame:
    """Layers by the load of single experts."""
    totals = loads.group_by(*_LAYER, "expert").agg(pl.col("tokens").sum())
    most = pl.col("tokens").max()
    hottest = totals.group_by(_LAYER).agg(
        hottest_expert=pl.col("expert").filter(pl.col("tokens") == most).min(),
        hottest_over_mean=pl.when(pl.col("tokens").sum() > 0).then(most / pl.col("tokens").mean()),
    )
    return (
        expert_metrics(loads)
        .group_by(_LAYER)
        .agg(
            pl.len().cast(pl.Int64).alias("steps_count"),
            pl.col("tokens").mean(),
            pl.col("max_over_mean").mean(),
            pl.col("max_over_mean").max().alias("worst_max_over_mean"),
            pl.col("cold_count").mean(),
        )
        .join(hottest, on=_LAYER, nulls_equal=True)
    )


def _of_devices(devices: pl.DataFrame) -> pl.DataFrame:
    """Layers by the load of devices."""
    steps = devices.group_by(*_LAYER, "step").agg(pl.col("device_max_over_mean").first())
    totals = devices.group_by(*_LAYER, "device").agg(pl.col("tokens").sum())
    most = pl.col("tokens") == pl.col("tokens").max()
    return (
        steps.group_by(_LAYER)
        .agg(pl.col("device_max_over_mean").mean())
        .join(
            totals.group_by(_LAYER).agg(hottest_device=pl.col("device").filter(most).min()),
            on=_LAYER,
            nulls_equal=True,
        )
    )


def _costliest(costs: pl.DataFrame) -> dict[str, float | None] | None:
    """Means over steps of each step's costliest stage."""
    stages = step_cost(costs).filter(pl.col("excess_ns").is_not_null())
    if stages.is_empty():
        return None
    worst = stages.sort("excess_ns", descending=True).unique(
        ("step", "phase"), keep="first", maintain_order=True
    )
    found: dict[str, float | None] = worst.select(pl.col(_COSTS).mean()).row(0, named=True)
    return found


def _sum_notes(loads: pl.DataFrame) -> list[str]:
    """Whether layers count twice; that drops are not known is no news here."""
    known = [note for note in sum_notes(loads, {}) if not note.startswith("dropped tokens")]
    return known if loads.height else []


def hottest(seen: Overview, count: int) -> pl.DataFrame:
    """The hottest experts of all layers, steps added up: phase, layer, expert, tokens, over_mean
    (of its layer, above 1); empty where only devices are known."""
    if seen.item != "expert":
        return pl.DataFrame()
    return (
        seen.loads.group_by(*_LAYER, "expert")
        .agg(pl.col("tokens").sum())
        .with_columns(over_mean=pl.col("tokens") / pl.col("tokens").mean().over(_LAYER))
        .filter(pl.col("over_mean") > 1)
        .sort("over_mean", *_LAYER, "expert", descending=[True, False, False, False])
        .head(count)
    )
