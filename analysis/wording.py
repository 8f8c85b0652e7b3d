"""How sentences name ranks."""

from __future__ import annotations

from collections.abc import Iterable

_SHOWN = 8


def ranks_named(ranks: Iterable[int]) -> str:
    """`rank 3` or `ranks 0-3, 7`."""
    listed = sorted(set(ranks))
    return f"rank{'s' if len(listed) > 1 else ''} {numbers(listed)}"


def numbers(values: Iterable[int]) -> str:
    """`0-3, 7`; a long list ends in how many more there are."""
    spans: list[list[int]] = []
    for value in sorted(set(values)):
        if spans and value == spans[-1][1] + 1:
            spans[-1][1] = value
        else:
            spans.append([value, value])
    shown = [str(a) if a == b else f"{a}-{b}" for a, b in spans[:_SHOWN]]
    more = sum(b - a + 1 for a, b in spans[_SHOWN:])
    return ", ".join(shown) + (f" and {more} more" if more else "")
