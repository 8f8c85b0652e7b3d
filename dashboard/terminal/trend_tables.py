"""When a run became slower or faster, as a table in a terminal and on the page."""

from __future__ import annotations

from typing import Any

import polars as pl

from npuscope.analysis.wording import UNKNOWN

from .measures import MEASURES, figure
from .tables import Column, FittedTable

WORDS = {
    ("captures", "step_ns"): "step of the job (ms)",
    ("captures", "computing_ns"): "computing (ms)",
    ("captures", "exposed_communication_ns"): "exposed communication (ms)",
    ("captures", "free_ns"): "free (ms)",
    ("captures", "masking_ratio"): MEASURES["masking_ratio"],
    ("captures", "kernel_mfu_causal_ratio"): MEASURES["kernel_mfu_causal_ratio"],
    ("train_log", "step_ns"): "logged step (ms)",
    ("train_log", "tokens_per_s"): "logged tokens/s",
}


def change_rows(changes: pl.DataFrame) -> list[dict[str, Any]]:
    """A row of texts per row of the metric `trend_changes`: run, what, since, before, after, delta,
    share, range, low, high, count."""
    return [
        {
            "run": row["run"],
            "what": WORDS[row["basis"], row["measure"]],
            "since": row["capture"] if row["step"] is None else f"{row['step']:,}",
            "share": _signed_percent(row["delta_ratio"]),
            "low_share": _signed_percent(row["low_ratio"]),
            "high_share": _signed_percent(row["high_ratio"]),
            "count": f"{row['before_count']:,} / {row['after_count']:,}",
        }
        | {
            key: figure(row["measure"], row[key])
            for key in ("before", "after", "delta", "low", "high")
        }
        for row in changes.iter_rows(named=True)
    ]


def changes_table(changes: pl.DataFrame) -> FittedTable:
    """A row per change, in order of time for each measure."""
    columns = [
        *([Column("run", "run")] if changes["run"].n_unique() > 1 else []),
        Column("mean of a step", "what", is_word=True),
        Column("since capture or step", "since"),
        Column("before", "before", str, 3), Column("after", "after", str, 3),
        Column("change", "delta", str), Column("change (%)", "share", str),
        Column("95 % from", "low_share", str, 1), Column("to", "high_share", str, 1),
        Column("values before / after", "count", str, 2),
    ]  # fmt: skip
    return FittedTable(columns, change_rows(changes), "Changes over time")


def _signed_percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{share:+.1%}"
