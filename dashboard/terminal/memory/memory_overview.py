"""The whole answer about memory: which ranks are full, and what fills the fullest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import duckdb
import polars as pl
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.text import Text

from npuscope.analysis import query
from npuscope.analysis.query import MemoryFacts
from npuscope.analysis.scope import Scope
from npuscope.analysis.wording import mebibytes

from .memory_tables import (
    change,
    component_name,
    components_table,
    first_records,
    holders_table,
    spread_table,
)

Place = tuple[str, str, int]  # run, capture, rank
_MOST_GROWTH = 10


def overview(con: duckdb.DuckDBPyConnection, facts: MemoryFacts, *, top: int) -> RenderableType:
    """The whole answer: ranks (the fullest first), the fullest rank's curve and holders, growth."""
    main = facts.main
    if main.is_empty():
        return Text("no memory was recorded")
    parts: list[RenderableType] = []
    zero_ns = first_records(facts.components)
    fullest: Place = main.select("run", "capture", "rank").row(0)
    title = "Memory by component"
    if len(zero_ns) > 1:
        several = "Ranks, the fullest first" if len(zero_ns) <= top else f"The {top} fullest ranks"
        telling = pl.col("component").is_in(main["component"].unique().implode())
        spread = facts.spread.filter(
            (pl.col("source") == "record") & (telling | (pl.col("measure") == "peak"))
        )
        parts += [components_table(main.head(top), title=several, zero_ns=zero_ns), Text()]
        parts += [spread_table(spread), Text()]
        title = f"Rank {_named(facts, fullest)} by component"
    own = _at(facts.components, fullest)
    parts += [components_table(own, title=title, zero_ns=zero_ns), Text()]
    for chart in charts(con, [fullest], facts):
        parts += [chart, Text()]
    holders = _at(facts.holders, fullest)
    if not holders.is_empty():
        parts += [holders_table(holders, top=top), Text()]
    parts += [Text(line) for line in growth_lines(facts)]
    return Group(*parts)


def fullest_charts(
    con: duckdb.DuckDBPyConnection, facts: MemoryFacts, *, top: int
) -> RenderableType:
    """The curves of the `top` fullest ranks."""
    ranks = facts.main.select("run", "capture", "rank").unique(maintain_order=True)
    places: list[Place] = ranks.head(top).rows()
    parts = [part for chart in charts(con, places, facts) for part in (chart, Text())]
    return Group(*parts) if parts else Text("no memory was recorded")


def charts(
    con: duckdb.DuckDBPyConnection, places: Sequence[Place], facts: MemoryFacts
) -> Iterator[MemoryChart]:
    """The curve of each rank's main component, on each of its devices."""
    zero_ns = first_records(facts.components)
    for place in places:
        run, capture, rank = place
        steps = query.memory_steps(con, Scope(run, capture, rank))
        for main in _at(facts.main, place).to_dicts():
            curve = query.memory_curve(
                con, Scope(run, capture, rank), source=main["source"], component=main["component"]
            )
            device = pl.col("device_id").eq_missing(pl.lit(main["device_id"], pl.Int32))
            title = f"Rank {_named(facts, place)}, {component_name(main)}"
            yield MemoryChart(title, curve.filter(device), zero_ns[place], steps)


def growth_lines(facts: MemoryFacts) -> Iterator[str]:
    """What is to be said about growth, in sentences."""
    for row in facts.steady.head(_MOST_GROWTH).to_dicts():
        place = row["run"], row["capture"], row["rank"]
        yield (
            f"rank {_named(facts, place)}, {component_name(row)}: grows steadily,"
            f" {change(row['growth_per_step_bytes'])} MiB per step over steps"
            f" {row['first_step']}-{row['last_step']},"
            f" {mebibytes(row['last_bytes'])} MiB at the end"
        )
    if facts.steady.height > _MOST_GROWTH:
        yield f"and {facts.steady.height - _MOST_GROWTH} more: --by growth"
    if facts.growth.is_empty():
        yield "Growth: no steps were recorded with memory"
    elif facts.growth["is_steady"].null_count() == facts.growth.height:
        most = facts.growth.select(pl.col("step_count").max()).item()
        yield f"Growth: a trend needs five steps, recorded: {most}"
    elif facts.steady.is_empty():
        yield "Growth: none that is steady"


def _named(facts: MemoryFacts, place: Place) -> str:
    """The number of a rank, with its run and capture where there are several."""
    run, capture, rank = place
    several = facts.components.select("run", "capture").n_unique() > 1
    return f"{rank} of {run} {capture}" if several else f"{rank}"


def _at(frame: pl.DataFrame, place: Place) -> pl.DataFrame:
    run, capture, rank = place
    return frame.filter(
        (pl.col("run") == run) & (pl.col("capture") == capture) & (pl.col("rank") == rank)
    )


ALLOCATED, RESERVED = "cyan", "bright_black"
_EIGHTHS = " ▁▂▃▄▅▆▇█"
_MIB = 1 << 20
_MAX_COLUMNS = 120


