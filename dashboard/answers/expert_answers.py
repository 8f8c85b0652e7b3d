"""Expert load for the page: what is told of experts, else of devices by the trace, and plans."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import duckdb
import numpy as np
import polars as pl

from npuscope.analysis.experts.cost.cost_answer import cost_rows, plan_costs
from npuscope.analysis.experts.load import load_rows
from npuscope.analysis.experts.load.counted_ranks import require_all_ranks
from npuscope.analysis.experts.load.from_trace import trace_load
from npuscope.analysis.experts.load.load import ExpertTables, expert_rows, with_trace
from npuscope.analysis.experts.load.load_notes import load_notes, trace_notes
from npuscope.analysis.experts.load.mean_layers import over_mean
from npuscope.analysis.experts.plan import plan_frames
from npuscope.analysis.experts.plan.placement import device_tokens
from npuscope.analysis.experts.plan.plan_cost import Wish
from npuscope.analysis.means import without_warm_up
from npuscope.analysis.scope import Scope
from npuscope.errors import UsageError
from npuscope.messages import Message


@dataclass(frozen=True, slots=True)
class Load:
    """tables: rows of the load; is_of_experts: single experts are told, not devices only; rows by
    expert, device and time as `npuscope experts --by` gives them; notes."""

    tables: ExpertTables
    is_of_experts: bool
    experts: pl.DataFrame
    devices: pl.DataFrame
    layers: pl.DataFrame
    times: pl.DataFrame
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plans:
    """rows of `plan_rows`; devices: phase, layer, device, before_tokens, after_tokens of the
    forecast load, by the places that the plan leaves and makes; notes."""

    rows: pl.DataFrame
    devices: pl.DataFrame
    notes: tuple[str, ...]


def loads(con: duckdb.DuckDBPyConnection, scope: Scope) -> Load:
    """What the store tells of expert load; where it holds none, what the trace tells of devices."""
    tables = expert_rows(con, scope.all_ranks)
    sentences: list[str] = []
    if tables.load.is_empty():
        trace_rows = trace_load(con, scope.all_ranks)
        tables = with_trace(tables, trace_rows.rows)
        sentences = trace_notes(trace_rows.rows, trace_rows.notes, tables)
    experts = load_rows.by_expert(tables)
    devices = load_rows.by_device(tables)
    notes = [
        *load_notes(tables.load),
        *(load_rows.view_notes(tables, "device", devices) if tables.load.height else []),
        *sentences,
    ]
    return Load(
        tables, bool(experts.height), experts, devices, load_rows.by_layer(tables),
        load_rows.by_time(tables), tuple(notes),
    )  # fmt: skip


def most_uneven(loads: pl.DataFrame, item: Literal["expert", "device"]) -> Message | None:
    """Of a load whose cost is unknown the layer of the fullest expert or device, as the heat map
    has it: rows by `item` of one phase; None without a token."""
    ordered = over_mean(loads, item).drop_nulls("over_mean").sort("over_mean", descending=True)
    if ordered.is_empty():
        return None
    most = ordered.row(0, named=True)
    template = "The cost is unknown; in layer {layer} expert {number} has {ratio} times the mean."
    if item == "device":
        template = (
            "The cost is unknown; in layer {layer} device {number} has {ratio} times the mean."
        )
    if most["layer"] is None:
        template = (
            "The cost is unknown; over all layers device {number} has {ratio} times the mean."
        )
    return Message(template, layer=most["layer"], number=most[item],
                   ratio=f"{most['over_mean']:.2f}")  # fmt: skip


def costs(
    con: duckdb.DuckDBPyConnection, scope: Scope
) -> tuple[pl.DataFrame, pl.DataFrame, tuple[str, ...]]:
    """Rows of `npuscope experts --by cost`, those of them that means are over, and notes, on a
    connection compared across ranks."""
    tables = loads(con, scope).tables
    rows, notes = cost_rows(con, tables, scope)
    return rows, without_warm_up(con, rows), tuple(notes)


def plans(
    con: duckdb.DuckDBPyConnection, scope: Scope, *, path: str,
    devices: int, nodes: int, slots: int | None,
) -> Plans:  # fmt: skip
    """Plans for the capture's load, as `npuscope experts plan` makes them; `path` is of the store.

    Raises UsageError, TraceNotFound where some ranks' counts are missing."""
    tables = expert_rows(con, scope.job)
    if tables.load.is_empty():
        raise UsageError(
            Message("the load of single experts is not recorded: only that of devices, if any")
        )
    require_all_ranks(tables, (con, Path(path)))
    tokens, links = plan_costs(con, tables, scope)
    plans = plan_frames.plans(tables, Wish(devices, nodes, slots), tokens, links)
    frames = [_devices(one) for one in plans]
    return Plans(
        plan_frames.plan_rows(plans), pl.concat(frames), tuple(plan_frames.plan_notes(plans))
    )


def _devices(one: plan_frames.ExpertPlan) -> pl.DataFrame:
    """Tokens of each layer and device by the places before and after."""
    expert_plan = one.plan
    each: dict[str, Any] = {}
    for name, placement in (
        ("before_tokens", expert_plan.before),
        ("after_tokens", expert_plan.placement),
    ):
        each[name] = device_tokens(placement, expert_plan.load).ravel()
    layers, devices = expert_plan.placement.shape[:2]
    return pl.DataFrame(
        {
            "phase": pl.Series([one.phase] * layers * devices, dtype=pl.String),
            "layer": np.repeat(np.asarray(expert_plan.layers, dtype=np.int64), devices),
            "device": np.tile(np.arange(devices), layers),
            **each,
        }
    )


def told_devices(tables: ExpertTables) -> int:
    """Devices of an expert-parallel group, as the ranks tell them; 1 where they do not."""
    sizes = tables.ranks["ep_size"].drop_nulls().unique()
    return int(sizes[0]) if len(sizes) == 1 else 1
