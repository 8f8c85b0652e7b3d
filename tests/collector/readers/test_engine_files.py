"""CSV files cut at every byte, and named as the engine would not have it."""

from __future__ import annotations

import os
from pathlib import Path

import duckdb
import pytest

from npuscope.collector.model import ReadLog
from npuscope.collector.readers.delimited_text import engine_file, fill, has_zero_bytes, open_rows

HEADER = "a,b,c\n"
ROWS = ['1,"x""1,\n1""",12.250', '2,plain,"a, b"', "3,,", '4,"q",7']
CELLS = [
    ("1", 'x"1,\n1"', "12.250"), ("2", "plain", "a, b"), ("3", None, None), ("4", "q", "7"),
]  # fmt: skip


def read(con: duckdb.DuckDBPyConnection, path: Path, log: ReadLog) -> list[tuple[str | None, ...]]:
    rows = open_rows(str(path), log)
    assert rows is not None
    fill(con, rows, log, lambda source: f"create or replace table t as select * from {source}")
    return con.execute("from t").fetchall()


def test_no_cell_is_ever_cut(staging: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    """Whole rows stay; of the row in which the file ends, at most its last cell is unknown."""
    text = HEADER + "".join(f"{row}\n" for row in ROWS)
    ends = [len(HEADER)]
    for row in ROWS:
        ends.append(ends[-1] + len(row) + 1)
    path = tmp_path / "t.csv"
    for cut in range(len(HEADER), len(text) + 1):
        path.write_text(text[:cut])
        log = ReadLog()
        found = read(staging, path, log)
        whole = sum(end <= cut for end in ends) - 1
        assert found[:whole] == CELLS[:whole], cut
        for last in found[whole:]:
            assert last[:2] == CELLS[whole][:2], cut
            assert last[2] in (None, CELLS[whole][2]), cut
        assert list(log.damage) == ([] if cut in ends else [str(path)]), cut


def test_the_file_stays_and_the_stand_in_goes(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(HEADER + "1,2,3")
    place = tmp_path / "place"
    with engine_file(str(path), place) as file:
        assert file.is_torn
        assert Path(file.path).read_text() == HEADER + "1,2,"
    assert not place.exists()
    assert path.read_text() == HEADER + "1,2,3"


@pytest.mark.parametrize("name", ["a*b", "a?", "[ab]", "b\\s", os.fsdecode(b"\xff\xe9")])
def test_a_name_is_no_pattern(
    staging: duckdb.DuckDBPyConnection, tmp_path: Path, name: str
) -> None:
    for other in ("aXb", "ab", "a", "b"):
        (tmp_path / f"{other}.csv").write_text(HEADER + "0,0,0\n")
    path = tmp_path / f"{name}.csv"
    path.write_text(HEADER + "1,2,3\n")
    log = ReadLog()
    assert read(staging, path, log) == [("1", "2", "3")]
    assert log.damage == {}


def test_zero_bytes_are_told(staging: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"a,b,c\n1,2,3\n4,\0\0\0,6\n")
    log = ReadLog()
    assert len(read(staging, path, log)) == 2
    assert log.damage == {str(path): "damaged: zero bytes in place of text"}
    assert has_zero_bytes(str(path))
    path.write_bytes(b"a,b,c\n")
    assert not has_zero_bytes(str(path))
