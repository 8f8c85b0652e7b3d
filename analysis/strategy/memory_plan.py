"""The cheapest set of recompute and swap decisions that fits a budget, stage by stage.

Each choice applies to whole layers: how many of a stage's layers compute a kind of activation again
in backward, or move it to the host and back. That is an integer program: least time, so that at
least the bytes that are missing are saved.
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


@dataclass(frozen=True, slots=True)
class Choice:
    """What can be done to each of `layers` layers: `held` names the activations it is about, of
    which one choice for a layer is enough."""

    kind: str
    action: str
    held: str
    layers: int
    saved_bytes: float
    lost_s: float


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
    lost = np.array([choice.lost_s for choice in choices])
    scale = float(lost.max()) or 1.0
    found = milp(
        lost / scale,
        integrality=np.ones(len(choices), dtype=np.int64),
        bounds=Bounds(0, [choice.layers for choice in choices]),
        constraints=[
            LinearConstraint(saved[None], lb=1.0),
            LinearConstraint(together, ub=np.array(most, dtype=float)),
        ],
        options={"mip_rel_gap": 0.0},
    )
    if found.x is None:
        return None
    return tuple(round(layers) for layers in found.x)


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
            moved_s = _SWAP_WAYS * float(kept_bytes) / constants["host_bytes_per_s"]
            beside_s = 3.0 * sum(float(each) for each in forward)
            lost_s = max(0.05 * moved_s, moved_s - beside_s) * micro_batches
            found.append(Choice(held, "swap", held, layers, float(kept_bytes) * flight, lost_s))
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
        used = [(choice, count) for choice, count in zip(choices, layers, strict=True) if count]
        left = peak - sum(choice.saved_bytes * count for choice, count in used)
        rows += [
            base | {
                "kind": choice.kind, "action": choice.action, "layers": count,
                "saved_bytes": int(choice.saved_bytes * count),
                "lost_ns": int(choice.lost_s * count * 1e9), "peak_bytes": int(left),
            }
            for choice, count in used
        ]  # fmt: skip
    return pl.DataFrame(rows, schema={
        "stage": pl.Int64, "kind": pl.String, "action": pl.String, "layers": pl.Int64,
        "saved_bytes": pl.Int64, "lost_ns": pl.Int64, "peak_bytes": pl.Int64,
        "budget_bytes": pl.Int64,
    })  # fmt: skip
