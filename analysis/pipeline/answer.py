"""All that is told of a capture's pipeline: which schedule ran, its phases, why it waits.

Who reads a kept answer needs none of what recognises passes: that is loaded where it is called.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl

from npuscope.errors import CannotAnswer, TraceNotFound
from npuscope.messages import Message

from ..memo import memoize
from ..parts import is_told
from ..query import rows
from ..scope import Scope
from ..wording import number, numbers
from . import STEADY, STEP

if TYPE_CHECKING:
    from .passes import Pipeline

_BASIS: dict[str, str] = {
    "marks": Message("forward and backward are told by ranges that the framework marked (mstx)"),
    "operators": Message(
        "forward and backward are told by threads and sequence numbers of the framework's operators"
    ),
    "names": Message("forward and backward are told by names, types and shapes of kernels alone"),
}


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows of the metrics `pipeline`, `pipeline_phases`, `pipeline_masking`, `pipeline_stages` and
    `pipeline_bubbles` (None: not known, a note says why)."""

    facts: pl.DataFrame
    phases: pl.DataFrame
    masking: pl.DataFrame
    stages: pl.DataFrame
    bubbles: pl.DataFrame | None
    notes: list[str]


def recognise(con: duckdb.DuckDBPyConnection, run: str, capture: str) -> Pipeline:
    """The passes of a capture, compared. Raises TraceNotFound without kernels."""
    from .passes import pipeline

    try:
        return pipeline(con, run, capture)
    except TraceNotFound as error:
        note = Message(
            "{capture}: no single kernels were recorded, so no passes are recognised; the"
            " profiler's own bubble is in `npuscope steps --json`",
            capture=capture,
        )
        raise TraceNotFound(note) from error


@memoize
def pipeline_answer(con: duckdb.DuckDBPyConnection, run: str, capture: str) -> Answer:
    """Of one capture; `con` has its ranks compared. Raises TraceNotFound without
    kernels."""
    from .bubbles import pipeline_bubbles
    from .phases import pipeline_masking, pipeline_phases
    from .stage_parts import pipeline_stages

    pipeline = recognise(con, run, capture)
    notes = pipeline_notes(pipeline)
    bubbles = None
    if pipeline.stages > 1:
        try:
            bubbles = pipeline_bubbles(pipeline)
        except CannotAnswer as error:
            notes.append(Message("bubbles are not taken apart: {why}", why=error.message))
    masking = pipeline_masking(pipeline)
    return Answer(
        pipeline_facts(pipeline, masking, bubbles),
        pipeline_phases(con, pipeline),
        masking,
        pipeline_stages(pipeline),
        bubbles,
        notes,
    )


@memoize
def pipeline_overview(
    con: duckdb.DuckDBPyConnection, run: str, capture: str
) -> Answer | Message | None:
    """What a report or a monitor tells beside all else: None of a job with one stage, or where the
    ranks were not compared; a reason where passes are not recognised, or would take too long (more
    operations than findings replay)."""
    from ..replay import captures
    from .passes import job_stages

    if not is_told(con) or job_stages(con, run, capture) == 1:
        return None
    count = captures.operation_count(con, Scope(run, capture))
    if count > captures.MOST_OPERATIONS:
        return Message(
            "{count} operations: passes are recognised here up to {most}; `npuscope pipeline` takes"
            " more time and recognises them",
            count=number(count), most=number(captures.MOST_OPERATIONS),
        )  # fmt: skip
    try:
        return pipeline_answer(con, run, capture)
    except (CannotAnswer, TraceNotFound) as error:
        return Message("{why}", why=error.message)


def answer_rows(answer: Answer) -> dict[str, Any]:
    """The answer for programs: the facts, with the rows of all else."""
    (facts,) = rows(answer.facts)
    return {
        **facts, "phases": rows(answer.phases), "masking": rows(answer.masking),
        "stage_parts": rows(answer.stages),
        "bubbles": None if answer.bubbles is None else rows(answer.bubbles),
    }  # fmt: skip


