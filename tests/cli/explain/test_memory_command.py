"""`npuscope memory` as users and scripts meet it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from npuscope.sample_traces.generate import small, write_job
from tests.cli.command import Run

COMPONENT_COLUMNS = (
    "run capture rank component peak_bytes peak_ns peak_allocated_bytes peak_allocated_ns "
    "peak_active_bytes fragmentation_bytes fragmentation_ratio source device_id sample_count "
    "first_ns last_ns"
).split()


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the `profile` of two ranks and a `store` for it."""
    folder = tmp_path_factory.mktemp("job")
    write_job(small(), folder / "profile", forms=("text",))
    return folder


def test_rows_are_components_of_ranks(run: Run, job: Path) -> None:
    outcome = run("memory", job / "profile", "--json")
    answer = outcome.json()

    assert (outcome.code, answer["metric"], answer["schema_version"]) == (0, "memory", 1)
    assert [list(row) for row in answer["rows"]] == [COMPONENT_COLUMNS] * len(answer["rows"])
    assert {row["rank"] for row in answer["rows"]} == {0, 1}
    assert {row["component"] for row in answer["rows"]} >= {"PTA", "PTA+GE", "APP", "HCCL"}
    first = run("memory", job / "profile", "--json", "--rank", 1, "--top", 1).json()["rows"]
    assert [(row["rank"], row["component"]) for row in first] == [(1, "APP")]


@pytest.mark.slow
@pytest.mark.parametrize("by", ["component", "holder", "block", "step", "growth", "spread"])
def test_every_answer_as_json_and_as_a_table(run: Run, job: Path, by: str) -> None:
    answer = run("memory", job / "profile", "--by", by, "--json").json()

    names = {"component": "memory", "holder": "memory_holders", "block": "memory_blocks",
             "step": "memory_steps"}  # fmt: skip
    assert answer["metric"] == names.get(by, f"memory_{by}")
    assert answer["rows"]
    table = run("memory", job / "profile", "--by", by, "--top", 3)
    assert table.code == 0 and "MiB" in table.out


def test_curves_have_at_most_as_many_points_as_asked(run: Run, job: Path) -> None:
    rows = run(
        "memory", job / "profile", "--by", "curve", "--bins", 7, "--rank", 0, "--json"
    ).json()["rows"]

    assert {row["bin"] for row in rows} == set(range(7))
    drawn = run("memory", job / "profile", "--by", "curve", "--top", 1).out
    assert drawn.count("Rank ") == 1 and "█" in drawn


def test_the_overview_has_ranks_curve_holders_and_growth(run: Run, job: Path) -> None:
    outcome = run("memory", job / "profile")

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
    alone = run("memory", job / "profile", "--rank", 1).out
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
    (source,) = job.glob("profile/*/profiler_info_0.json")
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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--by", "rank"), "choose one of component, holder"),
        (("--rank", "9"), "no rank 9 here: there is 0-1"),
        (("--capture", "x"), "no capture x here"),
    ],
)
def test_what_is_not_there_is_refused(
    run: Run, job: Path, arguments: tuple[str, ...], words: str
) -> None:
    outcome = run("memory", job / "profile", *arguments)

    assert (outcome.code, outcome.out) == (2, "")
    assert words in outcome.err
