"""Queries over an opened store: where they spill, and what becomes of their errors."""

from __future__ import annotations

import stat
import tempfile
from pathlib import Path

import duckdb
import pytest

from npuscope.collector.store import store


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files; the working folder is another, empty one."""
    folder, here = tmp_path / "temporary", tmp_path / "here"
    folder.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_what_memory_does_not_hold_goes_to_the_folder_for_it(
    temporary: Path, sample_store: Path
) -> None:
    con = store.open(sample_store)
    con.execute("set memory_limit = '60MB'")
    con.execute("set threads = 1")
    text = "hash(i)::varchar || repeat('y', 100)"
    con.execute(f"create temp table large as select {text} as s from range(1_000_000) t(i)")
    [own] = temporary.iterdir()
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    assert list(own.glob("*/*"))
    assert list(Path.cwd().iterdir()) == []
    store.remove_spilled()
    assert list(own.iterdir()) == []
    con.close()


def test_an_error_among_the_last_rows_is_one_of_the_engine(sample_store: Path) -> None:
    late = "select case when i = 3_000_000 then error('late') else i end from range(4_000_000) t(i)"
    with pytest.raises(duckdb.Error, match="late"):
        store.query(sample_store, late)


def test_memory_that_ends_among_the_last_rows_is_told_as_that(sample_store: Path) -> None:
    con = store.open(sample_store)
    con.execute("set memory_limit = '50MB'")
    con.execute("set temp_directory = ''")
    large = "select repeat('y', 1000) || i::varchar as s from range(1_000_000) t(i) order by s"
    with pytest.raises(duckdb.OutOfMemoryException):
        store.frame(con.sql(large))
    con.close()
