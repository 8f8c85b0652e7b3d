"""What a change would make of a step, as terminal tables."""

from __future__ import annotations

from typing import Any

import polars as pl
from rich.console import Group, RenderableType

from npuscope.analysis.wording import UNKNOWN, ms, percent

from .tables import Column, FittedTable

_MOST_CONTRIBUTIONS = 12
_STEPS = {
    "measured_ns": "measured",
    "replayed_ns": "replayed, without launch delays",
    "predicted_ns": "with the changes",
    "ideal_ns": "ideal: all phases of a type alike",
}


def what_if_tables(found: pl.DataFrame) -> RenderableType:
    """A row of the metric `whatif`: a table of steps, and of contributions where nothing else was
    asked for than the ideal."""
    (row,) = found.to_dicts()
    replayed = row["replayed_ns"]
    steps = [
        {"words": words, "ns": row[key], "factor": replayed / row[key] if row[key] else None}
        for key, words in _STEPS.items()
        if row[key] is not None
    ]
    workers = ", ".join(f"({peer},{stage})" for peer, stage in row["worst_workers"])
    shares = (
        f"{percent(row['last_stage_share'])} of what is lost to the ideal step is the last stage"
        f" (M_s), {percent(row['worst_workers_share'])} the worst workers (M_w): {workers}"
    )
    columns = [
        Column("mean step", "words", is_word=True),
        Column("ms", "ns", ms),
        Column("faster than replayed", "factor", _times),
    ]
    first = FittedTable(columns, steps, "What if", shares)
    if row["predicted_ns"] not in (None, row["ideal_ns"]):
        return first
    listed = sorted(row["contributions"], key=_weight)
    more = len(listed) - _MOST_CONTRIBUTIONS
    return Group(first, FittedTable(
        [
            Column("of", "kind"),
            Column("name", "name"),
            Column("step, times the ideal", "slowdown", _times),
        ],
        listed[:_MOST_CONTRIBUTIONS],
        "What makes the step longer, each alone",
        f"{more} more with --json" if more > 0 else None,
    ))  # fmt: skip


def _weight(row: dict[str, Any]) -> float:
    return -(row["slowdown"] or 0.0)


def _times(value: float | None) -> str:
    return UNKNOWN if value is None else f"x {value:.4f}"
