"""What a job takes: time by part, rates, memory by stage and kind, each with an interval."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from math import exp
from typing import Any, NamedTuple

import msgspec
import numpy as np
import polars as pl

from ..flops.model.model import count
from .constants import Constants, default_constants
from .cost import PARTS, step_parts
from .job import Job
from .memory import StageMemory, stage_memory
from .run_records import job_of_record

MIB = 2.0**20
_FEW_LAYERS = 16  # models cut down for tests have no more, on one node


class Interval(NamedTuple):
    """Where the truth lies in 9 of 10 runs of the kind, around what is predicted."""

    low: float
    predicted: float
    high: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """A job's prediction. `parts_s` add up to `step_s.predicted`; `mfu` counts causal attention."""

    step_s: Interval
    tokens_per_s: Interval
    tokens_per_s_per_rank: Interval
    mfu: Interval
    parts_s: Mapping[str, float]
    stages: tuple[StageMemory, ...]
    allocated_bytes: Interval
    first_peak_bytes: Interval
    peak_bytes: Interval
    stratum: str


def predict(job: Job, constants: Constants | None = None) -> Prediction:
    """Time and memory of one job."""
    values = constants or default_constants()
    parts = {name: float(seconds) for name, seconds in step_parts(job, values).items()}
    stages = tuple(stage_memory(job, values))
    step = sum(parts.values())
    tokens = float(job.global_batch) * job.sequence_length / step
    flops = float(
        count(
            job.model,
            sequence_length=job.sequence_length,
            attention="full" if job.software.full_mask else "causal",
        ).train_flops
    )
    peak = float(job.world) * job.machine.peak_flops_per_s
    kind = stratum(job)
    widths = _widths()[kind]
    of_time = exp(widths["time"])

    def rate(value: float) -> Interval:
        return Interval(value / of_time, value, value * of_time)

    def of_memory(name: str, width: str) -> Interval:
        most = max(float(getattr(stage, name)) for stage in stages)
        factor = exp(widths[width])
        return Interval(most / factor, most, most * factor)

    return Prediction(
        step_s=rate(step),
        tokens_per_s=rate(tokens),
        tokens_per_s_per_rank=rate(tokens / float(job.world)),
        mfu=rate(tokens * flops / peak),
        parts_s=parts,
        stages=stages,
        allocated_bytes=of_memory("allocated_bytes", "allocated"),
        first_peak_bytes=of_memory("first_peak_bytes", "peak"),
        peak_bytes=of_memory("peak_bytes", "peak"),
        stratum=kind,
    )


def stratum(job: Job) -> str:
    """Which runs tell how far predictions of such a job are off: full or cut, dense or experts."""
    is_cut = job.model.layers <= _FEW_LAYERS and float(job.world) <= job.machine.node_devices
    size = "cut" if is_cut else "full"
    return f"{size} {'dense' if job.model.experts is None else 'experts'}"


@cache
def _widths() -> dict[str, dict[str, float]]:
    """Half widths of logarithms by stratum and figure."""
    text = resources.files(__package__).joinpath("intervals.json").read_bytes()
    return msgspec.json.decode(text, type=dict[str, dict[str, float]])


def predict_records(
    records: Iterable[Mapping[str, Any]], constants: Constants | None = None
) -> dict[str, dict[str, float]]:
    """Predictions by id, as `strategy_runs/score.py` reads them: ms of a step, MB (2^20 bytes) of
    the first step's peak and of what stays, tokens/s of a rank."""
    predictions = {}
    for record in records:
        one = predict(job_of_record(record), constants)
        predictions[str(record.get("id"))] = {
            "ms": one.step_s.predicted * 1e3,
            "mb": one.first_peak_bytes.predicted / MIB,
            "mb_alloc": one.allocated_bytes.predicted / MIB,
            "tokens_per_s_per_npu": one.tokens_per_s_per_rank.predicted,
        }
    return predictions


# metric: predict
# How long would a step of a job take, and in which parts?
#
# The slowest stage's work, by what takes it, then what it waits for others; parts add up. Nothing
# is measured: constants are those of strategy/constants.json or of a calibration.
#
# title: Predicted step
# meaning: Parts of the step of a job that has not run, as predicted from its model and strategy.
# command: predict
#
#   part       varchar  what takes the time
#   ns         bigint   of a step
#   ratio      double   of the step
def part_rows(prediction: Prediction) -> pl.DataFrame:
    """The rows of the metric, in the order of a step; the last takes what rounding leaves."""
    ends = np.floor(np.cumsum([prediction.parts_s[name] for name in PARTS]) * 1e9).astype(np.int64)
    ns = np.diff(ends, prepend=0)
    return pl.DataFrame({
        "part": PARTS, "ns": ns, "ratio": ns / max(1, int(ends[-1])),
    })  # fmt: skip


# metric: predict_memory
# What would the memory of each stage hold?
#
# Of the rank with most: weights and gradients whole, the optimizer's state as it is cut,
# activations of all micro-batches in flight.
#
# title: Predicted memory
# meaning: Bytes of one rank of each pipeline stage by kind, and the peaks they make.
#
#   stage              bigint  pipeline stage
#   weights_bytes      bigint  weights
#   gradients_bytes    bigint  gradients
#   optimizer_bytes    bigint  FP32 weights and moments
#   activations_bytes  bigint  kept for backward
#   logits_bytes       bigint  of the head and its loss
#   buffers_bytes      bigint  masks, transfers, what operators keep
#   workspace_bytes    bigint  what one layer's backward needs
#   allocated_bytes    bigint  what stays after a step
#   first_peak_bytes   bigint  peak that a framework prints: of the first step, which makes moments
#   peak_bytes         bigint  peak of later steps
#   free_bytes         bigint  of the chip, at that peak; below 0: it does not fit
def memory_rows(job: Job, prediction: Prediction) -> pl.DataFrame:
    """The rows of the metric, one for each stage."""
    rows = []
    for number, stage in enumerate(prediction.stages):
        rows.append({
            "stage": number,
            "weights_bytes": stage.weights, "gradients_bytes": stage.gradients,
            "optimizer_bytes": stage.optimizer, "activations_bytes": stage.activations,
            "logits_bytes": stage.logits, "buffers_bytes": stage.buffers,
            "workspace_bytes": stage.workspace, "allocated_bytes": stage.allocated_bytes,
            "first_peak_bytes": stage.first_peak_bytes, "peak_bytes": stage.peak_bytes,
            "free_bytes": job.machine.memory_bytes - stage.peak_bytes,
        })  # fmt: skip
    return pl.DataFrame({name: [int(row[name]) for row in rows] for name in rows[0]})
