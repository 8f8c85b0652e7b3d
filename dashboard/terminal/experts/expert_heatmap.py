"""Expert load drawn in the terminal: a line per layer, a block per expert or a few of them.

0 |░░▒█░░▒░░·░░░▒▒░        █ is twice the layer's mean and more, · less than a tenth of it;
1 |▒▒▒▓▒▒▒▒▒▒░▒▒▒▒▒        a block for several experts shows the fullest of them
  +----------------
   0              15       experts
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl
from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from npuscope.analysis.experts.load.mean_layers import over_mean

# From how many times the layer's mean on a block is drawn like this.
LEVELS = (
    (0.0, "·", "bright_black"),
    (0.1, "░", "blue"),
    (0.75, "▒", "green"),
    (1.25, "▓", "yellow"),
    (2.0, "█", "red"),
)
_UNKNOWN = (" ", "")
_MAX_COLUMNS, _MAX_LINES = 256, 64


@dataclass(frozen=True, slots=True)
class Heatmap:
    """Loads of one run, capture and phase, all steps together: columns layer, `item`, tokens."""

    loads: pl.DataFrame
    item: str = "expert"
    title: str | None = None

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        if self.loads.is_empty():
            return
        items = _span(self.loads[self.item])
        layers = _span(self.loads["layer"])
        margin = len(str(layers[1])) + 2
        each = -(
            -(items[1] - items[0] + 1) // min(max(options.max_width - margin, 10), _MAX_COLUMNS)
        )
        lines_each = -(-(layers[1] - layers[0] + 1) // _MAX_LINES)
        cells = binned(self.loads, self.item, each, lines_each)
        if self.title:
            yield Text(self.title, style="bold")
        width = (items[1] - items[0]) // each + 1
        for at in range((layers[1] - layers[0]) // lines_each + 1):
            line = Text(f"{layers[0] + at * lines_each:>{margin - 2}} |")
            for column in range(width):
                line.append(*_drawn(cells.get((at, column))))
            yield line
        yield Text(" " * (margin - 1) + "+" + "-" * width)
        last = str(items[1])
        axis = f"{items[0]!s:<{max(width - len(last), len(str(items[0])) + 1)}}{last}"
        yield Text(f"{'':{margin}}{axis}  {self.item}s, layers down", style="bright_black")
        yield self._legend(each, lines_each)

    def _legend(self, each: int, lines_each: int) -> Text:
        text = Text("times the layer's mean:", style="bright_black")
        for least, block, colour in LEVELS:
            text.append(f" {block}", style=colour)
            text.append(f" {least:g}+" if least else " less")
        if each > 1 or lines_each > 1:
            lines = f" x {lines_each} layers" if lines_each > 1 else ""
            text.append(f"; a block is the maximum of {each} {self.item}s{lines}")
        return text


def binned(
    loads: pl.DataFrame, item: str, each: int, lines_each: int
) -> dict[tuple[int, int], float]:
    """The fullest of each block, in times its layer's mean, by (line, column) from the first."""
    first_layer, first = _span(loads["layer"])[0], _span(loads[item])[0]
    blocks: dict[tuple[int, int], float] = {}
    told = over_mean(loads, item).select("layer", item, "over_mean").drop_nulls()
    for layer, place, value in told.iter_rows():
        at = ((layer - first_layer) // lines_each, (place - first) // each)
        blocks[at] = max(value, blocks.get(at, 0.0))
    return blocks


def _drawn(value: float | None) -> tuple[str, str]:
    if value is None:
        return _UNKNOWN
    _, block, colour = next(level for level in reversed(LEVELS) if value >= level[0])
    return block, colour


def _span(column: pl.Series) -> tuple[int, int]:
    values = column.unique().sort().to_list()
    return int(values[0]), int(values[-1])
