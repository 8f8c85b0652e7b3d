"""What tokens and imbalance cost in a store or export: events to rows, for every way out.

What to know beside the cost of imbalance: its sum by step, how sure, and who waited for it.
"""

from __future__ import annotations

from typing import Any

import duckdb
import polars as pl

from npuscope.messages import Message, join

from ...flops.lengths import step_lengths
from ...means import without_forward, without_warm_up
from ...scope import ALL, Scope
from ...wording import ms
from ..load.load import ExpertTables
from ..load.load_notes import told_by
from ..load.load_rows import unseen_notes
from . import exchanges
from .activations import activation_times
from .cost import imbalance_cost, step_cost, token_cost
from .exchanges import WHOLE
from .hidden_share import exposed_ratios
from .token_times import CAPTURE, grouped_kernels


# metric: experts_cost
# What does the imbalance of each layer cost?
#
# Tokens too many on the fullest device of each layer and expert-parallel group, times what a token
# takes by fits of kernels and all-to-alls. Figures within their own noise are NULL. Steps that run
# no gradients, as of an evaluation, have no rows where others do: a token takes less in them.
#
# title: Cost of imbalance
# meaning: What each layer's imbalance takes of the step: on the fullest device, and in exchanges.
# by: run, capture, step, phase, layer
# command: experts --by cost
# table: experts_cost
# figure: cost
#
#   stage                        integer  pipeline stage of the layer
#   groups_count                 bigint   expert-parallel groups
#   device_max_over_mean         double   most tokens of a device over their mean
#   excess_tokens                double   most - mean tokens of a device
#   ns_per_token                 double   what a routed token takes in grouped matmuls
#   grouped_excess_ns            double   excess tokens x that
#   activation_excess_ns         double   what they take in activations
#   exchange_ns_per_token        double   what a routed token takes in all-to-alls
#   exchange_excess_ns           double   excess tokens x that
#   exchange_exposed_ns          double   the part that compute does not hide
#   excess_ns                    double   what the step is longer for: matmuls, activations,
#     exposed exchanges
#   excess_error_ns              double   standard error of that
#   step_ns                      bigint   length of the step
#   grouped_excess_share_ratio   double   of the step
#   exchange_excess_share_ratio  double   of the step
#   excess_share_ratio           double   of the step
#   ep_wait_min_duration_ns      double   waiting in expert-parallel groups, by the shortest
#     duration
#   ep_wait_last_arrival_ns      double   the same by the last arrival
def cost_rows(
    con: duckdb.DuckDBPyConnection, tables: ExpertTables, scope: Scope = ALL
) -> tuple[pl.DataFrame, list[str]]:
    """Rows of `cost.imbalance_cost` of steps that run gradients, with their notes.

    All-to-alls and waits need a connection that `open_across` prepared: without it their columns
    are NULL. Steps are as long as for MFU (`flops.lengths`).
    """
    moved, kernels = _of_tokens(con, scope)
    between = activation_times(con, kernels, scope)
    times = exchanges.exchange_times(moved)
    costs = token_cost(tables, kernels, moved, between, times)
    lengths = step_lengths(con, scope.all_ranks)
    hidden = exposed_ratios(moved, times, tables)
    rows = imbalance_cost(tables, costs, lengths, exchanges.waits(moved, tables), hidden)
    rows = without_forward(con, rows)
    notes = cost_notes(costs, without_warm_up(con, rows))
    return rows, notes + _length_notes(rows, lengths) + unseen_notes(tables)


def _length_notes(rows: pl.DataFrame, lengths: pl.DataFrame) -> list[str]:
    """What shares are of, as findings give them of another length."""
    if rows["excess_share_ratio"].is_null().all():
        return []
    bases = lengths["length_basis"].drop_nulls().unique().sort(descending=True)
    return [
        Message(
            "shares are of the stage's longest step ({basis}); those of findings are of computing,"
            " exposed communication and free time of a mean step",
            basis=join(map(Message, bases), ", "),
        )
    ]


def _of_tokens(con: duckdb.DuckDBPyConnection, scope: Scope) -> tuple[pl.DataFrame, pl.DataFrame]:
    """All-to-alls and grouped matmuls of steps that run gradients: in an evaluation a token passes
    a third of them."""
    return (
        without_forward(con, exchanges.exchanges(con, scope)),
        without_forward(con, grouped_kernels(con, scope)),
    )


