"""Plans and back-tests for what a store tells: one for each run, capture and phase."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl

from npuscope.errors import UsageError
from npuscope.messages import Message

from ..load.imbalance import expert_loads
from ..load.load import ExpertTables, layer_stages, load_matrix
from .forecast import BackTest, backtest
from .placement import EMPTY, Floats, Placement
from .plan_cost import Wish as Wish
from .plan_cost import token_cost
from .plan_inputs import known_loads
from .plan_moves import Plan, plan

_KEY = ("run", "capture", "phase")
_PLANS: dict[str, type[pl.DataType]] = {
    "run": pl.String, "capture": pl.String, "phase": pl.String, "layer": pl.Int64,
    "max_over_mean_before": pl.Float64, "max_over_mean_after": pl.Float64,
    "predicted_gain_ns": pl.Float64, "moved_experts_count": pl.Int64, "migration_bytes": pl.Int64,
    "before_ns": pl.Float64, "after_ns": pl.Float64, "gain_low_ns": pl.Float64,
    "gain_high_ns": pl.Float64, "migration_ns": pl.Float64, "break_even_steps": pl.Float64,
    "trigger": pl.Boolean,
}  # fmt: skip
_TESTS: dict[str, type[pl.DataType]] = {
    "run": pl.String, "capture": pl.String, "phase": pl.String, "method": pl.String,
    "is_best": pl.Boolean, "error_ratio": pl.Float64, "low_ratio": pl.Float64,
    "median_ratio": pl.Float64, "high_ratio": pl.Float64, "tested_steps": pl.Int64,
    "origins_count": pl.Int64,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ExpertPlan:
    """A plan and what it is for; experts: the logical expert of each of the plan's numbers."""

    run: str
    capture: str
    phase: str | None
    experts: tuple[int, ...]
    plan: Plan
    notes: tuple[str, ...]

    def placement(self) -> Placement:
        """The placement by logical experts."""
        named: Placement = np.append(np.array(self.experts, dtype=np.int64), EMPTY)[
            self.plan.placement
        ]
        return named


@dataclass(frozen=True, slots=True)
class _LoadMatrix:
    """Loads of one run, capture and phase, without gaps."""

    key: tuple[str, str, str | None]
    loads: Floats
    layers: tuple[int, ...]
    experts: tuple[int, ...]
    notes: tuple[str, ...]


def plans(
    tables: ExpertTables,
    wish: Wish,
    costs: pl.DataFrame | None = None,
    links: pl.DataFrame | None = None,
) -> list[ExpertPlan]:
    """A plan for each run, capture and phase; costs are of `cost.token_cost`, links of
    `exchanges.links`.

    Tokens are those of one expert-parallel group of `wish.devices`: the job's, by the groups that
    hold a layer. Raises UsageError for what cannot be planned.
    """
    expert_plans = []
    for one in _known_loads(tables):
        run, capture, phase = one.key
        notes = list(one.notes)
        groups = _groups_count(tables.ranks, run, capture, wish.devices)
        if groups > 1:
            notes.append(
                Message(
                    "{groups} expert-parallel groups of {devices} hold each layer: the plan is made"
                    " for their mean load and applies to all of them",
                    groups=f"{groups:g}",
                    devices=wish.devices,
                )
            )
        cost, words = token_cost(costs, links, run, capture, wish)
        notes += words
        plan_here = plan(
            one.loads / groups,
            devices=wish.devices, nodes=wish.nodes, slots=wish.slots, groups=wish.groups,
            layers=one.layers,
            stages=_stages(tables, run, capture, one.layers),
            expert_bytes=wish.expert_bytes, memory_bytes=wish.memory_bytes,
            cost=cost,
            current=_current(tables.placement, one, wish),
            horizon=wish.horizon, max_replicas=wish.max_replicas, max_moved=wish.max_moved,
        )  # fmt: skip
        expert_plans.append(
            ExpertPlan(run, capture, phase, one.experts, plan_here, (*notes, *plan_here.notes))
        )
    return expert_plans


