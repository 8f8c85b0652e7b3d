"""Our steps beside msprof-analyze's, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npuscope.analysis.doctor.compared_steps import Compared

RULES = "where the rules differ: docs/steps-and-the-profiler.md"


def compared_notes(compared: Sequence[Compared]) -> Iterator[str]:
    """A sentence per measure."""
    for one in compared:
        told = f"{one.agreeing_count} of {one.compared_count} steps agree"
        farthest = farthest_apart(one)
        rest = f"; farthest apart: {farthest}; {RULES}" if farthest else ""
        yield f"compared with msprof-analyze ({one.folder}): {one.measure}: {told}{rest}"


def farthest_apart(one: Compared) -> str | None:
    """Where the two differ most; None where all agree."""
    if one.agreeing_count == one.compared_count:
        return None
    step = "" if one.step is None else f", step {one.step}"
    figures = f"{one.ours_ns / 1e6:.3f} ms here, {one.theirs_ns / 1e6:.3f} ms there"
    return f"rank {one.rank}{step}: {figures}"
