"""`npuscope memory` as users and scripts meet it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from npuscope.sample_traces.generate import small
from tests.cli.command import Run
from tests.conftest import WrittenJob

COMPONENT_COLUMNS = (
    "run capture rank component peak_bytes peak_ns peak_allocated_bytes peak_allocated_ns "
    "peak_active_bytes fragmentation_bytes fragmentation_ratio source device_id sample_count "
    "first_ns last_ns"
).split()


@pytest.fixture(scope="module")
def job(written_job: WrittenJob) -> Path:
    return written_job(small(), "text")


def test_rows_are_components_of_ranks(run: Run, job: Path) -> None:
    outcome = run("memory", job, "--json")
    answer = outcome.json()

    assert (outcome.code, answer["metric"], answer["schema_version"]) == (0, "memory", 1)
    assert [list(row) for row in answer["rows"]] == [COMPONENT_COLUMNS] * len(answer["rows"])
    assert {row["rank"] for row in answer["rows"]} == {0, 1}
    assert {row["component"] for row in answer["rows"]} >= {"PTA", "PTA+GE", "APP", "HCCL"}
    first = run("memory", job, "--json", "--rank", 1, "--top", 1).json()["rows"]
    assert [(row["rank"], row["component"]) for row in first] == [(1, "APP")]


def test_curves_have_at_most_as_many_points_as_asked(run: Run, job: Path) -> None:
    rows = run("memory", job, "--by", "curve", "--bins", 7, "--rank", 0, "--json").json()["rows"]

    assert {row["bin"] for row in rows} == set(range(7))
    drawn = run("memory", job, "--by", "curve", "--top", 1).out
    assert drawn.count("Rank ") == 1 and "█" in drawn


@pytest.mark.parametrize("key", ["step", "growth", "spread"])
def test_top_is_refused_where_nothing_is_ranked(run: Run, job: Path, key: str) -> None:
    outcome = run("memory", job, "--by", key, "--top", 1)
    assert outcome.code == 2 and "--top is for" in outcome.err
    assert run("memory", job, "--by", "curve", "--top", 1, "--json").code == 2


def test_the_overview_has_ranks_curve_holders_and_growth(run: Run, job: Path) -> None:
    outcome = run("memory", job)

    assert outcome.code == 0
    for words in (
        "Ranks, the fullest first",
        "Memory across ranks",
        "PTA+GE",
        "░ reserved",
        "Who holds the memory at the peak",
        "(no recorded block)",
        "Growth:",
    ):
        assert words in outcome.out
    alone = run("memory", job, "--rank", 1).out
    assert "Memory by component" in alone and "across ranks" not in alone


def test_a_capture_without_memory_says_what_to_record(
    run: Run, tmp_path: Path, write_profile: Callable[..., Path]
) -> None:
    write_profile(tmp_path / "h0_ascend_pt", 0)

    table = run("memory", tmp_path)
    answer = run("memory", tmp_path, "--json").json()

    assert table.code == 0 and "no memory was recorded" in table.out
    assert answer["rows"] == []
    assert "rank 0: no memory was recorded. To know it: profile_memory=True" in answer["notes"]
    assert run("memory", tmp_path, "--by", "curve").out.strip() == "no memory was recorded"


def test_memory_alone_is_enough(run: Run, job: Path, tmp_path: Path) -> None:
    """Without kernels and steps there are still peaks and holders."""
    (source,) = job.glob("*/profiler_info_0.json")
    target = tmp_path / "h0_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    target.mkdir(parents=True)
    (target.parent / source.name).write_bytes(source.read_bytes())
    for name in ("memory_record.csv", "operator_memory.csv"):
        copied = source.parent / "ASCEND_PROFILER_OUTPUT" / name
        (target / name).write_bytes(copied.read_bytes())

    outcome = run("memory", tmp_path)

    assert outcome.code == 0
    assert "Growth: no steps were recorded with memory" in outcome.out
    assert "Who holds the memory at the peak" in outcome.out
