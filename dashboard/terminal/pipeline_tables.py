"""What pipeline schedules cost, as terminal tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
from rich.console import RenderableType

from npuscope.analysis.wording import UNKNOWN, ms, percent

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


def tries_table(found: pl.DataFrame) -> RenderableType:
    """Rows of the metric `pipeline_tries`."""
    rows = [
        {
            **row,
            "range": f"{ms(row['predicted_low_ns'])} - {ms(row['predicted_high_ns'])}",
            "micro_batch_ns": row["predicted_step_ns"] / row["micro_batches"],
            "held": _spread(row["devices"], "live_activations", "{:,.4g}".format),
            "kept": _spread(row["devices"], "kept_bytes", _gib),
            "placed": " ".join(map(str, row["layers"] or [])) or None,
        }
        for row in found.iter_rows(named=True)
    ]
    columns = [
        Column("order", "name", str),
        Column("micro-batches", "micro_batches", str),
        Column("step (ms)", "predicted_step_ns", ms),
        Column("range", "range", str),
        Column("of a micro-batch", "micro_batch_ns", ms),
        Column("bubble", "bubble_ratio", percent),
        Column("activations held", "held", str),
    ]
    if any(row["kept"] for row in rows):
        columns.append(Column("GiB held", "kept", str))
    if any(row["needed_overlap_ratio"] is not None for row in rows):
        columns.append(Column("overlap needed", "needed_overlap_ratio", percent))
    if any(row["placed"] for row in rows):
        columns.append(Column("layers", "placed", lambda one: one or UNKNOWN))
    title = f"Step as measured: {ms(rows[0]['measured_step_ns'])} ms"
    return FittedTable(columns, rows, title)


def _spread(devices: list[dict[str, Any]], key: str, word: Callable[[float], str]) -> str:
    """Least and most over devices; empty where unknown."""
    known = [one[key] for one in devices if one[key] is not None]
    if not known:
        return ""
    least, most = word(min(known)), word(max(known))
    return least if least == most else f"{least} - {most}"


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / 2**30:,.2f}"
