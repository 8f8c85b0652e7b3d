"""The timeline in a real browser: every gesture, key, search, selection, arrow and link."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

pytest.importorskip("streamlit")
pytest.importorskip("playwright")

from playwright.sync_api import Browser

from tests.dashboard.app.served_pages import visit
from tests.dashboard.timeline.seen_timeline import GUTTER, TIMELINE, Timeline

pytestmark = pytest.mark.slow


def test_it_shows_events_of_real_ranks_at_once(timeline: Timeline) -> None:
    drawn = timeline.of("[...it.tiles.tiles.values()].flatMap(t => [...t.keys()]).length")
    assert drawn > 16
    assert timeline.window() == (0, timeline.of("it.data.extent"))


def test_a_tile_that_is_there_is_not_sent_again(timeline: Timeline, address: str) -> None:
    found = timeline.tab.evaluate(
        f"""async () => {{
            const {{tiles}} = ({TIMELINE})();
            const url = tiles.url("tile", {{part: "device", ranks: "0", level: 20, index: 0}});
            const first = await fetch(url, {{cache: "no-store"}});
            const etag = first.headers.get("etag");
            const headers = {{"If-None-Match": etag}};
            const again = await fetch(url, {{cache: "no-store", headers}});
            return [url, etag, first.status, again.status,
                ...["cache-control", "x-frame-options"].map(one => again.headers.get(one))];
        }}"""
    )
    url, etag, *answers = found
    assert answers == [200, 304, "private, no-cache", "DENY"]
    for foreign in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}):
        headers = {"If-None-Match": etag, **foreign}
        with pytest.raises(HTTPError, match="403") as refused:
            urlopen(Request(f"{address}{url}", headers=headers), timeout=20)
        refused.value.close()


def test_keys_zoom_move_and_go_back(timeline: Timeline) -> None:
    whole = timeline.length()
    timeline.tab.locator(".tracks").focus()
    timeline.tab.keyboard.down("w")
    timeline.tab.wait_for_function(
        f"() => {{ const v = ({TIMELINE})().view; return v.end - v.start < {whole / 3}; }}"
    )
    timeline.tab.keyboard.up("w")
    timeline.settle()
    start, _ = timeline.window()
    timeline.tab.keyboard.down("d")
    timeline.tab.wait_for_function(f"() => ({TIMELINE})().view.start > {start + whole / 50}")
    timeline.tab.keyboard.up("d")
    timeline.settle()
    short = timeline.length()
    timeline.tab.keyboard.down("s")
    timeline.tab.wait_for_function(
        f"() => {{ const v = ({TIMELINE})().view; return v.end - v.start > {short * 1.5}; }}"
    )
    timeline.tab.keyboard.up("s")
    before = timeline.window()
    timeline.press("Backspace")
    assert timeline.window() != before
    timeline.press("0")
    assert timeline.length() == pytest.approx(whole)


def test_wheel_zooms_at_the_pointer_and_drag_moves(timeline: Timeline) -> None:
    whole = timeline.length()
    at = GUTTER + (timeline.box["width"] - GUTTER) / 4
    timeline.tab.mouse.move(*timeline.place(at, 200))
    timeline.tab.mouse.wheel(0, -600)
    timeline.settle()
    start, end = timeline.window()
    assert end - start < whole / 2
    assert start + (end - start) / 4 == pytest.approx(whole / 4, rel=0.01)
    timeline.drag(-100)
    timeline.settle()
    moved = timeline.window()[0] - start
    assert moved == pytest.approx(100 * (end - start) / (timeline.box["width"] - GUTTER), rel=0.02)


def test_panning_never_reruns_the_script(timeline: Timeline) -> None:
    states: list[str] = []
    timeline.tab.expose_function("noted", lambda state: states.append(state))
    timeline.tab.evaluate("""() => {
        const app = document.querySelector('[data-testid="stApp"]');
        new MutationObserver(() => noted(app.dataset.testScriptState))
            .observe(app, {attributes: true, attributeFilter: ['data-test-script-state']});
    }""")
    timeline.tab.mouse.move(*timeline.place(500, 200))
    timeline.tab.mouse.wheel(0, -900)
    timeline.drag(-200)
    timeline.settle()
    assert "running" not in states


def test_a_stretch_is_measured(timeline: Timeline) -> None:
    timeline.drag(200, shift=True)
    timeline.tab.locator(".panel td").first.wait_for()
    told = timeline.panel()
    assert "busy" in told and "allToAllV" in told


def test_search_goes_from_hit_to_hit(timeline: Timeline) -> None:
    timeline.find("matmul")
    first = timeline.window()
    assert re.match(r"1 / \d+", timeline.tab.locator(".bar [role=status]").inner_text())
    timeline.press("n")
    timeline.settle()
    assert timeline.tab.locator(".bar [role=status]").inner_text().startswith("2 /")
    assert timeline.window() != first or "MatMul" in timeline.panel()
    timeline.press("Shift+N")
    assert timeline.tab.locator(".bar [role=status]").inner_text().startswith("1 /")


def test_a_search_without_a_hit_says_so_and_selects_nothing(timeline: Timeline) -> None:
    timeline.find("matmul")
    field = timeline.tab.locator(".timeline input[type=search]")
    field.fill("xyzzy")
    field.press("Enter")
    timeline.tab.get_by_text("no event found: xyzzy").wait_for()
    assert timeline.tab.locator(".panel h4").count() == 0  # the hit of before is none


def test_a_collective_leads_to_its_members_and_its_launch(timeline: Timeline) -> None:
    timeline.find("allToAllV")
    timeline.tab.locator(".panel .links button").first.wait_for()
    told = timeline.panel()
    assert (
        "rank 0" in told and "rank 1" in told and "bandwidth" in told and "launch latency" in told
    )
    timeline.press("f")
    timeline.settle()
    before = timeline.window()
    timeline.tab.get_by_role("button", name="to its launch").click()
    timeline.settle()
    assert timeline.window()[0] < before[0]
    assert timeline.of("it.state.open.has('0:host')")


def test_what_a_replay_tells_comes_when_it_is_asked_for(address: str, browser: Browser) -> None:
    with visit(browser, address) as seen:
        seen.open("timeline", change="comm:all=0.5")
        timeline = Timeline(seen)
        assert timeline.of("it.tiles.tracksOf('path', -1)") is None
        timeline.of("[it.toggle('path'), it.toggle('whatif')]")
        seen.tab.wait_for_function(
            f"() => {{ const it = ({TIMELINE})();"
            " return ['path', 'whatif'].every(part => it.tiles.tracksOf(part, -1)); }"
        )
        timeline.settle()
        drawn = timeline.of("it.strips.filter(s => s.track && s.rank < 0).map(s => s.label)")
        assert drawn == ["critical path", "measured", "predicted"]
        timeline.find("FlashAttention")
        seen.tab.get_by_role("button", name="how much longer").click()
        seen.tab.locator(".panel dt", has_text="slack").wait_for()
        assert seen.complaints == []


def test_a_click_selects_and_arrows_step(timeline: Timeline) -> None:
    timeline.find("FlashAttention")
    timeline.press("f")
    timeline.settle()
    name = timeline.tab.locator(".panel h4").inner_text()
    assert name.startswith("FlashAttention")
    start = timeline.tab.locator(".panel dd").nth(1).inner_text()
    timeline.press("ArrowRight")
    assert timeline.tab.locator(".panel dd").nth(1).inner_text() != start
    timeline.press("Escape")
    assert timeline.tab.locator(".panel").is_hidden()


def test_marks_notes_pins_and_folds_are_in_the_link(
    timeline: Timeline, browser: Browser, address: str
) -> None:
    timeline.find("FlashAttention")
    timeline.press("f", "p", "m")
    timeline.tab.locator(".panel input").fill("look here")
    timeline.tab.locator(".panel input").press("Enter")
    timeline.settle()
    timeline.tab.wait_for_url(re.compile("look"))
    window = timeline.window()
    with visit(browser, address) as seen:
        seen.tab.goto(timeline.tab.url)
        seen.settle()
        other = Timeline(seen)
        assert other.window() == pytest.approx(window, abs=2)
        kept = other.of("it.state.marks")
        assert [one["text"] for one in kept] == ["look here"]
        assert len(other.of("it.state.pins")) == 1
        seen.tab.locator(".panel h4").wait_for()
        assert other.panel().splitlines()[1].startswith("FlashAttention")
        assert seen.complaints == []


def test_a_choice_on_the_page_keeps_what_is_shown(timeline: Timeline) -> None:
    timeline.find("FlashAttention")
    timeline.settle()
    timeline.tab.get_by_role("combobox").nth(4).click()
    timeline.tab.get_by_role("option", name="中文").click()
    timeline.tab.wait_for_url(re.compile("lang=zh"))
    timeline.seen.settle()
    timeline.tab.wait_for_url(re.compile("shown="))  # the page says its part first
    asked = timeline.seen.parameters()
    assert json.loads(asked["shown"])["event"]["name"].startswith("FlashAttention")
    assert int(asked["end_ns"]) > int(asked["start_ns"])


@pytest.mark.parametrize(
    "shown",
    ["{", "[]", "x" * 5000,
     '{"open":5,"pins":[1],"marks":"x","event":{"rank":"<img src=x onerror=alert(1)>"}}',
     '{"marks":[{"from":0,"to":1e6,"text":"<img src=x onerror=alert(1)>"}],"open":["77","0"],'
     '"pins":["0:device:stream","9:x:y:z"]}'],
)  # fmt: skip
def test_hostile_links_show_what_there_is(address: str, browser: Browser, shown: str) -> None:
    with visit(browser, address) as seen:
        seen.tab.on("dialog", lambda dialog: seen.complaints.append(dialog.message))
        seen.open("timeline", shown=shown)
        Timeline(seen)
        assert seen.complaints == []


def test_findings_land_on_their_evidence(address: str, browser: Browser) -> None:
    with visit(browser, address, height=2_000) as seen:
        seen.open("overview")
        cards = seen.tab.locator(".st-key-finding_1, .st-key-finding_2, .st-key-finding_3")
        card = cards.filter(has_text="is exposed and not known to wait").first
        card.get_by_role("link", name=re.compile("Timeline")).click()
        seen.tab.wait_for_url(re.compile("/timeline"))
        seen.settle()
        landed = Timeline(seen)
        seen.tab.locator(".panel h4").wait_for()
        assert landed.panel().splitlines()[1] == "allToAllV"
        assert landed.of("it.searched") == "alltoallv"
        event = json.loads(seen.parameters()["shown"])["event"]
        start, end = landed.window()
        assert start < event["start"] and event["start"] + event["dur"] < end
        assert end - start == pytest.approx(8 * event["dur"], rel=0.01)
        assert landed.of("[...it.state.open]") == [str(event["rank"])]
        assert seen.complaints == []


def test_three_visitors_look_elsewhere_at_once(address: str, browser: Browser) -> None:
    with visit(browser, address) as a, visit(browser, address) as b, visit(browser, address) as c:
        visitors = []
        for number, seen in enumerate((a, b, c)):
            seen.open("timeline", rank=number)
            visitors.append(Timeline(seen))
        for one in visitors:
            one.tab.locator(".tracks").focus()
            one.press("+", "+")
        for number, one in enumerate(visitors):
            one.settle()
            assert one.of("[...it.state.open]") == [str(number)]
            assert one.length() == pytest.approx(one.of("it.data.extent") / 4)
            assert one.seen.complaints == []


def test_a_picture_is_saved(timeline: Timeline) -> None:
    with timeline.tab.expect_download() as saved:
        timeline.tab.get_by_role("button", name="save as a picture").click()
    assert Path(saved.value.path()).read_bytes().startswith(b"\x89PNG")
