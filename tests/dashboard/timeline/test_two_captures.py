"""Two captures on one timeline: on one scale, chosen steps beginning together, each by its name."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

pytest.importorskip("streamlit")
pytest.importorskip("playwright")

from npuscope.dashboard.answers.timeline_answers import paired_steps
from npuscope.sample_traces.job import small
from tests.dashboard.app.published_jobs import publish_job
from tests.dashboard.app.served_pages import Visit, chromium, visit
from tests.dashboard.app.started_server import serve

DAY_NS = 86_400 * 10**9
JOB = small(steps=3, name="moe")
A, B = "20251128T123437.000Z", "20251127T123437.000Z"
_IT = """(() => {
    const roots = [document, ...[...document.querySelectorAll('*')]
        .map(one => one.shadowRoot).filter(Boolean)];
    return roots.map(one => one.querySelector('.timeline')).find(Boolean).timeline;
})()"""


# Of a saved picture: its size beyond what the page shows, how much of it is as the page has it, and
# how far to the right something is written in its head.
_SAVED = f"""async base64 => {{
    const {{map, ruler, canvas}} = {_IT}.parts;
    const image = new Image();
    image.src = `data:image/png;base64,${{base64}}`;
    await image.decode();
    const copy = Object.assign(document.createElement('canvas'),
        {{width: image.width, height: image.height}});
    const pen = copy.getContext('2d');
    pen.drawImage(image, 0, 0);
    const head = image.height - map.height - ruler.height - canvas.height;
    const saved = pen.getImageData(0, image.height - canvas.height, canvas.width, canvas.height);
    const shown = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    let [opaque, alike] = [0, 0];
    for (let at = 0; at < shown.data.length; at += 4) {{
        if (shown.data[at + 3] < 255) continue;
        opaque++;
        alike += [0, 1, 2].every(of => saved.data[at + of] === shown.data[at + of]) ? 1 : 0;
    }}
    const top = pen.getImageData(0, 0, image.width, head).data;
    let written = 0;
    for (let at = 0; at < top.length; at += 4) {{
        if ([0, 1, 2].some(of => top[at + of] !== top[of])) {{
            written = Math.max(written, (at / 4) % image.width);
        }}
    }}
    return {{wider: image.width - canvas.width, head, opaque, share: alike / opaque, written}};
}}"""


def borders(steps: list[int]) -> pl.DataFrame:
    return pl.DataFrame({"step": steps, "start_ns": [100 * one for one in steps]})


def test_the_chosen_step_else_the_first_begin_together() -> None:
    assert paired_steps(borders([3, 1, 2]), borders([2, 5]), None) == (1, 2)
    assert paired_steps(borders([1, 2]), borders([2, 5]), 2) == (2, 2)
    assert paired_steps(borders([1, 2]), borders([2, 5]), 1) == (1, 2)
    none = borders([]).cast(pl.Int64)
    assert paired_steps(none, borders([4]), 4) == (None, 4)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("both")
    for capture, days, slow in ((B, 0, ""), (A, 1, "FlashAttentionScoreGrad")):
        job = replace(JOB, start_ns=JOB.start_ns + days * DAY_NS, slow_kernel=slow)
        publish_job(folder / "store", job, capture, published_s=days)
    with serve([folder / "store"], folder) as started:
        yield started


def of(seen: Visit, expression: str) -> Any:
    return seen.tab.evaluate(f"() => {{ const it = {_IT}; return {expression}; }}")


def settle(seen: Visit) -> None:
    seen.tab.wait_for_function(f"() => {_IT}?.isSettled()", timeout=20_000)


@pytest.mark.slow
def test_two_captures_stand_on_one_scale(address: str) -> None:
    with chromium() as browser, visit(browser, address, width=1280, height=1000) as seen:
        seen.open("timeline", rank=0)
        settle(seen)
        assert of(seen, "it.sides.length") == 1
        seen.tab.get_by_role("combobox", name="another capture beneath").click()
        seen.tab.get_by_role("option", name=f"+ moe/{B}").click()
        seen.tab.wait_for_url("**beneath=1**")
        seen.settle()
        seen.tab.wait_for_function(f"() => {_IT}?.sides.length === 2")
        asks = seen.parameters()
        assert (asks["capture"], asks["base_capture"]) == (A, B)
        names = of(seen, "it.strips.filter(s => s.type === 'capture').map(s => s.label)")
        assert names == [f"moe/{A}", f"moe/{B}"]

        # The first steps of both begin at one place, a day apart as they are.
        of(seen, "it.toggle('b:0')")
        settle(seen)
        starts = [
            of(seen, f"it.sides[{n}].startOf({step}) + it.sides[{n}].shift")
            for n, step in enumerate(of(seen, "it.data.beside.align"))
        ]
        assert starts[0] == starts[1]

        # The last step of the upper one with the first of the lower one: whole steps apart, and
        # in the link.
        steps = [of(seen, f"it.sides[{n}].steps.map(s => s.step)") for n in (0, 1)]
        picks = seen.tab.locator(".align select")
        picks.nth(0).select_option(str(steps[0][-1]))
        settle(seen)
        moved = of(seen, "it.sides[1].shift")
        assert moved == of(seen, f"it.sides[0].startOf({steps[0][-1]})") - of(
            seen, f"it.sides[1].startOf({steps[1][0]})"
        )
        seen.tab.wait_for_function("() => decodeURIComponent(location.href).includes('align')")
        link = seen.tab.url
        assert json.loads(seen.parameters()["shown"])["align"] == [steps[0][-1], steps[1][0]]

        # An event of the lower one is found, drawn where it is on the axis, and told by its own.
        seen.tab.locator(".timeline input[type=search]").fill("FlashAttentionScoreGrad")
        seen.tab.locator(".timeline input[type=search]").press("Enter")
        seen.tab.locator(".panel h4").wait_for()
        place = seen.tab.locator(".panel p.soft")
        for _ in range(200):
            if place.inner_text().startswith("B · rank"):
                break
            seen.tab.locator(".tracks").focus()
            seen.tab.keyboard.press("n")
            settle(seen)
        assert place.inner_text().startswith("B · rank")
        seen.tab.locator(".panel dd").nth(3).wait_for()  # what the server tells of it
        seen.tab.keyboard.press("f")
        settle(seen)
        view = of(seen, "[it.view.start, it.view.end]")
        asks = seen.parameters()
        event = json.loads(asks["shown"])["event"]
        assert event["side"] == 1
        assert view[0] < event["start"] + moved < view[1]

        # A picture has both as they are seen, below their names.
        with seen.tab.expect_download() as saved:
            seen.tab.get_by_role("button", name="save as a picture").click()
        picture = base64.b64encode(Path(saved.value.path()).read_bytes()).decode()
        told = seen.tab.evaluate(_SAVED, picture)
        assert told["wider"] == 0 and 16 <= told["head"] <= 40
        assert told["opaque"] > 20_000 and told["share"] > 0.99
        assert told["written"] > 250  # of one name some 180

        with visit(browser, address) as other:
            other.tab.goto(link)
            other.settle()
            settle(other)
            assert of(other, "it.sides[1].shift") == moved
            assert other.complaints == []
        assert seen.complaints == []


@pytest.mark.slow
@pytest.mark.parametrize("beneath", ["2", "/etc/passwd", "", "1' or 1"])
def test_only_captures_that_pages_name_can_be_beneath(address: str, beneath: str) -> None:
    with chromium() as browser, visit(browser, address) as seen:
        seen.open("timeline", beneath=beneath, base_run="../..", base_capture="x", shown=json.dumps(
            {"align": ["x", 1e99], "open": ["b:0", "b:99:host"], "pins": ["b:0:device:stream:2"],
             "event": {"side": 7, "rank": 0, "row": 0, "start": 0, "dur": 1, "part": "device",
                       "kind": "stream", "key": "2", "name": "x"}}))  # fmt: skip
        settle(seen)
        assert of(seen, "it.sides.length") == 1
        assert "beneath" not in seen.parameters()
        assert seen.complaints == []
