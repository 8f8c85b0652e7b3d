"""What does each rank do, and when?"""

from collections.abc import Mapping
from dataclasses import replace

import streamlit as st

from npuscope.analysis import query
from npuscope.analysis.timeline.rank_events import group_kinds_of
from npuscope.analysis.timeline.shared_axis import extent, step_borders
from npuscope.analysis.wording import ranks_named
from npuscope.dashboard.answers import timeline_answers as answers
from npuscope.dashboard.app import perfetto_viewer as viewer
from npuscope.dashboard.app import sources
from npuscope.dashboard.app.collecting import how_to_collect
from npuscope.dashboard.app.page import open_page
from npuscope.dashboard.app.plain_text import sentence
from npuscope.dashboard.app.state import BASE, MOST_LANES, KnownCapture
from npuscope.dashboard.app.timeline_component import Timeline, draw_timeline
from npuscope.errors import NpuscopeError

page = open_page("timeline")
say, view, label_of = page.say, page.view, page.choices.label
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
interval_ns = (view.start_ns, view.end_ns)
window_ns = answers.window_of(at, borders, view.step, interval_ns)
lanes = view.lanes if view.rank is None else (view.rank,)
open_lanes = answers.shown_lanes(page.capture.ranks, lanes)


def lower_capture() -> KnownCapture | None:
    """The capture beneath, as it is asked for; asks where there are several."""
    others = [one for one in page.choices.captures if one != page.capture]
    if not others:
        return None

    def put() -> None:
        capture_below = st.session_state["beneath"]
        base = (
            (capture_below.store, capture_below.run, capture_below.capture)
            if capture_below
            else (None, None, None)
        )
        page.look_at(beneath=1 if capture_below else None, **dict(zip(BASE, base, strict=True)))

    st.session_state["beneath"] = page.choices.base(view) if view.beneath else None
    return st.selectbox(
        say("another capture beneath, on one scale"), [None, *others], key="beneath",
        format_func=lambda one: f"+ {label_of(one)}" if one else say("no other capture beneath"),
        label_visibility="collapsed", placeholder=say("no other capture beneath"), on_change=put,
    )  # fmt: skip


def drawn_beneath(capture: KnownCapture | None) -> tuple[Timeline, Timeline | None]:
    """This capture, and the one beneath it where anything was recorded."""
    one = Timeline(page, label_of(page.capture), at, borders)
    if capture is None:
        return one, None
    lower = page.at(capture)
    where = lower.frame(extent)
    if where.window_ns is None:
        return one, None
    own = lower.frame(step_borders, at=where)
    ours, theirs = answers.paired_steps(borders, own, view.step)
    return replace(one, step=ours), Timeline(lower, label_of(lower.capture), where, own, theirs)


draw_timeline(
    *drawn_beneath(lower_capture()),
    open_ranks=open_lanes,
    window_ns=None if window_ns == whole_ns else window_ns,
    kinds=page.frame(group_kinds_of),
)
page.sources(name="timeline")


def perfetto_link(
    windows_ns: Mapping[int, tuple[int, int]], known_ns: Mapping[int, tuple[int, int]]
) -> None:
    """A button that writes the trace of `windows_ns` (rank -> from, to, on that rank's clock), then
    a link that opens it; `known_ns`: between which instants each rank has events."""
    if viewer.viewer_folder() is None:
        page.text(
            "To open raw events in the Perfetto UI from here: pip install 'npuscope[dashboard]'"
        )
        return
    key = f"{page.version}_{view.run}_{view.capture}_{sorted(windows_ns.items())}"
    tokens = st.session_state.setdefault("perfetto_tokens", {})
    label = f"{say('Raw events of')} {ranks_named(windows_ns)}"
    token, opening = tokens.get(key, (None, None))
    if not viewer.serves(token):
        icon = ":material/timeline:"
        if not st.button(f"{label}: {say('prepare for Perfetto')}", icon=icon, key="perfetto"):
            return
        out = viewer.new_file()
        with st.spinner(say("writing the trace")):
            try:
                with sources.open_tables(page.place.path, page.version).borrow() as con:
                    opening = viewer.write_window(
                        con, page.store_path, out,
                        run=view.run, capture=view.capture,
                        windows_ns=windows_ns, known_ns=known_ns,
                    )  # fmt: skip
            except NpuscopeError as error:
                st.warning(sentence(say(error.message)))
                return
        token = viewer.add_trace(out)
        tokens[key] = token, opening
    base = str(st.get_option("server.baseUrlPath")).strip("/")
    address = viewer.address_of(token, st.context.url or "", base, opening)
    icon = ":material/open_in_new:"
    st.link_button(f"{label}: {say('open in Perfetto')}", address, icon=icon)


with st.expander(say("Raw events in Perfetto")):
    with_events = tuple(at.ranks["rank"])
    usual = [rank for rank in open_lanes if rank in with_events]
    ranks = st.multiselect(
        say("ranks"), with_events, default=usual, max_selections=MOST_LANES, key="timeline_lanes",
        select_all=False,
        format_func=lambda rank: f"rank {rank}",
    )  # fmt: skip
    if ranks:
        perfetto_link(
            answers.recorded_windows(at, ranks, window_ns), answers.recorded_extents(at, ranks)
        )
page.notes([*at.notes, *page.frame(query.notes, rank=None, step=None), *page.warnings])
