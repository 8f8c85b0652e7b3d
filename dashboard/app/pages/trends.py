"""Is the run getting better or worse?"""

import polars as pl
import streamlit as st

from npuscope.analysis import trends
from npuscope.dashboard.app.page import open_page
from npuscope.dashboard.figures import trends as figures
from npuscope.dashboard.terminal.trend_tables import change_rows
from npuscope.messages import Message

# Rank, step and window were chosen in another capture.
ALL_OF_IT = dict.fromkeys(("rank", "step", "start_ns", "end_ns"))

page = open_page("trends")
say = page.say
page.title("Is the run getting better or worse?")
run_trends = page.frame(trends.trends, capture=None, rank=None, step=None)
lengths, parts = (run_trends.captures[name].count() for name in ("step_ns", "computing_ns"))
if not lengths:
    if parts:  # of the producer's own table
        page.empty("How long a step takes is unknown here: its parts were recorded, its start and"
                   " end were not.")  # fmt: skip
    elif run_trends.log.is_empty():
        page.empty("No steps were recorded here.", "Record them with ProfilerStep marks.")
        st.stop()
changes = run_trends.changes.sort(pl.col("delta_ratio").abs(), descending=True, nulls_last=True)
if not changes.is_empty():
    most = change_rows(changes.head(1))[0]
    page.verdict(
        Message(
            "{what}: {before} -> {after} ({share}) since {since}",
            what=say(most["what"]), before=most["before"], after=most["after"],
            share=most["share"], since=most["since"],
        )
    )  # fmt: skip
elif run_trends.captures.height > 1:
    page.verdict("No level changed over these captures.")
if run_trends.captures.height < 2:
    page.empty(
        "This run has one capture: a trend needs two.",
        "Collect again later in the same run: new captures appear here automatically.",
    )
elif lengths or parts:
    chart = figures.trends_figure(run_trends.captures, run_trends.exposed, run_trends.changes, say)
    if (capture := page.click(chart, key="trends")) is not None:
        page.visit("overview", capture=capture, **ALL_OF_IT)
    page.text("A click on a point opens its capture.")
    page.text(
        "All captures of the run, all ranks and steps of each; exposed time of a kind is its"
        " attributed share, so that no time counts twice."
    )
if not run_trends.log.is_empty():
    points = trends.log_points(run_trends.log)
    page.figure(figures.log_figure(points, run_trends.changes, say), key="trends_log")
if not run_trends.changes.is_empty():
    labels = {"what": "mean of a step", "since": "since capture or step", "before": "before",
              "after": "after", "delta": "change", "share": "change (%)", "low_share": "95 % from",
              "high_share": "to", "count": "values before / after"}  # fmt: skip
    page.table(
        page.translate(pl.DataFrame(change_rows(run_trends.changes)).select(*labels)),
        name="trend_changes", title="Changes over time",
        titles={column: say(title) for column, title in labels.items()},
    )  # fmt: skip
page.notes(trends.change_notes(run_trends))
links = [page.go("overview", capture=one, **ALL_OF_IT) for one in run_trends.captures["capture"]]
page.table(
    run_trends.captures.drop("run").with_columns(pl.Series("look", links)),
    name="trends",
    title="Captures",
    links=["look"],
)
page.table(
    run_trends.exposed.drop("run"), name="trends_exposed", title="Exposed communication by kind"
)
