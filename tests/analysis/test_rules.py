"""Kept answers are stale as soon as any rule that they follow changes, whoever wrote it where."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import npuscope
from npuscope.analysis import rules
from npuscope.analysis.ranks import derive
from npuscope.analysis.summaries import summarise
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.store.derived_tier import DERIVED_FOLDER
from npuscope.collector.store.manifest import MANIFEST
from npuscope.sample_traces.generate import small, write_job
from tests.conftest import REPOSITORY

ACROSS = "npuscope.analysis.ranks.derive"
ASKED = """
import sys
from pathlib import Path
from npuscope.analysis.ranks.rank_views import open_across
from npuscope.collector.store import store

with store.open(Path(sys.argv[1])) as con:
    open_across(Path(sys.argv[1]), con)
"""
COMPUTED = """
import sys
from npuscope.analysis.ranks.derive import derive
from npuscope.analysis.views import open_views
from tests.analysis.tables import connect

con = connect()
open_views(con)
assert len([*derive(con)]) > 5
print(*sorted(name for name in sys.modules if name.startswith("npuscope.analysis.")))
"""


@pytest.fixture(scope="module")
def rooms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rooms whose files hold rules, to be changed."""
    folder = tmp_path_factory.mktemp("copied") / "npuscope"
    (installed,) = npuscope.__path__
    unread = shutil.ignore_patterns("__pycache__", "*.json.gz")
    shutil.copytree(installed, folder, ignore=unread)
    return folder


def test_a_copy_has_the_same_version(rooms: Path) -> None:
    assert rules.version(ACROSS, root=rooms) == derive.version()


@pytest.mark.parametrize(
    "file",
    [
        "analysis/sql/steps/steps.sql",
        "analysis/sql/kernels/kernels.sql",
        "analysis/sql/comm/comm.sql",
        "analysis/sql/groups/kinds.sql",
        "analysis/sql/steps/lengths.sql",
        "analysis/sql/steps/kept_steps.sql",
        "analysis/experts/load/from_trace.py",
        "analysis/experts/load/device_load.py",
        "analysis/experts/load/imbalance.py",
        "analysis/ranks/clocks/fit.py",
        "analysis/metric.py",
        "collector/groups.py",
        "collector/readers/expert_load/load_frames.py",
    ],
)
def test_results_over_all_ranks_follow_what_they_reach(rooms: Path, file: str) -> None:
    before = rules.version(ACROSS, root=rooms)
    text = (rooms / file).read_text()
    (rooms / file).write_text(f"{text}\n")
    assert rules.version(ACROSS, root=rooms) != before
    (rooms / file).write_text(text)
    assert rules.version(ACROSS, root=rooms) == before


def test_what_sql_says_in_comments_leaves_them(rooms: Path) -> None:
    before = rules.version(ACROSS, root=rooms)
    file = rooms / "analysis" / "sql" / "steps" / "steps.sql"
    text = file.read_text()
    assert text.count("-- title: ") == 1
    file.write_text(text.replace("-- title: ", "-- title: Other "))
    assert rules.version(ACROSS, root=rooms) == before
    file.write_text(text)


@pytest.mark.parametrize("file", ["analysis/sql/memory/memory.sql", "analysis/flops/peaks.py"])
def test_what_they_do_not_reach_leaves_them(rooms: Path, file: str) -> None:
    before = rules.version(ACROSS, root=rooms)
    text = (rooms / file).read_text()
    (rooms / file).write_text(f"{text}\n")
    assert rules.version(ACROSS, root=rooms) == before
    (rooms / file).write_text(text)


def test_what_an_editor_leaves_beside_them_is_no_rule(rooms: Path) -> None:
    lock = rooms / "analysis" / "sql" / "steps" / ".#steps.sql"
    lock.symlink_to("nobody@nowhere")
    assert "analysis/sql/steps/steps.sql" in rules._places(rooms).values()
    assert not any(".#" in place for place in rules._places.__wrapped__(rooms).values())
    assert rules.version(ACROSS, root=rooms)
    lock.unlink()


def test_every_module_is_found_that_computing_them_loads() -> None:
    """What is imported while results are computed, against what is found in the files."""
    done = subprocess.run(
        [sys.executable, "-c", COMPUTED], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    found = rules.sources([ACROSS], Path(*npuscope.__path__))
    loaded = {*done.stdout.split()} - {f"npuscope.analysis.{one}" for one in ("rules", "summaries")}
    assert len(loaded) > 20
    assert "npuscope.analysis.ranks.clocks.fit" in loaded  # imported where it is used
    assert loaded <= found.keys()


@pytest.mark.slow
def test_results_are_computed_again_where_a_rule_has_changed(rooms: Path, tmp_path: Path) -> None:
    job = small(name="ruled", ranks_per_host=2, steps=1, memory=False, comm_tasks=False)
    write_job(job, tmp_path / "source", forms=("text",))
    ingest(tmp_path / "source", tmp_path / "store", run="job", summarise=summarise, jobs=1)

    def computed() -> list[Path]:
        """Files of the results that the copied package reads."""
        subprocess.run(
            [sys.executable, "-c", ASKED, str(tmp_path / "store")],
            check=True, env={"PYTHONPATH": str(rooms.parent)}, cwd=tmp_path,
        )  # fmt: skip
        (manifest,) = tmp_path.glob(f"store/run=*/capture=*/{DERIVED_FOLDER}/{MANIFEST}")
        tables = json.loads(manifest.read_text())["tables"].values()
        return sorted(manifest.parent / table["file"] for table in tables if table["file"])

    before = computed()
    assert before
    assert computed() == before
    rule = rooms / "analysis" / "experts" / "load" / "from_trace.py"
    rule.write_text(f"{rule.read_text()}\nCHANGED = True\n")
    assert not set(computed()) & set(before)
