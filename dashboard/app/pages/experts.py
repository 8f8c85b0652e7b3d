"""Which experts are hot, and would moving them pay?"""

from typing import Literal

import polars as pl
import streamlit as st

from npuscope.analysis import query
from npuscope.dashboard.answers import expert_answers as answers
from npuscope.dashboard.app.collecting import how_to_collect
from npuscope.dashboard.app.finding_cards import verdict_here
from npuscope.dashboard.app.page import open_page
from npuscope.dashboard.figures import experts as figures
from npuscope.errors import TraceNotFound, UsageError

page = open_page("experts")
say = page.say
page.title("Which experts are hot, and would moving them pay off?")
load = page.frame(answers.loads, rank=None)
if load.tables.load.is_empty():
    page.empty(
        "No expert load here, and kernel shapes do not show tokens per device.",
        how_to_collect(page, "experts"),
    )
    page.notes(load.notes)
    st.stop()
slot = page.slot()
if page.view.rank is not None:
    page.text("All ranks are compared with each other: the choice of a rank has no effect here.")

phases = load.tables.load["phase"].unique().sort(nulls_last=True).to_list()
phase = phases[0]
if len(phases) > 1:
    phase = st.segmented_control(
        say("phase"), phases, default=phases[0], required=True, key="phase",
        format_func=lambda one: say("all steps") if one is None else one,
    )  # fmt: skip


def of_phase(frame: pl.DataFrame) -> pl.DataFrame:
    """The rows of the chosen phase."""
    return frame.filter(pl.col("phase").eq_missing(pl.lit(phase, pl.String)))


if load.is_of_experts:
    page.figure(figures.load_figure(of_phase(load.experts), say), key="load")
    page.text(
        "Sum over the selected steps; 1 is an even share. Values above twice the mean are drawn"
        " as 2."
    )
    page.table(of_phase(load.layers), name="experts_layer", title="Imbalance of each layer")
    page.table(of_phase(load.experts), name="experts_expert", title="Every expert")
else:
    page.empty(
        "Tokens per expert were not recorded; the trace shows tokens per device.",
        how_to_collect(page, "experts"),
    )

# Of devices alone nothing is known to move, nor which experts stay hot.
questions = ("Would moving experts pay off?", "Does the imbalance persist?")
device_load, *of_experts, cost = page.parts(
    "How are devices loaded?",
    *(questions if load.is_of_experts else ()),
    "What does the imbalance cost?",
)
with device_load:
    devices = of_phase(load.devices)
    if not devices.is_empty():
        if devices["layer"].null_count() < devices.height:
            page.figure(figures.load_figure(devices, say, "device"), key="devices")
        page.figure(figures.devices_figure(devices, say), key="device_tokens")
        page.table(devices, name="experts_device")

if of_experts:
    moves, persistence = of_experts
    with moves:
        with st.form("plan_form", border=False):
            columns = st.columns([2, 2, 2, 1], vertical_alignment="bottom")
            with columns[0]:
                device_count = st.number_input(
                    say("devices of a group"), min_value=1, max_value=4096, step=1,
                    value=answers.told_devices(load.tables), key="plan_devices",
                )  # fmt: skip
            with columns[1]:
                slots = st.number_input(
                    say("experts per device"), min_value=1, max_value=4096, value=None, step=1,
                    key="plan_slots", placeholder=say("no replicas"),
                )  # fmt: skip
            with columns[2]:
                nodes = st.number_input(
                    say("hosts"), min_value=1, max_value=4096, value=1, step=1, key="plan_nodes"
                )
            with columns[3]:
                is_submitted = st.form_submit_button(say("Plan"), type="primary", width="stretch")
        place = (page.view.run, page.view.capture)
        if is_submitted:
            st.session_state["plan_asked"] = (
                place,
                int(device_count),
                int(nodes),
                None if slots is None else int(slots),
            )
        request = st.session_state.get("plan_asked")
        if request is None or request[0] != place:
            page.text("Enter the number of devices that hold the experts, and press Plan.")
        else:
            try:
                with st.spinner(say("Planning")):
                    plans = page.frame(
                        answers.plans, rank=None, step=None, path=str(page.store_path),
                        devices=request[1], nodes=request[2], slots=request[3],
                    )  # fmt: skip
            except (TraceNotFound, UsageError) as error:
                page.empty(error.message)
            else:
                page.figure(figures.plan_figure(of_phase(plans.devices), say), key="plan")
                page.figure(figures.plan_gain_figure(of_phase(plans.rows), say), key="plan_gain")
                page.table(
                    of_phase(plans.rows), name="experts_plan", title="Each layer, and all of them"
                )
                page.notes(plans.notes)
    with persistence:
        times = of_phase(load.times)
        page.figure(figures.time_figure(times, say), key="times")
        page.table(times, name="experts_time")

with cost:
    frames = page.later(answers.costs, rank=None)
    notes: tuple[str, ...] = ()
    answer = None
    if frames is not None:
        costs, notes = of_phase(frames[0]), frames[2]
        if costs.is_empty():
            page.empty("The cost of the imbalance is unknown here.", *notes[:1])
            item: Literal["expert", "device"] = "expert" if load.is_of_experts else "device"
            loads = of_phase(load.experts if load.is_of_experts else load.devices)
            answer = answers.most_uneven(loads, item)
        else:
            page.figure(figures.cost_figure(of_phase(frames[1]), say), key="cost")
            page.table(costs, name="experts_cost")

verdict_here(page, slot, answer)
page.notes([
    *load.notes, *notes, *page.frame(query.notes, rank=None, step=None), *page.warnings
])  # fmt: skip
