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


def test_trends_show_parts_of_steps_whose_length_is_unknown(
    monkeypatch: pytest.MonkeyPatch, real_stores: Callable[[str], Path]
) -> None:
    visited = visit(monkeypatch, real_stores("cluster16_pp2"), page="trends")
    told = [one.value.replace("\\", "") for one in visited.info]
    assert "How long a step takes is unknown here" in told[0] and "has one capture" in told[1]
    assert len(visited.dataframe) == 2  # its captures and their exposed communication
