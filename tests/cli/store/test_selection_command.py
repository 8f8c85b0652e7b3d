"""Selections, compaction and retention from the command line."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from npuscope.sample_traces.generate import small, write_job
from tests.cli.command import Outcome, Run


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli_selection") / "profiles"
    write_job(small(dp=4, steps=3), folder, forms={
        0: ("db",), 1: ("text",), 2: ("db",), 3: ("text",)
    })  # fmt: skip
    return folder


Rows = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def npuscope(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("COLUMNS", "160")

    def command(*arguments: object, code: int = 0) -> Outcome:
        outcome = run(*arguments)
        assert outcome.code == code, outcome
        return outcome

    return command


@pytest.fixture
def rows(npuscope: Run) -> Rows:
    return lambda *arguments: npuscope(*arguments, "--json").rows


@pytest.mark.slow
def test_a_light_store_stays_light_until_it_is_completed(
    npuscope: Run, rows: Rows, source: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    said = npuscope("ingest", source, "--store", store, "--light").err
    full = [int(line.split("rank ")[1].split()[0]) for line in said.splitlines() if "full" in line]
    assert "(slowest)" in said and "(median)" in said and 0 < len(full) < 4

    assert list(store.rglob("compact-*/step_summary-*.parquet")), "small files are merged"

    report = npuscope("report", source, "--store", store)
    assert "read lightly, from small files" in " ".join(report.out.split())
    assert "Top kernels by type: of a rank's step" in report.out
    assert f"(mean of {len(full)} rank" in report.out
    light = next(rank for rank in range(4) if rank not in full)
    kernels = json.loads(
        npuscope("kernels", source, "--store", store, "--rank", light, "--json").out
    )
    assert kernels["rows"] == []
    assert f"--tables kernels --ranks {light}" in kernels["notes"][-1]

    said = npuscope("ingest", source, "--store", store, "--ranks", light).err
    assert "1 rank(s) read" in said
    assert rows("kernels", source, "--store", store, "--rank", light)
    assert f"{3 - len(full)} rank(s) read" in npuscope("ingest", source, "--store", store).err


@pytest.mark.slow
def test_figures_of_a_selection(npuscope: Run, rows: Rows, source: Path, tmp_path: Path) -> None:
    some, every = tmp_path / "some", tmp_path / "every"
    npuscope("ingest", source, "--store", every, "--ranks", "0-1")
    npuscope("ingest", source, "--store", some, "--ranks", "0-1", "--steps", "13",
             "--tables", "kernels,comm_ops")  # fmt: skip

    steps = rows("steps", source, "--store", some)
    assert {(row["rank"], row["step"]) for row in steps} == {(0, 13), (1, 13)}
    exact = [row for row in rows("steps", source, "--store", every) if row["step"] == 13]
    for ours, theirs in zip(steps, exact, strict=True):
        # Launches were left out: what the host did while the device was free is unknown.
        assert ours["host_ns"] is ours["idle_ns"] is None and theirs["host_ns"] is not None
        launched = ("window", "preparing", "host_ns", "idle_ns")
        windowless = {k: v for k, v in ours.items() if not k.startswith(launched)}
        assert windowless.items() <= theirs.items()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--ranks", "x"), "--ranks x"),
        (("--steps", "3-1"), "--steps 3-1"),
        (("--tables", "kernel"), "--tables kernel"),
        (("--ranks", "17"), "--ranks 17: none of them is below"),
    ],
)
def test_slips_are_usage_errors(
    npuscope: Run, source: Path, tmp_path: Path, arguments: tuple[str, str], told: str
) -> None:
    assert told in npuscope("ingest", source, "--store", tmp_path / "s", *arguments, code=2).err


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("0,99", "no rank 99 below"),
        ("0,8-99999999", "no rank 8-99999999 below"),
        ("0,11,13,15,17,19,21", "no rank 11,13,15,17,19,... below"),
    ],
)
def test_ranks_that_are_not_there_are_named(
    npuscope: Run, source: Path, tmp_path: Path, asked: str, told: str
) -> None:
    said = npuscope("ingest", source, "--store", tmp_path / "s", "--ranks", asked).err
    assert told in said
    assert "1 rank(s) read" in said
    # Steps, too, also of ranks that were read before.
    asked_again = ("--ranks", asked, "--steps", "13,998-999")
    said = npuscope("ingest", source, "--store", tmp_path / "s", *asked_again).err
    assert told in said and "0 rank(s) read, 1 unchanged" in said
    assert "--steps: no rank that was asked for has step 998-999\n" in said


@pytest.mark.slow
def test_compact_says_what_it_did_and_changes_no_answer(
    npuscope: Run, rows: Rows, source: Path, tmp_path: Path, ranks_alone: None
) -> None:
    store = tmp_path / "store"
    npuscope("ingest", source, "--store", store)
    before = rows("steps", store), rows("sql", store, "from memory order by all")

    said = npuscope("compact", store).err
    assert "files of 4 rank(s) merged into" in said
    assert "nothing to merge" in npuscope("compact", store).err
    assert (rows("steps", store), rows("sql", store, "from memory order by all")) == before
    assert "not a store" in npuscope("compact", source, code=3).err


@pytest.mark.slow
def test_retention_drops_the_oldest_and_says_so(
    npuscope: Run, rows: Rows, source: Path, tmp_path: Path
) -> None:
    store, later = tmp_path / "store", tmp_path / "later"
    job = small(start_ns=1_774_246_877_000_000_000)
    write_job(job, later / "profiles", forms=("db",))
    npuscope("ingest", source, "--store", store, "--run", "job")
    npuscope("ingest", later, "--store", store, "--run", "job")
    captures = "select distinct capture from ranks order by 1"
    (old, new) = [row["capture"] for row in rows("sql", store, captures)]

    said = npuscope("compact", store, "--keep-size", "1KB", "--dry-run").err
    assert said.startswith(f"would drop job, {old}: 4 rank(s)") and new not in said
    assert len(rows("sql", store, captures)) == 2

    said = npuscope("compact", store, "--keep-days", "1").err
    assert f"dropped job, {old}" in said
    assert [row["capture"] for row in rows("sql", store, captures)] == [new]
    assert "--keep-size 1x" in npuscope("compact", store, "--keep-size", "1x", code=2).err

    # Its files stay for a day, or for as long as is said: at least a minute.
    def left() -> list[Path]:
        return [one for one in store.rglob("*.parquet") if old in str(one)]

    assert "--grace-minutes" in npuscope("compact", store, "--grace-minutes", "0.9", code=2).err
    for ago_s, words, is_there in (
        (0, ["--grace-minutes", "1"], True),
        (120, [], True),
        (120, ["--grace-minutes", "3"], True),
        (120, ["--grace-minutes", "1"], False),
    ):
        for one in left():
            for place in (*one.parent.iterdir(), one.parent):
                os.utime(place, (time.time() - ago_s,) * 2)
        said = npuscope("compact", store, *words).err
        assert bool(left()) is is_there and ("unused files removed" in said) is not is_there
    assert [row["capture"] for row in rows("sql", store, captures)] == [new]
