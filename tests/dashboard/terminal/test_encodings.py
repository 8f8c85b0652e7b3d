"""Terminals whose encoding lacks blocks: nothing is drawn there as question marks; and tables that
are longer than anyone reads."""

from __future__ import annotations

import io
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console, RenderableType

from npuscope.analysis import query
from npuscope.analysis.memory.memory import memory_curve
from npuscope.analysis.scope import ALL
from npuscope.collector.store import store
from npuscope.dashboard.terminal.experts.expert_tables import Heatmap
from npuscope.dashboard.terminal.memory.memory_overview import MemoryChart
from npuscope.dashboard.terminal.tables import steps_table


def render(what: RenderableType, encoding: str) -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding, errors="replace", write_through=True)
    Console(file=file, width=120).print(what)
    return raw.getvalue().decode(encoding)


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_nothing_is_drawn_as_question_marks(sample_store: Path, encoding: str) -> None:
    with closing(store.open(sample_store)) as con:
        rows = query.steps(con)
        curve = memory_curve(con, ALL).filter(rank=0)
    steps = steps_table(rows)
    loads = pl.DataFrame({"layer": [0, 0], "expert": [0, 1], "tokens": [4, 9]})
    for drawn in (steps, MemoryChart("memory", curve, 0), Heatmap(loads, title="load")):
        assert any(block in render(drawn, "utf-8") for block in "█▒▓░")
        assert "?" not in render(drawn, encoding)
    assert "computing" in render(steps, encoding)
    many = pl.concat([rows] * (500 // rows.height + 1))
    table = render(steps_table(many), encoding)
    assert f"the first 500 of {many.height:,} rows" in table
    assert 500 < len(table.splitlines()) < 510 and "the first" not in render(steps, encoding)
