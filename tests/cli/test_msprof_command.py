"""Answers from exports of the msprof command, from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from npuscope.sample_traces.capture import captures
from npuscope.sample_traces.forms.msprof import write_msprof
from npuscope.sample_traces.generate import Job
from tests.cli.command import output_of
from tests.cli.command import rows_of as rows

JOB = Job(name="served", layers=2, dp=2, pp=1, ep=2, seed=6)


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two devices in one folder, without iterations."""
    folder = tmp_path_factory.mktemp("cli_msprof") / "profiles"
    write_msprof(captures(JOB), folder, slices=2, iterations=False)
    return folder


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
    assert "2 (0-1)" in output_of("report", profiles, *place)


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
    assert "on a device clock" in output_of("report", source, *place)
    (told,) = rows("doctor", source, *place)
    assert told["not_verified_on_real_data"] == []
