"""Text that Markdown shows as it is: names from profiles may hold anything."""

from __future__ import annotations

from npuscope.console.printable import visible

_MARKS = str.maketrans({mark: f"\\{mark}" for mark in "\\`*_{}[]<>$#|~:!&"})


def plain(text: str) -> str:
    """The text with every mark that would mean something to Markdown taken back."""
    return visible(text).translate(_MARKS)


def sentence(text: str) -> str:
    """As `plain`, but for commands: what stands between two backticks of a line is shown as code,
    in which nothing else means anything either."""
    return "\n".join(_with_code(line) for line in visible(text).split("\n"))


def _with_code(line: str) -> str:
    parts = line.split("`")
    if len(parts) % 2 == 0:  # a name with a backtick of its own
        return plain(line)
    return "".join(
        (f"`{part}`" if part.strip() else plain("``")) if number % 2 else plain(part)
        for number, part in enumerate(parts)
    )
