"""The worst layers of a capture, its hottest experts and devices, and what that costs: an overview
computed from the load."""

from __future__ import annotations

from typing import Literal

import duckdb
import polars as pl

from ...means import without_warm_up
from ...scope import Scope
from ..load.dropped_tokens import sum_notes
from ..load.from_trace import is_short_enough, trace_load
from ..load.imbalance import expert_loads, expert_metrics
from ..load.load import ExpertTables, expert_rows, with_trace
from ..load.load_notes import load_notes
from ..load.load_rows import by_device, unseen_notes
from .cost import step_cost
from .cost_answer import cost_rows
from .load_overview import LAYER, Overview

_COSTS = ("excess_ns", "grouped_excess_ns", "activation_excess_ns", "exchange_exposed_ns",
          "step_ns")  # fmt: skip


def overview_of(
    con: duckdb.DuckDBPyConnection, run: str, capture: str, step: int | None
) -> Overview | None:
    """What is known of one capture's expert load; None where nothing is, or no layer is told."""
    tables = _tables(con, run, capture, step)
    if tables is None:
        return None
    loads = expert_loads(tables.load)
    devices = by_device(tables)
    layers = _of_devices(devices)
    if not loads.is_empty():
        layers = _of_experts(loads).join(layers, on=LAYER, how="left", nulls_equal=True)
    if layers.is_empty():
        return None
    costs, _ = cost_rows(con, tables, Scope(run, capture, step=step))
    costs = without_warm_up(con, costs)
    item: Literal["expert", "device"] = "device" if loads.is_empty() else "expert"
    spread = "max_over_mean" if item == "expert" else "device_max_over_mean"
    cost = costs.group_by(LAYER).agg(pl.col("excess_ns").mean())
    return Overview(
        run,
        capture,
        item,
        devices if loads.is_empty() else loads,
        layers.join(cost, on=LAYER, how="left", nulls_equal=True).sort(
            "excess_ns", spread, *LAYER, descending=[True, True, False, False], nulls_last=True
        ),
        _costliest(costs),
        devices["device"].n_unique() or None,
        tuple(costs["step"].unique()),
        (*load_notes(tables.load), *_sum_notes(loads), *unseen_notes(tables)),
        not costs["stage"].null_count(),
    )


def _tables(
    con: duckdb.DuckDBPyConnection, run: str, capture: str, step: int | None
) -> ExpertTables | None:
    clause, values = Scope(run, capture, step=step).where()
    if con.execute(f"select 1 from expert_load {clause} limit 1", values).fetchall():
        return expert_rows(con, Scope(run, capture, step=step))
    if not is_short_enough(con, run=run, capture=capture, step=step):
        return None
    loads = trace_load(con, Scope(run, capture, step=step)).rows
    held = with_trace(expert_rows(con, Scope(run, capture)), loads)
    return None if held.load.is_empty() else held


def _of_experts(loads: pl.DataFrame) -> pl.DataFrame:
    """Layers by the load of single experts."""
    totals = loads.group_by(*LAYER, "expert").agg(pl.col("tokens").sum())
    most = pl.col("tokens").max()
    hottest = totals.group_by(LAYER).agg(
        hottest_expert=pl.col("expert").filter(pl.col("tokens") == most).min(),
        hottest_over_mean=pl.when(pl.col("tokens").sum() > 0).then(most / pl.col("tokens").mean()),
    )
    return (
        expert_metrics(loads)
        .group_by(LAYER)
        .agg(
            pl.len().cast(pl.Int64).alias("steps_count"),
            pl.col("tokens").mean(),
            pl.col("max_over_mean").mean(),
            pl.col("max_over_mean").max().alias("worst_max_over_mean"),
            pl.col("cold_count").mean(),
        )
        .join(hottest, on=LAYER, nulls_equal=True)
    )


def _of_devices(devices: pl.DataFrame) -> pl.DataFrame:
    """Layers by the load of devices."""
    steps = devices.group_by(*LAYER, "step").agg(pl.col("device_max_over_mean").first())
    totals = devices.group_by(*LAYER, "device").agg(pl.col("tokens").sum())
    most = pl.col("tokens") == pl.col("tokens").max()
    return (
        steps.group_by(LAYER)
        .agg(pl.col("device_max_over_mean").mean())
        .join(
            totals.group_by(LAYER).agg(hottest_device=pl.col("device").filter(most).min()),
            on=LAYER,
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
    means: dict[str, float | None] = worst.select(pl.col(_COSTS).mean()).row(0, named=True)
    return means


def _sum_notes(loads: pl.DataFrame) -> list[str]:
    """Whether layers count twice; that drops are not known is no news here."""
    notes = [note for note in sum_notes(loads, {}) if not note.startswith("dropped tokens")]
    return notes if loads.height else []
