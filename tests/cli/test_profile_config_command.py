"""`npuscope profile-config`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from npuscope.cli import app
from npuscope.collector.training.dynamic_profile import check
from npuscope.errors import NpuscopeError, TraceFormatError, TraceNotFound, UsageError


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["profile-config", *map(str, arguments)], catch_exceptions=True)


def test_it_writes_what_it_finds_right(tmp_path: Path) -> None:
    done = run("--start-step", 500, "--ranks", "0,8-9", "--prof-dir", "/data/p", "-o", tmp_path)
    assert done.exit_code == 0, done.output
    assert "nputrace --start-step 500" in done.stdout and "PROF_CONFIG_PATH" in done.stderr
    (written,) = tmp_path.iterdir()
    content = json.loads(written.read_text())
    assert written.name == "profiler_config.json" and check(content) == []
    assert content["rank_list"] == [0, 8, 9] and content["is_rank"] is True
    assert content["experimental_config"]["aic_metrics"] == "PipeUtilization"
    checked = run("--check", tmp_path)
    assert checked.exit_code == 0 and "valid" in checked.stdout


def test_a_name_without_an_ending_is_a_folder(tmp_path: Path) -> None:
    """The job looks for one name in the folder that it is told."""
    folder = tmp_path / "prof_conf"
    done = run("--start-step", 500, "-o", folder)
    assert f"PROF_CONFIG_PATH={folder}" in done.stderr
    assert run("--check", folder / "profiler_config.json").exit_code == 0
    other = run("-o", tmp_path / "mine.json")
    assert "PROF_CONFIG_PATH" not in other.stderr and (tmp_path / "mine.json").is_file()


def test_without_a_target_it_prints_the_file() -> None:
    done = run("--level", "none", "--export", "both")
    assert check(json.loads(done.stdout)) == [] and "dyno" in done.stderr
    told = json.loads(run("--json").stdout)
    assert told["metric"] == "profile_config"
    assert check(told["rows"][0]["config"]) == []


def test_wrong_fields_of_a_file_are_named(tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text('{"activ": 2, "warmup": "1", "experimental_config": {"l2_cache": 1}}')
    done = run("--check", bad)
    assert isinstance(done.exception, NpuscopeError)
    message = str(done.exception)
    assert "3 field(s)" in message and "did you mean active?" in message
    assert 'warmup: "1"; allowed: an integer of at least 0' in message
    assert "experimental_config.l2_cache: 1; allowed: true or false" in message
    rows = json.loads(run("--check", bad, "--json").stdout)["rows"]
    assert [row["field"] for row in rows] == ["activ", "warmup", "experimental_config.l2_cache"]


@pytest.mark.parametrize("text", ["", "[" * 100_000])
def test_no_json_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    assert isinstance(run("--check", tmp_path / "bad.json").exception, TraceFormatError)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    assert isinstance(run("--check", tmp_path).exception, TraceNotFound)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--level", "7"), ("--aic-metrics", "Everything"), ("--export", "csv"), ("--ranks", "a"),
        ("--ranks", "0-999999999"), ("--level", "0", "--aic-metrics", "Memory"),
    ],
)  # fmt: skip
def test_wrong_options_are_told(arguments: tuple[str, ...]) -> None:
    assert isinstance(run(*arguments).exception, UsageError)
