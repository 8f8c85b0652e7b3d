"""Frames of the analyses as terminal tables: figures in ms, unknown as a dash.

A table that is too wide for the terminal leaves out its least telling columns; it never cuts a
figure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import polars as pl
from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from npuscope.analysis.wording import (
    FREE_MEANS,
    UNKNOWN,
    figure,
    is_memory,
    mebibytes,
    megabytes,
    ms,
    number,
    percent,
    plain,
    us,
)
from npuscope.console.printable import printable

# One colour and one texture per part of a step, everywhere.
PARTS = (
    ("computing", "green", "█"),
    ("exposed communication", "red", "▓"),
    ("free", "bright_black", "░"),
)
_GAP = 2
_MOST_ROWS = 500  # a second; nobody reads more, and --json has all


class Column(NamedTuple):
    """`form` turns a value into what is shown (None: text, on the left); 0 is left out last.

    A drawing is for terminals: elsewhere there are figures. Words have translations, names none.
    """

    heading: str
    key: str
    form: Callable[[Any], str | Text] | None = None
    left_out: int = 0
    is_drawing: bool = False
    is_word: bool = False

    def text(self, row: Mapping[str, Any]) -> Text:
        """The row's value as it stands in the table."""
        value = row[self.key]
        if self.form is None:
            return Text(UNKNOWN if value is None else printable(str(value)))
        text = self.form(value)
        return text if isinstance(text, Text) else Text(text)


@dataclass(frozen=True, slots=True)
class FittedTable:
    """A table that drops columns rather than cut figures where the terminal is narrow, and says how
    many rows it leaves out where there are thousands."""

    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]]
    title: str | None = None
    caption: str | None = None
    legend: str | None = None  # of its drawings

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        if not self.rows:
            # Neither headings over nothing, nor a caption on rows that are not there.
            yield Text(f"{self.title}: no rows" if self.title else "no rows")
            return
        # Blocks that the terminal's encoding lacks would all be question marks.
        columns = [one for one in self.columns if not (one.is_drawing and options.ascii_only)]
        legend = self.legend if len(columns) == len(self.columns) else None
        rows = self.rows[:_MOST_ROWS]
        fewer = None
        if len(rows) < len(self.rows):
            fewer = f"the first {len(rows)} of {len(self.rows):,} rows: options choose, --json: all"
        cells = {column: [column.text(row) for row in rows] for column in columns}
        widths = {
            column: max([len(column.heading), *(cell.cell_len for cell in cells[column])])
            for column in columns
        }
        while sum(widths[c] + _GAP for c in columns) > options.max_width:
            if not any(column.left_out for column in columns):
                break
            columns.remove(max(columns, key=lambda column: column.left_out))
        table = Table(
            title=self.title,
            title_justify="left",
            title_style="bold",
            caption="; ".join(text for text in (fewer, legend, self.caption) if text) or None,
            caption_justify="left",
            box=box.SIMPLE_HEAD,
            padding=(0, _GAP - 1, 0, 0),  # the box adds one
            pad_edge=False,
            show_edge=False,
        )
        for column in columns:
            table.add_column(
                column.heading,
                justify="right" if column.form else "left",
                no_wrap=column.form is not None,
                overflow="fold",
            )
        for values in zip(*(cells[column] for column in columns), strict=True):
            table.add_row(*values)
        yield table


def decimals(template: str, unit: float = 1) -> Callable[[float | None], str]:
    """A form of figures, told in multiples of `unit`; unknown is a dash."""
    return lambda value: UNKNOWN if value is None else figure(template, value / unit)


def several(frame: pl.DataFrame, *more: str) -> list[Column]:
    """Run, capture and the columns named, each where rows differ in it."""
    names = ("run", "capture", *more)
    return [Column(name, name) for name in names if frame[name].n_unique() > 1]


def place_columns(frame: pl.DataFrame) -> list[Column]:
    """Run and capture where there are several, then rank and step."""
    return [*several(frame), Column("rank", "rank", plain), Column("step", "step", plain)]


def step_bar(row: Mapping[str, Any], width: int = 20) -> Text:
    """A step as one bar: computing, exposed communication, free; a dash where one is unknown."""
    parts = (row["computing_ns"], row["exposed_communication_ns"], row["free_ns"])
    if None in parts or sum(parts) <= 0:
        return Text(UNKNOWN)
    bar, cells, before = Text(), 0, 0
    for part_ns, (_, colour, block) in zip(parts, PARTS, strict=True):
        before += part_ns
        upto = round(width * before / sum(parts))
        bar.append(block * (upto - cells), style=colour)
        cells = upto
    return bar


def steps_table(frame: pl.DataFrame, *, caption: str | None = None) -> FittedTable:
    """The step breakdown, a row per rank and step."""
    rows = [{**row, "bar": row} for row in frame.to_dicts()]
    columns = [
        *place_columns(frame),
        Column("where it goes", "bar", step_bar, 3, is_drawing=True),
        Column("stage", "stage_ns", ms),
        Column("computing", "computing_ns", ms),
        Column("communication", "communication_ns", ms, 1),
        Column("exposed", "exposed_communication_ns", ms),
        Column("masked", "masking_ratio", percent),
        Column("free", "free_ns", ms),
        Column("bubble", "bubble_ns", ms, 2),
        Column("preparing", "preparing_ns", ms, 4),
    ]
    if "is_warm_up" in frame.columns and frame["is_warm_up"].any():
        columns.append(Column("", "is_warm_up", lambda value: "warm-up" if value else ""))
    if (frame["basis"] == "profiler_table").any():
        columns.append(Column("basis", "basis", None, 5))
    legend = ", ".join(f"{block} {name}" for name, _, block in PARTS) + f"; {FREE_MEANS}"
    return FittedTable(columns, rows, "Where each step goes (ms)", caption, legend)


def kernels_table(frame: pl.DataFrame) -> FittedTable:
    """Kernels by one key, a row per rank, step and key."""
    key = next(name for name in ("type", "name", "shape", "core") if name in frame.columns)
    columns = [
        *place_columns(frame),
        Column(key, key),
        *([Column("core", "core", None, 1)] if key != "core" else []),
        Column("count", "count", number),
        Column("total ms", "total_ns", ms),
        Column("of computing", "computing_share_ratio", percent),
        Column("mean us", "mean_ns", us),
        Column("p50 us", "p50_ns", us, 2),
        Column("p99 us", "p99_ns", us, 2),
        Column("max us", "max_ns", us, 3),
    ]
    return FittedTable(columns, frame.to_dicts())


def frame_table(frame: pl.DataFrame) -> FittedTable:
    """Any frame: a column's ending says how it is shown."""
    columns = []
    for name, kind in frame.schema.items():
        ending = next((e for e in _FORMS if name.endswith(e)), "")
        unit, form = ("MiB", mebibytes) if is_memory(name) else _FORMS.get(ending, ("", None))
        if not ending and kind.is_numeric():
            form = _figure
        heading = " ".join([*name.removesuffix(ending).split("_"), unit]).strip()
        columns.append(Column(heading, name, form))
    return FittedTable(columns, frame.to_dicts())


def _figure(value: int | float | None) -> str:
    return plain(value) if value is None or isinstance(value, int) else figure("{:,.1f}", value)


_FORMS: dict[str, tuple[str, Callable[[Any], str | Text]]] = {
    "_ns": ("ms", ms),
    "_bytes": ("MB", megabytes),
    "_ratio": ("", percent),
    "_count": ("count", number),
}
