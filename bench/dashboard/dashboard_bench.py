"""How long the dashboard's pages take in a real browser.

    .venv/bin/python -m bench.dashboard.dashboard_bench [--full] [--runs N]

The command is started on 64 ranks x 10 steps x 20,000 kernels (500 without --full), and on the
summaries of 1,000 ranks (64 without --full); Chromium looks at its pages. Cold: nothing is kept in
the server yet; every page is opened once, then again with warm data. Limits: 5 s from opening the
first page, as soon as the server listens, until its figures are drawn; 1 s for a change of page,
median over pages. Exit status 1: a limit was missed. Server and browser share this machine: CPU
seconds of each are beside, and the load at the end; where others work too, it takes longer. Zooms
of the timeline are measured by timeline_bench.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

import psutil

from bench.analysis import ranks_bench
from bench.inputs import job_stores
from bench.measure import arguments, report, table, verdict
from npuscope.dashboard.app.page import PAGES
from tests.dashboard.app.served_pages import CHROMIUM, PATIENCE_MS, Visit, chromium, visit
from tests.dashboard.app.started_server import start

FIRST_S, CHANGE_S = 5.0, 1.0
FIRST_PAGE = next(iter(PAGES))
FIRST = "first page, cold: figures"
SWITCH = "all changes of page"
# When the last figure was drawn that is on the page now.
_WATCH = """() => {
    let seen = 0;
    window.drawn_ms = 0;
    setInterval(() => {
        const drawn = document.querySelectorAll('.js-plotly-plot .main-svg').length;
        if (drawn > seen) window.drawn_ms = performance.timeOrigin + performance.now();
        seen = drawn;
    }, 10);
}"""
# A page's question, its script's end and all its figures.
_SHOWN = """question => {
    const app = document.querySelector('[data-testid="stApp"]');
    return app && app.dataset.testScriptState === 'notRunning'
        && (!question || document.querySelector('[data-testid="stMain"] h3')
            ?.textContent.trim() === question)
        && [...document.querySelectorAll('[data-testid="stPlotlyChart"]')].every(
            one => one.querySelector('.js-plotly-plot .main-svg'));
}"""


@dataclass(frozen=True, slots=True)
class Took:
    """One measurement: wall seconds, and CPU seconds of the server and of the browser."""

    wall_s: float
    server_s: float
    browser_s: float


@dataclass(slots=True)
class Looks:
    """All measurements by what was done."""

    taken: dict[str, list[Took]] = field(default_factory=dict)

    def add(self, what: str, took: Took) -> None:
        """One more of its kind."""
        self.taken.setdefault(what, []).append(took)

    def rows(self, data: str) -> tuple[list[list[str]], float]:
        """Medians as rows of a table, and the worst ratio to a limit."""
        rows, worst = [], 0.0
        switches = [
            one for what, found in self.taken.items() if what.startswith("again") for one in found
        ]
        for what, found in (self.taken | {SWITCH: switches}).items():
            took = Took(*(median(getattr(one, name) for one in found) for name in (
                "wall_s", "server_s", "browser_s")))  # fmt: skip
            limit = _limit(what)
            worst = max(worst, took.wall_s / limit) if limit else worst
            rows.append([
                data, what, f"{took.wall_s:.2f}", f"{took.server_s:.2f}",
                f"{took.browser_s:.2f}", f"{took.wall_s / limit:.2f}" if limit else "",
            ])  # fmt: skip
        return rows, worst


def _limit(what: str) -> float | None:
    return {FIRST: FIRST_S, SWITCH: CHANGE_S}.get(what)


def _cpu_s(processes: list[psutil.Process]) -> float:
    total = 0.0
    for one in processes:
        try:
            used = one.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += used.user + used.system
    return total


def time_of(server: int, act: Callable[[], float | None]) -> Took:
    """What an act costs; it returns the moment when it was over, by the clock, or None for now."""
    own = psutil.Process()
    others = [one for one in own.children(recursive=True) if one.pid != server]
    processes = [psutil.Process(server)]
    before = _cpu_s(processes), _cpu_s(others), time.time()
    over = act() or time.time()
    here = [one for one in own.children(recursive=True) if one.pid != server]
    return Took(over - before[2], _cpu_s(processes) - before[0], _cpu_s(here) - before[1])


def look(path: Path, looks: Looks) -> None:
    """One server, started, looked at and ended."""
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        began = time.time()
        with start([path], Path(folder)) as running:
            address, server = running.address, running.process.pid
            used_s = _cpu_s([psutil.Process(server)])
            looks.add("start of the server", Took(time.time() - began, used_s, 0))
            with visit(browser, address, width=1600, height=1000) as seen:
                seen.tab.add_init_script(f"({_WATCH})()")
                opening = time.time()
                looks.add(FIRST, time_of(server, lambda: open_page(seen)))
                took = time_of(server, lambda: tell(seen))
                took = Took(time.time() - opening, took.server_s, took.browser_s)
                looks.add("first page, cold: findings", took)
                questions = first_visits(server, seen, looks)
                for name in [*[*PAGES][1:], FIRST_PAGE]:
                    asked = questions[name]
                    took = time_of(server, partial(switch, seen, name, asked))
                    looks.add(f"again: {name}", took)
                if seen.complaints:
                    raise RuntimeError(f"the console says: {seen.complaints}")


def open_page(seen: Visit) -> float:
    """The overview from nothing; the moment when its last figure was drawn."""
    seen.open(FIRST_PAGE)
    return float(seen.tab.evaluate("window.drawn_ms")) / 1e3


def tell(seen: Visit) -> None:
    """Until nothing is being computed for the page any more."""
    seen.tab.wait_for_function(
        "text => !document.querySelector('[data-testid=\"stMain\"]').innerText.includes(text)",
        arg="Being computed",
        timeout=PATIENCE_MS,
    )
    seen.settle()


def first_visits(server: int, seen: Visit, looks: Looks) -> dict[str, str]:
    """Opens every page for the first time; returns their questions."""
    question = seen.tab.locator('[data-testid="stMain"] h3').first
    questions = {FIRST_PAGE: question.inner_text().strip()}
    for name in [*PAGES][1:]:
        before = question.inner_text().strip()

        def gone(name: str = name, before: str = before) -> None:
            _click(seen, name)
            seen.tab.wait_for_function(
                "was => { const now = document.querySelector('[data-testid=\"stMain\"] h3');"
                " return now && now.textContent.trim() !== was; }",
                arg=before,
                timeout=PATIENCE_MS,
            )
            seen.settle()

        looks.add(f"first: {name}", time_of(server, gone))
        questions[name] = question.inner_text().strip()
    if len(set(questions.values())) != len(PAGES):
        raise RuntimeError(f"pages that are not themselves: {questions}")
    return questions


def _click(seen: Visit, name: str) -> None:
    """The page's entry in the menu."""
    path = "/" if name == FIRST_PAGE else f"/{name}"
    seen.tab.locator(f'[data-testid="stTopNavLink"][href$="{path}"]').click()


