"""Another schedule of the pipeline: its passes with measured times, executed in another order."""

from __future__ import annotations

from dataclasses import replace

import duckdb
import numpy as np

from npuscope.errors import CannotAnswer, UsageError
from npuscope.messages import Message

from ...pipeline.passes import pipeline
from ...pipeline.tries import Ready, asked_tries, pipeline_tries, ready
from ..captures import CaptureJob, Other
from ..changes import Change
from ..points import Integers


def schedule(con: duckdb.DuckDBPyConnection, job: CaptureJob, own: Other, change: Change) -> Other:
    """`schedule=zb-h1`, `schedule=vpp:2`: steps take as much longer or shorter as
    `npuscope pipeline --try` says, with its range. Raises CannotAnswer where that cannot."""
    if change.name or not change.value or "," in change.value:
        raise UsageError(
            Message(
                "{change}: give the name of one schedule, such as schedule=zb-h1",
                change=change.word,
            )
        )
    refuse_beside(job, own, change)
    return execute_order(job, recognise_schedule(con, job), own, change.value, None)


def refuse_beside(job: CaptureJob, own: Other, change: Change) -> None:
    """Raises UsageError beside other changes: passes are executed as measured."""
    if own.waits is not job.waits or np.any(own.added_ns):
        raise UsageError(
            Message(
                "{change}: passes run as measured here: this change stands alone",
                change=change.word,
            )
        )


def recognise_schedule(con: duckdb.DuckDBPyConnection, job: CaptureJob) -> Ready:
    """The pipeline that ran. Raises CannotAnswer where its schedule is not known."""
    return ready(con, pipeline(con, job.run, job.capture, known=job.ops))


def execute_order(
    job: CaptureJob, ready: Ready, own: Other, name: str | None, micro_batches: int | None
) -> Other:
    """Its passes in another order, or in the same one with other micro-batches. Raises CannotAnswer
    where its step is not known."""
    rows = pipeline_tries(ready, asked_tries(ready, name, micro_batches))
    measured_ns, predicted, low, high = (
        rows[f"{one}_ns"][1]
        for one in ("measured_step", "predicted_step", "predicted_low", "predicted_high")
    )
    if predicted is None:
        raise CannotAnswer(
            Message(
                "{name} keeps other copies of the model than ran: how long their gradients take to"
                " be reduced was not measured (npuscope pipeline PATH --try {name} tells what the"
                " pipelines take)",
                name=name,
            )
        )
    # Evaluation steps, which the mean step counts, stay as they are.
    trains = np.array([step not in job.forward for step in job.ops.steps], np.int64)

    def of_training(ns: float) -> Integers:
        return trains * round(ns)

    return replace(
        own,
        added_ns=of_training(predicted - measured_ns),
        unsure_ns=(of_training(predicted - low), of_training(high - predicted)),
        added_as="schedule" if micro_batches is None else "micro-batches",
        micro_batches=None
        if micro_batches in (None, ready.measured.micro_batches)
        else (ready.measured.micro_batches, micro_batches),
    )  # fmt: skip
