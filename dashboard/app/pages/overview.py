"""Where does the step go, and what should change first?"""

import streamlit as st

from npuscope.analysis import means, query
from npuscope.analysis.wording import FREE_MEANS
from npuscope.dashboard.answers import overview_answers, rank_answers
from npuscope.dashboard.app.collecting import how_to_collect
from npuscope.dashboard.app.finding_cards import finding_cards
from npuscope.dashboard.app.page import open_page
from npuscope.dashboard.figures import steps as figures

page = open_page("overview")
say = page.say
page.title("Where does the step go, and what should change first?")
steps = page.frame(query.steps)
mean = page.frame(means.mean_steps)

if mean.height and mean["length_ns"][0] is not None:
    row = mean.row(0, named=True)
    facts = page.frame(query.capture_facts, rank=None, step=None)
    whole, parts = overview_answers.step_words(
        row, page.view.rank, is_alone=facts["step_count"].to_list() == [1]
    )
    uneven = overview_answers.uneven(page.frame(means.mean_steps, by="stage", rank=None))
    if whole is None:
        page.verdict(parts)
        page.text(*uneven)
    else:
        page.headline(whole, parts, *uneven)

with st.container(key="halves"):
    left, right = st.columns([3, 2], gap="large")
with left:
    if steps.is_empty():
        page.empty("No steps were recorded here.", how_to_collect(page, "steps"))
    else:
        bars = page.frame(means.mean_step_bars)
        stages = page.frame(overview_answers.stage_of_ranks, rank=None)
        silent = page.frame(rank_answers.silent, rank=None, step=None)
        page.figure(figures.ranks_figure(bars, say, stages, silent, height_px=300), key="ranks")
        page.text(FREE_MEANS)
        for words in rank_answers.silent_words(silent):
            page.text(words)
conventions = []
masking = mean["masking_ratio"][0] if mean.height else None
with right:
    use = page.frame(overview_answers.job_use)
    why = how_to_collect(page, "mfu") or use.why_unknown
    mfu, overlap = st.columns(2)
    with mfu:
        if use.kernel_mfu_ratio is None:
            page.empty("MFU is unknown here.", why)
        else:
            page.figure(figures.mfu_gauge(use.kernel_mfu_ratio, say), key="mfu")
            conventions = [
                "Kernel MFU: FLOPs of executed kernels by their shapes / (step x ranks x peak)",
                *(f"{say('peak')}: {say(one)}" for one in use.peaks),
                *use.conventions,
            ]
    with overlap:
        if masking is None:
            page.empty("No communication was recorded here.")
        else:
            page.figure(figures.masking_gauge(masking, say), key="masking")
            conventions.append(
                "Masked: communication covered by compute kernels of its rank / communication"
            )

# Findings take longest: they come into their place when all figures stand.
with left:
    page.heading("What to look at first")
    cards = page.slot()
with right:
    if use.waterfall.filter(use.waterfall["term"] == "achieved").is_empty():
        page.empty("The losses from the peak are unknown here.", why)
    else:
        page.figure(figures.waterfall_figure(use.waterfall, say), key="waterfall")
        page.text("of a mean rank and step; points add up to 100")
page.table(steps, name="steps", title="Where each step goes", columns=[
    "rank", "step", "computing_ns", "exposed_communication_ns", "free_ns", "communication_ns",
    "masking_ratio", "bubble_ns", "stage_ns", "preparing_ns", "preparing_basis", "basis",
])  # fmt: skip
if not use.waterfall.is_empty():
    page.table(use.waterfall, name="waterfall", title="The losses as a table")
with cards.container():
    findings = page.later(overview_answers.found_here)
    if findings is not None:
        finding_cards(page, findings)
page.notes([
    *conventions,
    *use.notes,
    *page.frame(query.notes, rank=None, step=None),
    *page.frame(query.limits, rank=None, step=None),
])  # fmt: skip
