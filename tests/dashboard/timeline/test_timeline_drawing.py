"""What the timeline draws: arrows by their pixels, moved tracks, and at most so many rectangles."""

from __future__ import annotations

import json
import re

import pytest

pytest.importorskip("streamlit")
pytest.importorskip("playwright")

from playwright.sync_api import Browser

from tests.dashboard.app.served_pages import visit
from tests.dashboard.timeline.seen_timeline import TIMELINE, Timeline

pytestmark = pytest.mark.slow


# Of points along each arrow of a kind that are in sight, how many have its colour: by the list of
# arrows that were drawn, or by one from before.
_ALONG = """([kind, earlier]) => {
    const it = THE_TIMELINE;
    const canvas = it.parts.canvas, pen = canvas.getContext('2d');
    const accent = [1, 3, 5].map(at => parseInt(it.data.colours.accent.slice(at, at + 2), 16));
    const arrows = (earlier ?? it.arrows).filter(one => one.kind === kind);
    let [points, hits] = [0, 0];
    for (const {from: [x0, y0], to: [x1, y1]} of arrows) {
        const bend = Math.max(Math.abs(x1 - x0) / 2, 24);
        for (let t = 0.05; t < 0.96; t += 0.05) {
            const along = (a, b, c, d) => (1 - t) ** 3 * a + 3 * (1 - t) ** 2 * t * b
                + 3 * (1 - t) * t ** 2 * c + t ** 3 * d;
            const x = along(x0, x0 + bend, x1 - bend, x1), y = along(y0, y0, y1, y1);
            if (x < 152 || x > 150 + it.width - 2 || y < 2 || y > it.height - 2) continue;
            points++;
            const {data} = pen.getImageData((x - 1) * it.ratio, (y - 1) * it.ratio, 3, 3);
            hits += [...Array(9).keys()].some(at =>
                accent.every((part, of) => Math.abs(data[4 * at + of] - part) < 48)) ? 1 : 0;
        }
    }
    return {arrows, points, hits};
}""".replace("THE_TIMELINE", f"({TIMELINE})()")


def drawn_along(timeline: Timeline, kind: str) -> list[dict[str, list[float]]]:
    """Arrows of a kind, which the picture has from end to end, and no longer when nothing is
    selected."""
    timeline.settle()
    timeline.tab.evaluate("() => new Promise(requestAnimationFrame)")
    timeline.tab.evaluate("() => new Promise(requestAnimationFrame)")
    found = timeline.tab.evaluate(_ALONG, [kind, None])
    arrows: list[dict[str, list[float]]] = found["arrows"]
    assert arrows and found["points"] >= 8, found
    assert found["hits"] >= 0.9 * found["points"], found
    timeline.press("Escape")
    timeline.tab.wait_for_function(f"() => !({TIMELINE})().arrows.length")
    gone = timeline.tab.evaluate(_ALONG, [kind, arrows])
    assert gone["hits"] <= 0.2 * gone["points"], gone
    return arrows


def test_an_arrow_leads_from_the_launch_to_its_kernel(timeline: Timeline) -> None:
    timeline.find("matmul")
    timeline.tab.wait_for_function(
        f"() => ({TIMELINE})().arrows?.some(one => one.kind === 'launch')"
    )
    # As far as from the launch to the kernel, and some more on either side.
    timeline.of(
        "(one => it.look(it.ns(one.from[0] - 40), it.ns(one.to[0] + 40)))"
        "(it.arrows.find(one => one.kind === 'launch'))"
    )
    (arrow,) = drawn_along(timeline, "launch")
    host = timeline.of("it.strips.find(s => s.fold === '0:host').y - it.scrollTop")
    assert arrow["from"][0] < arrow["to"][0] and host < arrow["from"][1] < host + 20


def test_arrows_lead_from_a_collective_to_its_members(timeline: Timeline) -> None:
    timeline.find("allToAllV")
    timeline.tab.wait_for_function(
        f"() => ({TIMELINE})().arrows?.some(one => one.kind === 'member')"
    )
    group = timeline.of(
        "it.strips.find(s => s.rank === 1 && s.track?.kind === 'group'"
        " && s.label.startsWith('ep 0-1')).y - it.scrollTop"
    )
    (arrow,) = drawn_along(timeline, "member")
    assert group < arrow["to"][1] < group + 20 and arrow["from"][1] < group


def labels(timeline: Timeline, rank: int) -> list[str]:
    found: list[str] = timeline.of(
        f"it.strips.filter(s => s.rank === {rank} && s.part === 'device').map(s => s.label)"
    )
    return found


