"""A rank that was published and cannot be read any more keeps what is published."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from npuscope.collector.ingest.ingest import IngestResult, ingest
from npuscope.collector.store.manifest import manifests


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two ranks whose databases alone tell that they are ranks 4 and 5."""
    for rank in (4, 5):
        folder = tmp_path / "source" / f"node{rank}_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
        folder.mkdir(parents=True)
        with closing(sqlite3.connect(folder / "ascend_pytorch_profiler.db")) as database:
            database.executescript(f"""
                create table RANK_DEVICE_MAP (rankId integer, deviceId integer);
                insert into RANK_DEVICE_MAP values ({rank}, 0);
                create table STRING_IDS (id integer, value text);
                insert into STRING_IDS values (0, 'MatMul');
                create table TASK (startNs integer, endNs integer, globalTaskId integer);
                insert into TASK values (1764246877000000000, 1764246877000001000, 1);
                create table COMPUTE_TASK_INFO (name integer, globalTaskId integer);
                insert into COMPUTE_TASK_INFO values (0, 1);
            """)
    return tmp_path / "source"


def cut(folder: Path) -> None:
    [path] = folder.rglob("*.db")
    path.write_bytes(path.read_bytes()[:5000])


def empty(folder: Path) -> None:
    [path] = folder.rglob("*.db")
    path.write_bytes(b"")


def without_exports(folder: Path) -> None:
    [path] = folder.rglob("*.db")
    path.unlink()


def read(source: Path) -> IngestResult:
    return ingest(source, source.parent / "store", run="job")


def ranks(source: Path) -> list[int]:
    return sorted(m.rank for m in manifests(source.parent / "store", run="job"))


@pytest.mark.slow
@pytest.mark.parametrize("damage", [cut, empty, without_exports])
def test_a_rank_whose_only_witness_is_damaged_stays(
    source: Path, damage: Callable[[Path], None]
) -> None:
    assert read(source).is_complete
    damage(source / "node5_ascend_pt")
    for _ in range(2):
        result = read(source)
        assert not result.is_complete
        assert result.drops == ()
        assert ranks(source) == [4, 5]


def test_a_rank_whose_folder_is_gone_is_dropped(source: Path) -> None:
    read(source)
    shutil.rmtree(source / "node5_ascend_pt")
    assert [m.rank for m in read(source).drops] == [5]
    assert ranks(source) == [4]


def test_a_rank_on_a_disk_that_is_not_mounted_stays(source: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    linked = source / "node5_ascend_pt"
    shutil.move(linked, tmp_path / "disk")
    linked.symlink_to(tmp_path / "disk" / linked.name)
    assert read(source).is_complete and ranks(source) == [4, 5]

    (tmp_path / "disk").rename(tmp_path / "unmounted")
    again = read(source)

    assert ranks(source) == [4, 5] and not again.drops
    assert [str(linked) in problem.message for problem in again.problems] == [True]
