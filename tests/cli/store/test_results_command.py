"""Results of msprof-analyze at the command line: as an input, and beside the profiles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from npuscope.sample_traces.capture import captures
from npuscope.sample_traces.forms.cluster import write_cluster_output
from npuscope.sample_traces.generate import small, write_job
from tests.cli.command import Run


@pytest.fixture(autouse=True)
def columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["text", "db"])
def test_results_alone_are_a_light_input(run: Run, tmp_path: Path, form: Any) -> None:
    folder = write_cluster_output(captures(small()), tmp_path / "job", form)

    code, report, _ = run("report", folder)
    assert code == 0
    assert "2 of 2 (0-1)" in report or "2 (0-1)" in report
    assert "cluster export" in report and "profiler_table" in report

    code, told, _ = run("steps", folder.parent, "--json")
    rows = json.loads(told)["rows"]
    assert (code, len(rows), {row["basis"] for row in rows}) == (0, 4, {"profiler_table"})

    code, told, _ = run("doctor", folder.parent, "--json")
    row = json.loads(told)["rows"][0]
    assert (row["source_format"], row["rank_origin"]) == ("cluster", "results of msprof-analyze")
    assert {one["capability"]: one["support"] for one in row["capabilities"]}["waiting"] == "yes"


@pytest.mark.slow
def test_the_doctor_compares_steps(run: Run, tmp_path: Path) -> None:
    write_job(small(), tmp_path / "job", forms=("text",))
    write_cluster_output(captures(small()), tmp_path / "job", "text")

    code, told, _ = run("doctor", tmp_path / "job")
    assert code == 0
    assert "Our steps compared with msprof-analyze's" in told
    table = told.partition("Our steps compared with msprof-analyze's")[2].splitlines()
    assert ["communication", "4", "4", "-"] in [line.split() for line in table]

    _, told, _ = run("doctor", tmp_path / "job", "--json")
    notes = [n for n in json.loads(told)["notes"] if n.startswith("compared with msprof-analyze")]
    assert len(notes) == 7 and all("4 of 4 steps agree" in note for note in notes)
