"""Notebooks of the docs run from a fresh kernel, and carry no outputs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

NOTEBOOKS = sorted((REPOSITORY / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_outputs_are_stripped(path: Path) -> None:
    cells = json.loads(path.read_text())["cells"]
    for cell in cells:
        assert cell.get("outputs", []) == [] and cell.get("execution_count") is None
    assert any("assert " in "".join(cell["source"]) for cell in cells)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute(cwd=str(tmp_path))
    shown = [one for cell in notebook.cells for one in cell.get("outputs", [])]
    assert any("text/html" in one.get("data", {}) for one in shown)
    assert len(NOTEBOOKS) == 3
