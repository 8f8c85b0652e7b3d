"""Every benchmark can be started: one that nobody has run for long fails here first."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY

BENCHMARKS = sorted(
    ".".join(path.relative_to(REPOSITORY).with_suffix("").parts)
    for path in (REPOSITORY / "bench").glob("*/*_bench.py")
)
# They check their answers, and take 2 CPU-s each.
QUICK = ("strategy_search_bench", "pipeline_bench", "steps_bench")

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_says_what_it_measures(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module(name)
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as stopped:
        module.main()
    assert not stopped.value.code
    assert "--full" in capsys.readouterr().out


@pytest.mark.parametrize("name", QUICK)
def test_a_quick_benchmark_finds_its_answers_right(name: str) -> None:
    command = [sys.executable, "-m", f"bench.analysis.{name}"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
