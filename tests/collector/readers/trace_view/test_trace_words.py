"""Names of a large timeline are enumerations while it is read, and say the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest

from npuscope.collector import schema
from npuscope.collector.readers import words
from npuscope.collector.readers.trace_view import trace_view
from tests.collector.readers.trace_view.written_traces import (
    CANN,
    TRACE,
    names,
    read_paths,
    write,
    x,
)

# What becomes of these depends on the name of their process.
UNCATEGORISED = [
    *names(5, "Python GC", "CPU", {1: "Thread 1"}),
    *names(6, "MindSpore", "CPU", {1: "Thread 1"}),
    x(5, 1, "GC", "1030.000"),
    x(6, 1, "Default@MatMul-op1", "1031.000"),
    x(CANN, 8, "AscendCL@aclrtMalloc", "1032.000"),
    x(7, 1, "Runtime@KernelLaunch", "1033.000"),
    x(7, 1, "GE@run", "1034.000", args={"level": "", "connection_id": 1}),
    x(7, 1, "HCCL@broadcast", "1035.000", args={"level": "Hccl", "connection_id": 2}),
]


def read(folder: Path) -> duckdb.DuckDBPyConnection:
    path = write(folder / "trace_view.json", [*TRACE, *UNCATEGORISED])
    con, log = read_paths([path], folder)
    assert log.rows_lost == 0
    return con


def content(con: duckdb.DuckDBPyConnection, table: str) -> list[Any]:
    return con.execute(f"select columns(*)::varchar from {table} order by all").fetchall()


def type_of(con: duckdb.DuckDBPyConnection, table: str) -> str:
    [(kind,)] = con.execute(f"select any_value(typeof(name)) from {table}").fetchall()
    return str(kind)


@pytest.mark.parametrize("table", ["host_ops", "counters"])
def test_words_say_what_text_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "words").mkdir()
    text = read(tmp_path / "text")
    monkeypatch.setattr(trace_view, "WORDS_FROM_BYTES", 0)
    worded = read(tmp_path / "words")
    assert content(worded, table) == content(text, table) != []
    assert type_of(text, table) == "VARCHAR"
    assert type_of(worded, table).startswith("ENUM")


def test_too_many_words_stay_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_view, "WORDS_FROM_BYTES", 0)
    monkeypatch.setattr(words, "_WORDS_AT_MOST", 3)
    assert type_of(read(tmp_path), "host_ops") == "VARCHAR"


def test_a_reading_that_fails_leaves_text(
    staging: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ZeroDivisionError), words.words_for_text(staging, ["counters"]):
        words.enumerate_words(staging, "counters", ["name"], "select 'HBM' as word")
        staging.execute("insert into counters (name) values ('HBM')")
        raise ZeroDivisionError
    assert content(staging, "counters") == []
    found = staging.execute("select column_type from (describe counters)").fetchall()
    assert [kind.lower() for (kind,) in found] == [
        column.type for column in schema.tables()["counters"].columns
    ]
