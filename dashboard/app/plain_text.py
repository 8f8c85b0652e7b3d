"""Text that Markdown shows as it is: names from profiles may hold anything."""

from __future__ import annotations

from npuscope.console.printable import visible

_MARKS = str.maketrans({mark: f"\\{mark}" for mark in "\\`*_{}[]<>$#|~:!&"})


def plain(text: str) -> str:
    """The text with every mark that would mean something to Markdown taken back."""
    return visible(text).translate(_MARKS)
