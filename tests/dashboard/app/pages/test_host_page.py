"""The page Host shows what `npuscope host` prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("streamlit")

from typer.testing import CliRunner

from npuscope.cli import app
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


@pytest.mark.slow
def test_a_chinese_page_speaks_chinese(monkeypatch: pytest.MonkeyPatch, sample_store: Path) -> None:
    visited = visit(monkeypatch, sample_store, page="host", starts_in="zh")
    assert any("设备为何空闲" in one.value for one in visited.subheader)
