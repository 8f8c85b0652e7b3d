"""SQLite as Arrow: types that hold, and a user's folder that stays as it was."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from npuscope.collector.readers import sqlite
from npuscope.collector.readers.sqlite import open_sqlite
from npuscope.errors import TraceFormatError


@contextmanager
def database(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path)) as con:
        yield con
        con.commit()


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    return {p.name: (p.stat().st_size, p.stat().st_mtime_ns) for p in folder.iterdir()}


def test_tables_columns_and_foreign_things(tmp_path: Path) -> None:
    path = tmp_path / "it's 100% a db?#[1].db"
    with database(path) as con:
        con.execute("create table TASK (startNs INTEGER primary key autoincrement, name TEXT, x)")
        con.execute("create view broken as select a from nowhere_yet")
        con.execute("create virtual table search using fts5(body)")
    before = listing(tmp_path)
    with open_sqlite(str(path)) as file:
        assert file.path == str(path)
        assert file.tables["TASK"] == {"startNs": "INTEGER", "name": "TEXT", "x": ""}
        assert not {"broken", "search", "sqlite_sequence"} & set(file.tables)
    assert listing(tmp_path) == before


def test_types_hold_after_a_run_of_nulls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BATCH_ROWS", 4)
    path = tmp_path / "a.db"
    with database(path) as con:
        con.execute("create table t (i, r, s)")
        con.executemany("insert into t values (?, ?, ?)", [(None, None, None)] * 10)
        con.execute("insert into t values (1764246877073569640, 0.25, 'text')")
    columns: dict[str, tuple[sqlite.SqlType, str]] = {
        "i": ("integer", "i"), "r": ("real", "r"), "s": ("text", "s")
    }  # fmt: skip
    with open_sqlite(str(path)) as file:
        table = file.select(columns, "from t").read_all()
        with pytest.raises(OSError, match="Type mismatch"):  # why `select` exists
            file._execute("select s from t").read_all()
    assert table.schema.types == [pa.int64(), pa.float64(), pa.string()]
    assert table.num_rows == 11
    assert table.to_pylist()[10] == {"i": 1764246877073569640, "r": 0.25, "s": "text"}


def test_values_of_another_kind_are_unknown_not_zero(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    values = [7, "42", " -9 ", 3.0, "N/A", "", "1.5", "1e-3", "-", "4-2", b"\x01", None, "inf"]
    values += ["70.00\t", "1.05"]
    with database(path) as con:
        con.execute("create table t (v)")
        con.executemany("insert into t values (?)", [(v,) for v in values])
    with open_sqlite(str(path)) as file:
        rows = file.select({"i": ("integer", "v"), "r": ("real", "v")}, "from t").read_all()
    assert rows["i"].to_pylist() == [
        7, 42, -9, 3, None, None, None, None, None, None, None, None, None, 70, None
    ]  # fmt: skip
    assert rows["r"].to_pylist()[:8] == [7.0, 42.0, -9.0, 3.0, None, None, 1.5, 1e-3]
    assert rows["r"].to_pylist()[10:] == [None, None, None, 70.0, 1.05]


def test_an_empty_table_keeps_its_types(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with database(path) as con:
        con.execute("create table t (v)")
    with open_sqlite(str(path)) as file:
        table = file.select({"s": ("text", "v")}, "from t").read_all()
        assert file.stream("select 1 as one").read_all().to_pylist() == [{"one": 1}]
    assert (table.num_rows, table.schema.types) == (0, [pa.string()])


def test_a_log_beside_the_file_is_applied_to_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, folder, scratch = tmp_path / "live", tmp_path / "user", tmp_path / "scratch"
    for each in (live, folder, scratch):
        each.mkdir()
    with closing(sqlite3.connect(live / "a.db")) as con:
        con.execute("pragma journal_mode = wal")
        con.execute("create table t (v integer)")
        con.execute("insert into t values (5)")
        con.commit()
        for name in ("a.db", "a.db-wal"):  # as a killed process would leave them
            shutil.copyfile(live / name, folder / name)
    assert (folder / "a.db-wal").stat().st_size > 0
    before = listing(folder)
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    with open_sqlite(str(folder / "a.db")) as file:
        assert file.stream("select v from t").read_all().to_pylist() == [{"v": 5}]
    assert listing(folder) == before
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("suffix", ["-wal", "-shm"])
def test_an_empty_log_beside_the_file_is_left_alone(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "a.db"
    with database(path) as con:
        con.execute("create table t (v integer)")
    Path(f"{path}{suffix}").touch()
    before = listing(tmp_path)
    with open_sqlite(str(path)) as file:
        assert list(file.tables) == ["t"]
    assert listing(tmp_path) == before


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "empty"),
        (b"hello" * 1000, "not a SQLite database"),
        (b"SQLite format 3\x00" + b"\xff" * 4096, "not a SQLite database|damaged"),
    ],
)
def test_files_that_are_no_database(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "a.db"
    path.write_bytes(content)
    with pytest.raises(TraceFormatError, match=told), open_sqlite(str(path)):
        pass


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    with (
        pytest.raises(TraceFormatError, match="No such file"),
        open_sqlite(str(tmp_path / "no.db")),
    ):
        pass
    with pytest.raises(TraceFormatError, match=r"Is a directory$"), open_sqlite(str(tmp_path)):
        pass


def big(path: Path) -> None:
    with database(path) as con:
        con.execute("create table t (i integer, v text)")
        con.executemany("insert into t values (?, ?)", ((i, "x" * 200) for i in range(20_000)))


def test_a_cut_database_is_told_while_the_engine_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    big(path)
    os.truncate(path, path.stat().st_size // 2)
    with (
        pytest.raises(TraceFormatError, match="damaged or cut short"),
        duckdb.connect() as con,
        open_sqlite(str(path)) as file,
    ):
        con.register("_x", file.select({"v": ("text", "v")}, "from t"))
        con.execute("select count(*) from _x")


def test_text_that_is_not_utf8_never_reaches_the_engine(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with database(path) as con:
        con.execute("create table t (v text)")
        con.execute("insert into t values (cast(x'ff41' as text))")
    with (
        pytest.raises(TraceFormatError, match="UTF8"),
        duckdb.connect() as con,
        open_sqlite(str(path)) as file,
    ):
        con.register("_x", file.select({"v": ("text", "v")}, "from t"))
        con.execute("select count(v) from _x").fetchall()


def test_other_errors_inside_the_block_stay_what_they_are(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    big(path)
    with pytest.raises(ZeroDivisionError), open_sqlite(str(path)) as file:
        next(iter(file.stream("select i from t")))
        raise ZeroDivisionError
    with pytest.raises(TraceFormatError, match="no such table"), open_sqlite(str(path)) as file:
        file.stream("select * from nowhere")


def test_several_streams_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BATCH_ROWS", 100)
    path = tmp_path / "a.db"
    big(path)
    with open_sqlite(str(path)) as file:
        one, two = file.stream("select i from t"), file.stream("select i from t where i < 150")
        assert [b.num_rows for b in two] == [100, 50]
        assert sum(b.num_rows for b in one) == 20_000
