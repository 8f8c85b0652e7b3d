"""Which pass ran when, and what would another schedule give?"""

import polars as pl
import streamlit as st

from npuscope.analysis import query
from npuscope.analysis.pipeline.blocks import pipeline_view, what_ran
from npuscope.analysis.pipeline.schedules import ANY_CHUNKS, SCHEDULES
from npuscope.analysis.pipeline.tries_notes import work_notes
from npuscope.analysis.wording import ms
from npuscope.dashboard.app.finding_cards import verdict_here
from npuscope.dashboard.app.page import open_page
from npuscope.dashboard.figures.pipeline import (
    BUBBLE_WORDS,
    pipeline_figure,
    schedule_titles,
)
from npuscope.errors import CannotAnswer, TraceNotFound, UsageError
from npuscope.messages import Message

page = open_page("pipeline")
say = page.say
page.title("Which pass ran when, and what would another schedule give?")
if not page.is_across:
    page.empty("The ranks were not compared with each other.")
    st.stop()

slot = page.slot()
AS_RAN = "as it ran"
schedules = [AS_RAN]
for name in SCHEDULES:
    schedules += [f"{name}:{count}" for count in (2, 4)] if name in ANY_CHUNKS else [name]
choice = page.view.schedule or AS_RAN


def _chosen_order(word: str) -> str | None:
    return None if word == AS_RAN else word


left, right = st.columns(2, vertical_alignment="bottom")
with left:
    st.session_state["schedule"] = choice
    st.selectbox(
        say("schedule"), list(dict.fromkeys((choice, *schedules))), key="schedule", format_func=say,
        on_change=lambda: page.look_at(schedule=_chosen_order(st.session_state["schedule"])),
    )  # fmt: skip
with right:
    st.session_state["micro_batches"] = page.view.micro_batches
    st.number_input(
        say("micro-batches"), min_value=1, max_value=1024, step=1, key="micro_batches",
        placeholder=say(AS_RAN),
        on_change=lambda: page.look_at(micro_batches=st.session_state["micro_batches"]),
    )  # fmt: skip


def _tell_what_ran() -> None:
    """The command's tables, where passes cannot be drawn: of one stage of several, say."""
    try:
        answer = page.later(what_ran, rank=None, step=None)
    except (CannotAnswer, TraceNotFound):  # the reason is told by now
        return
    if answer is not None:
        page.table(answer.phases, name="pipeline_phases", title="Phases of the pipeline")
        page.table(answer.masking, name="pipeline_masking", title="Masking by phase")
        page.table(answer.stages, name="pipeline_stages", title="Work of pipeline stages")
        page.notes([*answer.notes, *page.frame(query.notes, rank=None, step=None)])


view = None
try:
    view = page.later(
        pipeline_view, rank=None, words=page.view.schedule, micro_batches=page.view.micro_batches
    )
except (CannotAnswer, UsageError, TraceNotFound) as error:
    slot.empty()
    page.empty(Message("{schedule}: there is no answer", schedule=say(choice)), error.message)
    _tell_what_ran()
if view is None:
    slot.empty()
    st.stop()
rows = view.tries.to_dicts()
if len(rows) > 1:
    with slot.container():
        page.verdict(
            "How long a step would take is not known: other copies of the model reduce gradients."
            if rows[1]["predicted_step_ns"] is None
            else Message(
                "A step would take {predicted} ms ({low} to {high}) in place of {measured} ms",
                predicted=ms(rows[1]["predicted_step_ns"]), low=ms(rows[1]["predicted_low_ns"]),
                high=ms(rows[1]["predicted_high_ns"]), measured=ms(rows[1]["measured_step_ns"]),
            )
        )  # fmt: skip
        page.text(*work_notes(view.tries))
figure, devices = pipeline_figure(view.blocks, schedule_titles(view.tries, say), say)
page.figure(figure, key="pipeline_chart")
page.text(
    Message(
        "Step {step} of ranks {ranks}. Numbers are micro-batches; later chunks of a stage are"
        " fainter; two passes beside each other share a row. Bubbles have the colours of their"
        " causes; where a cause makes a pause shorter, the others are drawn as much shorter.",
        step="-" if view.step is None else str(view.step),
        ranks=", ".join(map(str, view.ranks[:16])) + (", ..." if len(view.ranks) > 16 else ""),
    ),
    "The bubble of a title is all time in which no pass runs, of the length of the pipelines; in"
    " the table late starts and early ends are in it, too; a finding counts less: waiting to"
    " receive that no kernel hides, of the step.",
)
if len(devices) < len(view.ranks):
    page.text("Not every stage is drawn.")
if len(rows) < 2:
    verdict_here(page, slot)
page.table(
    view.bubbles.with_columns(pl.col("cause").replace(BUBBLE_WORDS)),
    name="pipeline_bubbles", title="Why each stage waits",
)  # fmt: skip
page.table(
    page.translate(view.tries.drop("devices")),
    name="pipeline_tries",
    title="What ran, and what would run",
)
page.notes([*view.notes, *page.frame(query.notes, rank=None, step=None), *page.warnings])
