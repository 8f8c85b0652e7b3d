"""`npuscope gate` and `npuscope baseline save`: exit codes, and what other programs read."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from npuscope.analysis.compare.limits import MEASURE_OF
from npuscope.sample_traces.job import small
from tests.cli.command import Run

BASE = small()
TWICE = replace(BASE, repeated_kernel="ApplyAdamWV2")
KEPT = ("--limit", "step_time=+50 %", "--limit", "peak_memory=+1 GiB")
BROKEN = ("--limit", "step_time=+3 %")


@pytest.fixture(scope="module")
def stores(stored_job: Callable[..., Path]) -> tuple[Path, Path]:
    return stored_job(BASE, "text"), stored_job(TWICE, "db")


@pytest.fixture(scope="module")
def sides(stores: tuple[Path, Path]) -> tuple[object, ...]:
    return ("gate", "--baseline", stores[0], "--candidate", stores[1])


def test_one_where_a_limit_is_broken(run: Run, sides: tuple[object, ...]) -> None:
    kept = run(*sides, *KEPT, "--json")
    assert kept.code == 0 and [row["verdict"] for row in kept.rows] == ["kept", "kept"]
    assert kept.json()["metric"] == "gate" and "warning" not in kept.err
    chance = ("--limit", "free_time=+0.001 %")
    broken = run(*sides, *KEPT, *chance, *BROKEN[:1], "computing_time=+3 %")
    assert broken.code == 1 and "broken: computing_time" in broken.err
    assert [line.split()[-1] for line in broken.out.splitlines()[-4:]] == [
        "kept", "kept", "tell", "broken"  # two steps are not enough to tell
    ]  # fmt: skip
    # It loses 2.3 to 2.6 points, and steps hardly differ on the device.
    lost = run(*sides, "--limit", "mfu=-1 point")
    assert lost.code == 1 and "broken: mfu" in lost.err


def test_backwards_nothing_is_broken(run: Run, stores: tuple[Path, Path]) -> None:
    words = ("gate", "--baseline", stores[1], "--candidate", stores[0])
    assert run(*words, *BROKEN).code == 0


@pytest.mark.slow
def test_a_saved_baseline_stands_for_its_run(
    run: Run, stores: tuple[Path, Path], sides: tuple[object, ...], tmp_path: Path
) -> None:
    base = tmp_path / "base.json"
    saved = run("baseline", "save", f"{stores[0]}@job", "-o", base)
    assert saved.code == 0 and saved.out == "" and "2 steps" in saved.err
    assert base.stat().st_size < 4000
    direct = run(*sides, *BROKEN, *KEPT[2:], "--json")
    through = run(
        "gate", "--baseline", base, "--candidate", stores[1], *BROKEN, *KEPT[2:], "--json"
    )
    assert (through.code, through.rows) == (direct.code, direct.rows) and through.code == 1
    itself = run("compare", base, stores[0], "--json")
    assert itself.code == 0 and {row["delta_ns"] for row in itself.rows} == {0}
    base.write_bytes(base.read_bytes()[:200])
    torn = run("gate", "--baseline", base, "--candidate", stores[1], *BROKEN)
    assert torn.code == 3 and "base.json" in torn.err


def test_too_few_steps_are_no_reason_to_fail(
    run: Run, stores: tuple[Path, Path], tmp_path: Path
) -> None:
    one = tmp_path / "one.json"
    one.write_text(
        '{"npuscope_baseline":1,"steps":[{"run":"r","capture":"c","step":[1],"step_ns":[1000000],'
        '"measures":{}}],"parts":[],"kernels":[],"facts":{}}'
    )
    told = run("gate", "--baseline", one, "--candidate", stores[1], *BROKEN, "--annotations")
    assert told.code == 0
    assert "warning: step_time is beyond what is allowed" in told.err
    assert "record 1 more steps of each" in told.err
    assert told.out.startswith("::warning title=npuscope gate step_time::") and "%25" in told.out


def test_what_other_programs_read(run: Run, sides: tuple[object, ...], tmp_path: Path) -> None:
    limits, xml, text = tmp_path / "limits.toml", tmp_path / "gate.xml", tmp_path / "gate.md"
    limits.write_text('step_time = "+3 %"\npeak_memory = "+1 GiB"\nexpert_imbalance = "+0.1"\n')
    told = run(
        *sides, "--limits", limits, "--junit", xml, "--markdown", "-o", text, "--annotations"
    )
    assert told.code == 1
    suite = ElementTree.parse(xml).getroot()[0]
    assert {name: suite.get(name) for name in ("tests", "failures", "skipped")} == {
        "tests": "3", "failures": "1", "skipped": "1"
    }  # fmt: skip
    failure = suite.find("testcase[@name='step_time']/failure")
    assert failure is not None and "ms" in str(failure.get("message"))
    assert "ApplyAdamWV2  ran more or less often" in str(failure.text)
    assert [line.split(" ")[0] for line in told.out.splitlines()] == [
        "::error", "::notice", "::warning"
    ]  # fmt: skip
    lines = text.read_text().splitlines()
    assert lines[0] == "# npuscope gate" and lines[2] == "1 of 3 limits broken"
    assert any(line.startswith("| step_time | +3 % |") for line in lines)
    assert any("ApplyAdamWV2" in line for line in lines)
    chinese = run(*sides, "--limits", limits, "--markdown", "--lang", "zh")
    assert chinese.code == 1 and "3 条限制中有 1 条被突破" in chinese.out
    assert not re.search("broken|kept|longer|computing", chinese.out)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "no limits"),
        (("--limit", "step_time"), "NAME=LIMIT"),
        (("--limit", "speed=+3 %"), "step_time, computing_time"),
        (("--limit", "step_time=3"), 'such as "+3 %"'),
        ((*BROKEN, "--json", "--annotations"), "stdout"),
        ((*BROKEN, "-o", "x"), "--markdown"),
        ((*BROKEN, "--lang", "xx"), "--lang xx"),
    ],
)
def test_wrong_usage(
    run: Run, sides: tuple[object, ...], words: tuple[str, ...], said: str
) -> None:
    refused = run(*sides, *words)
    assert (refused.code, refused.out) == (2, "") and said in " ".join(refused.err.split())


def test_help_names_every_limit(run: Run) -> None:
    told = "".join(run("gate", "--help").out.split())
    assert all(name in told for name in MEASURE_OF)
