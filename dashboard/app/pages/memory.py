"""What fills the device memory?"""

import polars as pl
import streamlit as st

from npuscope.analysis import query
from npuscope.dashboard.answers.memory_answers import what_fills
from npuscope.dashboard.app.collecting import how_to_collect
from npuscope.dashboard.app.finding_cards import verdict_here
from npuscope.dashboard.app.page import open_page
from npuscope.dashboard.figures import memory as figures
from npuscope.messages import Message

COMPONENT = (
    "component", "peak_bytes", "peak_allocated_bytes", "fragmentation_bytes",
    "fragmentation_ratio", "peak_active_bytes", "source", "device_id", "sample_count",
)  # fmt: skip
HOLDER = (
    "holder", "name", "held_bytes", "share_ratio", "block_count", "largest_block_bytes",
    "unreleased_count", "component", "device_id",
)  # fmt: skip

page = open_page("memory")
say = page.say
page.title("What fills the device memory?")
facts = page.frame(query.memory_facts, rank=None, step=None)
main = facts.main
if main.is_empty():
    page.empty("No memory was recorded here.", how_to_collect(page, "memory"))
    page.notes(page.frame(query.memory_notes, rank=None, step=None))
    st.stop()
slot = page.slot()

present = main["rank"].unique().sort().to_list()
rank = page.view.rank if page.view.rank in present else int(main["rank"][0])
if page.view.rank is not None and page.view.rank != rank:
    page.text(
        Message(
            "No memory of rank {rank} was recorded: this is the rank with the highest peak.",
            rank=page.view.rank,
        )
    )
page.heading(
    f"{say('rank')} {rank}"
    if page.view.rank == rank
    else Message("Rank {rank}, the fullest", rank=rank)
)
components = facts.components.filter(pl.col("rank") == rank)
own = main.filter(pl.col("rank") == rank)
extent = st.segmented_control(
    say("components"), ["main", "all"], default="main", required=True, key="memory_components",
    format_func=lambda key: say({"main": "the framework's", "all": "all"}[key]),
)  # fmt: skip
curve = page.frame(query.memory_curve, rank=rank, step=None)
steps = page.frame(query.memory_steps, rank=rank, step=None)
if extent == "main":
    keys = ["rank", "source", "device_id", "component"]
    curve = curve.join(own.select(keys), on=keys, how="semi", nulls_equal=True)
if curve.is_empty():
    page.empty("No memory curve of this rank.", how_to_collect(page, "memory"))
else:
    page.figure(figures.curve_figure(curve, say, steps), key="memory_curve")
    page.text("Maximum of each interval, so that no peak is lost; lines: starts of steps.")
page.table(components, name="memory", title="Peaks by component", columns=COMPONENT)
page.table(curve, name="memory_curve", title="The curve")

owners, full, over_time = page.parts(
    "Who holds it?",
    "Which ranks are full?",
    "Does it grow?",
)
with owners:
    holders = facts.holders.filter(pl.col("rank") == rank)
    if holders.is_empty():
        page.empty("Memory by operator was not recorded here.",
                   how_to_collect(page, "operator_memory"))  # fmt: skip
    else:
        page.figure(figures.holders_figure(holders, say), key="holders")
        page.text(
            "Unexplained: in use, but allocated before the capture started, or not by operators."
        )
        page.table(holders, name="memory_holders", columns=HOLDER)
        page.table(
            page.frame(query.memory_blocks, rank=rank, step=None, top=1000), name="memory_blocks",
            title="Single blocks, the 1,000 largest",
        )  # fmt: skip

with full:
    if main["rank"].n_unique() < 2:
        page.text("One rank recorded its memory.")
    else:
        page.figure(figures.peaks_figure(main, say), key="peaks")
        page.table(main, name="memory_ranks", columns=["rank", *COMPONENT])
        page.table(facts.spread, name="memory_spread", title="Across ranks")

with over_time:
    keys = ["rank", "source", "device_id", "component"]
    every = page.frame(query.memory_steps, rank=None, step=None)
    every = every.join(main.select(keys), on=keys, how="semi", nulls_equal=True)
    growth = facts.growth.join(main.select(keys), on=keys, how="semi", nulls_equal=True)
    if every.is_empty():
        page.empty("No steps were recorded with memory.", how_to_collect(page, "steps"))
    else:
        page.figure(figures.growth_figure(every, growth, say), key="growth")
        most = int(growth["step_count"].max() or 0)
        steady = facts.steady
        if most < 5:
            page.text(Message("A trend needs five steps, recorded: {count}.", count=most))
        elif steady.is_empty():
            page.text("Nothing grows steadily.")
        else:
            page.text(Message("{count} components of ranks grow steadily.", count=steady.height))
        page.table(facts.growth, name="memory_growth")

verdict_here(page, slot, what_fills(facts))
page.notes([*page.frame(query.memory_notes, rank=None, step=None), *page.warnings])
