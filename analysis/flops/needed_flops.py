"""Whether kernels executed what a model is said to need: else its FLOPs are not this job's.

What all ranks of a job executed in a step is at least what its model needs there. Of a part of the
ranks only that is asked which must have run on them: layers' terms that every layer has, without
routed experts, whose load is uneven; and the head where there is one pipeline stage. Stages are
taken for equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import duckdb
import polars as pl

from npuscope.messages import Message

from .model.model import ModelFlops
from .tokens import pipeline_stages

_STEP = ("run", "capture", "step")
# A model may need so much more than was executed: tokens are dropped, steps cut at their edges.
TOLERANCE = 1.05
# The same where a part of the stages ran, and how many layers they have is not known.
_UNEVEN_TOLERANCE = 1.5
_REFUSALS = {
    "run": pl.String, "capture": pl.String, "step": pl.Int64, "is_refused": pl.Boolean,
    "is_hardware_refused": pl.Boolean,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Need:
    """FLOPs per token of the job that some ranks must execute: training, and recomputed beside."""

    train: float
    recomputed: float
    is_certain: bool


def refused_steps(
    con: duckdb.DuckDBPyConnection,
    model: ModelFlops,
    executed: pl.DataFrame,
    tokens: pl.DataFrame,
    *,
    is_counted: bool,
) -> tuple[pl.DataFrame, list[str]]:
    """(run, capture, step, is_refused, is_hardware_refused) of steps whose ranks executed less than
    the model needs, and notes with both numbers.

    executed: run, capture, step, executed_flops, unresolved_kernel_ns of each rank with kernels.
    tokens: run, capture, step, tokens_per_step, world_size. is_counted: tokens are counted from
    kernels, so layers x micro-batches are as many as ran. Where FLOPs of some kernels are unknown
    there is a note, but no refusal.
    """
    stages = pipeline_stages(con)
    done = executed.group_by(_STEP).agg(
        pl.col("executed_flops").sum(),
        pl.len().alias("ranks"),
        (pl.col("unresolved_kernel_ns") > 0).any().alias("is_partial"),
    )
    rows: list[tuple[object, ...]] = []
    reasons: dict[str, list[str]] = {}
    steps_with_tokens = (
        tokens.select(*_STEP, "tokens_per_step", "world_size")
        .drop_nulls(["tokens_per_step", "world_size"])
        .unique()
    )
    for row in steps_with_tokens.join(done, on=_STEP, nulls_equal=True).sort(_STEP).to_dicts():
        pipeline = stages.get((row["run"], row["capture"]))
        need = _need_of(model, row["ranks"], row["world_size"], pipeline)
        if need is None:
            continue
        factor = TOLERANCE if need.is_certain or is_counted else _UNEVEN_TOLERANCE
        train, did = need.train * row["tokens_per_step"], row["executed_flops"]
        hardware = train + need.recomputed * row["tokens_per_step"]
        is_refused, is_hardware_refused = train > factor * did, hardware > factor * did
        if not is_hardware_refused:
            continue
        if not row["is_partial"]:
            rows.append((row["run"], row["capture"], row["step"], is_refused, is_hardware_refused))
        what, flops = (Message("model FLOPs"), train) if is_refused else ("HFU", hardware)
        reasons.setdefault(what, []).append(
            _sentence(what, model.model.name, row, flops, None if row["is_partial"] else factor)
        )
    notes = [
        first
        if not more
        else Message("{note} (the same in {count} more steps)", note=first, count=len(more))
        for first, *more in reasons.values()
    ]
    return pl.DataFrame(rows, _REFUSALS, orient="row"), notes


def _sentence(
    what: str, name: str, row: Mapping[str, Any], flops: float, refused_above: float | None
) -> str:
    place = Message("on the {ranks} ranks with kernels", ranks=row["ranks"])
    if row["step"] is not None:
        place = Message("{place} in step {step}", place=place, step=row["step"])
    sentence = Message(
        "{name} needs {flops} for {tokens} tokens {place}, which executed {executed}",
        name=name,
        flops=_tera(flops),
        tokens=row["tokens_per_step"],
        place=place,
        executed=_tera(row["executed_flops"]),
    )
    if refused_above is None:
        return Message(
            "{what}: {sentence} and kernels of unknown FLOPs", what=what, sentence=sentence
        )
    return Message(
        "{what} refused: {sentence} (at most {most} x that is taken): check that model, tokens per"
        " step and --recompute match this job",
        what=what,
        sentence=sentence,
        most=f"{refused_above:g}",
    )


def _need_of(model: ModelFlops, ranks: int, world: int, stages: int | None) -> _Need | None:
    """What `ranks` of `world` must execute; None where it cannot be said."""
    head = sum(float(term.flops) for term in model.terms if term.term == "LM head")
    if ranks >= world:
        forward, core = float(model.forward_flops), float(model.attention_flops)
        # Nobody computes the head again.
        again = {"none": 0.0, "selective": core / 2, "full": forward - head}[model.recompute]
        return _Need(3 * forward, again, is_certain=True)
    if stages is None:
        return None
    layers = max(term.layer_count for term in model.terms if term.part == "layers")
    alike = [
        term for term in model.terms
        if term.part == "layers" and term.layer_count == layers and term.term != "routed experts"
    ]  # fmt: skip
    forward = sum(float(term.flops) for term in alike)
    core = sum(float(term.flops) for term in alike if term.kind == "attention")
    again = {"none": 0.0, "selective": core / 2, "full": forward}[model.recompute]
    own_head = sum(float(term.flops) for term in model.terms if term.part == "head")
    train = 3 * (forward + (own_head if stages == 1 else 0.0))
    return _Need(train * ranks / world, again * ranks / world, is_certain=stages == 1)


def _tera(flops: float) -> str:
    return f"{flops / 1e12:.4g} TFLOP"
