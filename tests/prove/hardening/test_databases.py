"""Databases of other programs, other versions, and programs that are still writing."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from npuscope.analysis.catalog import metric
from tests.prove.hardening.captures import beside_light, copy, folders_in, truth, write_small
from tests.prove.hardening.cases import Rank, Told, complaints, link_tree, replace_file, run_ingest

MAIN, ANALYSIS = "ascend_pytorch_profiler_1.db", "analysis.db"
Whole = tuple[Path, str, dict[int, Rank]]
# Where in a row of the answer `steps`, which begins with the rank.
_COLUMNS = [column.name for column in metric("steps").columns][2:]
_STEP, _BASIS = _COLUMNS.index("step"), _COLUMNS.index("preparing_basis")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """A profile of databases, its folder of rank 1, and what it tells."""
    folder = tmp_path_factory.mktemp("whole")
    folders = write_small(folder / "source", "db")
    return folder / "source", folders[1].name, run_ingest(folder / "source", folder).ranks


def own_copy(whole: Whole, work: Path, name: str) -> Path:
    """A copy of the profile; returns the file of that name of rank 1, free to be written to."""
    origin, folder, _ = whole
    source = link_tree(origin, work / "source")
    path = source / folder / "ASCEND_PROFILER_OUTPUT" / name
    replace_file(path, path.read_bytes())
    return path


def alter(path: Path, script: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        # An indexed column cannot be dropped.
        indexes = "select name from sqlite_master where type = 'index' and sql is not null"
        for (index,) in database.execute(indexes).fetchall():
            database.execute(f'drop index "{index}"')
        database.executescript(script)
        database.commit()


@pytest.mark.slow
@pytest.mark.parametrize("name", [MAIN, pytest.param(ANALYSIS, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "kept", ["half", "all but a byte", pytest.param("pages", marks=pytest.mark.slow)]
)
def test_a_cut_database(whole: Whole, tmp_path: Path, name: str, kept: str) -> None:
    path = own_copy(whole, tmp_path, name)
    size = path.stat().st_size
    os.truncate(path, {"half": size // 2, "all but a byte": size - 1, "pages": size - 4096}[kept])

    told = run_ingest(tmp_path / "source", tmp_path)

    assert complaints(told, whole[2], 1, path) == []
    assert told.code == 4
    assert "damaged or cut short" in told.errors


_HOLD = """
import sqlite3, sys, time
database = sqlite3.connect(sys.argv[1], isolation_level=None)
for line in sys.argv[2:]:
    database.execute(line)
print("held", flush=True)
time.sleep(120)
"""


@contextmanager
def hold(path: Path, *statements: str) -> Iterator[None]:
    """Another process does this to the database, stays connected, and is killed in the end."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(path), *statements], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        try:
            yield
        finally:
            process.kill()


