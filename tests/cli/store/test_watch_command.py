"""`npuscope watch` as a user starts it."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from npuscope.commands.store import watch
from npuscope.sample_traces.generate import small, write_job
from tests.cli.command import Run


def test_what_is_asked_wrongly_is_told(run: Run, tmp_path: Path) -> None:
    code, _, err = run("watch", tmp_path)
    assert code == 2 and "--store" in err
    code, _, err = run("watch", tmp_path / "absent", "--store", tmp_path / "store", "--once")
    assert code == 3 and "no such folder" in err
    (tmp_path / "mine.txt").write_text("not a store")
    code, _, err = run("watch", tmp_path / "mine.txt", "--store", tmp_path / "store", "--once")
    assert code == 3 and "is a file" in err and "npuscope ingest" in err
    code, _, err = run("watch", tmp_path, "--store", tmp_path, "--once")
    assert code == 3 and "give a new folder to --store" in err


@pytest.mark.slow
def test_a_job_is_ingested_compared_and_shown(run: Run, tmp_path: Path) -> None:
    job, store = tmp_path / "job", tmp_path / "store"
    write_job(small(), job, forms=("db",))
    before = signal.getsignal(signal.SIGTERM)
    asked = ("watch", job, "--store", store, "--once", "--jobs", 1)
    code, _, err = run(*asked, "--quiet-after", 3600)
    assert code == 0 and "2 profile(s) waiting" in err
    code, out, err = run(*asked, "--quiet-after", 0, "--run", "night")
    assert code == 0 and out == ""
    lines = err.splitlines()
    assert all(line[:4].isdigit() and line[19] == "Z" for line in lines)
    assert sum("read rank" in line for line in lines) == 2
    assert sum("compared the ranks" in line for line in lines) == 1
    assert signal.getsignal(signal.SIGTERM) is before
    code, out, _ = run("steps", store, "--json")
    assert code == 0 and {row["run"] for row in json.loads(out)["rows"]} == {"night"}
    broken = job / "torn\n2026-11-22\x1b[2J_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    broken.mkdir(parents=True)
    (broken / "analyse.done").touch()
    code, _, err = run(*asked, "--quiet-after", 0, "--run", "night")
    assert code == 4 and "cannot use" in err and "analyse() again" in err
    assert all(line[19] == "Z" for line in err.splitlines()) and "\x1b" not in err


@pytest.fixture
def hearing_of_terminals() -> Iterator[None]:
    """The tests themselves may have been started by nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hearing_of_terminals")
def test_a_closed_terminal_ends_it_unless_nohup_started_it() -> None:
    before = signal.getsignal(signal.SIGHUP)
    with watch._stopped_by_signals() as stop:
        signal.raise_signal(signal.SIGHUP)
        assert stop.wait(10)
    assert signal.getsignal(signal.SIGHUP) is before
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with watch._stopped_by_signals() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop.is_set()
    finally:
        signal.signal(signal.SIGHUP, before)
