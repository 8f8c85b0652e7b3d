"""Clocks of hosts as a terminal table."""

from __future__ import annotations

import polars as pl

from npuscope.analysis.wording import UNKNOWN, number, numbers, us

from .tables import Column, FittedTable


def clocks_table(frame: pl.DataFrame) -> FittedTable:
    """A row per clock: how far it is ahead of the reference host's, and how sure that is."""
    several = [Column(key, key) for key in ("run", "capture") if frame[key].n_unique() > 1]
    rows = [
        {**row, "of": numbers(row["ranks"]), "host": row["host"] or "(unknown)"}
        for row in frame.to_dicts()
    ]
    columns = [
        *several,
        Column("host", "host"),
        Column("ranks", "of"),
        Column("offset ms", "offset_ns", _signed_ms),
        Column("+- us", "error_ns", us),
        Column("drift ppm", "drift_ppm", _ppm),
        Column("residual us", "residual_ns", us, 1),
        Column("least ms", "lower_ns", _signed_ms, 5),
        Column("most ms", "upper_ns", _signed_ms, 4),
        Column("common operations", "instance_count", number, 3),
        Column("by", "basis", None, 2),
    ]
    caption = "offset: ahead of the reference; +-: 95 %; least, most: bounds by causality"
    return FittedTable(columns, rows, "Clocks", caption)


def _signed_ms(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value / 1e6:+,.6f}" if value else "0"


def _ppm(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:+.3f}"
