"""`npuscope pipeline --formula`: what a schedule costs, printed."""

from __future__ import annotations

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
