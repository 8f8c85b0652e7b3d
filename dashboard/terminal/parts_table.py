"""Parts of exposed communication as a terminal table: moving bytes, or waiting for whom."""

from __future__ import annotations

import polars as pl

from npuscope.analysis.parts import COMMUNICATION, exposed_parts
from npuscope.analysis.wording import ms, percent, plain

from .tables import Column, FittedTable

_HEADERS = {
    "transfer": "moves bytes", "peer_wait": "waits for ranks", "absent_wait": "ranks not captured",
    "pipeline_wait": "another stage", "unknown_communication": "unknown",
}  # fmt: skip


def parts_table(frame: pl.DataFrame) -> FittedTable:
    """A row per rank and step, a column per part; `-`: none is known of it."""
    several = [Column(key, key) for key in ("run", "capture") if frame[key].n_unique() > 1]
    columns = [
        *several,
        Column("rank", "rank", plain),
        Column("step", "step", plain),
        Column("exposed", "exposed_ns", ms),
        Column("of the step", "share_ratio", percent, 1),
        *(Column(_HEADERS[part], f"{part}_ns", ms) for part in COMMUNICATION),
    ]
    caption = "waits: for captured ranks, for ranks not captured, for another pipeline stage"
    return FittedTable(
        columns, exposed_parts(frame).to_dicts(), "What exposed communication is (ms)", caption
    )
