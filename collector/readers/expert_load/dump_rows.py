"""A headerless CSV of counts that only grow: its rows as dumps of layers, and each dump's own load.

rows    l0 l1 l2 | l0 l1 l2 | l0 l1 l2        counts since the start
loads   dump 0   | 1 less 0 | 2 less 1        what came between two dumps
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from npuscope.errors import TraceFormatError

from ...model import SourceFile
from ...small_files import open_regular

Counts = npt.NDArray[np.int64]
_ROW = r"^\d{1,18}(?:\s*,\s*\d{1,18})*$"


def read_counts(file: SourceFile, notes: list[str]) -> Counts:
    """Counts [rows, columns] of a file as long as it was when found.

    A last line that is cut off is left out and told. Raises TraceFormatError.
    """
    path = Path(file.path)
    with open_regular(path) as opened:
        text = opened.read(file.size_bytes).decode("utf-8-sig", "replace")
    lines = pl.DataFrame({"text": text.splitlines()}, schema={"text": pl.String})
    lines = lines.with_row_index("number", 1).with_columns(
        pl.col("text").str.strip_chars().str.strip_suffix(",").str.strip_chars()
    )
    lines = lines.filter(pl.col("text") != "")
    if lines.is_empty():
        raise TraceFormatError(path, "expert dump", "no rows")
    lines = lines.with_columns(
        pl.col("text").str.contains(_ROW).alias("is_count"),
        (pl.col("text").str.count_matches(",") + 1).alias("columns"),
    )
    width = lines["columns"][0]
    wrong = lines.filter(~pl.col("is_count") | (pl.col("columns") != width))
    is_cut = not text.endswith(("\n", "\r"))
    if wrong.height == 1 and is_cut and wrong["number"][0] == lines["number"][-1] > 1:
        notes.append(f"{path.name}: the last line is incomplete and left out")
        lines, wrong = lines.head(-1), wrong.clear()
    if wrong.height:
        number, shown, is_count, columns = wrong.select(
            "number", "text", "is_count", "columns"
        ).row(0)
        got = (
            f"{columns} columns, but the first row has {width}"
            if is_count
            else f"no counts: {shown[:60]!r}"
        )
        raise TraceFormatError(path, f"line {number}", got)
    values = lines.select(pl.col("text").str.split(",").explode().str.strip_chars().cast(pl.Int64))
    counts: Counts = values.to_series().to_numpy().reshape(-1, width)
    return counts


def layers_in(counts: Counts, told: int | None, path: Path, notes: list[str]) -> int:
    """Layers of one dump: as the configuration tells, if rows that only grow bear it out.

    Fewer rows than that are one dump of so many layers. Some configurations count one layer more
    than is dumped. Raises TraceFormatError where rows fit neither.
    """
    rows = len(counts)
    if told is None or told < 1 or rows == told:
        return rows
    if rows < told:
        notes.append(
            f"{path.name}: {rows} rows, but there are {told} MoE layers: the rows are used"
        )
        return rows
    if rows % told == 0:
        # A counter that starts again falls in whole dumps; nothing else would fit better.
        return told
    if told > 1 and rows % (told - 1) == 0 and _only_grows(counts, told - 1):
        notes.append(
            f"{path.name}: its rows repeat after {told - 1} layers, not after {told}: the rows are"
            " used"
        )
        return told - 1
    if _only_grows(counts, told):
        notes.append(f"{path.name}: its last dump has {rows % told} of {told} layers: left out")
        return told
    raise TraceFormatError(
        path,
        "expert dump",
        (f"{rows} rows do not match dumps of {told} layers: counts would decrease"),
    )


def own_loads(dumps: Counts, path: Path, notes: list[str]) -> Counts:
    """What came between dumps, of counts [dumps, layers, slots] since the start.

    A dump in which a count fell began anew: its counts are its own load.
    """
    grown = np.diff(dumps, axis=0, prepend=np.zeros_like(dumps[:1]))
    fell = np.flatnonzero((grown < 0).any(axis=(1, 2)))
    if len(fell):
        grown[fell] = dumps[fell]
        notes.append(f"{path.name}: counters were reset at dump {fell[0]} ({len(fell)} time(s))")
    return grown


def _only_grows(counts: Counts, layers: int) -> bool:
    return bool((counts[layers:] >= counts[:-layers]).all())
