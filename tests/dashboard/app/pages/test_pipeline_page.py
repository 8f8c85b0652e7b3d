"""The page Pipeline: passes of each stage, and another schedule with the figures of the command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

pytest.importorskip("streamlit")

from typer.testing import CliRunner

from npuscope.analysis.pipeline.blocks import pipeline_blocks
from npuscope.analysis.pipeline.bubbles import CAUSES, rank_bubbles
from npuscope.analysis.pipeline.tries import asked_tries
from npuscope.cli import app
from npuscope.dashboard.app.state import Choices, KnownCapture, params_of, view_of
from npuscope.dashboard.figures.pipeline import pipeline_figure
from tests.analysis.pipeline.test_tries import SMALL, job_of
from tests.dashboard.app.visited_pages import visit


@pytest.mark.slow
def test_the_page_shows_what_the_command_prints(
    monkeypatch: pytest.MonkeyPatch, sample_store: Path
) -> None:
    visited = visit(monkeypatch, sample_store, page="pipeline", schedule="gpipe")
    assert not visited.exception and not visited.error
    done = CliRunner().invoke(app, ["pipeline", str(sample_store), "--try", "gpipe", "--json"])
    row = json.loads(done.stdout)["rows"][1]
    words = " ".join(one.value for one in visited.markdown).replace("\\", "")
    for name in ("predicted_step_ns", "predicted_low_ns", "predicted_high_ns", "measured_step_ns"):
        assert f"{row[name] / 1e6:,.3f}" in words
    visited.selectbox(key="schedule").set_value("dualpipev").run()
    assert not visited.exception and not visited.error
    assert "two micro-batches for each stage" in visited.info[0].value


@pytest.mark.slow
def test_a_stage_alone_has_its_phases_though_nothing_can_be_drawn(
    monkeypatch: pytest.MonkeyPatch, real_stores: Callable[[str], Path]
) -> None:
    path = real_stores("qwen3_pp2_dp2_text_level2")
    visited = visit(monkeypatch, path, page="pipeline")
    assert not visited.exception and not visited.error
    assert "not captured" in visited.info[0].value
    titles = [one.label for one in visited.expander]
    for title in ("Phases of the pipeline", "Masking by phase", "Work of pipeline stages"):
        assert any(one.startswith(title) for one in titles), titles
    done = CliRunner().invoke(app, ["pipeline", str(path), "--json"])
    phases = json.loads(done.stdout)["rows"]
    assert f"Phases of the pipeline ({len(phases)})" in titles


def test_blocks_fill_each_row_without_gaps() -> None:
    job = job_of(SMALL)
    found = pipeline_blocks(job, asked_tries(job, "gpipe", None)[0], 0)
    for (is_tried, _), part in found.group_by("is_tried", "device"):
        rows = part.filter(pl.col("dur_ns") > 0).sort("start_ns")
        ends = (rows["start_ns"] + rows["dur_ns"]).to_list()
        assert rows["start_ns"].to_list() == pytest.approx([0.0, *ends[:-1]], abs=1.0)
        passes = rows.drop_nulls("micro_batch")
        assert passes["kind"].to_list().count("F") == SMALL.micro_batches
        in_order = passes["kind"].to_list() == ["F"] * 4 + ["BW"] * 4
        assert in_order == is_tried or not is_tried
    figure, devices = pipeline_figure(found, ("a", "b"), lambda text: text)
    assert devices == (0, 1)
    forwards = [bar for bar in figure.data if bar.name == "forward"]
    assert [len(bar.x) for bar in forwards] == [8, 8]
    waiting = found.filter(pl.col("kind") == "schedule", device=1, is_tried=False)
    assert waiting["share_ns"][0] > 0


def test_causes_of_pauses_add_up_to_the_bubbles_of_the_command() -> None:
    job = job_of(SMALL)
    found = pipeline_blocks(job, None, 0)
    ranks = job.measured.ranks[0]
    every = rank_bubbles(job.pipeline).filter(step=job.measured.steps[0])
    for device, rank in enumerate(ranks):
        (row,) = every.filter(rank=rank).to_dicts()
        sums = dict(found.filter(device=device).drop_nulls("share_ns").group_by("kind").agg(
            pl.col("share_ns").sum()).iter_rows())  # fmt: skip
        assert {cause: sums.get(cause, 0) for cause in CAUSES} == {
            cause: row[cause] for cause in CAUSES
        }
        drawn = found.filter(pl.col("micro_batch").is_null(), device=device)["dur_ns"].sum()
        assert drawn == pytest.approx(row["bubble_ns"], abs=10)


def test_a_schedule_in_the_url_is_a_schedule_or_nothing() -> None:
    known = Choices((KnownCapture("a", "moe", "c1", (0, 1), (7,), 0, 10**9),))
    view = view_of({"schedule": "vpp:2", "micro_batches": "32"}, known)
    assert (view.schedule, view.micro_batches) == ("vpp:2", 32)
    assert view_of(params_of(view), known) == view
    for schedule, count in (("<script>", "0"), ("a b", "x"), ("x" * 99, "9999999")):
        view = view_of({"schedule": schedule, "micro_batches": count}, known)
        assert (view.schedule, view.micro_batches) == (None, None)
