"""Pages of a producer's own tables: parts of steps, and neither their starts nor their ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("streamlit")

from tests.dashboard.app.visited_pages import visit


def test_what_is_masked_of_all_communication_is_not_said_to_be_unknown(
    monkeypatch: pytest.MonkeyPatch, real_stores: Callable[[str], Path]
) -> None:
    visited = visit(monkeypatch, real_stores("cluster16_pp2"), page="communication")
    [told, *_] = [one.value.replace("\\", "") for one in visited.info]
    assert "**3.9 % of communication is masked in all; what is masked of each kind is" in told


def test_trends_show_the_step_that_compare_does(
    monkeypatch: pytest.MonkeyPatch, real_stores: Callable[[str], Path]
) -> None:
    visited = visit(monkeypatch, real_stores("cluster16_pp2"), page="trends")
    told = [one.value.replace("\\", "") for one in visited.info]
    assert len(told) == 1 and "has one capture" in told[0]
    captures, _ = (one.value for one in visited.dataframe)
    assert captures["step_ns"].tolist() == [394.23492]
