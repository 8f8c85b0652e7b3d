"""`npuscope search` and `npuscope memory-plan`, printed."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from tests.cli.command import Run

_ONLY = "gbs=512,seq=8192,tp=4+8,pp=4+8,vpp=1,cp=1,mbs=1"


def test_the_best_strategies(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "strategies.parquet"
    told = run("search", "llama3-70b", "--cluster", "8x8", "--only", _ONLY, "-o", out, "--json")
    assert (told.code, told.json()["metric"]) == (0, "search")
    assert {row["tp"] for row in told.rows} == {4, 8}
    written = pl.read_parquet(out)
    assert written.to_dicts()[: len(told.rows)] == told.rows


def test_a_plan(run: Run) -> None:
    words = ("memory-plan", "llama3-70b", "--cluster", "8x8", "--strategy")
    told = run(*words, "tp=4,pp=8,mbs=1,gbs=512,seq=8192", "--budget", 40, "--json")
    assert (told.code, told.json()["metric"]) == (0, "memory_plan")
    assert {row["stage"] for row in told.rows} == set(range(8))
    assert all(row["peak_bytes"] <= 40 * 2**30 for row in told.rows if row["layers"])
    refused = run(*words, "tp=4,pp=8,gbs=512,seq=8192,recompute=full")
    assert (refused.code, "recompute=none" in refused.err) == (2, True)


@pytest.mark.parametrize(
    ("only", "said"), [("tp=8", "give one gbs and one seq"), ("gbs=7,seq=9", "no strategy")]
)
def test_what_it_refuses(run: Run, only: str, said: str) -> None:
    told = run("search", "llama3-70b", "--cluster", "8x8", "--only", only)
    assert (told.code, said in told.err) == (2, True)
