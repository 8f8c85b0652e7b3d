"""Whose figures a page shows is told: of a link to what is gone, and of a rank or step chosen."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("streamlit")

from npuscope.dashboard.answers.overview_answers import step_words
from tests.dashboard.app.visited_pages import visit

OF_ALL = "Of all ranks and steps, whatever is chosen above."


def test_a_link_to_what_is_gone_says_what_is_shown(
    monkeypatch: pytest.MonkeyPatch, sample_store: Path
) -> None:
    visited = visit(monkeypatch, sample_store, page="trends", run="gone", rank="77")
    [told] = [one.value for one in visited.warning]
    assert "Run gone is not in this store" in told and "has no rank 77" in told
    visited.run()  # the URL says what is shown; the notice stays
    assert visited.warning[0].value == told
    step = next(one for one in visited.selectbox if one.label == "step")
    step.set_value(13).run()  # another choice
    assert not visited.warning


def test_a_verdict_of_all_ranks_says_so_where_one_is_chosen(
    monkeypatch: pytest.MonkeyPatch, sample_store: Path
) -> None:
    def captions(rank: str) -> list[str]:
        visited = visit(monkeypatch, sample_store, page="communication", rank=rank)
        return [one.value for one in visited.caption]

    assert OF_ALL not in captions("")
    assert OF_ALL in captions("1")


def test_the_overview_names_the_rank_that_its_figures_are_of() -> None:
    row = {"job_step_ns": 5e6, "step_ns": 4.5e6, "length_ns": 4e6, "computing_ns": 3e6,
           "exposed_communication_ns": 1e6, "free_ns": 0.0}  # fmt: skip
    whole, parts = step_words(row, 3)
    assert whole == "4.500 ms a step of rank 3" and parts.startswith("The work of rank 3 spans")
    whole, parts = step_words(row, None)
    assert whole == "5.000 ms a step of the job" and "a mean rank" in parts
    beyond = "Some of it is outside the step: "
    assert beyond not in parts and beyond in step_words(row | {"job_step_ns": 3.99e6}, None)[1]
    alone = step_words(row | {"job_step_ns": 3.99e6}, None, is_alone=True)[1]
    assert alone.endswith("outside the step, as ranks begin at different times.")
    assert step_words(row | {"job_step_ns": None}, None) == (None, parts)
