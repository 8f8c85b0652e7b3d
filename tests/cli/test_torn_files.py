"""Stores of which files are torn, damaged or gone: what is whole is answered, and the rest told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import npuscope
from tests.cli.command import Run


@pytest.fixture
def profile(tmp_path: Path, write_profile: Callable[..., Path]) -> Path:
    for rank in range(2):
        write_profile(tmp_path / "profile" / f"h{rank}_ascend_pt", rank)
    return tmp_path / "profile"


RUNS = "select distinct run from kernels"


def _tear(run: Run, profile: Path, tmp_path: Path) -> Path:
    """A store with a run `b` and one, `a`, of which a file is torn."""
    target = tmp_path / "store"
    for name in ("a", "b"):
        assert run("ingest", profile, "--store", target, "--run", name).code == 0
    next((target / "run=a").rglob("kernels*.parquet")).write_bytes(b"PAR1")
    return target


@pytest.mark.slow
def test_files_of_a_run_that_are_gone_are_told_by_all_who_read_it(
    run: Run, profile: Path, tmp_path: Path
) -> None:
    target = _tear(run, profile, tmp_path)
    # By those that read two places, or write a file, too: which is written, and tells it.
    comment = tmp_path / "comment.md"
    limited = ("--limit", "step_time=+3 %", "--markdown", "-o", comment)
    model, batch = ("deepseek-v3", "--cluster", "1x8"), "gbs=64,seq=4096"
    for words in (
        ["compare", target, profile, "--json"],
        ["gate", "--baseline", profile, "--candidate", target, *limited],
        ["baseline", "save", target, "-o", tmp_path / "base.json"],
        ["bundle", target, "-o", tmp_path / "case.npuscope.html"],
        ["predict", *model, "--strategy", f"tp=8,mbs=1,{batch}", "--calibrate", target],
        ["search", *model, "--only", f"tp=8,mbs=1,{batch}", "--calibrate", target, "--json"],
        ["memory-plan", *model, "--strategy", f"tp=8,mbs=1,{batch}", "--calibrate", target],
    ):
        told = run(*words)
        assert told.code == 4 and told.err.count("left out: run a, capture 2025") == 1, words
    assert run("compare", f"{target}@b", profile).code == 0
    assert "left out: run a, capture 2025" in comment.read_text().replace("\\", "")
    assert (tmp_path / "base.json").is_file()
    shown = run("sql", tmp_path / "case.npuscope.html", RUNS, "--json")
    assert shown.rows == [{"run": "b"}]
    with npuscope.open(target) as opened:
        assert opened.sql(RUNS)["run"].to_list() == ["b"]
        assert opened.notes()[0].startswith("left out: run a")


def test_a_run_is_read_though_files_of_another_are_gone(
    run: Run, run_apart: Run, profile: Path, tmp_path: Path
) -> None:
    target = _tear(run, profile, tmp_path)
    told = run("steps", target, "--run", "b", "--json")
    before = told.json()["rows"]
    whole = run("steps", profile, "--json").json()["rows"]
    assert told.code == 0 and before == [{**row, "run": "b"} for row in whole]
    assert "left out: run a, capture 2025" in told.err
    refused = run_apart("kernels", target, "--run", "a")
    assert refused.code == 3
    assert "run a, capture 2025" in refused.err and "npuscope ingest PATH" in refused.err

    # What is whole is answered, and what is not is told once, without any --run, too.
    for words in (
        ["steps", target],
        ["sql", target, RUNS],
        ["doctor", target],
        ["report", target],
    ):
        told = run(*words, "--json")
        assert told.code == 4 and {row["run"] for row in told.json()["rows"]} == {"b"}, words
        assert told.err.count("left out: run a, capture 2025") == 1, words
        assert "link" not in told.err + "".join(told.json()["notes"]), words
    assert run("steps", target, "--json").json()["rows"] == before
    written = run("export", "csv", target, "-o", tmp_path / "tables")
    assert written.code == 4 and "left out: run a" in written.err
    # A file that was changed but is as large as it was is found by its checksum, on request.
    assert run("ingest", profile, "--store", target, "--run", "a").code == 0
    assert run("doctor", target, "--files").code == 0
    for file in (target / "run=a").rglob("kernels*.parquet"):  # the superseded one, too
        changed = bytearray(file.read_bytes())
        changed[len(changed) // 3] ^= 4
        file.write_bytes(changed)
    told = run("doctor", target, "--files", "--json")
    assert told.code == 4 and told.err.count("is damaged") == 1
    assert told.json()["notes"][0].startswith("run a, capture 2025")
    for other in target.rglob("kernels*.parquet"):
        other.unlink()
    assert run("steps", target).code == 3
    assert run("ingest", profile, "--store", target, "--run", "b").code == 0

    assert run("ingest", profile, "--store", target, "--run", "a").code == 0
    assert len(run("steps", target, "--run", "a", "--json").json()["rows"]) == len(before)
