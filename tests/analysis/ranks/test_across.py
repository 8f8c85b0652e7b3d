"""What all ranks tell together: opened over stores, exports and tables, kept where it can be."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest

from npuscope.analysis.ranks.answers import clocks
from npuscope.analysis.ranks.rank_views import open_across
from npuscope.analysis.scope import Scope
from npuscope.analysis.summaries import summaries, summarise
from npuscope.analysis.views import open_views
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.store import store
from npuscope.collector.store.derived_tier import DERIVED_FOLDER
from npuscope.collector.store.export import export
from npuscope.collector.store.manifest import MANIFEST
from npuscope.sample_traces.generate import Job, small, write_job
from tests.analysis.ranks.across_tables import across, job_tables
from tests.analysis.tables import select
from tests.private_mounts import in_private_mounts

VERSIONS = {summary.name: summary.version for summary in summaries()}
JOB = small(
    name="opened", ranks_per_host=1, clock_offsets_ns=(0, 4_000_000), steps=1, memory=False,
    comm_tasks=False,
)  # fmt: skip
NAMES = ("capture_groups", "clocks", "arrivals", "comm_waits")


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of a small job, not to be changed."""
    folder = tmp_path_factory.mktemp("across")
    write_job(JOB, folder / "source", forms=("text",))
    ingest(folder / "source", folder / "store", run="job", summarise=summarise, jobs=1)
    return folder / "store"


@pytest.fixture
def target(once: Path, tmp_path: Path) -> Path:
    return shutil.copytree(once, tmp_path / "store")


def answers(path: Path) -> dict[str, list[dict[str, Any]]]:
    with store.open(path, summaries=VERSIONS) as con:
        open_across(path, con)
        return {name: select(con, f"from {name} order by all") for name in NAMES}


def keep(target: Path) -> list[Path]:
    return sorted(target.glob(f"run=*/capture=*/{DERIVED_FOLDER}/*/*.parquet"))


def test_kept_in_the_store_and_read_from_there(target: Path) -> None:
    first = answers(target)
    files = keep(target)
    assert {"clocks", "arrivals", "capture_groups", "comm_waits"} <= {f.stem for f in files}
    assert answers(target) == first
    assert keep(target) == files
    assert [row["offset_ns"] for row in first["clocks"]] == [0, 4_000_000]
    assert {row["run"] for name in NAMES for row in first[name]} == {"job"}


def test_a_store_that_cannot_be_written_answers_too(target: Path) -> None:
    expected = answers(target)
    (folder,) = target.glob(f"run=*/capture=*/{DERIVED_FOLDER}")
    shutil.rmtree(folder)
    folder.write_bytes(b"")  # no folder can be made here
    assert answers(target) == expected


@pytest.mark.slow
def test_a_read_only_file_system(target: Path) -> None:
    script = (
        'mount --bind "$1" "$1"; mount -o remount,ro,bind "$1";'
        ' exec "$2" -m npuscope clocks "$1" --json'
    )
    command = in_private_mounts(script, str(target), sys.executable)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert '"offset_ns":4000000' in done.stdout
    assert not keep(target)


@pytest.mark.slow
def test_an_exported_file(target: Path, tmp_path: Path) -> None:
    expected = answers(target)
    with store.open(target, summaries=VERSIONS) as con:
        open_views(con)
        export(con, "duckdb", tmp_path / "x.duckdb", summaries=VERSIONS)
    assert answers(tmp_path / "x.duckdb") == expected


@pytest.mark.slow
def test_another_capture_beside_it(target: Path, tmp_path: Path) -> None:
    alone = answers(target)
    later = Job(**{**_settings(JOB), "start_ns": JOB.start_ns + 10**12, "clock_offsets_ns": (0, 7)})
    write_job(later, tmp_path / "later", forms=("text",))
    ingest(tmp_path / "later", target, run="later", summarise=summarise, jobs=1)
    both = answers(target)
    for name in NAMES:
        assert [row for row in both[name] if row["run"] == "job"] == alone[name]
    assert [row["offset_ns"] for row in both["clocks"] if row["run"] == "later"] == [0, 7]
    with store.open(target) as con:
        open_across(target, con)
        assert clocks(con, Scope("later"))["offset_ns"].to_list() == [0, 7]


def _settings(job: Job) -> dict[str, Any]:
    return {name: getattr(job, name) for name in job.__dataclass_fields__}


@pytest.mark.slow
def test_a_replaced_rank_is_seen(target: Path, tmp_path: Path) -> None:
    before = keep(target) or answers(target)
    other = Job(**{**_settings(JOB), "clock_offsets_ns": (0, 4_000_500)})
    write_job(other, tmp_path / "source", forms=("text",))
    ingest(tmp_path / "source", target, run="job", summarise=summarise, jobs=1)
    assert before and [row["offset_ns"] for row in answers(target)["clocks"]] == [0, 4_000_500]


@pytest.mark.slow
def test_a_damaged_tier_is_computed_again(target: Path) -> None:
    expected = answers(target)
    (manifest,) = target.glob(f"run=*/capture=*/{DERIVED_FOLDER}/{MANIFEST}")
    manifest.write_bytes(b"{}")
    assert answers(target) == expected


def comm_kinds(con: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    return select(con, "from comm_summary order by all")


@pytest.mark.slow
@pytest.mark.parametrize("is_open", [False, True])
def test_kinds_that_a_rank_does_not_know_itself(is_open: bool) -> None:
    con = job_tables(JOB)
    open_views(con)
    expected = comm_kinds(con)
    con.close()
    con = job_tables(JOB)
    con.execute("delete from groups where rank = 1")
    if is_open:
        open_views(con)
        assert {row["kind"] for row in comm_kinds(con) if row["rank"] == 1} == {"unknown", None}
    open_across(None, con)
    assert comm_kinds(con) == expected
    open_across(None, con)
    assert comm_kinds(con) == expected


def test_nothing_recorded_is_no_error() -> None:
    con = job_tables(JOB)
    for table in ("groups", "comm_ops", "comm_tasks", "kernels", "steps"):
        con.execute(f"delete from {table}")
    assert [row["basis"] for row in across(con, "clocks", "ranks")] == ["reference", "none"]
    assert across(con, "arrivals") == across(con, "capture_groups") == []
    con.execute("delete from ranks")
    assert across(con, "clocks") == []
