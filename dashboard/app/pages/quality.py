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
facts = page.frame(quality, step=None, path=str(page.store_path))
if facts is None:
    page.empty("How this capture was read is not recorded.")
    st.stop()

support = facts.capabilities["support"]
impossible = facts.capabilities.filter(support == "no")["capability"].to_list()
page.verdict(
    Message(
        "{count} of {every} analyses are possible in full, {lacking} not at all: {names}.",
        count=support.to_list().count("yes"), every=support.len(), lacking=len(impossible),
        names=join([figures.capability_named(one, say) for one in impossible]),
    )
    if impossible
    else Message(
        "{count} of {every} analyses are possible in full, the others partly.",
        count=support.to_list().count("yes"), every=support.len(),
    )
)  # fmt: skip
ranks, analyses, losses, overhead = st.columns(4)
of_expected = f" / {facts.expected_count}" if facts.expected_count else ""
rows_lost = facts.ranks["rows_lost"].drop_nulls()
with ranks:
    page.tile("ranks", f"{facts.present_count}{of_expected}", name="recorded_ranks")
with analyses:
    possible = f"{support.to_list().count('yes')} / {support.len()}"
    page.tile("analyses possible", possible, name="possible_analyses")
with losses:
    lost_text = f"{sum(rows_lost):,}" if rows_lost.len() else "-"
    page.tile("rows lost when reading", lost_text, name="lost_rows")
with overhead:
    ratio = facts.overhead_ratio
    ratio_text = f"{ratio:+.1%}" if ratio is not None else "-"
    page.tile("profiler's overhead", ratio_text, name="profiler_overhead")
answers, collect, tables = page.parts(
    "What each rank can answer", "What to collect", "What was recorded"
)
with answers:
    page.figure(figures.support_figure(facts.support, say), key="support")
    page.text(
        "Whether ranks can be compared with each other is no rank's own: it is in the table only."
    )
    names = [figures.capability_named(one, say) for one in facts.capabilities["capability"]]
    capabilities = page.translate(facts.capabilities).with_columns(
        pl.Series("capability", names, dtype=pl.String)
    )
    page.table(capabilities, name="capabilities", title="What it can answer")
with collect:
    if facts.config is None:
        page.text("Nothing is missing that another profiler call would record.")
    else:
        page.text("This profiler call records what is missing, on top of what is recorded now.")
        st.code(facts.config, language="python")
with tables:
    if not facts.losses.is_empty():
        page.table(facts.losses, name="losses", title="Lost when reading")
    page.table(facts.ranks, name="recorded", title="What was recorded")
    page.table(facts.tables, name="tables", title="Rows of each table")
    for title, sentences in (("Warnings when reading", facts.warnings), ("Notes", facts.notes)):
        if sentences:
            page.heading(title)
            st.markdown("\n".join(f"- {sentence(say(one))}" for one in sentences))
