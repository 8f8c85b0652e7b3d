"""The page Strategy: the rows that a search wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("streamlit")

import polars as pl

from npuscope.analysis.strategy.job import Machine
from npuscope.analysis.strategy.results import SearchResult, found_parquet
from npuscope.analysis.strategy.search import Space, search, sensitivity
from npuscope.dashboard.app.served_stores import Place, ServedStores, environment_of
from npuscope.dashboard.app.state import Choices, KnownCapture, params_of, view_of
from npuscope.dashboard.figures.strategy import front_figure, parts_figure
from npuscope.dashboard.locale.language import language_of
from tests.analysis.strategy.jobs import DENSE
from tests.dashboard.app.visited_pages import figures, visit

SPACE = Space(2048, 16, recompute=["none"], cp=[1])
MACHINE = Machine(353.9e12)


def search_result() -> SearchResult:
    rows = search(DENSE, MACHINE, 8, SPACE)
    asked = {"model": "tiny", "cluster": "1x8", "chip": "910B2", "only": "gbs=16,seq=2048"}
    return SearchResult(rows, sensitivity(DENSE, MACHINE, 8, SPACE, rows, top=2), asked, 60 << 30)


def test_the_figure_joins_the_front_and_marks_the_best() -> None:
    rows = search(DENSE, MACHINE, 8, SPACE)
    best = rows.filter("fits").head(20)
    traces = {one.name: one for one in front_figure(rows, best, 1 << 35, language_of("en")).data}
    front = rows.filter("is_front")
    assert list(traces["front"].x) == (front["step_ns"] / 1e6).to_list()  # ms
    assert list(traces["the best"].y) == (best["peak_bytes"] / 2**30).to_list()


def test_bars_are_the_parts_of_steps() -> None:
    best = search(DENSE, MACHINE, 8, SPACE).filter("fits").head(3)
    bars = {one.name: list(one.x) for one in parts_figure(best, language_of("en")).data}
    assert bars["matmuls"] == pytest.approx((best["matmul_ns"] / 1e6).to_list())
    added = [sum(values) for values in zip(*bars.values(), strict=True)]
    assert added == pytest.approx((best["step_ns"] / 1e6).to_list(), rel=0.25)


def test_sizes_stand_in_the_url_and_only_sizes() -> None:
    known = Choices((KnownCapture("s", "r", "c", (0,), (1,), 0, 1),))
    view = view_of({"only": "tp=4+8,rank=<x>"}, known)
    assert params_of(view)["only"] == "tp=4+8"


@pytest.mark.slow
def test_the_page_shows_what_was_searched(
    monkeypatch: pytest.MonkeyPatch, sample_store: Path, tmp_path: Path
) -> None:
    file = tmp_path / "strategies.parquet"
    one = search_result()
    file.write_bytes(found_parquet(one))
    visited = visit(monkeypatch, sample_store)
    served = ServedStores([Place(str(sample_store), "store0")], strategies=str(file))
    for name, value in environment_of(served).items():
        monkeypatch.setenv(name, value)
    visited.switch_page("strategy.py").run()
    assert not visited.exception and not visited.error
    front, parts = figures(visited)
    assert len(parts["data"][0]["y"]) == 20 and front["data"]
    visited.multiselect("only_tp").select("8").run()
    assert visited.query_params["only"] == ["tp=8"] or visited.query_params["only"] == "tp=8"
    shown = visited.dataframe[0].value
    best = one.strategies.filter(pl.col("fits"), pl.col("tp") == 8)
    assert len(shown) == min(20, len(best))
    file.write_text("x")
    visited.run()
    assert "no Parquet file" in visited.error[0].value
