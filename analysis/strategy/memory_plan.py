"""The cheapest set of recompute and swap decisions that fits a budget, stage by stage.

Each choice applies to whole layers: how many of a stage's layers compute a kind of activation again
in backward, or move it to the host and back. That is an integer program: least time, so that at
least the bytes that are missing are saved. A layer's own work hides what it moves once: one that
moves both of its halves loses more than two that move one each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from scipy.optimize import Bounds, LinearConstraint, milp

from .constants import Constants, default_constants
from .cost import layer_forward
from .job import Job, computing_layers
from .layers import BF16_BYTES
from .memory import kept_activations, live_chunks, stage_memory

_SWAP_WAYS = 2  # out and back
_NEVER_HIDDEN_RATIO = 0.05  # of what a swap moves


@dataclass(frozen=True, slots=True)
class Choice:
    """What can be done to each of `layers` layers: `held` names the activations it is about, of
    which one choice for a layer is enough. Of a swap, what it moves and what of that the `layer`'s
    work may hide."""

    kind: str
    action: str
    held: str
    layers: int
    saved_bytes: float
    lost_s: float
    layer: str = ""
    moved_s: float = 0.0
    hidden_s: float = 0.0


def swap_lost_s(moved_s: float, hidden_s: float) -> float:
    """What a layer's own work does not hide of bytes to the host and back; never less than a
    twentieth of them."""
    return max(_NEVER_HIDDEN_RATIO * moved_s, moved_s - hidden_s)


def _both_swapped(choices: Sequence[Choice]) -> list[tuple[int, int, float]]:
    """Pairs of swaps of one kind of layer, with what a layer with both loses beyond either."""
    swaps = [(at, one) for at, one in enumerate(choices) if one.action == "swap" and one.layer]
    return [
        (at, other_at, swap_lost_s(one.moved_s + other.moved_s, one.hidden_s)
         - one.lost_s - other.lost_s)
        for place, (at, one) in enumerate(swaps)
        for other_at, other in swaps[place + 1 :]
        if one.layer == other.layer
    ]  # fmt: skip


def lost_s(choices: Sequence[Choice], layers: Sequence[int]) -> list[float]:
    """What each choice loses on so many layers; where fewer layers are there than swaps, what is
    lost by both in one stands with the second."""
    lost = [choice.lost_s * count for choice, count in zip(choices, layers, strict=True)]
    for at, other, more_s in _both_swapped(choices):
        lost[other] += more_s * max(0, layers[at] + layers[other] - choices[at].layers)
    return lost


def cheapest(choices: Sequence[Choice], needed_bytes: float) -> tuple[int, ...] | None:
    """Layers of each choice that together save at least `needed_bytes` in the least time; None
    where all together do not."""
    if needed_bytes <= 0:
        return (0,) * len(choices)
    if not choices:
        return None
    helds = sorted({choice.held for choice in choices})
    saved = np.array([choice.saved_bytes for choice in choices]) / needed_bytes
    together = np.array([[float(choice.held == held) for choice in choices] for held in helds])
    most = [max(choice.layers for choice in choices if choice.held == held) for held in helds]
    # Of each pair of swaps a variable more: the layers that have both, no fewer than there must be.
    pairs = _both_swapped(choices)
    beside = np.zeros((len(pairs), len(choices) + len(pairs)))
    for row, (at, other, _) in enumerate(pairs):
        beside[row, [at, other, len(choices) + row]] = 1.0, 1.0, -1.0
    wide = ((0, 0), (0, len(pairs)))
    lost = np.array([*(choice.lost_s for choice in choices), *(more_s for _, _, more_s in pairs)])
    scale = float(lost.max()) or 1.0
    counts = [choice.layers for choice in choices]
    found = milp(
        lost / scale,
        integrality=np.ones(len(lost), dtype=np.int64),
        bounds=Bounds(0, [*counts, *(counts[at] for at, _, _ in pairs)]),
        constraints=[
            LinearConstraint(np.pad(saved[None], wide), lb=1.0),
            LinearConstraint(np.pad(together, wide), ub=np.array(most, dtype=float)),
            *([LinearConstraint(beside, ub=[counts[at] for at, _, _ in pairs])] if pairs else ()),
        ],
        options={"mip_rel_gap": 0.0},
    )
    if found.x is None:
        return None
    return tuple(round(layers) for layers in found.x[: len(choices)])


def choices_of_stage(job: Job, stage: int, constants: Constants) -> list[Choice]:
    """What can be done on a stage: recompute or swap of attention and of the feed-forward network,
    for its dense layers and for those with experts."""
    counts = [computing_layers(job.model, chunk) for chunk in job.stages[stage]]
    flight = float(live_chunks(job, stage)) / max(1, len(job.stages[stage]))
    micro_batches = float(job.micro_batches)
    split = float(job.tp) if job.sequence_parallel else 1.0
    hidden = float(job.tokens) * job.model.hidden_size * BF16_BYTES / split
    found = []
    for mixed, name in ((False, "dense"), (True, "experts")):
        layers = sum(count[int(mixed)] for count in counts)
        if not layers:
            continue
        kept = kept_activations(job, mixed)
        forward = layer_forward(job, constants, mixed)
        for part, kept_bytes, seconds in zip(("attention", "ffn"), kept, forward, strict=True):
            held = f"{name} {part}"
            # One half of what goes in stays in any case: the layer's input.
            saved = max(0.0, float(kept_bytes) - hidden / 2) * flight
            found.append(
                Choice(held, "recompute", held, layers, saved, float(seconds) * micro_batches)
            )
            moved_s = _SWAP_WAYS * float(kept_bytes) / constants["host_bytes_per_s"] * micro_batches
            hidden_s = 3.0 * sum(float(each) for each in forward) * micro_batches
            found.append(
                Choice(held, "swap", held, layers, float(kept_bytes) * flight,
                       swap_lost_s(moved_s, hidden_s), name, moved_s, hidden_s)
            )  # fmt: skip
    return found


# metric: memory_plan
# What is the least to recompute or swap so that a job fits?
#
# Of each stage whose peak is above the budget: how many layers compute activations of a kind again
# in backward, or swap them to the host, for the least time. Kinds are attention with its norms and
# the feed-forward network.
#
# title: Memory plan
# meaning: The cheapest recompute and swap by layer kind that fits a budget, stage by stage.
# command: memory-plan
#
#   stage         bigint   pipeline stage
#   kind          varchar  activations it is about; NULL: nothing fits, or nothing is needed
#   action        varchar  recompute, swap, none (it fits as it is) or impossible
#   layers        bigint   layers of the stage that do so
#   saved_bytes   bigint   of the peak
#   lost_ns       bigint   of a step, where the stage is the slowest
#   peak_bytes    bigint   peak of the stage with all of its plan
#   budget_bytes  bigint   what the peak may be
def memory_plan(job: Job, budget_bytes: float, constants: Constants | None = None) -> pl.DataFrame:
    """The rows of the metric, in the order of stages."""
    chosen = constants or default_constants()
    rows: list[dict[str, object]] = []
    for stage, memory in enumerate(stage_memory(job, chosen)):
        peak = float(memory.peak_bytes)
        choices = choices_of_stage(job, stage, chosen)
        layers = cheapest(choices, peak - budget_bytes)
        base: dict[str, object] = {"stage": stage, "budget_bytes": int(budget_bytes)}
        if layers is None or not any(layers):
            action = "impossible" if layers is None else "none"
            rows.append(base | {"kind": None, "action": action, "layers": 0, "saved_bytes": 0,
                                "lost_ns": 0, "peak_bytes": int(peak)})  # fmt: skip
            continue
        lost = lost_s(choices, layers)
        used = [one for one in zip(choices, layers, lost, strict=True) if one[1]]
        left = peak - sum(choice.saved_bytes * count for choice, count, _ in used)
        rows += [
            base | {
                "kind": choice.kind, "action": choice.action, "layers": count,
                "saved_bytes": int(choice.saved_bytes * count),
                "lost_ns": int(of_choice_s * 1e9), "peak_bytes": int(left),
            }
            for choice, count, of_choice_s in used
        ]  # fmt: skip
    return pl.DataFrame(rows, schema={
        "stage": pl.Int64, "kind": pl.String, "action": pl.String, "layers": pl.Int64,
        "saved_bytes": pl.Int64, "lost_ns": pl.Int64, "peak_bytes": pl.Int64,
        "budget_bytes": pl.Int64,
    })  # fmt: skip
