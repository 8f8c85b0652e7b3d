"""Figures of pages, asked for in Python."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

pytest.importorskip("streamlit")

import npuscope
from npuscope.analysis.catalog import metrics
from npuscope.dashboard.app.page import PAGES
from npuscope.dashboard.figures.of_capture import FIGURES
from npuscope.errors import TraceNotFound
from npuscope.sample_traces.job import small
from tests.conftest import REPOSITORY
from tests.dashboard.app.published_jobs import publish_job
from tests.dashboard.app.visited_pages import visit

# Numbers, maps of tiles, and what is drawn of a visitor's choice: a change, two captures, a file.
OTHERS = {
    "recorded_ranks", "possible_analyses", "lost_rows", "profiler_overhead", "health_tiles",
    "timeline", "heat", "whatif_saved", "whatif_lanes", "compare", "search_front", "search_parts",
}  # fmt: skip
LOG = pl.DataFrame(
    {
        "step": range(60), "elapsed_s": [1.0 + n % 7 / 500 for n in range(60)],
        "loss": [9.0 - n / 100 for n in range(60)],
    }
)  # fmt: skip


def test_every_figure_that_pages_draw_is_there_and_named_in_the_docs() -> None:
    drawn = {one for known in metrics() for one in known.figures}
    assert set(FIGURES) == drawn - OTHERS
    assert drawn > OTHERS
    page = (REPOSITORY / "docs" / "python.md").read_text(encoding="utf-8")
    (listed,) = re.findall(r"^Figures: (.*)\.$", page, re.M)
    assert re.findall(r"`(\w+)`", listed) == list(FIGURES)


def drawn_by_pages(
    monkeypatch: pytest.MonkeyPatch, store: Path, pages: list[str]
) -> dict[str, dict[str, Any]]:
    """Figures of pages by their keys, as Plotly's JSON, and those of a plan that was asked for."""
    visited = visit(monkeypatch, store)
    found: dict[str, dict[str, Any]] = {}
    for page in pages:
        visited.switch_page(f"{page}.py").run()
        for button in visited.button:
            if button.label == "Plan":
                button.click().run()
        for one in visited.get("plotly_chart"):
            key = one.proto.id.rpartition("-")[2]
            if key not in OTHERS:
                found[key] = json.loads(one.proto.spec)
    return found


def differences(pages: dict[str, Any], store: Path, capture: str | None = None) -> list[str]:
    """Names of figures that Python draws otherwise than the pages, or one of both not at all."""
    drawn: dict[str, Any] = {}
    with npuscope.open(store, capture=capture) as job:
        for name in FIGURES if capture is None else pages:
            with contextlib.suppress(TraceNotFound):
                drawn[name] = json.loads(str(job.figure(name).to_json()))
    return [name for name in sorted({*pages, *drawn}) if pages.get(name) != drawn.get(name)]


@pytest.mark.slow
def test_they_are_those_of_the_pages(monkeypatch: pytest.MonkeyPatch, sample_store: Path) -> None:
    own = ("timeline", "whatif", "strategy", "compare", "trends", "health")
    pages = drawn_by_pages(monkeypatch, sample_store, [one for one in PAGES if one not in own])
    assert len(pages) == 31
    assert differences(pages, sample_store) == []


@pytest.mark.slow
def test_so_are_those_of_counted_experts_and_of_a_run_over_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    job = small(steps=2, layers=1, name="moe", noise=0.003)
    for hour in range(2):
        later = replace(job, seed=hour, start_ns=job.start_ns + hour * 3600 * 10**9)
        name = f"20251127T{hour:02}3437.000Z"
        publish_job(tmp_path / "store", later, name, published_s=hour, more={"train_log": LOG})
    pages = drawn_by_pages(monkeypatch, tmp_path / "store", ["experts", "trends", "health"])
    assert {"load", "devices", "device_tokens", "times", "plan", "plan_gain", "trends",
            "trends_log", "health"} <= {*pages}  # fmt: skip
    assert differences(pages, tmp_path / "store", name) == []