def ranks(timeline: Timeline) -> list[int]:
    found: list[int] = timeline.of("it.strips.filter(s => s.type === 'rank').map(s => s.rank)")
    return found


def test_tracks_and_ranks_are_moved_and_stay_so(
    timeline: Timeline, browser: Browser, address: str
) -> None:
    before = labels(timeline, 0)
    timeline.find("FlashAttention")
    stream = timeline.tab.locator(".panel p.soft").inner_text().rpartition(" · ")[2]
    timeline.press("Shift+ArrowDown", "Shift+ArrowDown")
    at = before.index(stream)
    moved = [*before[:at], *before[at + 1 : at + 3], stream, *before[at + 3 :]]
    assert labels(timeline, 0) == moved and labels(timeline, 1) != moved
    timeline.press("Shift+PageDown", "Shift+PageDown", "Shift+PageUp")
    assert ranks(timeline)[:3] == [1, 0, 2]

    # A name is dragged to the top of its like, and by its head rank 0 above rank 1 again.
    def dragged(strip: str, to: str) -> None:
        timeline.of("it.scroll(-9999)")
        for place, is_down in ((strip, True), (to, False)):
            top = timeline.of(f"it.strips.find(s => {place}).y - it.scrollTop")
            timeline.tab.mouse.move(*timeline.place(60, top + 9), steps=4)
            (timeline.tab.mouse.down if is_down else timeline.tab.mouse.up)()

    first = labels(timeline, 1)
    dragged(
        f"s.rank === 1 && s.label === {json.dumps(first[3])}",
        f"s.rank === 1 && s.label === {json.dumps(first[0])}",
    )
    assert labels(timeline, 1) == [first[3], *first[:3], *first[4:]]
    assert timeline.of("it.state.pins") == []  # a drag is no click
    timeline.of("it.toggle('1')")
    dragged("s.type === 'rank' && s.rank === 0", "s.type === 'rank' && s.rank === 1")
    assert ranks(timeline)[:3] == [0, 1, 2]

    timeline.of("it.toggle('1')")
    timeline.settle()
    timeline.tab.wait_for_url(re.compile("moved"))
    with visit(browser, address) as seen:
        seen.tab.goto(timeline.tab.url)
        seen.settle()
        other = Timeline(seen)
        assert labels(other, 0) == moved and labels(other, 1) == labels(timeline, 1)
        assert ranks(other) == ranks(timeline)
        assert seen.complaints == []


# Tiles as full as they can be: in each bucket and lane what is too short, and one that is not.
_FULL = f"""() => {{
    const it = ({TIMELINE})(), side = it.sides[0];
    for (const tracks of side.tiles.tracks.values())
        for (const one of tracks) if (one.kind !== "overlap") one.rows = 12;
    const isFlat = (rank, number) =>
        side.tiles.tracksOf('device', rank)?.[number]?.kind === 'overlap';
    side.tiles.shown = function* (part, rank, level, from, to) {{
        const bucket = 2 ** level, first = Math.floor(from / bucket) - 1;
        const count = Math.ceil((to - from) / bucket) + 2;
        const full = lanes => {{
            const columns = {{start: [], dur: [], row: [], count: [], cls: [], name: []}};
            for (let at = 0; at < count; at++) for (const several of [true, false])
                for (let row = 0; row < lanes; row++) {{
                    columns.start.push((first + at + (several ? 0 : 0.5)) * bucket);
                    columns.dur.push(several ? bucket / 2 : bucket);
                    columns.row.push(row);
                    columns.count.push(several ? 2 : 1);
                    columns.cls.push(0);
                    columns.name.push('x');
                }}
            return {{...columns, longest: bucket}};
        }};
        const tile = {{get: number => full(isFlat(rank, number) ? 1 : 12)}};
        yield {{tile, low: from, high: to, level}};
    }};
    it.lay();
}}"""


def test_no_view_has_more_rectangles_than_a_picture_may(address: str, browser: Browser) -> None:
    with visit(browser, address, width=3840, height=1_000) as seen:
        seen.open("timeline")
        timeline = Timeline(seen)
        seen.tab.evaluate(_FULL)
        drawn = []
        for times in (1.01, 1.5, 1.99):  # of pixels by buckets: from few of these to most
            timeline.of(f"it.look(0, it.width * 4096 * {times})")
            timeline.settle()
            drawn.append(timeline.of("it.rectangles"))
        assert 100_000 < max(drawn) <= 200_000, drawn
        assert seen.complaints == []