# metric: pipeline
# Which pipeline schedule ran, and how sure is that?
#
# Kernels are told forward, backward, or for weights alone, by the framework's operators, else by
# names, types and shapes; passes are cut at transfers between stages and where kernels repeat. The
# passes of each stage in order, a letter each, are held against those of every schedule with as
# many forwards: distance is the share of letters that differ. Confidence is high where the nearest
# order differs in 2 % at most, no other is as near, operators tell directions, and every stage was
# captured; low where another order is as near, or there is none within 15 %.
#
# title: Schedule of the pipeline
# meaning: The pipeline schedule as it was recognised, with its sizes and how sure that is.
#
#   run             varchar    run of the training job
#   capture         varchar    ranks profiled at the same time
#   schedule        varchar    gpipe, 1f1b, interleaved, fb-overlap, zb-h1, zb-v, dualpipev, ...;
#     none: no pipeline, or no order is near
#   confidence      varchar    high, medium or low
#   distance_ratio  double     share of passes that stand elsewhere than in that order; NULL: none
#     to compare with
#   also            varchar[]  other orders that fit as well
#   micro_batches   bigint     of a step; NULL: not told
#   chunks          bigint     of the model on each stage; NULL: not told
#   stages          bigint     of the job
#   seen_stages     bigint     of them, captured with passes
#   basis           varchar    what tells directions: marks, operators or names
#   steady_masking_ratio  double  communication with compute beside it in the steady phase, over
#     all of it there, of all stages and kinds; NULL: no stage has any
#   step_masking_ratio    double  the same of whole steps
#   bubble_ratio    double     time of a step in which no pass of a rank runs, over the step's
#     window, mean of the stages; NULL: not known
#   bubble_cause    varchar    what makes most of it
def pipeline_facts(
    pipeline: Pipeline, masking: pl.DataFrame, bubbles: pl.DataFrame | None
) -> pl.DataFrame:
    """The row of the metric, with rows of `pipeline_masking` and `pipeline_bubbles`."""
    named = pipeline.schedule
    whole = (
        masking.filter(kind="all")
        .group_by("phase")
        .agg(pl.col("masked_ns").sum() / pl.col("communication_ns").sum())
    )
    masked = dict(whole.iter_rows())
    ratio = cause = None
    if bubbles is not None:
        of_cause = bubbles.group_by("cause", maintain_order=True).agg(
            pl.col("bubble_ns").sum(), pl.col("bubble_ratio").mean()
        )
        ratio = of_cause.filter(cause="all")["bubble_ratio"].item()
        cause = of_cause.filter(pl.col("cause") != "all").sort("bubble_ns")["cause"][-1]
    row = {
        "run": pipeline.run, "capture": pipeline.capture, "schedule": named.name,
        "confidence": named.confidence, "distance_ratio": named.distance, "also": [*named.also],
        "micro_batches": named.micro_batches, "chunks": named.chunks, "stages": pipeline.stages,
        "seen_stages": len(pipeline.present), "basis": pipeline.basis,
        "steady_masking_ratio": masked.get(STEADY), "step_masking_ratio": masked.get(STEP),
        "bubble_ratio": ratio, "bubble_cause": cause,
    }  # fmt: skip
    return pl.DataFrame([row], schema={
        "run": pl.String, "capture": pl.String, "schedule": pl.String, "confidence": pl.String,
        "distance_ratio": pl.Float64, "also": pl.List(pl.String), "micro_batches": pl.Int64,
        "chunks": pl.Int64, "stages": pl.Int64, "seen_stages": pl.Int64, "basis": pl.String,
        "steady_masking_ratio": pl.Float64, "step_masking_ratio": pl.Float64,
        "bubble_ratio": pl.Float64, "bubble_cause": pl.String,
    })  # fmt: skip


def unmarked_notes(pipeline: Pipeline) -> list[str]:
    """What figures of a step are, where none is marked."""
    if pipeline.ops.steps != [None]:
        return []
    return [
        Message(
            "no step is marked: all that was recorded counts as one, with its micro-batches, its"
            " length and its bubbles"
        )
    ]


def pipeline_notes(pipeline: Pipeline) -> list[str]:
    """What recognition rests on, and what it lacks."""
    from .recognition import NONE

    named = pipeline.schedule
    notes = [_BASIS[pipeline.basis], *unmarked_notes(pipeline)]
    if named.also:
        notes.append(Message(
            "what was captured fits {others} as well as {name}",
            others=", ".join(named.also), name=named.name,
        ))  # fmt: skip
    if missing := sorted({*range(pipeline.stages)} - {*pipeline.present}):
        notes.append(Message(
            "no passes of stages {stages} were captured: record a rank of every stage",
            stages=numbers(missing),
        ))  # fmt: skip
    if named.name == NONE and pipeline.stages > 1:
        notes.append(Message(
            "no known order is near what ran: forwards and backwards of each stage are counted,"
            " nothing is named"
        ))  # fmt: skip
    return notes
