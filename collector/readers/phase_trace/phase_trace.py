"""A phase-level trace: what each worker of a job did in each step, one Parquet file.

    dp_rank, stage, step, optype, start_ts, duration [, rank, mc, gmc, seq_id, mb_id]

Seconds, relative to the step or to anything else that is the same for all its rows. Such a file has
no kernels and no operations: it is read as it is, for `npuscope whatif`, and enters no store.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from npuscope.errors import TraceFormatError, TraceNotFound

from ...small_files import open_regular

_MAGIC = b"PAR1"
_TIMES = ("start_ts", "duration")
_KEYS = ("step", "dp_rank", "stage")
_CHUNKS = ("mc", "gmc")
_ROWS_AT_MOST = 16_000_000  # 4.5 GB as they are sorted and laid out


@dataclass(frozen=True, slots=True)
class PhaseTrace:
    """Rows of a trace: `step`, `dp_rank`, `stage`, `mc` and `gmc` (NULL: not told) as integers,
    `optype`, `start_ts` and `duration` in the file's own floating-point type."""

    path: Path
    rows: pl.DataFrame


def is_parquet(path: Path) -> bool:
    """Whether a path is a Parquet file by its content. Raises TraceNotFound where there is none."""
    if not path.exists():
        raise TraceNotFound(f"{path}: no such file or folder")
    if not path.is_file():
        return False
    with open_regular(path) as file:
        return file.read(len(_MAGIC)) == _MAGIC


def read_phases(path: Path) -> PhaseTrace:
    """Read a trace whole. Raises TraceFormatError where a row cannot be what it claims to be."""
    try:
        with pq.ParquetFile(path) as file:
            names = set(file.schema_arrow.names)
            needed = (*_KEYS, "optype", *_TIMES)
            if lacking := [name for name in needed if name not in names]:
                raise TraceFormatError(
                    path, "columns", f"no phase-level trace: it lacks {', '.join(lacking)}"
                )
            if file.metadata.num_rows > _ROWS_AT_MOST:
                raise TraceFormatError(
                    path,
                    "rows",
                    f"{file.metadata.num_rows:,} of them, and {_ROWS_AT_MOST:,} are read at most:"
                    " give a trace of fewer steps",
                )
            columns = [*needed, *(name for name in (*_CHUNKS, "rank") if name in names)]
            rows = pl.from_arrow(file.read(columns=columns))
    except (pa.ArrowException, pl.exceptions.PolarsError, OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise TraceFormatError(path, "Parquet", f"cannot be read ({reason})") from error
    assert isinstance(rows, pl.DataFrame)
    return PhaseTrace(path, _check(path, rows))


def _check(path: Path, rows: pl.DataFrame) -> pl.DataFrame:
    if rows.is_empty():
        raise TraceFormatError(path, "rows", "there are none")
    for name in rows.columns:
        if name != "optype" and not rows[name].dtype.is_numeric():
            raise TraceFormatError(path, name, f"numbers are needed, not {rows[name].dtype}")
        if name not in _CHUNKS and (count := rows[name].null_count()):
            raise TraceFormatError(path, name, f"{count} rows have no value")
    for name in _TIMES:
        if rows[name].dtype not in (pl.Float32, pl.Float64):
            rows = rows.with_columns(pl.col(name).cast(pl.Float64))
        _refuse(path, rows, ~pl.col(name).is_finite(), f"{name} is not finite")
    _refuse(path, rows, pl.col("duration") < 0, "duration is negative")
    whole = [name for name in rows.columns if name not in ("optype", *_TIMES)]
    for name in whole:
        if rows[name].dtype.is_float():
            broken = pl.col(name).is_nan() | (pl.col(name) != pl.col(name).floor())
            broken = broken | (pl.col(name).abs() > 2**53)
            if name in _CHUNKS:  # pandas has no NULL among integers
                rows = rows.with_columns(pl.col(name).fill_nan(None))
            _refuse(path, rows, broken, f"{name} is no integer")
    try:
        rows = rows.with_columns(pl.col(whole).cast(pl.Int64), pl.col("optype").cast(pl.String))
    except pl.exceptions.PolarsError as error:
        reason = str(error).partition("\n")[0]
        raise TraceFormatError(path, "columns", f"of another type ({reason})") from error
    _refuse(path, rows, pl.any_horizontal(pl.col("dp_rank", "stage") < 0), "negative rank or stage")
    if "rank" in rows.columns:
        _refuse_several(path, rows)
    absent = [pl.lit(None, pl.Int64).alias(name) for name in _CHUNKS if name not in rows.columns]
    return rows.with_columns(absent)


def _refuse(path: Path, rows: pl.DataFrame, broken: pl.Expr, reason: str) -> None:
    broken_rows = rows.with_row_index("row").filter(broken)
    if broken_rows.height:
        first = broken_rows.row(0, named=True)
        raise TraceFormatError(
            path,
            f"row {first['row']} ({place_of(first)})",
            f"{reason}; {broken_rows.height} such rows",
        )


def _refuse_several(path: Path, rows: pl.DataFrame) -> None:
    """Members of a tensor-parallel group do the same: a trace holds one of them."""
    held = rows.group_by("dp_rank", "stage").agg(pl.col("rank").unique().sort())
    several = held.filter(pl.col("rank").list.len() > 1).sort("dp_rank", "stage")
    if several.height:
        first = several.row(0, named=True)
        named = ", ".join(map(str, first["rank"][:4]))
        raise TraceFormatError(
            path,
            f"DP rank {first['dp_rank']}, stage {first['stage']}",
            f"rows of ranks {named}: keep one rank of each",
        )


def place_of(row: dict[str, object], keys: Iterable[str] = (*_KEYS, "optype")) -> str:
    """Where a row stands, in words."""
    words = {"step": "step", "dp_rank": "DP rank", "stage": "stage", "optype": ""}
    return ", ".join(f"{words[key]} {row[key]}".strip() for key in keys)
