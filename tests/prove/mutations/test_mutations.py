"""The chain of a wrong number: a defect planted anywhere between a file and a figure is noticed.

copy of the source --defect--> the project's own tests, run on the copy --> at least one fails
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, ROOMS
from tests.prove.mutations.defects import DEFECTS, Defect

pytestmark = pytest.mark.slow

CHOSEN = sorted({test for defect in DEFECTS for test in defect.tests})


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the tests need of the project, as it is."""
    source = tmp_path_factory.mktemp("mutations") / "source"
    source.mkdir()
    left_out = shutil.ignore_patterns("__pycache__", "moe_8_ranks")
    for name in ("npuscope", *ROOMS, "tests"):
        shutil.copytree(REPOSITORY / name, source / name, symlinks=True, ignore=left_out)
    shutil.copy(REPOSITORY / "pyproject.toml", source)
    return source


@contextmanager
def plant(source: Path, defect: Defect) -> Iterator[None]:
    """The copy has the defect meanwhile, in files with a time of their own: what Python compiled of
    the file without it is not taken for it."""
    kept = [(source / edit.file, (source / edit.file).stat()) for edit in defect.edits]
    texts = [path.read_text(encoding="utf-8") for path, _ in kept]
    try:
        for n, edit in enumerate(defect.edits):
            path, text = kept[n][0], texts[n]
            assert text.count(edit.old) == 1, f"{edit.file} has moved on: {edit.old!r}"
            path.write_text(text.replace(edit.old, edit.new), encoding="utf-8")
            later_s = time.time() + 10 * (1 + DEFECTS.index(defect))
            os.utime(path, (later_s, later_s))
        yield
    finally:
        for (path, state), text in zip(kept, texts, strict=True):
            path.write_text(text, encoding="utf-8")
            os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def run_tests(source: Path, tests: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run tests of the copy on the copy."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV"))
    }
    environment |= {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": ""}
    options = ["-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow",
               "--hypothesis-profile", "any_failure"]  # fmt: skip
    command = [sys.executable, "-m", "pytest", *options, "--basetemp", str(source.parent / "tmp")]
    return subprocess.run(
        [*command, *tests], cwd=source, env=environment, capture_output=True, text=True, timeout=900
    )


def test_the_chosen_tests_pass_on_an_unchanged_copy_and_run_its_code(source: Path) -> None:
    (source / "tests" / "test_own_code.py").write_text(
        "from pathlib import Path\n"
        "import npuscope.analysis.query, npuscope.collector.ingest.link\n"
        "def test_own_code():\n"
        "    for module in (npuscope.analysis.query, npuscope.collector.ingest.link):\n"
        "        assert Path(module.__file__).is_relative_to(Path(__file__).parents[1])\n"
    )
    done = run_tests(source, [*CHOSEN, "tests/test_own_code.py"])
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_planted_defect_is_noticed(source: Path, defect: Defect) -> None:
    with plant(source, defect):
        done = run_tests(source, ["-x", *defect.tests])

    told = done.stdout + done.stderr
    assert done.returncode == 1, told[-3000:]
    # By a figure that is wrong, not by code that does not run.
    assert re.search(r"^E +(AssertionError: )?assert ", told, re.M), told[-3000:]
