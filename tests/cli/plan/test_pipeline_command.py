"""`npuscope pipeline`: other schedules of a capture, and what a schedule costs, printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import Run


def test_a_row_for_each_device(run: Run) -> None:
    words = (
        "pipeline --formula interleaved -p 8 -m 16 -v 6 --forward 2e7 --backward 2e7 --weight 2e7"
    )
    told = run(*words.split(), "--json")
    assert (told.code, told.json()["metric"]) == (0, "pipeline_formula")
    assert [row["device"] for row in told.rows] == list(range(8))
    assert [row["bubble_ratio"] for row in told.rows] == pytest.approx([7 / 103] * 8)
    assert told.rows == run(*words.replace("interleaved", "vpp").split(), "--json").rows
    shown = run(*words.split())
    assert shown.out.count("6.8 %") == 8
    assert "nothing is measured" in shown.err


def test_what_it_refuses(run: Run) -> None:
    told = run("pipeline", "--formula", "dualpipe", "-p", 3, "-m", 8)
    assert (told.code, told.out) == (2, "")
    assert "even stages" in told.err
    told = run("pipeline", "--formula", "gpipe", "-p", 2, "-m", 2, "--forward", "inf")
    assert (told.code, "finite" in told.err) == (2, True)


def test_what_ran_in_a_capture(run: Run, sample_store: Path) -> None:
    told = run("pipeline", sample_store, "--json")
    found = told.json()
    assert (told.code, found["metric"]) == (0, "pipeline_phases")
    assert (found["schedule"], found["confidence"], found["micro_batches"]) == ("1f1b", "high", 2)
    assert [(row["stage"], row["phase"]) for row in told.rows] == [
        (stage, phase) for stage in (0, 1) for phase in ("warm-up", "steady", "cool-down")
    ]
    causes = [row for row in found["bubbles"] if row["stage"] == 0]
    assert sum(row["bubble_ns"] for row in causes[:-1]) == causes[-1]["bubble_ns"]
    shown = run("pipeline", sample_store)
    assert "ep dispatch" in shown.out and "causes add up to all" in shown.out


def test_other_schedules_of_a_capture(run: Run, sample_store: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("0: F0 F1 BW0 BW1\n1: F0 F1 BW0 BW1\n")
    words = ("pipeline", sample_store, "--try", "gpipe,vpp:2", "--order", tmp_path / "mine.txt")
    told = run(*words, "--json")
    assert (told.code, told.json()["metric"]) == (0, "pipeline_tries")
    measured, gpipe, vpp, mine = told.rows
    assert [row["name"] for row in told.rows] == ["measured", "gpipe", "vpp:2", "mine.txt"]
    assert vpp["chunks"] == 2 and len(vpp["devices"]) == 2
    assert gpipe["predicted_step_ns"] == mine["predicted_step_ns"] > measured["measured_step_ns"]
    shown = run(*words)
    assert "vpp:2" in shown.out and f"{vpp['predicted_step_ns'] / 1e6:,.3f}" in shown.out
    assert "is the error of the others" in shown.err


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("--try", "zbh1"), 2, "no schedule is called 'zbh1'"),
        (("--try", "dualpipev", "--micro-batches", "2"), 2, "4, not 2"),
        (("--order", "none.txt"), 3, "none.txt: cannot be read"),
        (("-p", "4"), 2, "are for --formula"),
        (("--device-memory", "1GB"), 2, "is for --place-layers"),
        (("--formula", "1f1b"), 2, "leave out PATH"),
    ],
)
def test_what_cannot_be_tried(
    run: Run, sample_store: Path, words: tuple[str, ...], code: int, told: str
) -> None:
    found = run("pipeline", sample_store, *words)
    assert (found.code, found.out) == (code, "")
    assert told in found.err
