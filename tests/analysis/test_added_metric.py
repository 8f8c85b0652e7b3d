"""A metric is added by its file alone: every outlet has it, nothing else is touched."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import npuscope
from npuscope.analysis.catalog import metrics

REPOSITORY = Path(__file__).resolve().parents[2]

ASKED = """
import json, npuscope
from npuscope.analysis import catalog
(known,) = [one for one in npuscope.metrics() if one.name == "longest_steps"]
shown = catalog.shown_in("longest_steps")
print(json.dumps({
    "inputs": known.inputs,
    "columns": [(one.name, one.unit, one.meaning) for one in known.columns],
    "table": shown and shown.name,
    "is_in_docs": "## longest_steps\\n" in catalog.metrics_markdown(),
}))
"""


def _add() -> list[str]:
    """The files that CONTRIBUTING.md adds: the query and its test."""
    text = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (diff,) = re.findall(r"```diff\n(.*?)```", text, re.DOTALL)
    files = re.split(r"--- /dev/null\n\+\+\+ .*\n", diff)[1:]
    return ["".join(f"{line[1:]}\n" for line in file.splitlines()) for file in files]


@pytest.mark.slow
def test_a_file_is_all_it_takes(tmp_path: Path, sample_store: Path) -> None:
    copied = tmp_path / "npuscope"
    (installed,) = npuscope.__path__
    shutil.copytree(installed, copied, ignore=shutil.ignore_patterns("__pycache__", "moe_8_ranks"))
    query, test = _add()
    (copied / "analysis" / "sql" / "steps" / "longest_steps.sql").write_text(query)
    (tmp_path / "test_longest_steps.py").write_text(test)

    def run(*arguments: str) -> str:
        return subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, check=True, cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}"},
        ).stdout  # fmt: skip

    assert json.loads(run("-c", ASKED)) == {
        "inputs": ["step_lengths"],
        "columns": [
            ["run", "", "run of the training job"],
            ["capture", "", "ranks profiled at the same time"],
            ["rank", "", "global rank"],
            ["longest_ns", "ns", "length of its longest step"],
        ],
        "table": "longest_steps", "is_in_docs": True,
    }  # fmt: skip
    run("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_longest_steps.py")
    store = str(sample_store)
    told = run("-m", "npuscope", "sql", store, "from longest_steps order by rank", "--json")
    rows = json.loads(told)["rows"]
    assert [row["rank"] for row in rows] == [*range(8)] and rows[0]["longest_ns"] > 0
    run("-m", "npuscope", "exporter", store, "--textfile", "shown.prom")
    shown = (tmp_path / "shown.prom").read_text()
    assert "# HELP npuscope_rank_longest_step_seconds Longest step of a rank.\n" in shown
    lines = [one for one in shown.splitlines() if one.startswith("npuscope_rank_longest_step")]
    assert len(lines) == 8
    assert 'rank="0"' in lines[0] and float(lines[0].split()[-1]) == rows[0]["longest_ns"] / 1e9


def test_the_list_is_public() -> None:
    assert npuscope.metrics() == metrics()
    names = {one.name for one in npuscope.metrics()}
    assert {"steps", "mfu", "waterfall", "experts_cost", "rank_suspects", "clocks"} <= names
