"""`npuscope doctor` as users and scripts meet it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from npuscope.sample_traces.generate import small, write_job
from tests.cli.command import Run

FIELDS = {
    "run", "capture", "rank", "status", "framework", "source_format", "profiler_level",
    "aic_metrics", "framework_version", "cann_version", "chip_name", "host_name", "device_id",
    "clock", "window_start_ns", "window_end_ns", "world_size", "left_out_tables", "kept_steps",
    "rank_origin", "source_root", "npuscope_version", "options", "expected_rank_count",
    "least_rank_count", "missing_ranks", "steps", "missing_steps", "window_covered_ratio",
    "tables", "contents", "rows_lost", "bytes_lost", "failed_files", "warnings", "rules",
    "not_verified_on_real_data", "capabilities", "profiler_config", "profiler_overhead_ratio",
    "profiler_overhead_reason",
}  # fmt: skip


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("job") / "job"
    write_job(small(), path, forms={0: ("db",), 1: ("text",)})
    return path


@pytest.fixture
def own_job(job: Path, tmp_path: Path) -> Path:
    """A copy that a test may harm."""
    return Path(shutil.copytree(job, tmp_path / "job"))


def root_of(job: Path, rank: int) -> Path:
    (info,) = job.glob(f"*/profiler_info_{rank}.json")
    return info.parent


def test_a_whole_capture(run: Run, job: Path) -> None:
    done = run("doctor", job)
    assert (done.code, done.err) == (0, "")
    assert "all 2 ranks (0-1); nothing was lost" in done.out
    assert "What it can answer" in done.out
    assert "truth.json" in done.out


def test_as_json(run: Run, job: Path) -> None:
    done = run("doctor", job, "--json")
    answer = done.json()
    assert (done.code, done.err) == (0, "")
    assert {key: answer[key] for key in ("schema_version", "metric")} == {
        "schema_version": 1, "metric": "doctor",
    }  # fmt: skip
    assert [set(row) for row in answer["rows"]] == [FIELDS, FIELDS]
    assert [row["status"] for row in answer["rows"]] == ["read", "read"]
    for row in answer["rows"]:
        assert {c["support"] for c in row["capabilities"]} == {"yes", "partly", "no"}
        assert row["steps"] == [12, 13] and row["missing_ranks"] == []
        assert {"table": "steps", "row_count": 2, "source": row["tables"][-1]["source"]} in (
            row["tables"]
        )
    assert all(isinstance(note, str) for note in answer["notes"])
    assert any("truth.json" in note for note in answer["notes"])


@pytest.mark.slow
def test_one_rank(run: Run, job: Path, tmp_path: Path) -> None:
    answer = run("doctor", job, "--rank", 1, "--json").json()
    assert [row["rank"] for row in answer["rows"]] == [1]
    refused = run("doctor", job, "--rank", 7)
    assert refused.code == 2
    assert "nothing here is" in refused.err and "rank 7" in refused.err
    assert "ranks 0-1" in refused.err
    assert run("doctor", tmp_path / "nowhere").code == 3


@pytest.mark.slow
def test_a_store_and_an_exported_file(run: Run, job: Path, tmp_path: Path) -> None:
    assert run("ingest", job, "--store", tmp_path / "s", "-o", tmp_path / "x.duckdb").code == 0
    for path in (tmp_path / "s", tmp_path / "x.duckdb"):
        answer = run("doctor", path, "--json").json()
        assert [row["rank"] for row in answer["rows"]] == [0, 1]
        assert any("other files are listed" in note for note in answer["notes"])
    assert answer["rows"][0]["options"] is None
    assert answer["rows"][0]["rows_lost"] is None


@pytest.mark.slow
def test_what_was_lost_or_never_analysed_is_told_with_4(run: Run, own_job: Path) -> None:
    output = root_of(own_job, 1) / "ASCEND_PROFILER_OUTPUT"
    with (output / "kernel_details.csv").open("a") as table:
        table.write("12,0,broken")
    raw = own_job / "h9_ascend_pt" / "PROF_000001_20250101010101001_ABC" / "device_0"
    raw.mkdir(parents=True)
    again = Path(shutil.copytree(root_of(own_job, 0), own_job / "again_ascend_pt"))

    done = run("doctor", own_job, "--json")

    assert done.code == 4
    answer = done.json()
    assert [row["status"] for row in answer["rows"]] == ["read", "in_part"]
    assert answer["rows"][1]["rows_lost"] == 1
    assert any("h9_ascend_pt" in note and "analyse(" in note for note in answer["notes"])
    assert any("rank 0 was also profiled" in note and again.name in note
               for note in answer["notes"])  # fmt: skip
    shown = run("doctor", own_job)
    assert shown.code == 4
    assert "data of rank 1 was lost" in shown.out
    assert "analyse(" in shown.out


def test_a_rank_that_cannot_be_read_is_a_row_of_its_own(run: Run, own_job: Path) -> None:
    output = root_of(own_job, 0) / "ASCEND_PROFILER_OUTPUT"
    for file in output.iterdir():
        file.write_bytes(b"no database")
    done = run("doctor", own_job, "--json")
    assert done.code == 4
    rows = {row["rank"]: row for row in done.json()["rows"]}
    assert (rows[0]["status"], rows[1]["status"]) == ("not_read", "read")
    assert rows[0]["reason"]


def test_nothing_readable_is_3(run: Run, tmp_path: Path) -> None:
    (tmp_path / "raw_ascend_pt" / "PROF_000001_20250101010101001_ABC").mkdir(parents=True)
    done = run("doctor", tmp_path / "raw_ascend_pt")
    assert done.code == 3
    assert "analyse(" in done.err
