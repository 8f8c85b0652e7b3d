"""What to know beside the rows of other orders."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from npuscope.messages import Message

from ..wording import ms, percent
from .answer import unmarked_notes
from .orders.gradients import makes_weights_apart
from .tries import OrderRequest, Ready


def work_note(ran: int, count: int, step_ns: float, predicted_ns: float) -> str:
    """What a step of `count` micro-batches holds beside one of the `ran` that were measured: their
    lengths tell nothing, as they do other work; those of a micro-batch do."""
    return Message(
        "with {asked} micro-batches in place of {ran} a step holds {times} times the work: a"
        " micro-batch would take {after} ms in place of {before} ms",
        asked=count, ran=ran, times=f"{count / ran:.3g}", after=ms(predicted_ns / count),
        before=ms(step_ns / ran),
    )  # fmt: skip


def work_notes(rows: pl.DataFrame) -> list[str]:
    """Of rows of `pipeline_tries` those with other micro-batches than what ran, the first."""
    (ran,) = rows[:1].to_dicts()
    return [
        work_note(
            ran["micro_batches"], row["micro_batches"], row["measured_step_ns"],
            row["predicted_step_ns"],
        )
        for row in rows[1:].to_dicts()
        if row["micro_batches"] != ran["micro_batches"] and row["predicted_step_ns"] is not None
    ]  # fmt: skip


def tries_notes(job: Ready, orders: Sequence[OrderRequest] = ()) -> list[str]:
    """What to know beside the rows."""
    notes: list[str] = [
        Message(
            "the first row is the order that ran, executed: how far it is from the measured step is"
            " the error of the others"
        ),
        *unmarked_notes(job.pipeline),
    ]
    if job.facts.parts is None:
        notes.append(
            Message(
                "layers were not told apart: where chunks are cut otherwise, each takes an even"
                " share of its stage"
            )
        )
    if "W" not in job.measured.alone_ns and job.facts.weight_share is not None:
        share = float(np.mean(job.facts.weight_share))
        notes.append(
            Message(
                "gradients of weights take {share} of a backward, by its products; measured apart"
                " they were not",
                share=percent(share),
            )
        )
    ran = len(job.measured.graph.schedule.routes)
    notes += [
        Message(
            "{name} keeps {copies} copies of the model where {ran} ran: how long other ranks take"
            " to reduce the gradients of as many layers was not measured, so that of the step the"
            " pipelines alone are known",
            name=one.name, copies=len(one.order.routes), ran=ran,
        )
        for one in orders
        if len(one.order.routes) != ran
    ]  # fmt: skip
    if job.facts.reduced is not None and any(
        makes_weights_apart(one.order) and "W" not in job.measured.alone_ns for one in orders
    ):
        notes.append(
            Message(
                "gradients of weights in passes of their own come last: less of what reducing them"
                " takes is hidden, which is priced as the reductions were measured"
            )
        )
    ratio = job.measured.pair_ratio
    if ratio is not None:
        notes.append(
            Message(
                "a forward and a backward beside each other take {share} of both alone, as"
                " measured",
                share=percent(ratio),
            )
        )
    elif job.facts.pair_ratio is not None:
        notes.append(
            Message(
                "a forward and a backward beside each other take {share} of both alone where they"
                " take turns as one has to wait for exchanges of tokens; the range goes from all"
                " hidden that can be to nothing",
                share=percent(job.facts.pair_ratio),
            )
        )
    return notes
