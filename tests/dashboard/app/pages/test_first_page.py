"""The first page in a real browser: what is seen of a job without a click."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("streamlit")
pytest.importorskip("playwright")

from npuscope.sample_traces.job import Job
from tests.dashboard.app.served_pages import chromium, visit
from tests.dashboard.app.started_server import serve, start

HEIGHT_PX = 800
HEAVY = Job(
    name="heavy", layers=2, pp=2, dp=2, ep=2, experts=4, steps=2, seed=7,
    compute_by_stage=(1.0, 1.6),
)  # fmt: skip


@pytest.mark.slow
def test_a_heavier_stage_is_seen_without_a_click(
    stored_job: Callable[..., Path], tmp_path: Path
) -> None:
    """On the first screen: in words, and in the figure by name above its ranks."""
    with (
        serve([stored_job(HEAVY, "db")], tmp_path) as address,
        chromium() as browser,
        visit(browser, address, height=HEIGHT_PX) as seen,
    ):
        seen.open("overview", lang="en")
        said = seen.tab.locator(".st-key-verdict").first
        assert "Stage 1 computes" in said.inner_text()
        for place in (said, *seen.tab.locator(".annotation-text").filter(has_text="stage").all()):
            box = place.bounding_box()
            assert box and box["y"] + box["height"] < HEIGHT_PX
        named = seen.tab.locator(".annotation-text").filter(has_text="stage").all_text_contents()
        assert [one.split(":")[0] for one in named] == ["stage 0", "stage 1"]
        assert seen.overlaps() == [] and seen.complaints == []


BARS = ".awaited, .stCacheSpinner"  # where something will stand, and where it is being computed
# The command, whose server finds nothing before there is a file.
_WAITING = """
import runpy
from npuscope.dashboard.app import launch

first, *rest = launch._START.splitlines(keepends=True)
launch._START = first + rest[0] + '''
import functools, time
from npuscope.dashboard.answers import overview_answers
found_here = overview_answers.found_here
@functools.wraps(found_here)
def waiting(*given, **named):
    while not os.path.exists(os.environ["MAY_FIND"]):
        time.sleep(0.05)
    return found_here(*given, **named)
overview_answers.found_here = waiting
''' + "".join(rest[1:])
runpy.run_module("npuscope", run_name="__main__")
"""


@pytest.mark.slow
def test_figures_are_seen_before_anything_is_found(sample_store: Path, tmp_path: Path) -> None:
    """And where findings will stand, a bar stands."""
    may_find = tmp_path / "may_find"
    with (
        start(
            [sample_store], tmp_path, settings={"MAY_FIND": str(may_find)},
            command=(sys.executable, "-c", _WAITING),
        ) as running,
        chromium() as browser,
        visit(browser, running.address, height=HEIGHT_PX) as seen,
    ):  # fmt: skip
        try:
            seen.tab.goto(running.address)
            seen.tab.locator(".st-key-ranks .main-svg .barlayer path").first.wait_for()
            for figure in ("mfu", "masking", "waterfall"):
                seen.tab.locator(f".st-key-{figure} .main-svg").first.wait_for()
            awaited = seen.tab.locator(BARS).first.bounding_box()
            assert awaited and awaited["width"] > 200 and awaited["height"] > 10
            assert awaited["y"] < HEIGHT_PX
            assert not seen.tab.locator(".st-key-finding_0").count()
        finally:
            may_find.touch()
        seen.settle()
        assert seen.tab.locator(".st-key-finding_0").count()
        assert not seen.tab.locator(BARS).count()
        assert seen.complaints == []
