"""What a search wrote is read back; other files are refused in a sentence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from npuscope.analysis.flops.model.architecture import Experts
from npuscope.analysis.strategy.describe import job_of_strategy, space_of
from npuscope.analysis.strategy.job import Machine
from npuscope.analysis.strategy.predict import predict
from npuscope.analysis.strategy.results import (
    SearchResult,
    chosen_sizes,
    found_parquet,
    read_found,
    sizes_text,
    strategy_words,
    with_sizes,
)
from npuscope.analysis.strategy.search import LIMITS, Space, search, sensitivity
from npuscope.errors import UsageError
from tests.analysis.strategy.jobs import DENSE

_SPACE = Space(2048, 16, pp=[1, 2], recompute=["none"])
_MACHINE = Machine(353.9e12)


def _search_result() -> SearchResult:
    found = search(DENSE, _MACHINE, 8, _SPACE)
    changes = sensitivity(DENSE, _MACHINE, 8, _SPACE, found, top=3)
    return SearchResult(found, changes, {"model": "tiny", "only": "gbs=16"}, 1 << 35)


def test_a_search_is_read_back(tmp_path: Path) -> None:
    found = _search_result()
    (tmp_path / "strategies.parquet").write_bytes(found_parquet(found))
    again = read_found(tmp_path / "strategies.parquet")
    assert again.strategies.equals(found.strategies)
    assert again.sensitivity.equals(found.sensitivity)
    assert (again.request, again.budget_bytes) == (found.request, found.budget_bytes)


def test_what_is_none_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.parquet"
    for write, said in (
        (lambda: pl.DataFrame({"a": [1]}).write_parquet(other), "not the result of a search"),
        (lambda: other.write_text("x"), "no Parquet file"),
        (other.unlink, "no Parquet file"),
    ):
        write()
        with pytest.raises(UsageError, match=said):
            read_found(other)


def test_parts_add_up_to_the_step() -> None:
    found = search(DENSE, _MACHINE, 8, _SPACE)
    for row in found.to_dicts():
        parts = sum(row[f"{name}_ns"] for name in (*LIMITS, "fixed"))
        assert row["step_ns"] == pytest.approx(parts, abs=20)  # roundings


def test_the_front_is_that_of_what_is_looked_at() -> None:
    found = search(DENSE, _MACHINE, 8, _SPACE)
    mine = with_sizes(found, {"tp": ["4", "8"], "recompute": ["none"]})
    assert set(mine["tp"]) == {4, 8}
    front = mine.filter("is_front")
    assert front.row(0) == mine.filter("fits").row(0)
    assert front["peak_bytes"].is_sorted(descending=True)


def test_sizes_in_words() -> None:
    sizes = {"tp": ["4", "8"], "recompute": ["none"]}
    assert chosen_sizes(sizes_text(sizes)) == sizes
    assert chosen_sizes("tp=4;drop table,run=3,pp=,vpp=2") == {"vpp": ["2"]}
    assert sizes_text({"tp": []}) is None


def test_a_strategy_for_predict() -> None:
    """What is searched and what `predict` is told of it are one job, with experts, too."""
    mixed = replace(DENSE, experts=Experts(16, 4, 512))
    for model in (DENSE, mixed):
        found = search(model, _MACHINE, 8, space_of("gbs=16,seq=2048,mbs=1+2")).filter("fits")
        for row in found.gather_every(max(1, found.height // 8)).to_dicts():
            words = strategy_words(row) + ",gbs=16,seq=2048"
            one = predict(job_of_strategy(model, _MACHINE, (1, 8), words))
            assert one.step_s.predicted * 1e9 == pytest.approx(row["step_ns"], rel=1e-6), words
            assert one.peak_bytes.predicted == pytest.approx(row["peak_bytes"], rel=1e-6), words
