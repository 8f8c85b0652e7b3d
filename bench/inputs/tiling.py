"""Text that repeats with numbers that grow: how a few steps become gigabytes of different ones.

The text is cut once at its numbers; a repetition joins the pieces with new numbers. Nothing is
decoded or encoded again, so a gigabyte takes seconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

# What a number grows by with each repetition; a function is told the text that surrounds it.
Growth = int | Callable[[str], int]
# A pattern with one group, the number, and its growth.
Rule = tuple[str, Growth]


@dataclass(frozen=True, slots=True)
class Tile:
    """Text of one repetition: `pieces` has a gap at each number, `starts` and `growths` fill it."""

    pieces: tuple[str, ...]
    starts: tuple[int, ...]
    growths: tuple[int, ...]

    def text(self, repetition: int) -> str:
        """The text as its `repetition`-th further copy, counted from 0."""
        filled = list(self.pieces)
        numbers = zip(self.starts, self.growths, strict=True)
        filled[1::2] = [str(start + repetition * growth) for start, growth in numbers]
        return "".join(filled)

    def texts(self, repetitions: int) -> Iterator[str]:
        return map(self.text, range(repetitions))


def tile(text: str, rules: Sequence[Rule]) -> Tile:
    """Cuts a text at the numbers that its rules name; the first rule that fits a place wins."""
    pattern = re.compile("|".join(rule for rule, _ in rules), re.MULTILINE)
    pieces, starts, growths = list[str](), list[int](), list[int]()
    end = 0
    for match in pattern.finditer(text):
        which = match.lastindex
        assert which is not None, f"a rule without a group met {match.group()!r}"
        growth = rules[which - 1][1]
        pieces += (text[end : match.start(which)], "")
        starts.append(int(match.group(which)))
        growths.append(growth(match.group()) if callable(growth) else growth)
        end = match.end(which)
    return Tile((*pieces, text[end:]), tuple(starts), tuple(growths))


def join(texts: Iterable[str]) -> Iterator[str]:
    """Texts that are not empty, with a comma between them."""
    between = ""
    for text in texts:
        if text:
            yield between + text
            between = ", "