def plan_costs(
    con: duckdb.DuckDBPyConnection, tables: ExpertTables, scope: Scope = ALL
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """What a token takes (`cost.token_cost`) and a device's link (`exchanges.links`), for plans."""
    moved, kernels = _of_tokens(con, scope.job)
    times = exchanges.exchange_times(moved)
    return token_cost(tables, kernels, moved, times=times), exchanges.links(moved, times)


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
    notes = [unknown] if unknown else []
    steps = step_cost(layers)
    worst = (
        steps.filter(pl.col("excess_ns").is_not_null())
        .sort("excess_ns", descending=True)
        .unique((*CAPTURE, "step", "phase"), keep="first", maintain_order=True)
    )
    by_capture: dict[tuple[str, str], list[str]] = {
        (run, capture): [] for run, capture in costs.select(CAPTURE).rows()
    }
    for (run, capture), some in worst.group_by(CAPTURE, maintain_order=True):
        by_capture[str(run), str(capture)] += (*_sum_note(some), *_waits_note(some))
    for row in costs.iter_rows(named=True):
        by_capture[row["run"], row["capture"]] += _of_capture(row)
    notes += told_by(by_capture)
    if layers["stage"].is_null().any():
        notes.append(
            "the pipeline stage of each layer is unknown: layers are assumed to run one after"
            " another"
        )
    return notes


def _sum_note(steps: pl.DataFrame) -> list[str]:
    """Sum of the costliest stage, mean over steps, with its error."""
    names = ("excess_ns", "excess_error_ns", "excess_share_ratio", "grouped_excess_ns",
             "activation_excess_ns", "exchange_exposed_ns", "exchange_excess_ns")  # fmt: skip
    means = steps.select(pl.col(names).mean()).row(0)
    excess, error, share, grouped, between, exchanged, whole = means
    parts = [
        Message("{what} {ms} ms", what=what, ms=ms(one))
        for what, one in (
            (Message("grouped matmuls"), grouped),
            (Message("activations"), between),
            (Message("all-to-alls"), exchanged),
        )
        if one is not None
    ]
    cost = Message("{cost} ms of a step", cost=ms(excess))
    if share is not None:
        cost = Message("{cost}, {share} of it", cost=cost, share=f"{share * 100:.1f} %")
    notes: list[str] = [
        Message(
            "load imbalance between devices costs {cost} ({parts}; costliest pipeline stage, mean"
            " over steps; standard error {error} ms)",
            cost=cost,
            parts=join(parts),
            error=ms(error),
        )
    ]
    if exchanged is None:
        notes.append(
            "the cost of the all-to-alls is unknown: too few are recorded by all members of a"
            " group, or the byte counts differ too little compared with the noise"
        )
    elif whole - exchanged > _LEAST_HIDDEN_RATIO * whole:
        notes.append(
            Message(
                "computation overlaps {hidden} ms of the {whole} ms by which the imbalance "
                "lengthens all-to-alls; the step loses at most that cost, less if the most loaded"
                " device changes from layer to layer",
                hidden=ms(whole - exchanged),
                whole=ms(whole),
            )
        )
    if excess > 0 and _NINETY_FIVE * error > _SURE_RATIO * excess:
        low, high = (max(0.0, excess + sign * _NINETY_FIVE * error) / 1e6 for sign in (-1, 1))
        notes.append(
            Message(
                "this capture bounds that cost only to {low} to {high} ms (95 %): kernel "
                "durations vary as much by themselves as with their token counts; capture more "
                "steps to narrow it",
                low=f"{low:,.3f}",
                high=f"{high:,.3f}",
            )
        )
    return notes


def _waits_note(steps: pl.DataFrame) -> list[str]:
    """Predicted excess beside what the other ranks waited."""
    waits = steps.filter(
        pl.col("ep_wait_min_duration_ns").is_not_null(), pl.col("grouped_excess_ns").is_not_null()
    )
    if waits.is_empty():
        return []
    between = pl.col("activation_excess_ns")
    grouped, is_with, least, last = waits.select(
        (pl.col("grouped_excess_ns") + between.fill_null(0)).mean(),
        between.is_not_null().any().alias("is_with"),
        pl.col("ep_wait_min_duration_ns").mean(),
        pl.col("ep_wait_last_arrival_ns").mean(),
    ).row(0)
    estimate = Message("by the shortest-duration estimate")
    if last is not None:
        by_last = "{estimate}, {last} ms by the last-arrival estimate"
        estimate = Message(by_last, estimate=estimate, last=ms(last))
    kernels = "grouped matmuls and activations" if is_with else "grouped matmuls"
    ratio = grouped / least if least else None
    note = Message(
        "ranks of that stage waited {least} ms of a step for others in their expert-parallel"
        " all-to-alls, {estimate}, mean over ranks; imbalanced {kernels} explain {grouped} ms",
        least=ms(least),
        estimate=estimate,
        kernels=Message(kernels),
        grouped=ms(grouped),
    )
    if ratio is None:
        return [note]
    note = Message("{note}, {ratio} of it", note=note, ratio=f"{ratio:.2f}")
    why = None
    if ratio < _ALIKE[0]:
        why = Message(
            "the rest comes from token permutation, from a most loaded device that changes"
            " between micro-batches, and from ranks that are late for other reasons (`npuscope"
            " ranks`)"
        )
    elif ratio > _ALIKE[1]:
        why = Message(
            "the wait is shorter if the most loaded device starts early or if other work"
            " overlaps the all-to-all"
        )
    return [note if why is None else Message("{note}: {why}", note=note, why=why)]


def _of_capture(row: dict[str, Any]) -> list[str]:
    notes: list[str] = []
    if row["basis"] == WHOLE:
        notes.append(
            "the byte counts of the all-to-alls differ too little to fit a cost per byte: their"
            " cost is estimated from total time over total bytes, minus 5 %, and is a lower bound"
        )
    if row["timed_ratio"] is not None and row["timed_ratio"] < _LEAST_TIMED_RATIO:
        notes.append(
            Message(
                "grouped matmuls without a fitted time per token have {share} of the tokens: the"
                " true cost is higher",
                share=f"{(1 - row['timed_ratio']) * 100:.0f} %",
            )
        )
    if row["off_ratio"] is not None and row["off_ratio"] > _PASSES_NEAR:
        notes.append(
            Message(
                "a routed token passes {passes} grouped matmuls, which is not a whole number: "
                "layers or ranks are missing, or tokens were counted twice",
                passes=f"{row['passes']:.2f}",
            )
        )
    return notes