def switch(seen: Visit, name: str, question: str) -> None:
    """To another page by the menu, until it is drawn."""
    _click(seen, name)
    seen.tab.wait_for_function(_SHOWN, arg=question, timeout=PATIENCE_MS)


def main() -> int:
    """Measures, prints the table."""
    if CHROMIUM is None:
        print("Dashboard: no Chromium here, not measured")
        return 0
    chosen = arguments(__doc__)
    repeats, ranks = (40, 1000) if chosen.full else (1, 64)
    kernels = repeats * job_stores.KERNELS
    stores = {
        f"64 x {job_stores.STEPS} x {kernels:,}": job_stores.store_it(repeats),
        f"{ranks:,} ranks": ranks_bench.store_it(ranks),
    }
    rows, worst = [], 0.0
    for data, path in stores.items():
        looks = Looks()
        for _ in range(chosen.runs):
            look(path, looks)
        medians, ratio = looks.rows(data)
        rows += medians
        worst = max(worst, ratio)
    header = ("data", "what", "wall s", "server CPU s", "browser CPU s", "wall / limit")
    said = table(header, rows)
    said += f"\n\nslowest over its limit: {worst:.2f}, {verdict(worst, 1, at_least=False)}"
    said += f"; load {os.getloadavg()[0]:.1f}"
    report("Pages of the dashboard", said)
    return 0 if worst <= 1 else 1


if __name__ == "__main__":
    sys.exit(main())
