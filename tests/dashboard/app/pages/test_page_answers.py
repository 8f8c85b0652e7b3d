"""Verdicts that pages give themselves, with the figures that they draw."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

pytest.importorskip("streamlit")

from npuscope.analysis.memory.memory import MemoryFacts
from npuscope.dashboard.answers.expert_answers import most_uneven
from npuscope.dashboard.answers.memory_answers import what_fills
from npuscope.sample_traces.job import small
from tests.dashboard.app.published_jobs import publish_job
from tests.dashboard.app.visited_pages import figures, visit

GIB = 2**30


def facts(holders: list[dict[str, object]]) -> MemoryFacts:
    place = {"run": "r", "capture": "c", "device_id": 0}
    peaks = [
        {**place, "rank": rank, "component": "PTA", "source": "record", "peak_bytes": size,
         "peak_allocated_bytes": size}
        for rank, size in ((0, 8 * GIB), (3, 10 * GIB))
    ]  # fmt: skip
    schema = {"rank": pl.Int64, "holder": pl.String, "name": pl.String, "held_bytes": pl.Int64,
              "share_ratio": pl.Float64}  # fmt: skip
    held = pl.DataFrame(holders, schema).with_columns(
        run=pl.lit("r"), capture=pl.lit("c"), device_id=pl.lit(0, pl.Int64)
    )
    return MemoryFacts(pl.DataFrame(peaks), held, pl.DataFrame(), pl.DataFrame())


def test_what_fills_memory_is_told_of_the_fullest_rank() -> None:
    fullest = "Rank 3 is the fullest: 10.00 GiB at its peak."
    assert what_fills(facts([])) == fullest
    held = [
        {"rank": 3, "holder": "unexplained", "held_bytes": GIB, "share_ratio": 0.1},
        {"rank": 3, "holder": "operator", "name": "aten::matmul", "held_bytes": 6 * GIB,
         "share_ratio": 0.6},
        {"rank": 0, "holder": "operator", "name": "aten::cat", "held_bytes": 7 * GIB,
         "share_ratio": 0.9},
    ]  # fmt: skip
    nothing = (
        "No recorded block explains 1.00 GiB of it (10.0 % of what is allocated): parameters and"
        " what else is older than the capture."
    )
    largest = "Largest operator at the peak: aten::matmul, 6.00 GiB (60.0 % of what is allocated)."
    assert what_fills(facts(held)) == f"{fullest} {nothing} {largest}"
    assert what_fills(facts(held[:1])) == f"{fullest} {nothing}"
    nameless = {**held[1], "name": None}
    assert what_fills(facts([nameless])) == fullest


def test_a_load_without_a_cost_is_told_by_its_most_uneven_layer() -> None:
    loads = pl.DataFrame(
        {"layer": [0, 0, 1, 1, 1, 1], "expert": [0, 1, 0, 1, 0, 1], "tokens": [5, 5, 1, 4, 1, 4]}
    )  # two steps of layer 1
    assert (
        most_uneven(loads, "expert")
        == "The cost is unknown; in layer 1 expert 1 has 1.60 times the mean."
    )
    of_devices = loads.rename({"expert": "device"}).with_columns(layer=pl.lit(None, pl.Int64))
    told = most_uneven(of_devices, "device")
    assert told == "The cost is unknown; over all layers device 1 has 1.30 times the mean."
    assert most_uneven(loads.with_columns(tokens=0), "expert") is None


def test_pages_of_memory_and_experts_answer_their_questions(
    monkeypatch: pytest.MonkeyPatch, sample_store: Path, tmp_path: Path
) -> None:
    def told(store: Path, page: str) -> list[str]:
        return [str(one.value) for one in visit(monkeypatch, store, page=page).markdown]

    assert any("is the fullest" in one for one in told(sample_store, "memory"))
    tables = ("ranks", "groups", "steps", "expert_load", "expert_placement")
    publish_job(tmp_path, small(steps=1), "c1", published_s=1.0, tables=tables)
    assert any(one.startswith("The cost is unknown; in layer") for one in told(tmp_path, "experts"))


def test_the_answer_that_no_rank_has_alone_is_said_to_be_in_the_table_only(
    monkeypatch: pytest.MonkeyPatch, sample_store: Path
) -> None:
    visited = visit(monkeypatch, sample_store, page="quality")
    (heat, *_) = figures(visited)[0]["data"]
    table = visited.dataframe[0].value
    assert len(heat["y"]) == len(table) - 1
    assert any("in the table only" in one.value for one in visited.caption)
