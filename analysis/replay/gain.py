"""What changes gain, by the replay of a capture: one place for findings and for causes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import polars as pl

from .capture_changes import changed
from .capture_what_if import predicted_steps
from .captures import CaptureJob
from .changes import parse_change


@dataclass(frozen=True, slots=True)
class Gain:
    """ns that a step gets shorter by, and between what; of a step that takes `measured_ns`."""

    gain_ns: int
    low_ns: int
    high_ns: int
    measured_ns: int


def gain_of(
    con: duckdb.DuckDBPyConnection, job: CaptureJob, words: Sequence[str],
    *, beside: Sequence[str] = (), step: int | None = None,
) -> Gain:  # fmt: skip
    """Of the mean step, or of one: what the changes gain beyond those beside them, which are made
    in both. Raises CannotAnswer and UsageError."""
    row = _predicted(con, job, [*beside, *words], step)
    replayed, measured = row["replayed_step_ns"], row["measured_step_ns"]
    others = 0
    if beside:
        others = replayed - _predicted(con, job, beside, step)["predicted_step_ns"]
    return Gain(
        replayed - row["predicted_step_ns"] - others,
        measured - row["predicted_high_ns"] - others,
        measured - row["predicted_low_ns"] - others, measured,
    )  # fmt: skip


def _predicted(
    con: duckdb.DuckDBPyConnection, job: CaptureJob, words: Sequence[str], step: int | None
) -> dict[str, int]:
    times = predicted_steps(job, changed(con, job, [parse_change(word) for word in words]))
    row = times.row(-1, named=True)
    for own in times.filter(pl.col("step").eq_missing(pl.lit(step, pl.Int64))).to_dicts():
        row = own
    return row
