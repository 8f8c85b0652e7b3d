"""Answers from exports of the msprof command, from the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from npuscope.sample_traces.capture import captures
from npuscope.sample_traces.forms.msprof import write_msprof
from npuscope.sample_traces.generate import Job

JOB = Job(name="served", layers=2, dp=2, pp=1, ep=2, seed=6)


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two devices in one folder, without iterations."""
    folder = tmp_path_factory.mktemp("cli_msprof") / "profiles"
    write_msprof(captures(JOB), folder, slices=2, iterations=False)
    return folder


def asked(*arguments: object, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "npuscope", *map(str, arguments)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def rows(*arguments: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(asked(*arguments, "--json"))["rows"]
    return found


@pytest.mark.slow
def test_every_answer_for_each_device(profiles: Path, tmp_path: Path) -> None:
    place = ("--store", tmp_path / "store")
    seen = captures(JOB)
    steps = rows("steps", profiles, *place)
    # Without iterations all of a capture is one row.
    assert [(row["rank"], row["step"]) for row in steps] == [(0, None), (1, None)]
    assert all(0 < row["masking_ratio"] < 1 for row in steps)
    for c in seen:
        count = sum(row["count"] for row in rows("kernels", profiles, *place, "--rank", c.rank))
        assert count == sum(k.work.is_compute for k in c.kernels)
        sql = f"select count(*) as count from comm_ops where rank = {c.rank}"
        assert rows("sql", profiles, sql, *place) == [{"count": len(c.comm_ops)}]
    assert "2 (0-1)" in asked("report", profiles, *place)


@pytest.mark.slow
def test_the_doctor_names_what_it_met(profiles: Path, tmp_path: Path) -> None:
    told = rows("doctor", profiles, "--store", tmp_path / "store")
    for row in told:
        assert row["rules"]["layout"] == "one export for all devices"
        assert row["rules"]["devices"] == "several in the same files, each a rank of its own"
        assert any("msprof itself" in text for text in row["not_verified_on_real_data"])


@pytest.mark.slow
def test_real_iterations(real_data: Path, tmp_path: Path) -> None:
    place = ("--store", tmp_path / "store")
    source = real_data / "msprof_timeline_2023"
    assert [row["step"] for row in rows("steps", source, *place)] == list(range(1, 11))
    sql = "select distinct op_type, step from comm_ops"
    assert len(rows("sql", source, sql, *place)) == 10
    assert "on a device clock" in asked("report", source, *place)
    (told,) = rows("doctor", source, *place)
    assert told["not_verified_on_real_data"] == []
