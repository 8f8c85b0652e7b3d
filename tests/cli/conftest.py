"""What tests of commands share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import Run, runner


@pytest.fixture(autouse=True)
def columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The width of terminals, for modules to set otherwise."""
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def run(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:  # fmt: skip
    """The command in this process; a profile that other tests asked about is not read again."""
    return runner(tmp_path_factory.getbasetemp() / "cache", monkeypatch, capsys)


@pytest.fixture
def run_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """The command in this process, with a cache of its own that is empty."""
    return runner(tmp_path / "cache", monkeypatch, capsys)
