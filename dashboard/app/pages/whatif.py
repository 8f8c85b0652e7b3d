"""What would a step take with this change?"""

import polars as pl
import streamlit as st

from npuscope.analysis import query
from npuscope.analysis.findings.gains import why_refused
from npuscope.analysis.replay.before_after import before_after
from npuscope.analysis.wording import ms, percent
from npuscope.console.printable import visible
from npuscope.dashboard.answers import timeline_answers as answers
from npuscope.dashboard.answers.overview_answers import found_here
from npuscope.dashboard.app.page import open_page
from npuscope.dashboard.figures.timeline import lanes_figure
from npuscope.dashboard.figures.what_if import saved_figure
from npuscope.errors import CannotAnswer, TraceNotFound, UsageError
from npuscope.messages import Message

page = open_page("whatif")
say = page.say
page.title("What would a step take with this change?")
if not page.is_across:
    page.empty("The ranks were not compared with each other.")
    st.stop()

# Of all findings those that a replay can price, then what anybody asks.
GENERAL = ("rank:all=median", "stage:all=mean", "comm:all=0.5", "host=0.5", "kernel:*=0.9")
findings = page.later(found_here, rank=None, step=None)
if findings is None:
    st.stop()
options: dict[str, str] = {}
for one in findings:
    if one.predicted_gain_ns is not None:
        options.setdefault(" ".join(one.changes), say(one.name.replace("_", " ")))
for word in GENERAL:
    options.setdefault(word, "")
choice = page.view.change or next(iter(options))


def show_change(words: str) -> str:
    """A change with the finding that it would end."""
    named = options.get(words)
    return visible(f"{words}  ({named})" if named else words)


slot = page.slot()
left, right = st.columns(2, vertical_alignment="bottom")
with left:
    st.session_state["offered"] = choice
    st.selectbox(
        say("change"), list(dict.fromkeys((choice, *options))), format_func=show_change,
        key="offered",
        on_change=lambda: page.look_at(change=st.session_state["offered"]),
    )  # fmt: skip
with right:
    st.session_state["words"] = choice
    st.text_input(
        say("in words: TARGET=VALUE, several with spaces between"), key="words",
        on_change=lambda: page.look_at(change=st.session_state["words"]),
        help="rank:5=median  comm:ep=0.5  link:3-7=0.5  kernel:FlashAttention*=0.67  host=0.5",
    )  # fmt: skip
lanes = page.view.lanes
if lanes is None and page.view.rank is not None:
    lanes = (page.view.rank,)
ranks = answers.shown_lanes(page.capture.ranks, lanes)
try:
    answer = page.later(before_after, rank=None, words=tuple(choice.split()), ranks=ranks)
except CannotAnswer as error:
    slot.empty()
    why = error.message if isinstance(error.message, Message) else why_refused(choice)
    page.empty(Message("{change}: there is no answer", change=choice), why)
    st.stop()
except (UsageError, TraceNotFound) as error:
    slot.empty()
    page.empty(Message("{change}: there is no answer", change=choice), error.message)
    st.stop()
if answer is None:
    slot.empty()
    st.stop()
row = answer.row
gain = (row["replayed_step_ns"] - row["predicted_step_ns"]) / row["replayed_step_ns"]
with slot.container():
    page.verdict(
        Message(
            "A step would take {predicted} ms ({low} to {high}) in place of {measured} ms: {gain}",
            predicted=ms(row["predicted_step_ns"]), low=ms(row["predicted_low_ns"]),
            high=ms(row["predicted_high_ns"]), measured=ms(row["measured_step_ns"]),
            gain=Message("{share} shorter", share=percent(gain))
            if gain >= 0
            else Message("{share} longer", share=percent(-gain)),
        )
    )  # fmt: skip
    page.text(*answer.work)
step = visible("-" if answer.step is None else str(answer.step))
savings, beside = page.parts(
    "Where the saved time was", Message("Step {step} before and after", step=step)
)
with savings:
    page.figure(saved_figure(row, say), key="whatif_saved")
    page.text(
        "Parts of the critical path: where the saved time was, and what takes its place. The axis"
        " need not begin at 0."
    )
    page.table(
        answer.steps.drop("saved"), name="whatif_steps", title="Each step of the job, and the mean"
    )
with beside:
    rank_column = st.columns([3, 2])[0]
    with rank_column:
        st.session_state["lanes"] = list(ranks)
        st.multiselect(
            say("ranks"), page.capture.ranks, key="lanes", max_selections=4, select_all=False,
            on_change=lambda: page.look_at(
                lanes=".".join(map(str, st.session_state["lanes"])) or "none"
            ),
        )  # fmt: skip
    for is_after, title in ((False, "as measured"), (True, "with the change")):
        rows = answer.lanes.filter(pl.col("is_after") == is_after)
        if rows.is_empty():
            continue
        page.text(title)
        figure = lanes_figure(rows, (0, answer.length_ns), say)
        page.figure(figure, key=f"whatif_lanes_{is_after}", name="whatif_lanes")
    if not answer.has_all:
        page.text("Only the longest operations are drawn.")
page.notes([*answer.notes, *page.frame(query.notes, rank=None, step=None), *page.warnings])
