"""A new user's first ten lines, in an environment of nothing but what `pip install` brings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from npuscope.sample_traces.generate import small, write_job
from tests.conftest import REPOSITORY


@pytest.mark.slow
def test_ten_lines_lead_from_a_folder_to_a_figure(
    distribution: dict[str, Path], tmp_path: Path
) -> None:
    write_job(small(), tmp_path / "profiles")
    page = (REPOSITORY / "docs" / "python.md").read_text(encoding="utf-8")
    lines = page.partition("after `pip install npuscope`:\n\n```python\n")[2].partition("```")[0]
    assert 0 < len(lines.splitlines()) <= 10
    (tmp_path / "tour.py").write_text(lines)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "env"], cwd=tmp_path, check=True)
    python = str(tmp_path / "env" / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", python]
    install = [*pip, "install", "--quiet", "--no-compile"]
    subprocess.run([*install, str(distribution["wheel"])], cwd=tmp_path, check=True, timeout=300)
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [python, "-I", "tour.py"], cwd=tmp_path, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("shape: (3,") == 2
    assert "Plotly.newPlot" in (tmp_path / "ranks.html").read_text()
