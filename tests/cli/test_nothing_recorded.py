"""What the commands say of what was not recorded: nothing about rows that are not there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.analysis.tables import connect, fill
from tests.cli.test_cli import Run, runner

COMM = "kind type op stretch link matrix bandwidth contention part".split()
MEMORY = "component holder block step growth spread curve".split()
EXPERTS = "layer expert device node time cost".split()
VERBS = (
    *((verb,) for verb in ("report", "findings", "steps", "clocks", "ranks", "doctor", "mfu")),
    *((verb,) for verb in ("memory", "experts", "kernels")),
    ("mfu", "--waterfall"),
    *(("comm", "--by", key) for key in COMM),
    *(("memory", "--by", key) for key in MEMORY),
    *(("experts", "--by", key) for key in EXPERTS),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two exports: `none` has one rank and nothing else, `kernel` a step with one kernel."""
    folder = tmp_path_factory.mktemp("nothing")
    for name in ("none", "kernel"):
        with connect(folder / f"{name}.duckdb") as con:
            fill(con, "ranks", [{}])
            if name == "kernel":
                fill(con, "steps", [{"step": 1}])
                kernel = {"step": 1, "start_ns": 5, "dur_ns": 20, "is_compute": True, "name": "a"}
                fill(con, "kernels", [kernel])
    return folder


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(folder / "cache", monkeypatch, capsys)


@pytest.mark.parametrize("name", [pytest.param("none", marks=pytest.mark.slow), "kernel"])
@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_no_word_of_rows_that_are_not_there(
    run: Run, folder: Path, verb: tuple[str, ...], name: str
) -> None:
    path = folder / f"{name}.duckdb"
    table = run(verb[0], path, *verb[1:])
    rows = run(verb[0], path, *verb[1:], "--json")
    assert table.code == rows.code and table.code in (0, 3)
    if table.code == 3:
        assert table.out == "" and table.err.strip()
    elif not json.loads(rows.out)["rows"] and verb[0] != "doctor":
        assert re.fullmatch(r"([^\n]*: no rows|no [\w ]+ recorded)?\n?", table.out)
        assert json.loads(rows.out)["notes"] or table.err, "why there is nothing is said"


MISSING = (
    "From the peak to what is achieved: not known: FLOPs of 1 kernels without a type",
    "Communication: no communication operation was recorded",
    "Who makes the others wait: no operation was recorded by two ranks or more",
    "Expert load: no tokens per expert were recorded, and no kernel shows them",
)
MISSING_CHINESE = (
    "从峰值到实际达到：未知：",
    "通信：未采集到",
    "谁让别人等：没有",
    "专家负载：未采集",
)


def test_a_section_that_cannot_be_computed_says_why_in_its_place(run: Run, folder: Path) -> None:
    path = folder / "kernel.duckdb"
    page, chinese = folder / "page.html", folder / "zh.html"
    assert run("report", path, "--html", page).code == 0
    assert run("report", path, "--html", chinese, "--lang", "zh").code == 0
    for told in (
        run("report", path).out,
        run("report", path, "--markdown").out,
        page.read_text(encoding="utf-8"),
    ):
        told = " ".join(told.split())  # terminals fold lines
        places = [told.index(words) for words in MISSING]
        assert places == sorted(places)
        assert places[0] < told.index("What to know about these figures")
    assert "Memory: no memory curve was recorded" in page.read_text(encoding="utf-8")
    assert all(words in chinese.read_text(encoding="utf-8") for words in MISSING_CHINESE)

    (capture,) = json.loads(run("report", path, "--json").out)["rows"]
    assert [any(one.startswith(words) for one in capture["not_shown"]) for words in MISSING] == [
        True
    ] * 4
