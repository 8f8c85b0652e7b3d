"""Where tables and progress are drawn: a terminal, a file or a pipe that names cannot steer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from .printable import printable

_READABLE = 14  # letters of a word or two
_GAP = 2


class Screen(Console):
    """Stdout or stderr to draw on; whatever is drawn is made printable first."""

    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        super().__init__(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)
        if not self.width:  # COLUMNS=0, of a terminal that does not know its own: nothing would fit
            self.width = 80

    def render_str(self, text: str, **options: Any) -> Text:
        """Texts of cells, headings and captions."""
        return super().render_str(printable(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Styled texts: a replacement is as long as what it replaces, styles keep their places.
        Tables: one that is too wide is drawn as lines of heading and value."""
        if isinstance(renderable, Text) and renderable.plain != printable(renderable.plain):
            renderable = renderable.copy()
            renderable.plain = printable(renderable.plain)
        if isinstance(renderable, Table) and renderable.box is not None:
            room = (options or self.options).max_width
            if _readable_width(self, renderable) > room:
                renderable = _as_lines(renderable)
        yield from super().render(renderable, options)


def _readable_width(console: Console, table: Table) -> int:
    """What a table needs for texts to be folded between words, not between letters."""
    width = 0
    for column in table.columns:
        cells = [console.render_str(cell) if isinstance(cell, str) else cell
                 for cell in (column.header, *column.cells)]  # fmt: skip
        longest = max(
            (line.cell_len for cell in cells if isinstance(cell, Text) for line in cell.split()),
            default=0,
        )
        width += (longest if column.no_wrap else min(longest, _READABLE)) + _GAP
    return width - _GAP


def _as_lines(table: Table) -> Group:
    """Each row of a table as lines of heading and value, with an empty line after it."""
    parts: list[RenderableType] = []
    if table.title:
        parts.append(Text(str(table.title), style=table.title_style or ""))
    for cells in zip(*(column.cells for column in table.columns), strict=True):
        lines = Table.grid(padding=(0, _GAP, 0, 0))
        lines.add_column(style="bright_black", max_width=_READABLE + _GAP, overflow="fold")
        lines.add_column(overflow="fold")
        for column, cell in zip(table.columns, cells, strict=True):
            lines.add_row(column.header, cell)
        parts += [lines, ""]
    if table.caption:
        parts.append(Text(str(table.caption), style="italic"))
    return Group(*parts)
