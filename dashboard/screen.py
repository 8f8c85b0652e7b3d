"""Where tables and progress are drawn: a terminal, a file or a pipe that names cannot steer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from .printable import printable


class Screen(Console):
    """Stdout or stderr to draw on; whatever is drawn is made printable first."""

    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        super().__init__(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """Texts of cells, headings and captions."""
        return super().render_str(printable(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Styled texts: a replacement is as long as what it replaces, styles keep their places."""
        if isinstance(renderable, Text) and renderable.plain != printable(renderable.plain):
            renderable = renderable.copy()
            renderable.plain = printable(renderable.plain)
        yield from super().render(renderable, options)
