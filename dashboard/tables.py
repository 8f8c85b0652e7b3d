"""Frames of the analyses as terminal tables: figures in ms, unknown as a dash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
from rich.table import Table
from rich.text import Text

UNKNOWN = "-"
# One colour per part of a step, everywhere; told apart without colour by their letters, too.
PARTS = (("computing", "green", "█"), ("exposed", "red", "▓"), ("free", "bright_black", "░"))


def ms(value: int | float | None, digits: int = 3) -> str:
    """Nanoseconds as milliseconds with thousands separated."""
    return UNKNOWN if value is None else f"{value / 1e6:,.{digits}f}"


def us(value: int | float | None) -> str:
    return UNKNOWN if value is None else f"{value / 1e3:,.1f}"


def percent(value: float | None, digits: int = 1) -> str:
    """A ratio as per cent. Just short of all stays short of 100, just above nothing above 0."""
    if value is None:
        return UNKNOWN
    shown = round(value * 100, digits)
    least = 10.0**-digits
    if shown >= 100 > value * 100:
        shown = 100 - least
    if shown <= 0 < value:
        return f"<{least:.{digits}f} %"
    return f"{shown:.{digits}f} %"


def table_of(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[tuple[str, str, Any]],
    *,
    title: str | None = None,
    caption: str | None = None,
) -> Table:
    """A table with (heading, column, format) per column; a format of None means text on the left."""
    table = Table(title=title, title_justify="left", title_style="bold", caption=caption)
    table.caption_justify = "left"
    for heading, _, form in columns:
        table.add_column(
            heading, justify="left" if form is None else "right", no_wrap=form is not None
        )
    for row in rows:
        cells = []
        for _, column, form in columns:
            value = row[column]
            if form is not None:
                cells.append(form(value))
            else:
                cells.append(UNKNOWN if value is None else str(value))
        table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in cells))
    return table


def number(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def plain(value: int | None) -> str:
    return UNKNOWN if value is None else str(value)


def place_columns(frame: pl.DataFrame) -> list[tuple[str, str, Any]]:
    """Run and capture where there are several, then rank and step."""
    columns: list[tuple[str, str, Any]] = [
        (name, name, None) for name in ("run", "capture") if frame[name].n_unique() > 1
    ]
    return [*columns, ("rank", "rank", plain), ("step", "step", plain)]


def step_bar(row: Mapping[str, Any], width: int = 24) -> Text:
    """A step as one bar: computing, exposed communication, free; empty where one is unknown."""
    parts = (row["computing_ns"], row["exposed_communication_ns"], row["free_ns"])
    if None in parts or sum(parts) <= 0:
        return Text(UNKNOWN)
    bar, drawn, total, before = Text(), 0, sum(parts), 0
    for part_ns, (_, colour, block) in zip(parts, PARTS, strict=True):
        before += part_ns
        upto = round(width * before / total)
        bar.append(block * (upto - drawn), style=colour)
        drawn = upto
    return bar


def steps_table(frame: pl.DataFrame, *, title: str | None = None) -> Table:
    """The step breakdown, a row per rank and step."""
    rows = [{**row, "bar": row} for row in frame.to_dicts()]
    columns = [
        *place_columns(frame),
        ("█ computing ▓ exposed ░ free", "bar", step_bar),
        ("stage ms", "stage_ns", ms),
        ("computing ms", "computing_ns", ms),
        ("comm. ms", "communication_ns", ms),
        ("masked ms", "overlapped_ns", ms),
        ("exposed ms", "exposed_communication_ns", ms),
        ("free ms", "free_ns", ms),
        ("bubble ms", "bubble_ns", ms),
        ("preparing ms", "preparing_ns", ms),
        ("masked", "masking_ratio", percent),
    ]
    light = (frame["basis"] == "profiler_table").any()
    if light:
        columns.append(("basis", "basis", None))
    return table_of(rows, columns, title=title)


def kernels_table(frame: pl.DataFrame, *, title: str | None = None) -> Table:
    """Kernels by one key, a row per rank, step and key."""
    key = next(name for name in ("type", "name", "shape", "core") if name in frame.columns)
    columns = [
        *place_columns(frame),
        (key, key, None),
        *([("core", "core", None)] if key != "core" else []),
        ("count", "count", number),
        ("total ms", "total_ns", ms),
        ("share", "computing_share_ratio", percent),
        ("mean us", "mean_ns", us),
        ("p50 us", "p50_ns", us),
        ("p99 us", "p99_ns", us),
        ("max us", "max_ns", us),
    ]
    return table_of(frame.to_dicts(), columns, title=title)
