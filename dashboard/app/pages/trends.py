"""Is the run getting better or worse?"""

import polars as pl
import streamlit as st

from npuscope.analysis import trends
from npuscope.dashboard.app.page import open_page
from npuscope.dashboard.figures import trends as figures

# Rank, step and window were chosen in another capture.
ALL_OF_IT = dict.fromkeys(("rank", "step", "start_ns", "end_ns"))

page = open_page("trends")
say = page.say
page.title("Is the run getting better or worse?")
found = page.frame(trends.trends, capture=None, rank=None, step=None)
if found.captures["step_ns"].null_count() == found.captures.height:
    page.empty("No steps were recorded here.", "Record them with ProfilerStep marks.")
    st.stop()
if found.captures.height < 2:
    page.empty(
        "This run has one capture: a trend needs two.",
        "Collect again later in the same run: new captures appear here automatically.",
    )
else:
    drawn = figures.trends_figure(found.captures, found.exposed, say)
    if (clicked := page.clicked(drawn, key="trends")) is not None:
        page.visit("overview", capture=clicked, **ALL_OF_IT)
    page.text("A click on a point opens its capture.")
    page.text(
        "All captures of the run, all ranks and steps of each; exposed time of a kind is its"
        " attributed share, so that no time counts twice."
    )
links = [page.go("overview", capture=one, **ALL_OF_IT) for one in found.captures["capture"]]
page.table(
    found.captures.drop("run").with_columns(pl.Series("look", links)),
    name="trends",
    title="Captures",
    links=["look"],
)
with st.expander(say("Exposed communication by kind")):
    page.table(found.exposed.drop("run"), name="trends_exposed")