# metric: experts_plan
# Would moving experts pay?
#
# A row per layer, then the total, whose layer is NULL: max / mean are means over layers, the gain
# is that of a step, of the slowest pipeline stage.
#
# title: Plans for experts
# meaning: What moving experts would gain in each layer, what the move takes, when it is paid.
# by: run, capture, phase, layer
# command: experts plan
# table: experts_plan
# figure: plan, plan_gain
#
#   max_over_mean_before  double   of devices, where experts are
#   max_over_mean_after   double   of devices, where they would be
#   predicted_gain_ns     double   shorter step; NULL without a cost
#   moved_experts_count   bigint   experts that move
#   migration_bytes       bigint   bytes of their parameters
#   before_ns             double   total only: time of experts in a step as it is
#   after_ns              double   total only: as planned
#   gain_low_ns           double   total only: the gain where the forecast errs
#   gain_high_ns          double   total only: likewise, at best
#   migration_ns          double   total only: what the move takes
#   break_even_steps      double   total only: steps until it is paid
#   trigger               boolean  total only: whether it pays within the horizon
def plan_rows(plans: list[ExpertPlan]) -> pl.DataFrame:
    """Rows of each plan, then its total (`plan_moves.Total`)."""
    rows: list[dict[str, Any]] = []
    for one in plans:
        place = dict(zip(_KEY, (one.run, one.capture, one.phase), strict=True))
        total, layers = one.plan.total, one.plan.rows
        rows += [place | row for row in layers.iter_rows(named=True)]
        rows.append(
            place
            | {
                name: layers[name].mean()
                for name in ("max_over_mean_before", "max_over_mean_after")
            }
            | asdict(total)
            | {"predicted_gain_ns": total.gain_ns}
        )
    for row in rows:
        row.pop("gain_ns", None)
    return pl.DataFrame(rows, schema=_PLANS)


def plan_notes(plans: list[ExpertPlan]) -> list[str]:
    """Each plan's forecast and its error, what is gained and when it is paid, and its notes."""
    notes: list[str] = []
    for one in plans:
        where = f"{one.capture} {one.phase or ''}".strip() if len(plans) > 1 else ""
        mine: list[str] = []
        plan, total = one.plan, one.plan.total
        if plan.error_ratio is not None and plan.back_test is not None:
            mine.append(
                Message(
                    "forecast by {method}: mean error of an expert's share {error} % of the mean"
                    " share, for up to {steps} steps ahead",
                    method=plan.method,
                    error=f"{plan.error_ratio * 100:.1f}",
                    steps=plan.back_test.leads[-1],
                )
            )
        if total.trigger is not None:
            paid = total.break_even_steps
            says = "move now" if total.trigger else "keep the current placement"
            after = (
                Message("nothing to gain")
                if paid is None
                else Message("pays off after {steps} steps", steps=f"{paid:,.1f}")
            )
            mine.append(
                Message(
                    "{says}: {after}, horizon {steps}",
                    says=Message(says),
                    after=after,
                    steps=plan.horizon,
                )
            )
        notes += [_with_place(where, note) for note in (*mine, *one.notes)]
    return notes


def _with_place(place: str, note: str) -> str:
    return Message("{place}: {note}", place=place, note=note) if place else note


# metric: experts_backtest
# How well can the load of the next steps be forecast?
#
# Least error first; quantiles are of what was missed, in mean proportions.
#
# title: Forecasts of load, tested
# meaning: How far each method of forecasting expert load was off on the recorded steps.
# by: run, capture, phase
# command: experts backtest
#
#   method         varchar  method of forecasting
#   is_best        boolean  whether it has the least error
#   error_ratio    double   mean error of an expert's share over the mean share
#   low_ratio      double   5 % of what was missed
#   median_ratio   double   50 % of it
#   high_ratio     double   95 % of it
#   tested_steps   bigint   farthest steps ahead that were tested
#   origins_count  bigint   steps that forecasts were made at
def backtest_rows(tables: ExpertTables, horizon: int) -> tuple[pl.DataFrame, list[str]]:
    """A row per run, capture, phase and method, least error first, and notes.

    error_ratio: see `forecast`. Raises UsageError where none can be tested.
    """
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    loads = list(_known_loads(tables))
    refused: UsageError | None = None
    for one in loads:
        place = " ".join(filter(None, one.key)) if len(loads) > 1 else ""
        remarks = list(one.notes)
        try:
            tested = backtest(one.loads, horizon)
        except UsageError as error:  # of too few steps: the others have their own
            refused = error
            notes.append(_with_place(place, error.message))
            continue
        if tested.leads[-1] < horizon:
            remarks.append(
                Message(
                    "tested up to {steps} steps ahead: steps allow no more", steps=tested.leads[-1]
                )
            )
        notes += [_with_place(place, note) for note in remarks]
        by_error = sorted(tested.errors, key=lambda name: tested.errors[name])
        rows += [_tested_row(one, tested, method) for method in by_error]
    if refused is not None and not rows:
        raise refused
    return pl.DataFrame(rows, schema=_TESTS), notes


