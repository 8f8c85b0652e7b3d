"""All that is told of a capture's pipeline: which schedule ran, its phases, why it waits."""

from __future__ import annotations

from dataclasses import dataclass

import duckdb
import polars as pl

from npuscope.analysis.wording import numbers
from npuscope.errors import CannotAnswer, TraceNotFound
from npuscope.messages import Message

from ..findings.gains import MOST_OPERATIONS, operation_count
from ..parts import is_told
from ..replay.stages import rank_stages
from ..scope import Scope
from .bubbles import pipeline_bubbles
from .passes import Pipeline, pipeline
from .phases import pipeline_masking, pipeline_phases
from .recognition import NONE
from .stage_parts import pipeline_stages

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

    found: Pipeline
    facts: pl.DataFrame
    phases: pl.DataFrame
    masking: pl.DataFrame
    stages: pl.DataFrame
    bubbles: pl.DataFrame | None
    notes: list[str]


def pipeline_answer(con: duckdb.DuckDBPyConnection, run: str, capture: str) -> Answer:
    """Of one capture; `con` has its ranks compared. Raises TraceNotFound without
    kernels."""
    try:
        found = pipeline(con, run, capture)
    except TraceNotFound as error:
        told = Message(
            "{capture}: no single kernels were recorded, so no passes are recognised; the"
            " profiler's own bubble is in `npuscope steps`",
            capture=capture,
        )
        raise TraceNotFound(told) from error
    notes = pipeline_notes(found)
    bubbles = None
    if found.stages > 1:
        try:
            bubbles = pipeline_bubbles(found)
        except CannotAnswer as error:
            notes.append(Message("bubbles are not taken apart: {why}", why=str(error)))
    return Answer(
        found,
        pipeline_facts(found),
        pipeline_phases(con, found),
        pipeline_masking(found),
        pipeline_stages(found),
        bubbles,
        notes,
    )


def scopes_of_pipelines(con: duckdb.DuckDBPyConnection) -> list[tuple[str, str]]:
    """Run and capture of what has several pipeline stages and kernels, with no more operations than
    findings replay; none where ranks were not compared."""
    if not is_told(con):
        return []
    there = con.execute("select distinct run, capture from ranks order by all").fetchall()
    return [
        (run, capture)
        for run, capture in there
        if 0 < operation_count(con, Scope(run, capture)) <= MOST_OPERATIONS
        and len({*rank_stages(con, run, capture).values()}) > 1
    ]


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
def pipeline_facts(found: Pipeline) -> pl.DataFrame:
    """The row of the metric."""
    named = found.named
    row = {
        "run": found.run, "capture": found.capture, "schedule": named.name,
        "confidence": named.confidence, "distance_ratio": named.distance, "also": [*named.also],
        "micro_batches": named.micro_batches, "chunks": named.chunks, "stages": found.stages,
        "seen_stages": len(found.seen), "basis": found.basis,
    }  # fmt: skip
    return pl.DataFrame([row], schema={
        "run": pl.String, "capture": pl.String, "schedule": pl.String, "confidence": pl.String,
        "distance_ratio": pl.Float64, "also": pl.List(pl.String), "micro_batches": pl.Int64,
        "chunks": pl.Int64, "stages": pl.Int64, "seen_stages": pl.Int64, "basis": pl.String,
    })  # fmt: skip


def pipeline_notes(found: Pipeline) -> list[str]:
    """What recognition rests on, and what it lacks."""
    named = found.named
    notes = [_BASIS[found.basis]]
    if named.also:
        notes.append(Message(
            "what was captured fits {others} as well as {name}",
            others=", ".join(named.also), name=named.name,
        ))  # fmt: skip
    if missing := sorted({*range(found.stages)} - {*found.seen}):
        notes.append(Message(
            "no passes of stages {stages} were captured: record a rank of every stage",
            stages=numbers(missing),
        ))  # fmt: skip
    if named.name == NONE and found.stages > 1:
        notes.append(Message(
            "no known order is near what ran: forwards and backwards of each stage are counted,"
            " nothing is named"
        ))  # fmt: skip
    return notes
