"""The page What if: the figures of `npuscope whatif --json`, and a step before and after."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

pytest.importorskip("streamlit")

from typer.testing import CliRunner

from npuscope.analysis.replay.before_after import whatif_lanes
from npuscope.analysis.replay.capture_changes import apply_change
from npuscope.analysis.replay.changes import parse_change
from npuscope.analysis.timeline.replay_tracks import PARTS
from npuscope.cli import app
from npuscope.dashboard.app.state import Choices, KnownCapture, move_view, params_of, view_of
from npuscope.dashboard.figures.what_if import saved_figure
from npuscope.sample_traces.generate import small
from tests.analysis.replay.replayed_jobs import SMALL, replay_of, tables
from tests.dashboard.app.published_jobs import publish_job
from tests.dashboard.app.visited_pages import figures, visit


def command_output(store: Path, *words: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["whatif", str(store), *words, "--json"])
    assert done.exit_code == 0, done.output
    row: dict[str, Any] = json.loads(done.stdout)["rows"][-1]
    return row


def page_text(visited: Any) -> str:
    return " ".join(one.value for one in (*visited.markdown, *visited.caption)).replace("\\", "")


@pytest.mark.slow
def test_the_page_shows_what_the_command_prints(
    monkeypatch: pytest.MonkeyPatch, sample_store: Path
) -> None:
    visited = visit(monkeypatch, sample_store, page="whatif")
    assert not visited.exception and not visited.error
    first = visited.text_input[0].value  # of the first finding
    assert first == "experts:balanced"
    visited.text_input[0].set_value("rank:5=median comm:ep=0.5").run()
    assert not visited.exception and not visited.error
    assert visited.query_params["change"] == "rank:5=median comm:ep=0.5"
    row = command_output(sample_store, "rank:5=median", "comm:ep=0.5")
    bars = figures(visited)[0]["data"][0]
    assert bars["x"][0] == row["replayed_step_ns"] / 1e6
    assert bars["x"][-1] == row["predicted_step_ns"] / 1e6
    assert bars["x"][1:-1] == [-one["saved_ns"] / 1e6 for one in row["saved"]]
    words = page_text(visited)
    for name in ("predicted_step_ns", "predicted_low_ns", "predicted_high_ns"):
        assert f"{row[name] / 1e6:,.3f}" in words
    assert "replayed without recorded gaps" in words  # how far to trust it
    visited.text_input[0].set_value("link:0-99=0.5").run()
    assert not visited.exception and not visited.error
    assert "no such link" in visited.info[0].value
    # In the command's words, which are true: launches were recorded.
    visited.text_input[0].set_value("cause:far_node=0").run()
    assert "no launch is slower on cores far from its device" in visited.info[0].value
    there = {"page": "whatif", "change": "hierarchical:ep"}
    for lang, why in (("en", "no group of this kind spans several"), ("zh", "没有跨多台主机")):
        assert why in visit(monkeypatch, sample_store, lang=lang, **there).info[0].value


@pytest.mark.slow
def test_what_the_capture_lacks_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    publish_job(tmp_path / "store", small(dp=3, ep=1), "c1", published_s=1.0, ranks=(0, 1))
    words = page_text(visit(monkeypatch, tmp_path / "store", page="whatif", change="kernel:*=0.9"))
    assert "rank 2 of 3 missing" in words


def test_a_change_in_the_url_is_a_change_or_nothing() -> None:
    one = KnownCapture("a", "moe", "c1", (0, 1), (7,), 0, 10**9)
    known = Choices((one,))
    view = view_of({"change": "rank:5=median  nonsense= comm:ep=0.5"}, known)
    assert view.change == "rank:5=median comm:ep=0.5"
    assert view_of(params_of(view), known) == view
    assert move_view(view, known, change="host=0.5").change == "host=0.5"
    for text in ("<script>", "a\x00:b=1", "", "A B", "x" * 10_000):
        assert view_of({"change": text}, known).change is None
    many = " ".join(["comm:ep=0.5"] * 30)
    assert (view_of({"change": many}, known).change or "").count("comm") == 8


def test_a_step_before_and_after() -> None:
    job = replay_of(SMALL)
    other = apply_change(tables(SMALL), job, [parse_change("kernel:*=0.5")])
    found = whatif_lanes(job, other, 0, (1,))
    before, after = (found.filter(pl.col("is_after") == one) for one in (False, True))
    assert before.height == after.height > 50 and set(found["rank"]) == {1}
    kernels = pl.col("kind") == "compute"
    assert after.filter(kernels)["dur_ns"].sum() == pytest.approx(
        before.filter(kernels)["dur_ns"].sum() / 2, rel=1e-3
    )
    ends_ns = [one.select((pl.col("start_ns") + pl.col("dur_ns")).max()).item()
               for one in (after, before)]  # fmt: skip
    assert ends_ns[0] < ends_ns[1]
    same = whatif_lanes(job, apply_change(tables(SMALL), job, [parse_change("host=1")]), 0, (0,))
    measured, again = same.partition_by("is_after")
    off = (measured["start_ns"] - again["start_ns"]).to_list()
    assert max(map(abs, off)) < 20_000


def test_bars_lead_from_the_replayed_to_the_predicted_step() -> None:
    row = {
        "replayed_step_ns": 10_000_000, "predicted_step_ns": 9_000_000,
        "predicted_low_ns": 8_500_000, "predicted_high_ns": 9_400_000,
        "saved": [{"part": "communication", "kind": "ep", "saved_ns": 1_200_000},
                  {"part": "computing", "kind": None, "saved_ns": -200_000}],
    }  # fmt: skip
    bars, reach = saved_figure(row, str).data
    assert [*bars.x] == [10.0, -1.2, 0.2, 9.0]
    assert [*bars.y][1:3] == ["communication: ep", "computing"]
    assert [*reach.x] == [8.5, 9.4] and reach.y[0] not in bars.y
    assert saved_figure({**row, "saved": None}, str).data[0].x == (10.0, 9.0)
    every = [{"part": part, "kind": None, "saved_ns": 1} for part in PARTS]
    assert len({*saved_figure({**row, "saved": every}, str).data[0].y}) == len(PARTS) + 2
    lines = saved_figure(row, str).layout.shapes  # of steps, where the axis is cut
    assert [(line.x0, line.x1) for line in lines] == [(10.0, 10.0), (9.0, 9.0)]
    near = {**row, "predicted_step_ns": 1_000_000, "predicted_low_ns": 900_000}
    assert not saved_figure(near, str).layout.shapes
