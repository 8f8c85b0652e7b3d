"""Answers about memory as terminal tables, in MiB as the profiler's own files count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl
from rich.console import RenderableType

from npuscope.analysis.query import MemoryKey
from npuscope.analysis.views import sum_of
from npuscope.analysis.wording import UNKNOWN, mebibytes, number, percent, plain

from ..tables import Column, FittedTable, decimals, several

TOP = 10
_ms = decimals("{:,.1f}", 1e6)
_MEASURES = {
    "peak": "peak",
    "peak_allocated": "peak allocated",
    "fragmentation": "unused at it",
}


def change(value: int | float | None) -> str:
    """Bytes as MiB with their sign."""
    if value is None or value == 0:
        return mebibytes(value)
    return ("+" if value > 0 else "-") + mebibytes(abs(value))


def _places(frame: pl.DataFrame) -> list[Column]:
    """Run, capture and device where there are several, and the rank."""
    devices = frame.select("run", "capture", "rank", "device_id").unique()
    many = devices.select("run", "capture", "rank").is_duplicated().any()
    return [
        *several(frame),
        Column("rank", "rank", plain),
        *([Column("device", "device_id", plain)] if many else []),
    ]


def component_name(row: Mapping[str, Any]) -> str:
    """Component, marked where it is a module of CANN."""
    return f"{row['component']}{' (module)' if row['source'] == 'module' else ''}"


def _rows(frame: pl.DataFrame) -> list[dict[str, Any]]:
    return [{**row, "named": component_name(row)} for row in frame.to_dicts()]


def first_records(frame: pl.DataFrame) -> dict[tuple[str, str, int], int]:
    """When each (run, capture, rank) has its first record, of rows of the metric memory."""
    columns = ["run", "capture", "rank", "first_ns"]
    firsts = frame.select(columns).sort("first_ns", descending=True, nulls_last=False)
    return {(run, capture, rank): at_ns for run, capture, rank, at_ns in firsts.rows()}


def components_table(
    frame: pl.DataFrame,
    *,
    title: str = "Memory by component",
    zero_ns: Mapping[tuple[str, str, int], int] | None = None,
) -> FittedTable:
    """Peaks of each component; those that never held anything are left out.

    Times count from `zero_ns` of the rank, by (run, capture, rank); without it from the first
    record in `frame`.
    """
    held = frame.filter(
        (pl.col("peak_bytes") > 0) | (pl.col("peak_allocated_bytes") > 0).fill_null(False)
    )
    zero_ns = zero_ns or first_records(frame)
    rows = []
    for row in _rows(held):
        start_ns = zero_ns[row["run"], row["capture"], row["rank"]]
        for name in ("peak_ns", "peak_allocated_ns"):
            row[name] = None if row[name] is None else row[name] - start_ns
        rows.append(row)
    columns = [
        *_places(frame),
        Column("component", "named"),
        Column("peak", "peak_bytes", mebibytes),
        Column("at ms", "peak_ns", _ms, 3),
        Column("peak allocated", "peak_allocated_bytes", mebibytes),
        Column("at ms", "peak_allocated_ns", _ms, 2),
        Column("unused then", "fragmentation_bytes", mebibytes, 1),
        Column("of reserved", "fragmentation_ratio", percent, 4),
        Column("peak active", "peak_active_bytes", mebibytes, 5),
    ]
    caption = "peak: most reserved; unused: reserved, but not allocated when most was"
    return FittedTable(columns, rows, f"{title} (MiB)", caption)


def spread_table(frame: pl.DataFrame) -> FittedTable:
    """Components across ranks."""
    rows = [{**row, "measure": _MEASURES[row["measure"]]} for row in _rows(frame)]
    columns = [
        *several(frame),
        Column("component", "named"),
        Column("of", "measure"),
        Column("ranks", "rank_count", number, 2),
        Column("least", "min_bytes", mebibytes),
        Column("median", "median_bytes", mebibytes, 1),
        Column("most", "max_bytes", mebibytes),
        Column("on rank", "max_rank", plain),
        Column("spread", "spread_ratio", percent),
    ]
    return FittedTable(columns, rows, "Memory across ranks (MiB)", "spread: (most - least) / mean")


def holders_table(frame: pl.DataFrame, *, top: int = TOP) -> FittedTable:
    """Who holds the memory at the peak; what is unexplained stands last."""
    rows = []
    for place in frame.partition_by("run", "capture", "rank", "device_id", maintain_order=True):
        unexplained = pl.col("holder") == "unexplained"
        named = place.filter(~unexplained)
        rows += named.head(top).to_dicts()
        others = named.slice(top)
        if others.height:
            rest = sum_of(others, ["held_bytes", "share_ratio"])
            rest |= {name: others[name][0] for name in ("run", "capture", "rank", "device_id")}
            rows.append({**rest, "holder": f"{others.height} more"})
        rows += place.filter(unexplained).to_dicts()
    words_of = {"earlier": "(older than the capture)", "unexplained": "(no recorded block)"}
    for row in rows:
        is_operator = row["holder"] == "operator"
        row["held_by"] = (
            row["name"] if is_operator else words_of.get(row["holder"], f"({row['holder']})")
        )
        row["since"] = None if row["since_ns"] is None else row["peak_ns"] - row["since_ns"]
        row["freed"] = (
            _freed_after(row, "released_ns") if row["block_count"] is not None else UNKNOWN
        )
    columns = [
        *_places(frame),
        Column("held by", "held_by"),
        Column("MiB", "held_bytes", mebibytes),
        Column("share", "share_ratio", percent),
        Column("blocks", "block_count", number),
        Column("largest", "largest_block_bytes", mebibytes, 1),
        Column("since, ms before", "since", _ms, 2),
        Column("freed, ms after", "freed", str, 3),
    ]
    title = "Who holds the memory at the peak"
    return FittedTable(columns, rows, title, "before, after: relative to the peak")


def blocks_table(frame: pl.DataFrame, *, top: int = TOP) -> FittedTable:
    """Single blocks held at the peak."""
    nth = pl.int_range(pl.len()).over("run", "capture", "rank")
    visible = frame.filter(nth < top)
    rows = []
    for row in visible.to_dicts():
        since_ns = row["allocated_at_ns"]
        row["since"] = None if since_ns is None else row["peak_ns"] - since_ns
        row["freed"] = _freed_after(row, "released_at_ns")
        rows.append(row)
    columns = [
        *_places(frame),
        Column("held by", "name"),
        Column("MiB", "size_bytes", mebibytes),
        Column("share", "share_ratio", percent),
        Column("since, ms before", "since", _ms, 1),
        Column("freed, ms after", "freed", str, 2),
    ]
    return FittedTable(columns, rows, "Largest blocks at the peak")


def _freed_after(row: Mapping[str, Any], key: str) -> str:
    return "not in capture" if row[key] is None else _ms(row[key] - row["peak_ns"])


def steps_table(frame: pl.DataFrame) -> FittedTable:
    """Levels at the end of each step."""
    columns = [
        *_places(frame),
        Column("component", "named"),
        Column("step", "step", plain),
        Column("at its end", "end_bytes", mebibytes),
        Column("change", "change_bytes", change),
        Column("most inside", "peak_bytes", mebibytes),
        Column("level", "level", None, 1),
    ]
    return FittedTable(columns, _rows(frame), "Memory by step (MiB)")


def growth_table(frame: pl.DataFrame) -> FittedTable:
    """Growth over the recorded steps."""
    verdicts = {True: "steady", False: "no", None: "too few steps"}
    rows = [{**row, "verdict": verdicts[row["is_steady"]]} for row in _rows(frame)]
    columns = [
        *_places(frame),
        Column("component", "named"),
        Column("growth", "verdict"),
        Column("per step", "growth_per_step_bytes", change),
        Column("in all", "growth_bytes", change, 1),
        Column("steps", "step_count", number, 2),
        Column("from", "first_step", plain, 3),
        Column("to", "last_step", plain, 3),
        Column("at its end", "last_bytes", mebibytes),
        Column("level", "level", None, 4),
    ]
    return FittedTable(columns, rows, "Growth of memory from step to step (MiB)")


def table_of(by: MemoryKey, frame: pl.DataFrame, *, top: int) -> RenderableType:
    """One of the answers that is a table: not the curve."""
    if by == "component":
        return components_table(frame)
    if by == "holder":
        return holders_table(frame, top=top)
    if by == "block":
        return blocks_table(frame, top=top)
    if by == "step":
        return steps_table(frame)
    return growth_table(frame) if by == "growth" else spread_table(frame)