def _tested_row(one: _LoadMatrix, tested: BackTest, method: str) -> dict[str, Any]:
    low, median, high = tested.quantiles(method)
    return dict(zip(_KEY, one.key, strict=True)) | {
        "method": method, "is_best": method == tested.best, "error_ratio": tested.errors[method],
        "low_ratio": low, "median_ratio": median, "high_ratio": high,
        "tested_steps": tested.leads[-1], "origins_count": tested.origins_count,
    }  # fmt: skip


def _known_loads(tables: ExpertTables) -> Iterator[_LoadMatrix]:
    loads = expert_loads(tables.load)
    if loads.is_empty():
        raise UsageError(
            Message("the load of single experts is not recorded: only that of devices, if any")
        )
    for key, some in loads.group_by(_KEY, maintain_order=True):
        matrix = load_matrix(some)
        tokens, rows, notes = known_loads(matrix.tokens)
        count, last = len(matrix.experts), matrix.experts[-1]
        if last + 1 > count:
            notes.append(
                Message(
                    "{count} experts have counts, numbered up to {last}: counts of the others are"
                    " unknown",
                    count=count,
                    last=last,
                )
            )
        steps = [step for step in matrix.steps if step is not None]
        every = float(np.median(np.diff(steps))) if len(steps) > 1 else 1.0
        if every > 1:
            notes.append(
                Message(
                    "only every {every}th step is recorded: horizons are counted in recorded steps",
                    every=f"{every:g}",
                )
            )
        run, capture, phase = (str(key[0]), str(key[1]), None if key[2] is None else str(key[2]))
        layers = tuple(matrix.layers[row] for row in rows)
        yield _LoadMatrix(
            (run, capture, phase), tokens, layers, tuple(matrix.experts), tuple(notes)
        )


def _groups_count(ranks: pl.DataFrame, run: str, capture: str, devices: int) -> float:
    """How many groups of so many devices hold a layer: ranks by pipeline stages and devices."""
    mine = ranks.filter(pl.col("run") == run, pl.col("capture") == capture)
    if mine.is_empty() or mine["world_size"].max() is None:
        return 1.0
    world, stages = mine.select(pl.col("world_size").max(), pl.col("pp_size").max()).row(0)
    return max(1.0, float(world) / (stages or 1) / devices)


def _stages(
    tables: ExpertTables, run: str, capture: str, layers: tuple[int, ...]
) -> list[int] | None:
    """Pipeline stage of each layer; None unless each is known."""
    mine = layer_stages(tables).filter(pl.col("run") == run, pl.col("capture") == capture)
    stage_of = dict(mine.drop_nulls().select("layer", "stage").rows())
    return [stage_of[layer] for layer in layers] if stage_of.keys() >= {*layers} else None


def _current(placement: pl.DataFrame, one: _LoadMatrix, wish: Wish) -> Placement | None:
    """Where experts are now; None unless told for all layers, on devices and slots as wished: on
    others a plan starts afresh."""
    if placement.is_empty():
        return None
    mine = placement.filter(
        pl.col("run") == one.key[0],
        pl.col("capture") == one.key[1],
        pl.col("layer").is_in(one.layers),
        pl.col("expert").is_in(one.experts),
    ).unique(["layer", "device", "slot"])
    if mine["layer"].n_unique() < len(one.layers):
        return None
    used, slots = mine.select(pl.col("device").max() + 1, pl.col("slot").max() + 1).row(0)
    wished = wish.slots or -(-len(one.experts) // wish.devices)
    if used > wish.devices or (used < wish.devices and slots > wished):
        return None
    current = np.full((len(one.layers), wish.devices, slots), EMPTY, dtype=np.int64)
    layer_at = {layer: at for at, layer in enumerate(one.layers)}
    expert_at = {expert: at for at, expert in enumerate(one.experts)}
    at = mine.select(
        pl.col("layer").replace_strict(layer_at, return_dtype=pl.Int64),
        pl.col("device").cast(pl.Int64),
        pl.col("slot").cast(pl.Int64),
        pl.col("expert").replace_strict(expert_at, return_dtype=pl.Int64),
    ).to_numpy()
    current[at[:, 0], at[:, 1], at[:, 2]] = at[:, 3]
    return current
