"""The page Host shows what `npuscope host` prints."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("streamlit")

import polars as pl
from typer.testing import CliRunner

from npuscope.cli import app
from npuscope.dashboard.figures.host import free_figure
from npuscope.dashboard.figures.layout import MOST_BARS
from tests.dashboard.app.visited_pages import figures, visit


@pytest.mark.slow
def test_the_columns_of_the_figure_are_those_of_the_command(
    monkeypatch: pytest.MonkeyPatch, sample_store: Path
) -> None:
    visited = visit(monkeypatch, sample_store, page="host", rank="3")
    free, lead = figures(visited)
    done = CliRunner().invoke(
        app, ["host", str(sample_store), "--rank", "3", "--by", "rank", "--json"]
    )
    rows = json.loads(done.stdout)["rows"]
    assert sorted(sum(one["y"]) for one in free["data"]) == pytest.approx(
        sorted(row["free_ns"] / 1e6 for row in rows)
    )
    assert len(lead["data"]) == 2


def test_a_single_cause_is_named_and_ranks_are_whole() -> None:
    rows = pl.DataFrame({"rank": [0, 1], "cause": "unknown", "free_ns": [2e6, 3e6]})
    figure = free_figure(rows, str)
    assert figure.layout.showlegend and [one.name for one in figure.data] == ["unknown"]
    assert list(figure.layout.xaxis.tickvals) == [0, 1]


def test_ranks_that_have_no_room_are_told() -> None:
    every = MOST_BARS + 1
    free_ns = [*([2e6] * (every - 2)), 1e6, 3e6]  # the last but one has the least
    rows = pl.DataFrame({"rank": range(every), "cause": "unknown", "free_ns": free_ns})
    figure = free_figure(rows, str)
    ranks = list(figure.data[0].x)
    assert ranks == [*range(every - 2), every - 1]
    assert f"of {every} ranks the {len(ranks)} with the most" in figure.layout.title.text


@pytest.mark.slow
def test_what_is_unknown_of_the_host_says_what_to_record(
    monkeypatch: pytest.MonkeyPatch, real_stores: Callable[[str], Path]
) -> None:
    visited = visit(monkeypatch, real_stores("qwen3_pp2_dp2_text_level2"), page="host")
    gain = next(one.value for one in visited.info if "gain" in one.value)
    assert "ProfilerActivity.CPU" in gain


@pytest.mark.slow
def test_a_chinese_page_speaks_chinese(monkeypatch: pytest.MonkeyPatch, sample_store: Path) -> None:
    visited = visit(monkeypatch, sample_store, page="host", starts_in="zh")
    assert any("设备为何空闲" in one.value for one in visited.subheader)
