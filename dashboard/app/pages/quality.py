"""What can this profile tell, and what should be collected next time?"""

import polars as pl
import streamlit as st

from npuscope.dashboard.answers.quality_answers import quality
from npuscope.dashboard.app.page import open_page
from npuscope.dashboard.app.plain_text import sentence
from npuscope.dashboard.figures import ranks as figures
from npuscope.messages import Message, join

page = open_page("quality")
say = page.say
page.title("What can this profile show, and what should be collected next time?")
found = page.frame(quality, step=None, path=str(page.store_path))
if found is None:
    page.empty("How this capture was read is not recorded.")
    st.stop()

said = found.capabilities["support"]
lacking = found.capabilities.filter(said == "no")["capability"].to_list()
page.verdict(
    Message(
        "{count} of {every} analyses are possible in full, {lacking} not at all: {names}.",
        count=said.to_list().count("yes"), every=said.len(), lacking=len(lacking),
        names=join([figures.capability_named(one, say) for one in lacking]),
    )
    if lacking
    else Message(
        "{count} of {every} analyses are possible in full, the others partly.",
        count=said.to_list().count("yes"), every=said.len(),
    )
)  # fmt: skip
ranks, analyses, lost, overhead = st.columns(4)
expected = f" / {found.expected_count}" if found.expected_count else ""
rows_lost = found.ranks["rows_lost"].drop_nulls()
with ranks:
    page.tile("ranks", f"{found.present_count}{expected}", name="recorded_ranks")
with analyses:
    possible = f"{said.to_list().count('yes')} / {said.len()}"
    page.tile("analyses possible", possible, name="possible_analyses")
with lost:
    lost_text = f"{sum(rows_lost):,}" if rows_lost.len() else "-"
    page.tile("rows lost when reading", lost_text, name="lost_rows")
with overhead:
    ratio = found.overhead_ratio
    told = f"{ratio:+.1%}" if ratio is not None else "-"
    page.tile("profiler's overhead", told, name="profiler_overhead")
answers, collect, recorded = page.parts(
    "What each rank can answer", "What to collect", "What was recorded"
)
with answers:
    page.figure(figures.support_figure(found.support, say), key="support")
    page.text(
        "Whether ranks can be compared with each other is no rank's own: it is in the table only."
    )
    named = [figures.capability_named(one, say) for one in found.capabilities["capability"]]
    capabilities = page.translated(found.capabilities).with_columns(
        pl.Series("capability", named, dtype=pl.String)
    )
    page.table(capabilities, name="capabilities", title="What it can answer")
with collect:
    if found.config is None:
        page.text("Nothing is missing that another profiler call would record.")
    else:
        page.text("This profiler call records what is missing, on top of what is recorded now.")
        st.code(found.config, language="python")
with recorded:
    if not found.losses.is_empty():
        page.table(found.losses, name="losses", title="Lost when reading")
    page.table(found.ranks, name="recorded", title="What was recorded")
    page.table(found.tables, name="tables", title="Rows of each table")
    for title, told in (("Warnings when reading", found.warnings), ("Notes", found.notes)):
        if told:
            page.heading(title)
            st.markdown("\n".join(f"- {sentence(say(one))}" for one in told))
