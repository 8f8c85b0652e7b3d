"""What takes long is told on stderr, and leaves no trace of itself when it is stopped."""

from __future__ import annotations

import os
import pty
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from npuscope.collector.discover.search import discover
from npuscope.collector.ingest import ingest as ingesting
from npuscope.console import waiting
from tests.cli.command import Run


@pytest.fixture
def profile(tmp_path: Path, write_profile: Callable[..., Path]) -> Path:
    write_profile(tmp_path / "profile" / "h_ascend_pt", 0)
    return tmp_path / "profile"


def test_looking_for_profiles_is_told(
    run_apart: Run, profile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(path: Path) -> Any:
        time.sleep(0.5)  # as on network storage
        return discover(path)

    monkeypatch.setattr(waiting, "PATIENCE_S", 0.05)
    monkeypatch.setattr("npuscope.collector.engines.local.discover", slow)
    outcome = run_apart("steps", profile, "--json")
    assert outcome.code == 0
    assert f"looking for profiles in {profile} ...\n" in outcome.err
    assert "\x1b" not in outcome.err
    assert outcome.json()["rows"]


def test_nothing_is_told_of_what_is_quick(run_apart: Run, profile: Path) -> None:
    assert run_apart("steps", profile, "--json").err == ""


def test_the_patience_leaves_room_for_starting_up() -> None:
    source = Path(waiting.__file__).read_text()
    assert float(re.findall(r"^PATIENCE_S = ([\d.]+)", source, re.M)[0]) <= 1.5


def told_on_a_terminal(monkeypatch: pytest.MonkeyPatch, during: Callable[[], None]) -> str:
    """What a terminal gets while `during` runs below something that takes long."""
    master, slave = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(waiting, "PATIENCE_S", 0.01)
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with waiting.waiting("counting \x1b[2Jsheep"):
            time.sleep(0.3)
            during()
        terminal.flush()
        os.set_blocking(master, False)
        told = b"".join(iter(lambda: _next(master), b""))
    os.close(master)
    return told.decode()


def _next(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except BlockingIOError:
        return b""


def test_on_a_terminal_it_stands_until_something_is_printed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def during() -> None:
        waiting.now("shearing them")
        time.sleep(0.3)
        waiting.quiet()
        sys.stderr.write("done\n")

    told = told_on_a_terminal(monkeypatch, during)
    assert "counting  [2Jsheep" in told and "shearing them" in told
    assert told.index("shearing") < told.index("\x1b[?25h") < told.index("done")


def test_a_killed_first_reading_leaves_a_store_with_a_name(
    run_apart: Run, profile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise SystemExit(137)  # after which nothing of ours runs

    monkeypatch.setattr(ingesting, "_read_all", killed)
    run_apart("steps", profile)
    (row,) = run_apart("store", "list", "--json").json()["rows"]
    assert (row["source"], row["ranks"]) == (str(profile.resolve()), 0)
    assert abs(row["used_at"] - time.time()) < 600
    monkeypatch.undo()


def test_one_killed_while_it_looks_leaves_none(
    run_apart: Run, profile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise SystemExit(137)

    monkeypatch.setattr(ingesting, "make_plan", killed)
    run_apart("steps", profile)
    assert "unknown" not in run_apart("store", "list").out
