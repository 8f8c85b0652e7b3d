"""`npuscope ranks` on a small job with one slow chip."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npuscope.sample_traces.generate import small
from tests.cli.command import Run
from tests.conftest import WrittenJob

COLUMNS = [
    "run", "capture", "rank", "step", "last_arrivals_count", "caused_wait_ns", "score", "verdict",
    "evidence", "transfer_ns", "peer_wait_ns", "absent_wait_ns", "pipeline_wait_ns",
    "unknown_communication_ns",
]  # fmt: skip


@pytest.fixture(scope="module")
def job(written_job: WrittenJob) -> Path:
    return written_job(small(slow_clock=1, slow_clock_factor=1.3), "text")


@pytest.mark.slow
def test_rows(run: Run, job: Path) -> None:
    code, out, _ = run("ranks", job, "--json")
    told = json.loads(out)
    assert (code, told["metric"]) == (0, "ranks")
    assert [list(row) for row in told["rows"]] == [COLUMNS] * 4
    assert [(row["rank"], row["step"]) for row in told["rows"]] == [
        (0, 12), (0, 13), (1, 12), (1, 13)
    ]  # fmt: skip
    assert [row["verdict"] for row in told["rows"]] == [None, None, "frequency", "frequency"]
    evidence = told["rows"][2]["evidence"]
    assert {
        "what": "AI core frequency",
        "value": 1385.0,
        "peers": 1800.0,
        "unit": "MHz",
    } in evidence
    assert told["rows"][0]["evidence"] == []


def test_one_step_and_one_rank(run: Run, job: Path) -> None:
    _, out, _ = run("ranks", job, "--step", 13, "--rank", 1, "--json")
    (row,) = json.loads(out)["rows"]
    assert (row["rank"], row["step"], row["verdict"]) == (1, 13, "frequency")


def test_tables(run: Run, job: Path) -> None:
    code, out, _ = run("ranks", job)
    assert code == 0 and "chip runs at a lower clock" in out and "caused wait ms" in out
    assert out.index("\n   1 ") < out.index("\n   0 ")
    code, out, _ = run("ranks", job, "--explain", 1)
    assert code == 0 and out.startswith("Rank 1: chip runs at a lower clock")
    assert "1,385 MHz" in out
    _, out, _ = run("ranks", job, "--explain", 0)
    assert out.startswith("Rank 0: no suspect")


def test_usage(run: Run, job: Path) -> None:
    code, _, err = run("ranks", job, "--explain", 1, "--rank", 0)
    assert code == 2 and "two ranks" in err
    code, _, err = run("ranks", job, "--explain", 7)
    assert code == 2 and "rank" in err


def test_a_rank_without_communication_is_not_all_of_them(run: Run, real_data: Path) -> None:
    told = run("ranks", real_data / "cluster16_pp2", "--rank", 3)
    assert told.code == 0
    assert "rank 3: no communication was recorded; it was of ranks 0-1" in told.err
