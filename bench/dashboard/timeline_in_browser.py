"""What the timeline of the pages costs in a real browser: frames, zooms, first pictures, memory.

Chromium draws in software. Frames are timed by the page itself: by `requestAnimationFrame`, which
nothing but a long frame delays. A zoom is over when all that is in sight is drawn from tiles of its
own level. CPU of the server is that of its process, of the kernel's count of it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from tests.dashboard.app.served_pages import PATIENCE_MS, Visit, chromium, visit
from tests.dashboard.app.started_server import start

_TIMELINE = """() => {
    const roots = [document, ...[...document.querySelectorAll('*')]
        .map(one => one.shadowRoot).filter(Boolean)];
    return roots.map(one => one.querySelector('.timeline')).find(Boolean)?.timeline;
}"""
_SETTLED = f"() => ({_TIMELINE})()?.isSettled()"
# Moves by 12 px each frame, there and back; the lengths of the frames, in ms.
_PAN = f"""frames => new Promise(done => {{
    const it = ({_TIMELINE})(), lengths = [];
    let before = null;
    const next = now => {{
        if (before !== null) lengths.push(now - before);
        before = now;
        if (lengths.length >= frames) return done(lengths);
        it.pan(lengths.length % 400 < 200 ? 12 : -12);
        requestAnimationFrame(next);
    }};
    requestAnimationFrame(next);
}})"""
# From the gesture to the picture that is drawn from its own tiles, in ms.
_ZOOM = f"""factor => new Promise(done => {{
    const it = ({_TIMELINE})(), began = performance.now();
    it.zoom(factor);
    const look = () => it.isSettled() ? done(performance.now() - began)
        : requestAnimationFrame(look);
    requestAnimationFrame(look);
}})"""
ZOOMS = 8


@dataclass(frozen=True, slots=True)
class Seen:
    """What was measured of one store; `settled_ms` of zooms to where was looked before."""

    first_s: float
    first_cpu_s: float
    frame_ms: float
    slow_frame_ms: float
    zoom_ms: float
    settled_ms: float
    server_ms: float
    server_mib: float
    page_mib: float
    rectangles: int

    @property
    def frames(self) -> float:
        """Frames a second, while panned."""
        return 1e3 / self.frame_ms


@contextmanager
def looking_at(path: Path) -> Iterator[tuple[Visit, psutil.Process, float]]:
    """The timeline of a store, drawn; the server, and seconds from asking for the page."""
    with (
        tempfile.TemporaryDirectory() as folder,
        chromium() as browser,
        start([path], Path(folder)) as running,
        visit(browser, running.address, width=1280, height=800) as seen,
    ):
        began = time.perf_counter()
        seen.open("timeline")
        seen.tab.wait_for_function(_SETTLED, timeout=PATIENCE_MS)
        yield seen, psutil.Process(running.process.pid), time.perf_counter() - began
        if seen.complaints:
            raise RuntimeError(f"the console says: {seen.complaints}")


def measure(path: Path, opened: int) -> Seen:
    """Opens so many ranks, zooms in and out twice, pans in the middle of it."""
    with looking_at(path) as (seen, server, first_s):
        tab = seen.tab

        def told(script: str) -> Any:
            return tab.evaluate(f"() => {{ const it = ({_TIMELINE})(); {script} }}")

        told(f"it.state.open = new Set(it.data.ranks.slice(0, {opened}).map(String)); it.lay();")
        tab.wait_for_timeout(200)
        tab.wait_for_function(_SETTLED, timeout=PATIENCE_MS)
        first_cpu_s = _cpu_ms(server) / 1e3
        _rest(server, seen)
        began = _cpu_ms(server)
        drawn, fresh = [told("return it.rectangles")], []
        for _ in range(ZOOMS):
            fresh.append(tab.evaluate(_ZOOM, 0.45))
            drawn.append(told("return it.rectangles"))
        tab.wait_for_timeout(200)
        server_ms = (_cpu_ms(server) - began) / ZOOMS
        lengths = []
        for _ in range(4):
            lengths += tab.evaluate(_PAN, 100)
            tab.evaluate(_ZOOM, 1 / 0.45)
        told("it.look(0, it.data.extent); it.tiles.tiles.clear(); it.tiles.asked.clear();")
        tab.wait_for_timeout(200)
        tab.wait_for_function(_SETTLED, timeout=PATIENCE_MS)
        again = [tab.evaluate(_ZOOM, 0.45) for _ in range(ZOOMS)]
        ordered = sorted(lengths)
        page = tab.evaluate("() => performance.memory.usedJSHeapSize / 2 ** 20")
        return Seen(
            first_s, first_cpu_s, sum(lengths) / len(lengths), ordered[len(ordered) * 95 // 100],
            median(fresh), median(again), server_ms, server.memory_info().rss / 2**20, page,
            max(drawn),
        )  # fmt: skip


def _rest(server: psutil.Process, seen: Visit) -> None:
    """Until the server no longer computes what other pages will ask for, at most some minutes.

    One quiet second is no rest: on a machine that others use, it may just not have had its turn.
    """
    quiet_s = 0
    for _ in range(150):
        before = _cpu_ms(server)
        seen.tab.wait_for_timeout(1_000)
        quiet_s = quiet_s + 1 if _cpu_ms(server) - before < 40 else 0
        if quiet_s == 3:
            return


def _cpu_ms(process: psutil.Process) -> float:
    used = process.cpu_times()
    return 1e3 * float(used.user + used.system)
