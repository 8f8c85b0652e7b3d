"""What lies in the folder a command is started in is imported in place of nothing."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

OTHERS = ("polars", "duckdb", "streamlit", "prometheus_client", "msgspec", "pyarrow", "rich")
# What Python itself loads before any of our code runs, where `python -m` looks here first.
STANDARD = ("queue", "socket", "pickle", "tempfile")


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory, write_profile: Callable[..., Path]) -> Path:
    folder = tmp_path_factory.mktemp("profile")
    for rank in range(2):
        write_profile(folder / f"h{rank}_ascend_pt", rank)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a checkout called npuscope, rooms of other projects, and namesakes."""
    here = tmp_path / "here"
    for name in ("npuscope/collector", "npuscope/dashboard", "npuscope/npuscope", "collector"):
        (here / name).mkdir(parents=True)
        (here / name / "__init__.py").write_text("raise ImportError('imported from here')")
    for name in OTHERS:
        (here / f"{name}.py").write_text("raise ImportError('imported from here')")
    return here


def script_in(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    script = folder / "npuscope"
    script.write_text("from npuscope.cli import main\nif __name__ == '__main__':\n    main()\n")
    return script


def start(
    folder: Path, *arguments: object, settings: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """npuscope as its installed command starts it: a script in a folder of its own."""
    command = [sys.executable, str(script_in(folder.parent / "bin")), *map(str, arguments)]
    known = {**os.environ, "XDG_CACHE_HOME": str(folder.parent / "cache")}
    environment = {**known, **(settings or {"PYTHONPATH": str(REPOSITORY)})}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )


@pytest.mark.slow
def test_reading_processes(folder: Path, profile: Path) -> None:
    for name in STANDARD:
        (folder / f"{name}.py").write_text("raise ImportError('imported from here')")
    done = start(folder, "steps", profile, "--jobs", "2", "--json")
    assert done.returncode == 0, done.stderr
    assert '"rank":1' in done.stdout and "imported from here" not in done.stderr


@pytest.mark.slow
def test_an_empty_entry_of_the_path(folder: Path, profile: Path) -> None:
    """`PYTHONPATH=$PYTHONPATH:x`, where it was not set before, names the current folder."""
    done = start(folder, "steps", profile, settings={"PYTHONPATH": f":{REPOSITORY}"})
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_current_folder_that_was_removed(folder: Path, profile: Path) -> None:
    script, gone = script_in(folder.parent / "bin"), folder.parent / "gone"
    for arguments, told in (
        (["steps", "profile"], "profile: the current folder was removed"),
        (["steps", str(profile)], None),
        (["store", "rm", "profile"], "npuscope: the current folder was removed"),
        (["watch", "p", "--store", "s", "--once"], "npuscope: the current folder was removed"),
    ):
        gone.mkdir()
        removed = f'rmdir "{gone}" && exec "$@"'
        done = subprocess.run(
            ["sh", "-c", removed, "sh", sys.executable, str(script), *arguments],
            cwd=gone, capture_output=True, text=True, timeout=60,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY),
                 "XDG_CACHE_HOME": str(folder.parent / "cache")},
        )  # fmt: skip
        assert done.returncode == (3 if told else 0), done.stderr
        assert (told or "") in done.stderr
        assert ("the current folder was removed" in done.stderr) == bool(told)


@pytest.mark.slow
def test_started_as_a_module(folder: Path, profile: Path) -> None:
    (folder / "npuscope").rename(folder / "other")  # which Python itself would prefer
    command = [sys.executable, "-m", "npuscope", "steps", str(profile)]
    known = {**os.environ, "XDG_CACHE_HOME": str(folder.parent / "cache")}
    done = subprocess.run(
        command, cwd=folder, env={**known, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_server_and_its_pages(
    folder: Path, profile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With npuscope installed from its checkout, a folder of that name won: by Python's rules a
    package without `__init__.py` on the path stands before what such an install finds."""
    pytest.importorskip("streamlit")
    pytest.importorskip("playwright")
    from tests.dashboard.app.served_pages import CHROMIUM, chromium, visit
    from tests.dashboard.app.started_server import start as started_server

    if importlib.util.find_spec("npuscope") is None or not CHROMIUM:
        pytest.skip("npuscope is not installed, or Chromium is not")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    script = script_in(folder.parent / "bin")
    with (
        started_server([profile], folder, command=[sys.executable, str(script)]) as server,
        chromium() as browser,
        visit(browser, server.address) as tab,
    ):
        for page in ("overview", "timeline", "operators"):
            tab.open(page)
        assert "imported from here" not in server.log.read_text()
