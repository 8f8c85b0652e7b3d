"""Pages of a started dashboard in a real Chromium."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from playwright.sync_api import Browser, ConsoleMessage, sync_playwright
from playwright.sync_api import Page as Tab

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
PATIENCE_MS = 120_000
_FLAGS = (
    "--no-sandbox", "--disable-quic", "--disable-background-networking", "--no-first-run",
    "--disable-component-update", "--disable-sync",
    "--process-per-site", "--renderer-process-limit=1",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)  # fmt: skip
_BESIDE = re.compile(r"/\w+/_stcore/(health|host-config)$")
# plotly.js keeps numbers as typed arrays, those of a grid as it was sent: base64 of the bytes.
_FIGURES = """() => {
    const kinds = {f4: Float32Array, f8: Float64Array, i1: Int8Array, i2: Int16Array,
        i4: Int32Array, u1: Uint8Array, u2: Uint16Array, u4: Uint32Array};
    const grid = ({dtype, bdata, shape}) => {
        const bytes = Uint8Array.from(atob(bdata), letter => letter.charCodeAt(0));
        const cells = new kinds[dtype](bytes.buffer);
        const [rows, columns] = String(shape).split(',').map(Number);
        return Array.from({length: rows}, (_, row) =>
            cells.subarray(row * columns, (row + 1) * columns));
    };
    const plain = value => value?.bdata ? plain(grid(value))
        : ArrayBuffer.isView(value) || Array.isArray(value) ? [...value].map(plain)
        : Number.isNaN(value) ? null : value;
    const numbers = ['x', 'y', 'z', 'value', 'base', 'x0', 'dx', 'text'];
    return [...document.querySelectorAll('.js-plotly-plot')].map(one => ({
        traces: one.data.map(trace => Object.fromEntries([
            ['type', trace.type], ['name', trace.name ?? ''],
            ...numbers.filter(name => name in trace).map(name => [name, plain(trace[name])])])),
        title: one.layout.title?.text ?? '',
        range: [...(one.layout.xaxis?.range ?? [])],
        units: [one.layout.xaxis?.title?.text ?? '', one.layout.yaxis?.title?.text ?? ''],
    }));
}"""
# Labels of one axis that lie on each other, by what is drawn; 1 px is the rounding of boxes.
_OVERLAPS = """() => [...document.querySelectorAll('.js-plotly-plot')].flatMap(plot =>
    ['.xtick text', '.ytick text', '.legendtext', '.gtitle'].flatMap(kind => {
        const boxes = [...plot.querySelectorAll(kind)].filter(one => one.textContent.trim())
            .map(one => [one.textContent, one.getBoundingClientRect()]);
        return boxes.flatMap(([name, a], at) => boxes.slice(at + 1).filter(([, b]) =>
            Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
            && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1
        ).map(([other]) => `${kind}: ${name} / ${other}`));
    }))"""
# Streamlit tells on its root whether a script still runs; figures are drawn a moment later, tracks
# of a timeline when their tiles have come.
_SETTLED = """() => {
    const app = document.querySelector('[data-testid="stApp"]');
    return app && app.dataset.testScriptState === 'notRunning'
        && !document.querySelector('[data-testid="stSkeleton"]')
        && [...document.querySelectorAll('[data-testid="stPlotlyChart"]')].every(
            one => one.querySelector('.js-plotly-plot .main-svg'))
        && [...document.querySelectorAll('[data-testid="stBidiComponentIsolated"]')].every(
            one => one.shadowRoot?.querySelector('.timeline')?.timeline?.isSettled());
}"""
# From its heading on, the script of another page runs.
_HAS_TURNED = """before =>
    document.querySelector('[data-testid="stMain"] h3')?.innerText !== before"""

# Figures follow the window's size a moment later: until none has moved for a tenth of a second.
_STILL = """() => new Promise(done => {
    const drawn = () => [...document.querySelectorAll('.js-plotly-plot .main-svg')];
    const places = () => JSON.stringify(drawn().map(one => one.getBoundingClientRect()));
    let known = '', since = 0;
    const look = now => {
        const found = places();
        if (found !== known) [known, since] = [found, now];
        if (now - since > 100) done(); else requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
})"""


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """The system's browser; it reaches this machine and nothing else."""
    assert CHROMIUM, "Chromium is not installed: .ci/run does that"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(_FLAGS))
        # Streamlit's scripts and plotly.js take 4 CPU-s to compile. A tab that stays keeps the
        # process of them all, where a new tab finds what was compiled for the ones before.
        browser.new_context().new_page()
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Visit:
    """A tab that looks at one dashboard, and what its console complained of."""

    tab: Tab
    address: str
    complaints: list[str] = field(default_factory=list)

    def open(self, page: str, **parameters: object) -> None:
        """Go to a page by its URL and wait until it is drawn."""
        name = "" if page == "overview" else page
        self.tab.goto(f"{self.address}/{name}?{urlencode(parameters)}")
        self.settle()

    def turn_to(self, page: str) -> None:
        """Go to another page by the bar, as users do: what is chosen stays, and nothing is loaded
        anew, which takes longer than to draw most pages."""
        path = "/" if page == "overview" else f"/{page}"
        if urlsplit(self.tab.url).path == path:
            return
        heading = self.tab.locator('[data-testid="stMain"] h3').first.inner_text()
        self.tab.locator(f'[data-testid="stTopNavLink"][href$="{path}"]').click()
        self.tab.wait_for_function(_HAS_TURNED, arg=heading, timeout=PATIENCE_MS)
        self.settle()

    def settle(self) -> None:
        """Until the page's script has ended and its figures stand; then nothing may be wrong."""
        self.tab.wait_for_selector('[data-testid="stMain"] h3', timeout=PATIENCE_MS)
        self.tab.wait_for_function(_SETTLED, timeout=PATIENCE_MS)
        assert not self.tab.locator('[data-testid="stException"]').count(), self.text()

    def parts(self) -> Iterator[int]:
        """Opens the tabs of the page one after the other; a page without is one part."""
        tabs = self.tab.locator('[data-testid="stMain"] [role="tab"]')
        for number in range(max(tabs.count(), 1)):
            if tabs.count():
                tabs.nth(number).click()
                self.settle()
            yield number

    def shown_by_tabs(self) -> list[str]:
        """What stands below each chosen tab; a panel with nothing in it has no size, so that a
        browser calls it hidden."""
        chosen = self.tab.locator('[data-testid="stMain"] [role="tab"][aria-selected="true"]')
        panels = [one.get_attribute("aria-controls") for one in chosen.filter(visible=True).all()]
        return [self.tab.locator(f'[id="{panel}"]').inner_text().strip() for panel in panels]

    def tables_of_tab(self) -> list[str]:
        """Titles of the tables below the chosen tab, without the number of their rows."""
        titles = self.tab.locator('[role="tabpanel"] details > summary').filter(visible=True)
        return [one.strip().rpartition(" (")[0] or one for one in titles.all_inner_texts()]

    def figures(self) -> list[dict[str, Any]]:
        """The figures' own data, as the browser has it: `traces`, `title`, `range` of x."""
        drawn: list[dict[str, Any]] = self.tab.evaluate(_FIGURES)
        return drawn

    def figure(self, title: str) -> dict[str, Any]:
        """The figure whose title begins so."""
        titles = {one["title"]: one for one in self.figures()}
        found = [one for name, one in titles.items() if name.startswith(title)]
        assert len(found) == 1, (title, list(titles))
        return found[0]

    def gauges(self) -> list[float]:
        """Values of the gauges, in order."""
        first = [figure["traces"][0] for figure in self.figures()]
        return [trace["value"] for trace in first if trace["type"] == "indicator"]

    def overlaps(self) -> list[str]:
        """Labels in figures that cover each other."""
        found: list[str] = self.tab.evaluate(_OVERLAPS)
        return found

    def text(self) -> str:
        """What stands on the page."""
        return self.tab.locator('[data-testid="stMain"]').inner_text()

    def parameters(self) -> dict[str, str]:
        """The URL's, the last of each name."""
        return {name: values[-1] for name, values in parse_qs(urlsplit(self.tab.url).query).items()}

    def height_px(self) -> int:
        """Of all of the page, as it stands."""
        height: int = self.tab.evaluate(
            "document.querySelector('[data-testid=\"stMain\"]').scrollHeight"
        )
        return height

    def shot(self, path: Path) -> None:
        """The whole page as a picture."""
        path.parent.mkdir(parents=True, exist_ok=True)
        # Streamlit scrolls inside its page: a window as high as the content shows all of it.
        height = self.height_px() + 8
        size = self.tab.viewport_size or {"width": 1280, "height": 900}
        self.tab.set_viewport_size({"width": size["width"], "height": min(max(height, 720), 6000)})
        self.tab.evaluate(_STILL)
        self.tab.screenshot(path=path)
        self.tab.set_viewport_size(size)


@contextlib.contextmanager
def visit(
    browser: Browser, address: str, *, width: int = 1280, height: int = 900, dark: bool = False
) -> Iterator[Visit]:
    """A new tab; what its console says of errors is kept."""
    tab = browser.contexts[0].new_page()
    tab.set_viewport_size({"width": width, "height": height})
    tab.emulate_media(color_scheme="dark" if dark else "light")
    tab.set_default_timeout(PATIENCE_MS)
    visited = Visit(tab, address)

    def heard(message: ConsoleMessage) -> None:
        # Below a page's path Streamlit's script first asks beside it whether the server is well.
        where = message.location.get("url", "")
        if message.type == "error" and not _BESIDE.search(where):
            visited.complaints.append(f"{message.text} {where}")

    tab.on("console", heard)
    tab.on("pageerror", lambda error: visited.complaints.append(str(error)))
    try:
        yield visited
    finally:
        tab.close()