@dataclass(frozen=True, slots=True)
class MemoryChart:
    """One curve as `memory_curve` gives it: rows of one rank, device and component.

    Times are shown from `zero_ns` on. `steps` has columns step and start_ns of the steps to mark.
    """

    title: str
    curve: pl.DataFrame
    zero_ns: int
    steps: pl.DataFrame | None = None
    height: int = 8

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        if self.curve.is_empty() or options.ascii_only:  # it would be question marks
            return
        floor, most = self._range()
        labels = _labels(floor, most, self.height)
        margin = max(map(len, labels)) + 2
        width = max(min(options.max_width - margin, _MAX_COLUMNS), 10)
        yield Text(self.title, style="bold")
        columns = self._columns(width)
        for row in reversed(range(self.height)):
            line = Text(f"{labels[row]:>{margin - 2}} |")
            for allocated, reserved in columns:
                unit = max(most - floor, 1) / self.height
                line.append(*_cell(allocated - floor, reserved - floor, row, unit))
            yield line
        yield Text(f"{labels[-1]:>{margin - 2}} +" + "-" * width)
        if self.steps is not None and self.steps.height:
            yield Text(" " * margin + self._step_marks(width))
        yield Text(" " * margin + self._time_axis(width), style="bright_black")
        yield self._legend()

    def _range(self) -> tuple[int, int]:
        """Bytes at the lower and the upper edge."""
        measured = "allocated" if self._allocated() else "reserved"
        least = min(_known_values(self.curve[f"{measured}_min_bytes"]), default=0)
        most = max(_known_values(self.curve["reserved_max_bytes"]) + self._allocated(), default=0)
        floor = least - (most - least) // 8 if most // 2 < least < most else 0
        return floor, most

    def _allocated(self) -> list[int]:
        return _known_values(self.curve["allocated_max_bytes"])

    def _legend(self) -> Text:
        legend = Text("█ ", style=ALLOCATED)
        if not self._allocated():
            return legend + Text("reserved (MiB)", style="not bold default")
        legend.append("allocated, ", style="default")
        legend.append("░ ", style=RESERVED)
        return legend.append("reserved (MiB)", style="default")

    def _columns(self, width: int) -> list[tuple[int, int]]:
        """Most allocated and most reserved of each column; 0 where a curve has not begun."""
        has_allocated = bool(self._allocated())
        count = self._bin_count()
        most: dict[int, tuple[int, int]] = {}
        values = self.curve.select("bin", "allocated_max_bytes", "reserved_max_bytes").rows()
        for place, allocated, reserved in values:
            solid, light = (allocated, reserved) if has_allocated else (reserved, None)
            most[place] = (solid or 0, light or 0)
        columns = []
        for column in range(width):
            first = column * count // width
            last = max((column + 1) * count // width, first + 1)
            inside = [most.get(place, (0, 0)) for place in range(first, last)]
            columns.append((max(a for a, _ in inside), max(r for _, r in inside)))
        return columns

    def _bin_count(self) -> int:
        return int(self.curve.select(pl.col("bin").max()).item()) + 1

    def _span(self) -> tuple[int, int]:
        """Start and length in ns of the time that the columns share."""
        place, start_ns, end_ns = self.curve.select("bin", "start_ns", "end_ns").row(0)
        width_ns = end_ns - start_ns
        return start_ns - place * width_ns, width_ns * self._bin_count()

    def _step_marks(self, width: int) -> str:
        zero_ns, length_ns = self._span()
        line = ""
        assert self.steps is not None
        for step, start_ns in (
            self.steps.select("step", "start_ns").unique().sort("start_ns").rows()
        ):
            column = max((start_ns - zero_ns) * width // length_ns, 0)
            mark = f"|{step}"
            if len(line) <= column and column + len(mark) <= width:
                line = line.ljust(column) + mark
        return line

    def _time_axis(self, width: int) -> str:
        start_ns, length_ns = self._span()
        left, right = (
            f"{(at_ns - self.zero_ns) / 1e6:,.1f} ms" for at_ns in (start_ns, start_ns + length_ns)
        )
        return left + right.rjust(width - len(left))


def _known_values(values: pl.Series) -> list[int]:
    return [int(value) for value in values.drop_nulls().to_list()]


def _labels(floor: int, most: int, height: int) -> Sequence[str]:
    """Labels of the rows from the lowest, and of the axis: edges of the highest and a middle row,
    then the lower edge."""
    labels = [""] * (height + 1)
    labels[height] = f"{floor / _MIB:,.1f}" if floor else "0"
    labels[height - 1] = f"{most / _MIB:,.1f}"
    if height >= 4:
        labels[height // 2 - 1] = f"{(floor + (most - floor) * (height // 2) / height) / _MIB:,.1f}"
    return labels


def _cell(allocated: int, reserved: int, row: int, unit: float) -> tuple[str, str]:
    """Character and colour of one cell; `unit` is the bytes that a full cell stands for."""
    eighths = round((allocated / unit - row) * 8)
    if eighths > 0:
        return _EIGHTHS[min(eighths, 8)], ALLOCATED
    return ("░", RESERVED) if reserved / unit - row >= 0.5 else (" ", RESERVED)
