"""The report's section on the pipeline: which schedule ran, its phases, masking, why it waits."""

from __future__ import annotations

from collections.abc import Iterator

from npuscope.analysis.pipeline.answer import Answer
from npuscope.analysis.wording import percent
from npuscope.messages import Message

from ..terminal.pipeline_tables import (
    CAUSE_WORDS,
    bubbles_table,
    masking_table,
    phases_table,
)
from .blocks import Block, Sentence

_MOST_STAGES = 16


def pipeline_section(answer: Answer | Message | None) -> Iterator[Block]:
    """What `pipeline_overview` tells of one capture; nothing of a job with one stage."""
    if answer is None:
        return
    if not isinstance(answer, Answer):
        yield Sentence(Message("pipeline: {why}", why=answer))
        return
    yield from _verdict(answer)
    yield phases_table(answer.phases, _MOST_STAGES)
    yield masking_table(answer.masking, _MOST_STAGES)
    if answer.bubbles is not None:
        yield bubbles_table(answer.bubbles, _MOST_STAGES)
    for note in answer.notes:
        yield Sentence(note)


def _verdict(answer: Answer) -> Iterator[Sentence]:
    (facts,) = answer.facts.to_dicts()
    sizes = {key: "?" if facts[key] is None else facts[key] for key in ("micro_batches", "chunks")}
    ran = Message(
        "pipeline: {schedule} ({confidence} confidence), {stages} stages, {micro_batches}"
        " micro-batches, chunks of a stage: {chunks}",
        schedule=facts["schedule"], confidence=Message(facts["confidence"]),
        stages=facts["stages"], **sizes,
    )  # fmt: skip
    waits = Message("its bubble is not known")
    cause = facts["bubble_cause"]
    if cause is not None:
        waits = Message(
            "bubble {bubble}, most of it: {cause}",
            bubble=percent(facts["bubble_ratio"]), cause=Message(CAUSE_WORDS.get(cause, cause)),
        )  # fmt: skip
    yield Sentence(ran, waits)
    steady, step = facts["steady_masking_ratio"], facts["step_masking_ratio"]
    if step is not None:
        sentence = (
            "communication masked: {steady} in the steady phase, {step} in the whole step;"
            " transfers between stages are not counted"
        )
        yield Sentence(Message(sentence, steady=percent(steady), step=percent(step)))
