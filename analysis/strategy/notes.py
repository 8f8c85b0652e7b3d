"""What a prediction tells beside its figures."""

from __future__ import annotations

import polars as pl

from npuscope.messages import Message

from .job import Job
from .predict import Prediction

_GIB = 2.0**30


def prediction_notes(job: Job, prediction: Prediction, *, is_calibrated: bool = False) -> list[str]:
    """What does not fit and by how much, which runs the intervals are from, how MFU counts."""
    notes: list[str] = []
    missing = prediction.peak_bytes.predicted - job.machine.memory_bytes
    if missing > 0:
        stages = [
            number
            for number, stage in enumerate(prediction.stages)
            if float(stage.peak_bytes) > job.machine.memory_bytes
        ]
        notes.append(
            Message(
                "does not fit: {missing} GiB more than the {memory} GiB of the chip on stages"
                " {stages}",
                missing=f"{missing / _GIB:.1f}",
                memory=f"{job.machine.memory_bytes / _GIB:.0f}",
                stages=", ".join(map(str, stages)),
            )
        )
    elif prediction.peak_bytes.high > job.machine.memory_bytes:
        notes.append(
            Message(
                "may not fit: the interval of the peak reaches beyond the {memory} GiB of the chip",
                memory=f"{job.machine.memory_bytes / _GIB:.0f}",
            )
        )
    notes.append(
        Message(
            "intervals hold about 9 of 10 of the measured runs ({kind}) that they were made from,"
            " and fewer of other models (docs/strategy.md); that of later peaks is the one of first"
            " peaks, as only these were measured; torch's allocator alone: buffers of HCCL and"
            " fragmentation come on top",
            kind=prediction.stratum,
        )
    )
    if is_calibrated:
        notes.append(
            Message(
                "intervals are those of the built-in constants: nothing is known of calibrated ones"
            )
        )
    notes.append(
        Message(
            "MFU counts {attention} attention, backward = 2 forward, nothing recomputed,"
            " against {peak} TFLOP/s",
            attention="full" if job.software.full_mask else "causal",
            peak=f"{job.machine.peak_flops_per_s / 1e12:.1f}",
        )
    )
    return notes


def search_notes(strategies: pl.DataFrame, changes: pl.DataFrame) -> list[str]:
    """How many were searched, and what would change the order."""
    notes: list[str] = [
        Message(
            "{fitting} of {all} strategies leave a tenth of the memory free; each step is off by"
            " what `npuscope predict` says, so that near ones are equals",
            fitting=len(strategies.filter("fits")),
            all=len(strategies),
        )
    ]
    if not strategies["fits"].any():
        notes.append(
            Message(
                "none fits: the one that lacks least needs {peak} GiB; give more NPUs, shorter"
                " sequences or a smaller model",
                peak=f"{strategies.row(0, named=True)['peak_bytes'] / 2**30:.1f}",
            )
        )
    if len(changes):
        names = changes["constant"].unique(maintain_order=True).to_list()
        notes.append(
            Message(
                "another strategy would be the best if these constants were wrong by the spread of"
                " their priors: {names}",
                names=", ".join(names),
            )
        )
    return notes


def plan_notes(plans: pl.DataFrame) -> list[str]:
    """Which stages cannot be made to fit."""
    stages = plans.filter(pl.col("action") == "impossible")["stage"].to_list()
    notes: list[str] = [
        Message("times lost are predicted; stages beside the slowest may hide them in its shadow")
    ]
    if stages:
        notes.append(
            Message(
                "stages {stages} do not fit with everything recomputed or swapped: cut the job into"
                " more pieces",
                stages=", ".join(map(str, stages)),
            )
        )
    return notes
