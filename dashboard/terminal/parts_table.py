"""Parts of a step as terminal tables: of a mean step, and of exposed communication."""

from __future__ import annotations

import polars as pl

from npuscope.analysis.parts import COMMUNICATION, exposed_parts
from npuscope.analysis.wording import ms, percent, plain

from .tables import Column, FittedTable

PART_WORDS = {
    "computing": "computing",
    "transfer": "communication that moves bytes",
    "peer_wait": "waiting for slower ranks",
    "absent_wait": "waiting for ranks not captured",
    "pipeline_wait": "waiting in the pipeline",
    "unknown_communication": "communication, bytes or waiting unknown",
    "host": "free: the host launches late",
    "idle": "free: idle, though launched",
    "free": "free: no work of the step",
}
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


def mean_parts_table(frame: pl.DataFrame) -> FittedTable:
    """Parts of a mean step: rows of `means.mean_parts` by capture."""
    columns = [
        Column("part", "words", is_word=True),
        Column("ms per step", "ns", ms),
        Column("of the step", "share_ratio", percent),
    ]
    words = pl.col("part").replace_strict(PART_WORDS).alias("words")
    return FittedTable(columns, frame.with_columns(words).to_dicts(), "Where a step's time goes")
