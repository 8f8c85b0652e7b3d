"""`npuscope clocks` as users and scripts meet it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npuscope.analysis.catalog import metric
from npuscope.sample_traces.generate import small, write_job
from tests.cli.command import Run


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks on two hosts, whose clocks are 3 ms apart."""
    folder = tmp_path_factory.mktemp("clocks")
    job = small(
        name="apart", ranks_per_host=1, clock_offsets_ns=(0, 3_000_000), steps=1, memory=False,
        comm_tasks=False,
    )  # fmt: skip
    write_job(job, folder / "profile", forms=("db",))
    return folder


@pytest.mark.slow
def test_json_and_table(run: Run, profile: Path) -> None:
    code, out, _ = run("clocks", profile / "profile", "--json")
    answer = json.loads(out)
    assert (code, answer["metric"], answer["schema_version"]) == (0, "clocks", 1)
    rows = answer["rows"]
    *shown, remarks = [column.name for column in metric("clocks").columns]
    assert list(rows[0]) == shown and remarks == "remarks"  # which are among the notes
    assert [(row["offset_ns"], row["ranks"]) for row in rows] == [(0, [0]), (3_000_000, [1])]
    assert rows[1]["lower_ns"] <= 3_000_000 <= rows[1]["upper_ns"]

    code, out, err = run("clocks", profile / "profile")
    assert code == 0 and "node01" in out and "+3.000000" in out
    for row in rows:
        assert (row["note"] or "") in err
