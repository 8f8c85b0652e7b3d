"""Phase-level traces: what is read, and what is refused with its place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from npuscope.collector.readers.phase_trace.phase_trace import is_parquet, read_phases
from npuscope.errors import TraceFormatError, TraceNotFound
from tests.analysis.replay.phase_traces import Plan, simulate


@pytest.fixture(scope="module")
def rows() -> pl.DataFrame:
    return simulate(Plan(steps=1, dp=1))


def first(name: str, value: object) -> Callable[[pl.DataFrame], pl.DataFrame]:
    """The trace with another value in its third row."""
    is_it = pl.int_range(pl.len()) == 2
    return lambda rows: rows.with_columns(
        pl.when(is_it).then(pl.lit(value)).otherwise(name).alias(name)
    )


BROKEN: list[tuple[Callable[[pl.DataFrame], pl.DataFrame], str]] = [
    (lambda rows: rows.drop("optype", "stage"), "columns: .* it lacks stage, optype"),
    (lambda rows: rows.clear(), "rows: there are none"),
    (first("start_ts", float("nan")), r"row 2 \(step 3, .*\): start_ts is not finite; 1 such"),
    (first("duration", float("inf")), r"row 2 \(.*duration is not finite"),
    (first("duration", -0.5), r"row 2 \(.*duration is negative"),
    (first("duration", None), "duration: 1 rows have no value"),
    (first("optype", None), "optype: 1 rows have no value"),
    (first("stage", -1), "negative rank or stage"),
    (first("stage", 0.5), "stage is no integer"),
    (first("step", float("nan")), "step is no integer"),
    (first("rank", 17), "rows of ranks 0, 17: keep one|rows of ranks 1, 17: keep one"),
    (lambda rows: rows.with_columns(pl.col("start_ts").cast(pl.String)), "start_ts: numbers"),
    (lambda rows: rows.with_columns(optype=pl.lit([1])), "columns: of another type"),
    (lambda rows: rows.with_columns(step=pl.lit(2**63, pl.UInt64)), "columns: of another type"),
]


@pytest.mark.parametrize(("broken", "told"), BROKEN, ids=[one[1][:30] for one in BROKEN])
def test_what_cannot_be_is_refused_with_its_place(
    rows: pl.DataFrame, tmp_path: Path, broken: Callable[[pl.DataFrame], pl.DataFrame], told: str
) -> None:
    path = tmp_path / "trace.parquet"
    broken(rows).write_parquet(path)
    with pytest.raises(TraceFormatError, match=told):
        read_phases(path)


def test_types_and_absent_columns_are_read_alike(rows: pl.DataFrame, tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    rows.write_parquet(path)
    usual = read_phases(path).rows
    others = rows.with_columns(
        pl.col("optype").cast(pl.Categorical),
        pl.col("stage", "rank").cast(pl.Int8),
        pl.col("step").cast(pl.Float64),
        mc=pl.col("mc").cast(pl.Float64).replace(-1, float("nan")),
    ).drop("seq_id", "mb_id")
    others.write_parquet(path)
    found = read_phases(path).rows
    same = [name for name in found.columns if name != "mc"]
    assert found.select(same).equals(usual.select(same))
    assert found["mc"].fill_null(-1).equals(usual["mc"])
    rows.drop("mc", "gmc", "rank").write_parquet(path)
    assert read_phases(path).rows["gmc"].null_count() == rows.height
    whole = rows.with_columns(pl.col("start_ts", "duration").round().cast(pl.Int32))
    whole.write_parquet(path)
    assert read_phases(path).rows["duration"].dtype == pl.Float64


def test_damage_is_an_error_of_the_file(rows: pl.DataFrame, tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    rows.write_parquet(path)
    whole = path.read_bytes()
    for cut in (4, 9, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        assert is_parquet(path)
        with pytest.raises(TraceFormatError, match="Parquet: cannot be read"):
            read_phases(path)
    middle = bytearray(whole)
    middle[20 : len(whole) // 2] = b"\xff" * (len(whole) // 2 - 20)
    path.write_bytes(middle)
    with pytest.raises(TraceFormatError):
        read_phases(path)


def test_more_rows_than_memory_has_are_refused_unread(
    rows: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.parquet"
    rows.write_parquet(path)
    place = "npuscope.collector.readers.phase_trace.phase_trace._ROWS_AT_MOST"
    monkeypatch.setattr(place, rows.height - 1)
    with pytest.raises(TraceFormatError, match="of fewer steps"):
        read_phases(path)


def test_only_a_file_that_begins_so_is_parquet(tmp_path: Path) -> None:
    (tmp_path / "trace.parquet").write_text("[]")
    assert not is_parquet(tmp_path / "trace.parquet") and not is_parquet(tmp_path)
    with pytest.raises(TraceNotFound):
        is_parquet(tmp_path / "absent")
