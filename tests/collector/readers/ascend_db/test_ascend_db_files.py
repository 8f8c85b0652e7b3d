"""Database files as such: foreign, cut, still being written, several, none."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import duckdb
import pytest

from npuscope.collector.model import RankSource, ReadLog, SourceFile
from npuscope.collector.readers.ascend_db import ascend_db
from npuscope.collector.readers.ascend_db.lookups import ranges
from npuscope.errors import TraceFormatError
from tests.collector.conftest import Staged
from tests.collector.readers.ascend_db.profiler_databases import (
    CANN,
    LAUNCHED,
    STRINGS,
    T0,
    TASK,
    Tables,
    fill,
    task,
    write,
)


def test_only_wanted_tables_are_filled(stage: Staged) -> None:
    fill(stage, {
        "STRING_IDS": STRINGS, "task": LAUNCHED, "CANN_API": CANN,
        "Compute_Task_Info": ("name, globalTaskId", [(2, 1)]),  # SQLite knows no case
        "META_DATA": ("name, value", [("distributed_args", '{"world_size": 4}')]),
    }, only=frozenset({"kernels"}))  # fmt: skip
    assert stage.rows("select count(*) from kernels") == [(1,)]
    for table in ("ranks", "launches", "host_ops"):
        assert stage.rows(f"select count(*) from {table}") == [(0,)]
    left = "select count(*) from duckdb_tables() where temporary"
    assert stage.rows(left) == [(0,)]


def test_foreign_tables_beside_empty_ones(stage: Staged) -> None:
    fill(stage, {
        "TASK": (TASK, []), "_COMPUTE_TASK_INFO_old_20251014": ("name", [(1,)]),
        "status_info": ("key, value", [("a", "b")]),
    })  # fmt: skip
    assert stage.rows("select device_id, clock, framework from ranks") == [(None, None, "pytorch")]
    assert stage.rows("select count(*) from kernels") == [(0,)]


@pytest.mark.parametrize("tables", [{}, {"status_info": ("key", [("a",)])}])
def test_a_database_of_something_else(stage: Staged, tables: Tables) -> None:
    path = stage.folder / "a.db"
    with sqlite3.connect(path) as db:
        db.execute("create table t (id integer primary key autoincrement)")
        db.execute("drop table t")
    db.close()
    with pytest.raises(TraceFormatError, match="none of the profiler's"):
        stage.read(ascend_db, {"main_db": write(path, tables)})


def test_rows_still_in_the_log(stage: Staged) -> None:
    path = write(stage.folder / "a.db", {"TASK": (TASK, [])})
    db = sqlite3.connect(path)
    db.execute("pragma journal_mode = wal")
    db.execute("create table COMPUTE_TASK_INFO (name, globalTaskId)")
    db.execute("insert into COMPUTE_TASK_INFO values (2, 1)")
    db.execute(f"insert into TASK values ({','.join('?' * 10)})", task(1, 0, 10))
    db.commit()
    assert (stage.folder / "a.db-wal").stat().st_size > 0
    stage.read(ascend_db, {"main_db": path})
    db.close()
    assert stage.rows("select start_ns, dur_ns from kernels") == [(T0, 10)]


def test_a_cut_database(stage: Staged) -> None:
    many = (TASK, [task(n, n, 1) for n in range(5000)])
    path = write(stage.folder / "a.db", {"TASK": many, "STRING_IDS": STRINGS})
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2 // 4096 * 4096])
    with pytest.raises(TraceFormatError, match="damaged or cut short"):
        stage.read(ascend_db, {"main_db": path})
    assert stage.rows("select count(*) from duckdb_tables() where temporary") == [(0,)]


def test_ranges_meet_without_gap_or_overlap(staging: duckdb.DuckDBPyConnection) -> None:
    ids = "select unnest([5, 1, 1, 9, 1, 2, null, 30]) as id"
    found = ranges(staging, ids, 2)
    assert [id_ for low, high in found for id_ in range(low, high + 1)] == sorted(
        {id_ for low, high in found for id_ in range(low, high + 1)}
    )
    assert {1, 2, 5, 9, 30} <= {id_ for low, high in found for id_ in range(low, high + 1)}
    assert len(found) > 1


def test_no_database_is_nothing_to_do(staging: duckdb.DuckDBPyConnection) -> None:
    source = RankSource("job", "pytorch", 0, "test", {})
    ascend_db.read(staging, source, ReadLog(), frozenset({"ranks"}), lambda _: None)
    assert staging.execute("select count(*) from ranks").fetchall() == [(0,)]


def test_a_second_database_is_named(stage: Staged) -> None:
    one = write(stage.folder / "msprof_2.db", {"TASK": (TASK, [])})
    two = write(stage.folder / "msprof_1.db", {"TASK": (TASK, [])})
    log = stage.read(ascend_db, {"main_db": [one, two]})
    assert log.warnings == ["msprof_1.db: not read, msprof_2.db is the rank's database"]


def test_progress_ends_at_the_files_size(
    staging: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.db", {"STRING_IDS": STRINGS, "TASK": LAUNCHED, "CANN_API": CANN})
    size = path.stat().st_size
    source = RankSource("job", "pytorch", 0, "test", {"main_db": (SourceFile(str(path), size, 0),)})
    spent: list[int] = []
    ascend_db.read(staging, source, ReadLog(), frozenset({"launches"}), spent.append)
    assert sum(spent) == size
    assert len(spent) > 3


def test_a_database_without_names_is_told(stage: Staged) -> None:
    compute = ("name, globalTaskId", [(2, 1)])
    tasks = (TASK, [task(1, 0, 10)])
    log = fill(stage, {"TASK": tasks, "COMPUTE_TASK_INFO": compute})
    assert stage.rows("select start_ns, name from kernels") == [(T0, None)]
    [warning] = log.warnings
    assert "names of kernels, operations and groups are unknown" in warning
