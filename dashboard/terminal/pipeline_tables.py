"""What pipeline schedules cost, as terminal tables."""

from __future__ import annotations

import polars as pl
from rich.console import RenderableType

from npuscope.analysis.wording import percent

from .tables import Column, FittedTable, decimals

_times = decimals("{:,.3f}", 1)


def formula_table(found: pl.DataFrame) -> RenderableType:
    """Rows of the metric `pipeline_formula`."""
    return FittedTable(
        [
            Column("device", "device", str),
            Column("step (ns)", "step_ns", _times),
            Column("bubble (ns)", "bubble_ns", _times),
            Column("bubble", "bubble_ratio", percent),
            Column("activations held", "live_activations", decimals("{:,.2f}", 1)),
        ],
        found.to_dicts(),
        "Pipeline on even stages",
    )
