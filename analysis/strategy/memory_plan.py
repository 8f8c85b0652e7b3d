"""The cheapest set of recompute and swap decisions that fits a budget, stage by stage.

Each choice applies to whole layers: how many of a stage's layers compute a kind of activation again
in backward, or move it to the host and back. That is an integer program: least time, so that at
least the bytes that are missing are saved. A layer's own work hides what it moves once: one that
moves both of its halves loses more than two that move one each.

What is computed again or moved comes back in backward, beside what its micro-batch still holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from scipy.optimize import Bounds, LinearConstraint, milp

from .constants import Constants, default_constants
from .cost import layer_forward
from .job import Job
from .memory import (
    StageMemory,
    kept_activations,
    layer_input_bytes,
    layers_with_mtp,
    live_chunks,
    stage_memory,
)

_KINDS = ("dense", "experts")
_SWAP_WAYS = 2  # out and back
_NEVER_HIDDEN_RATIO = 0.05  # of what a swap moves


@dataclass(frozen=True, slots=True)
class Choice:
    """What can be done to each of `layers` layers: `names` names the activations it is about, to
    each of which a layer does one thing at most. `back_bytes`: of one micro-batch and layer, what
    backward needs of it again. Of a swap, what it moves and what of that the `layer`'s work may
    hide."""

    kind: str
    action: str
    names: tuple[str, ...]
    layers: int
    saved_bytes: float
    lost_s: float
    layer: str = ""
    moved_s: float = 0.0
    hidden_s: float = 0.0
    back_bytes: float = 0.0


def most_back_bytes(parts: Iterable[tuple[float, float]]) -> float:
    """What comes back at most beyond what has been released: of each part in the order of backward
    what it needs again, and what it releases that was held all the time."""
    most = released = 0.0
    for back, held in parts:
        most = max(most, back - released)
        released += held
    return most


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
    helds = sorted({held for choice in choices for held in choice.names})
    saved = np.array([choice.saved_bytes for choice in choices]) / needed_bytes
    together = np.array([[float(held in choice.names) for choice in choices] for held in helds])
    most = [max(choice.layers for choice in choices if held in choice.names) for held in helds]
    # Of each pair of swaps a variable more: the layers that have both, no fewer than there must be.
    pairs = _both_swapped(choices)
    beside = np.zeros((len(pairs), len(choices) + len(pairs)))
    for row, (at, other, _) in enumerate(pairs):
        beside[row, [at, other, len(choices) + row]] = 1.0, 1.0, -1.0
    wide = ((0, 0), (0, len(pairs)))
    lost = np.array([*(choice.lost_s for choice in choices), *(more_s for _, _, more_s in pairs)])
    scale = float(lost.max()) or 1.0
    counts = [choice.layers for choice in choices]
    solution = milp(
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
    if solution.x is None:
        return None
    return tuple(round(layers) for layers in solution.x[: len(choices)])


def choices_of_stage(job: Job, stage: int, constants: Constants) -> list[Choice]:
    """What can be done on a stage, for its dense layers and for those with experts: recompute or
    swap of attention and of the feed-forward network, or recompute of whole layers."""
    flight = float(live_chunks(job, stage)) / max(1, len(job.stages[stage]))
    micro_batches = float(job.micro_batches)
    entry = float(layer_input_bytes(job))
    choices = []
    for mixed, layers in enumerate(layers_with_mtp(job, stage)):
        if not layers:
            continue
        name = _KINDS[mixed]
        each_bytes = [float(each) for each in kept_activations(job, bool(mixed))]
        forward = [float(each) for each in layer_forward(job, constants, bool(mixed))]
        helds = [f"{name} {part}" for part in ("attention", "ffn")]
        # Of attention what goes in stays, and what the other half begins with, which it keeps.
        for held, kept_bytes, entries, seconds in zip(
            helds, each_bytes, (2, 0), forward, strict=True
        ):
            back = max(0.0, kept_bytes - entries * entry)
            choices.append(
                Choice(held, "recompute", (held,), layers, back * flight, seconds * micro_batches,
                       back_bytes=back)
            )  # fmt: skip
            moved_s = _SWAP_WAYS * kept_bytes / constants["host_bytes_per_s"] * micro_batches
            hidden_s = 3.0 * sum(forward) * micro_batches
            choices.append(
                Choice(held, "swap", (held,), layers, kept_bytes * flight,
                       swap_lost_s(moved_s, hidden_s), name, moved_s, hidden_s, kept_bytes)
            )  # fmt: skip
        back = max(0.0, sum(each_bytes) - entry)
        choices.append(
            Choice(f"{name} layer", "recompute", (*helds,), layers, back * flight,
                   sum(forward) * micro_batches, back_bytes=back)
        )  # fmt: skip
    return choices


def _backward(
    job: Job, choices: Sequence[Choice], counts: Sequence[int], *, is_mixed: bool
) -> Iterator[tuple[float, float]]:
    """Parts of a stage's layers of one kind, the last first: bytes that come back, and bytes that
    were held all the time. What is decided is of the first layers, whole ones before halves."""
    each_bytes = [float(each) for each in kept_activations(job, is_mixed)]
    name = _KINDS[is_mixed]
    helds = [f"{name} attention", f"{name} ffn"]
    mine = [(one, count) for one, count in zip(choices, counts, strict=True)
            if one.names[0] in helds]  # fmt: skip
    whole = next(one for one, _ in mine if len(one.names) > 1)
    done: dict[str, list[Choice]] = {}
    for held in helds:
        of_half = sorted((pair for pair in mine if held in pair[0].names),
                         key=lambda pair: -len(pair[0].names))  # fmt: skip
        done[held] = [one for one, count in of_half for _ in range(count)]
    for layer in reversed(range(whole.layers)):
        if layer < len(done[helds[0]]) and done[helds[0]][layer] is whole:
            yield whole.back_bytes, sum(each_bytes) - whole.back_bytes
            continue
        for held, kept_bytes in reversed([*zip(helds, each_bytes, strict=True)]):
            there = done[held]
            back = there[layer].back_bytes if layer < len(there) else 0.0
            yield back, kept_bytes - back


def peak_bytes(
    job: Job, memory: StageMemory, choices: Sequence[Choice], counts: Sequence[int]
) -> float:
    """The peak of a stage with so many layers of each choice."""
    held = {one.names[0].split()[0] for one in choices}
    back = max(
        (most_back_bytes(_backward(job, choices, counts, is_mixed=mixed))
         for mixed in (False, True) if _KINDS[mixed] in held), default=0.0,
    )  # fmt: skip
    saved = sum(one.saved_bytes * count for one, count in zip(choices, counts, strict=True))
    more = _beside_logits(memory, back)
    return max(float(memory.peak_bytes) - saved + more, float(memory.allocated_bytes))


def _beside_logits(memory: StageMemory, back_bytes: float) -> float:
    """What comes back, as far as it adds to the peak: logits have gone by then."""
    alone, logits = float(memory.workspace), float(memory.logits)
    return max(alone + back_bytes, logits) - max(alone, logits)


def cheapest_layers(
    job: Job, memory: StageMemory, choices: Sequence[Choice], budget_bytes: float
) -> tuple[int, ...] | None:
    """Layers of each choice with which a stage fits in the least time; None where none do.

    What comes back depends on the plan. So room is made for no bytes, where the last layer is left
    alone, or for those of one choice or another, without those that need more."""
    missing = float(memory.peak_bytes) - budget_bytes
    if missing <= 0:
        return (0,) * len(choices)
    selections = []
    for back in sorted({0.0, *(one.back_bytes for one in choices)}):
        trial = [
            one if one.back_bytes <= back else replace(one, layers=0 if back else one.layers - 1)
            for one in choices
        ]
        layers = cheapest(trial, missing + _beside_logits(memory, back))
        if layers and peak_bytes(job, memory, choices, layers) <= budget_bytes:
            selections.append((sum(lost_s(choices, layers)), layers))
    return min(selections)[1] if selections else None


# metric: memory_plan
# What is the least to recompute or swap so that a job fits?
#
# Of each stage whose peak is above the budget: how many layers compute activations of a kind again
# in backward, or swap them to the host, for the least time. Kinds are attention with its norms, the
# feed-forward network, and both as one layer. What comes back in backward is part of the peak.
#
# title: Memory plan
# meaning: The cheapest recompute and swap by layer kind that fits a budget, stage by stage.
# command: memory-plan
#
#   stage         bigint   pipeline stage
#   kind          varchar  activations it is about; NULL: nothing fits, or nothing is needed
#   action        varchar  recompute, swap, none (it fits as it is) or impossible
#   layers        bigint   layers of the stage that do so
#   saved_bytes   bigint   of what is held for backward
#   lost_ns       bigint   of a step, where the stage is the slowest
#   peak_bytes    bigint   peak of the stage with all of its plan
#   budget_bytes  bigint   what the peak may be
def memory_plan(job: Job, budget_bytes: float, constants: Constants | None = None) -> pl.DataFrame:
    """The rows of the metric, in the order of stages."""
    values = constants or default_constants()
    rows: list[dict[str, object]] = []
    for stage, memory in enumerate(stage_memory(job, values)):
        peak = float(memory.peak_bytes)
        choices = choices_of_stage(job, stage, values)
        layers = cheapest_layers(job, memory, choices, budget_bytes)
        base: dict[str, object] = {"stage": stage, "budget_bytes": int(budget_bytes)}
        if layers is None or not any(layers):
            action = "impossible" if layers is None else "none"
            rows.append(base | {"kind": None, "action": action, "layers": 0, "saved_bytes": 0,
                                "lost_ns": 0, "peak_bytes": int(peak)})  # fmt: skip
            continue
        lost = lost_s(choices, layers)
        used = [one for one in zip(choices, layers, lost, strict=True) if one[1]]
        left = peak_bytes(job, memory, choices, layers)
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
