"""What to know beside the cost of imbalance: its sum by step, how sure, and who waited for it."""

from __future__ import annotations

from typing import Any

import polars as pl

from ..load.load_notes import told_by
from .cost import step_cost
from .exchanges import WHOLE
from .token_times import CAPTURE

# Passes that are further from whole numbers, as a share, say that layers or ranks are missing.
_PASSES_NEAR = 0.05
_LEAST_TIMED_RATIO = 0.9
_LEAST_HIDDEN_RATIO = 0.01
_SURE_RATIO = 0.05  # half of the 95 % interval, by the cost
_NINETY_FIVE = 1.96  # standard errors
_ALIKE = (0.8, 1.25)  # predicted by measured, where nothing needs to be explained


def cost_notes(costs: pl.DataFrame, layers: pl.DataFrame) -> list[str]:
    """Sentences on `cost.token_cost` and `cost.imbalance_cost`."""
    if costs.is_empty() or costs["ns_per_token"].null_count() == costs.height:
        unknown = (
            "time per token is unknown: no grouped matmul with shapes in the steps of the load,"
            " or the token counts differ too little compared with the noise"
        )
        if costs.is_empty():
            return [unknown]
    else:
        unknown = ""
    told = [unknown] if unknown else []
    steps = step_cost(layers)
    worst = (
        steps.filter(pl.col("excess_ns").is_not_null())
        .sort("excess_ns", descending=True)
        .unique((*CAPTURE, "step", "phase"), keep="first", maintain_order=True)
    )
    found: dict[tuple[str, str], list[str]] = {
        (run, capture): [] for run, capture in costs.select(CAPTURE).rows()
    }
    for (run, capture), some in worst.group_by(CAPTURE, maintain_order=True):
        found[str(run), str(capture)] += (*_summed(some), *_reconciled(some))
    for row in costs.iter_rows(named=True):
        found[row["run"], row["capture"]] += _of_capture(row)
    told += told_by(found)
    if layers["stage"].is_null().any():
        told.append(
            "the pipeline stage of each layer is unknown: layers are assumed to run one after"
            " another"
        )
    return told


def _summed(steps: pl.DataFrame) -> list[str]:
    """Sum of the costliest stage, mean over steps, with its error."""
    names = ("excess_ns", "excess_error_ns", "excess_share_ratio", "grouped_excess_ns",
             "activation_excess_ns", "exchange_exposed_ns", "exchange_excess_ns")  # fmt: skip
    means = steps.select(pl.col(names).mean()).row(0)
    excess, error, share, grouped, between, exchanged, whole = means
    parts = [
        f"{what} {one / 1e6:,.3f} ms"
        for what, one in (
            ("grouped matmuls", grouped),
            ("activations", between),
            ("all-to-alls", exchanged),
        )
        if one is not None
    ]
    of_step = "" if share is None else f", {share * 100:.1f} % of it"
    told = [
        f"load imbalance between devices costs {excess / 1e6:,.3f} ms of a step{of_step}"
        f" ({', '.join(parts)}; costliest pipeline stage, mean over steps; standard error"
        f" {error / 1e6:,.3f} ms)"
    ]
    if exchanged is None:
        told.append(
            "the cost of the all-to-alls is unknown: too few are recorded by all members of a"
            " group, or the byte counts differ too little compared with the noise"
        )
    elif whole - exchanged > _LEAST_HIDDEN_RATIO * whole:
        told.append(
            f"computation overlaps {(whole - exchanged) / 1e6:,.3f} ms of the {whole / 1e6:,.3f}"
            " ms by which the imbalance lengthens all-to-alls; the step loses at most that cost,"
            " less if the most loaded device changes from layer to layer"
        )
    if excess > 0 and _NINETY_FIVE * error > _SURE_RATIO * excess:
        low, high = (max(0.0, excess + sign * _NINETY_FIVE * error) / 1e6 for sign in (-1, 1))
        told.append(
            f"this capture bounds that cost only to {low:,.3f} to {high:,.3f} ms (95 %): kernel"
            " durations vary as much by themselves as with their token counts; capture more steps"
            " to narrow it"
        )
    return told


def _reconciled(steps: pl.DataFrame) -> list[str]:
    """Predicted excess beside what the other ranks waited."""
    known = steps.filter(
        pl.col("ep_wait_min_duration_ns").is_not_null(), pl.col("grouped_excess_ns").is_not_null()
    )
    if known.is_empty():
        return []
    between = pl.col("activation_excess_ns")
    grouped, is_with, least, last = known.select(
        (pl.col("grouped_excess_ns") + between.fill_null(0)).mean(),
        between.is_not_null().any().alias("is_with"),
        pl.col("ep_wait_min_duration_ns").mean(),
        pl.col("ep_wait_last_arrival_ns").mean(),
    ).row(0)
    by_last = "" if last is None else f", {last / 1e6:,.3f} ms by the last-arrival estimate"
    ratio = grouped / least if least else None
    told = (
        f"ranks of that stage waited {least / 1e6:,.3f} ms of a step for others in their"
        f" expert-parallel all-to-alls, by the shortest-duration estimate{by_last}, mean over"
        f" ranks; imbalanced grouped matmuls{' and activations' if is_with else ''} explain"
        f" {grouped / 1e6:,.3f} ms"
    )
    if ratio is None:
        return [told]
    told += f", {ratio:.2f} of it"
    if ratio < _ALIKE[0]:
        told += (
            ": the rest comes from token permutation, from a most loaded device that changes"
            " between micro-batches, and from ranks that are late for other reasons (`npuscope"
            " ranks`)"
        )
    elif ratio > _ALIKE[1]:
        told += (
            ": the wait is shorter if the most loaded device starts early or if other work"
            " overlaps the all-to-all"
        )
    return [told]


def _of_capture(row: dict[str, Any]) -> list[str]:
    told = []
    if row["basis"] == WHOLE:
        told.append(
            "the byte counts of the all-to-alls differ too little to fit a cost per byte: their"
            " cost is estimated from total time over total bytes, minus 5 %, and is a lower bound"
        )
    if row["timed_ratio"] is not None and row["timed_ratio"] < _LEAST_TIMED_RATIO:
        told.append(
            "grouped matmuls without a fitted time per token have"
            f" {(1 - row['timed_ratio']) * 100:.0f} % of the tokens: the true cost is higher"
        )
    if row["off_ratio"] is not None and row["off_ratio"] > _PASSES_NEAR:
        told.append(
            f"a routed token passes {row['passes']:.2f} grouped matmuls, which is not a whole"
            " number: layers or ranks are missing, or tokens were counted twice"
        )
    return told