def read_once(tmp_path: Path) -> Told:
    return run_ingest(tmp_path / "source", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("lock", ["exclusive", pytest.param("immediate", marks=pytest.mark.slow)])
def test_a_lock_of_another_process_is_no_obstacle(whole: Whole, tmp_path: Path, lock: str) -> None:
    """What is committed is read; what the other process is about to write is not."""
    path = own_copy(whole, tmp_path, MAIN)
    statements = (f"begin {lock}", "update TASK set startNs = 0", "delete from COMPUTE_TASK_INFO")
    with hold(path, *statements):
        told = read_once(tmp_path)
    assert (told.code, told.ranks) == (0, whole[2])
    assert not told.changed


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_log_left_behind_is_applied(whole: Whole, tmp_path: Path, is_killed: bool) -> None:
    """The process that wrote the last rows holds the database, or was killed."""
    path = own_copy(whole, tmp_path, MAIN)
    rows = "select startNs + 1, * from TASK limit 0"
    with hold(
        path, "pragma journal_mode = wal", "pragma wal_autocheckpoint = 0",
        "update AICORE_FREQ set freq = 1234", rows,
    ):  # fmt: skip
        told = None if is_killed else read_once(tmp_path)
    told = told or read_once(tmp_path)
    assert path.with_name(f"{MAIN}-wal").stat().st_size > 0
    assert (told.code, told.ranks) == (0, whole[2])
    assert not told.changed
    frequencies = "select distinct value from counters where rank = 1 and name ilike '%freq%'"
    assert [(1234.0,)] == _ask(tmp_path, frequencies)


def _ask(tmp_path: Path, sql: str) -> list[tuple[object, ...]]:
    from npuscope.collector.store import store

    return store.query(tmp_path / "store", sql).rows()


@pytest.mark.slow
def test_what_others_added_is_passed_over(whole: Whole, tmp_path: Path) -> None:
    path = own_copy(whole, tmp_path, MAIN)
    alter(
        path,
        """
        create table status_info (key text, value text);
        insert into status_info values ('a', 'b');
        create table "odd "" name" ("select" blob);
        create table _COMPUTE_TASK_INFO_old_20251014 as select * from COMPUTE_TASK_INFO;
        alter table TASK add column depth integer default -1;
        alter table COMMUNICATION_OP add column waitNs numeric;
        alter table STRING_IDS add column "from" text;
        create index more on TASK (startNs, endNs);
        create view every_task as select * from TASK, COMPUTE_TASK_INFO;
        create view broken as select x from nowhere;
        create trigger watch after insert on TASK begin delete from TASK; end;
        """,
    )
    told = read_once(tmp_path)
    assert (told.code, told.ranks) == (0, whole[2])


def without(
    number: int, name: str, script: str, full: dict[int, Path], light: Path, folder: Path
) -> list[str]:
    """Every eighth beside its own second rank, others beside a light one, which is quicker."""
    parts = beside_light(1, full[1], light) if number % 8 else full
    work = folder / f"{name}-{number}"
    expected = truth(tuple(parts.items()), folder / f"whole-{os.getpid()}")
    source = copy(parts, work)
    path = source / parts[1].name / "ASCEND_PROFILER_OUTPUT" / name
    replace_file(path, path.read_bytes())
    alter(path, script)
    told = run_ingest(source, work)
    shutil.rmtree(work)
    return [f"{name}: {script}: {one}" for one in what_is_wrong(told, expected, name)]


def scripts(path: Path) -> list[str]:
    """All tables, and a third of the columns."""
    whole_tables = ("drop table", "delete from")
    return [
        one for n, one in enumerate(damages(path)) if one.startswith(whole_tables) or n % 3 == 0
    ]


def damages(path: Path) -> Iterator[str]:
    """SQL that takes away each table, its rows, and each column, or puts text into it."""
    with closing(sqlite3.connect(path)) as database:
        found = "select name from sqlite_master where type = 'table' and name not like 'sqlite%'"
        for (table,) in database.execute(found).fetchall():
            yield f"drop table {table}"
            yield f"delete from {table}"
            if table.startswith("ENUM"):
                continue
            columns = database.execute(f"pragma table_info({table})").fetchall()
            for _, column, *_, is_key in columns:
                if not is_key and len(columns) > 1:
                    yield f'alter table {table} drop column "{column}"'
                    yield f"""update {table} set "{column}" = 'nonsense'"""


def what_is_wrong(told: Told, expected: dict[int, Rank], name: str) -> list[str]:
    """As for any damage; but what an edited database does not say, nobody can know: figures may be
    unknown then, and rows missing, and notes beside the answers tell it."""
    looks_whole = told.code == 0
    found = complaints(told, expected, 1, Path(name), looks_whole=looks_whole)
    return [one for one in found if "other figures" not in one or not _is_told(told, expected[1])]


def _is_told(told: Told, whole: Rank) -> bool:
    """Whether a note tells, or no figure is another than it was: NULL is none."""
    named = ("rank 1", "ranks 0, 1", "ranks 0-1")
    if any(name in note for note in told.notes for name in named):
        return True
    now = told.ranks[1].answers["steps"]
    if [row[_STEP] for row in now] == [None]:
        return True  # without a table of steps all is one row
    pairs = zip(now, whole.answers["steps"], strict=False)
    return len(now) == len(whole.answers["steps"]) and all(
        # The same figure may be the producer's own, which is said then.
        new is None or new == old or (column == _BASIS and new == "profiler_table")
        for rows in pairs
        for column, (new, old) in enumerate(zip(*rows, strict=True))
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", [MAIN, ANALYSIS])
def test_each_table_and_column_missing(
    whole: Whole, processes: ProcessPoolExecutor, light: Path, tmp_path: Path, name: str
) -> None:
    """A tenth of them; bench/collector/damage_bench.py holds all."""
    origin, folder, _ = whole
    chosen = scripts(origin / folder / "ASCEND_PROFILER_OUTPUT" / name)
    running = [
        processes.submit(without, number, name, script, folders_in(origin), light, tmp_path)
        for number, script in enumerate(chosen)
        if number % 10 == 0
    ]
    assert [one for case in running for one in case.result()] == []
