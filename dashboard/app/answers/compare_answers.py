"""What the page Compare asks of its functions: which steps stand beside each other, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from npuscope.analysis.timeline.bins import MOST_CELLS, MOST_COLUMNS

_MOST_PAIRS = 3
# Of more ranks one pair of steps: cells of all are as many as a browser draws.
_MANY_RANKS = 64


@dataclass(frozen=True, slots=True)
class Window:
    """A step of a capture, or all of one without steps: half-open, on its shown clock; `at_ns` is
    where it stands on the common axis."""

    step: int | None
    start_ns: int
    end_ns: int
    at_ns: int = 0


def windows(
    borders: pl.DataFrame, steps: Sequence[int | None], whole_ns: tuple[int, int]
) -> list[Window]:
    """The compared steps of a capture in order of time: rows of `step_borders` for `steps`."""
    rows = borders.filter(pl.col("step").is_in([one for one in steps if one is not None]))
    found = [Window(*row) for row in rows.sort("start_ns")["step", "start_ns", "end_ns"].rows()]
    return found or [Window(None, *whole_ns)]


def side_by_side(
    a: Sequence[Window], b: Sequence[Window], step: int | None, ranks: int
) -> tuple[list[tuple[Window, Window]], int]:
    """Steps of A and B in pairs that begin at the same place, and the length of the axis.

    The first with the first, and so on; of a chosen `step` of B that pair alone.
    """
    pairs = list(zip(a, b, strict=False))
    chosen = [pair for pair in pairs if step is not None and pair[1].step == step]
    pairs = chosen or pairs[: 1 if ranks > _MANY_RANKS else _MOST_PAIRS]
    placed: list[tuple[Window, Window]] = []
    at_ns = 0
    for pair in pairs:
        ours, theirs = (Window(one.step, one.start_ns, one.end_ns, at_ns) for one in pair)
        placed.append((ours, theirs))
        at_ns += max(one.end_ns - one.start_ns for one in pair)
    return placed, at_ns


def columns_of(pairs: int, ranks: int) -> int:
    """Bins of each step, so that all of them together are not too many."""
    return max(min(MOST_COLUMNS // pairs, MOST_CELLS // (2 * pairs * ranks)), 8)
