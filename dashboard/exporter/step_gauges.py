"""Gauges of time: steps, masking, exposed communication by kind, waiting of stages."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import polars as pl

from npuscope.analysis import means
from npuscope.analysis.parts import COMMUNICATION, FREE

Frames = dict[str, pl.DataFrame]
_PARTS = {
    "computing": "computing_ns",
    "exposed_communication": "exposed_communication_ns",
    "free": "free_ns",
}


def step_gauges(con: duckdb.DuckDBPyConnection, keys: Sequence[str]) -> Frames:
    """Values of each of `keys` (run and capture, or these and step) by metric: keys, labels, value.

    Of captures they are means without warm-up, as the metrics `mean_steps` and `mean_comm` tell
    them; where these know nothing, no row.
    """
    keys = list(keys)
    is_by_step = "step" in keys
    job = means.mean_steps(con, by="step" if is_by_step else "capture")
    ranks = means.mean_steps(con, by="rank_step" if is_by_step else "rank")
    stages = means.mean_steps(con, by="stage_step" if is_by_step else "stage")
    kinds = means.mean_comm(con, is_by_step=is_by_step)
    told = means.mean_parts(con, by="step" if is_by_step else "capture")
    of_rank = [*keys, "rank"]
    parts = [
        _seconds(job, keys, column).with_columns(part=pl.lit(part))
        for part, column in _PARTS.items()
    ]
    frames = {
        "npuscope_step_seconds": _seconds(job, keys, "job_step_ns"),
        "npuscope_step_part_seconds": pl.concat(parts),
        "npuscope_job_masking_ratio": _value(job, keys, "masking_ratio"),
        "npuscope_masking_ratio": _value(kinds, [*keys, "kind"], "masking_ratio"),
        "npuscope_exposed_seconds": _seconds(kinds, [*keys, "kind"], "exposed_attributed_ns"),
        "npuscope_exposed_part_seconds": _seconds(
            told.filter(pl.col("part").is_in(COMMUNICATION)), [*keys, "part"], "ns"
        ),
        "npuscope_free_part_seconds": _seconds(
            told.filter(pl.col("part").is_in(FREE)), [*keys, "part"], "ns"
        ),
        "npuscope_free_ratio": _value(job, keys, "free_ratio"),
        "npuscope_pipeline_wait_ratio": _value(stages, [*keys, "stage"], "bubble_ratio"),
        "npuscope_rank_step_seconds": _seconds(ranks, of_rank, "step_ns"),
        "npuscope_rank_computing_seconds": _seconds(ranks, of_rank, "computing_ns"),
        "npuscope_rank_exposed_seconds": _seconds(ranks, of_rank, "exposed_communication_ns"),
        "npuscope_rank_free_seconds": _seconds(ranks, of_rank, "free_ns"),
        "npuscope_rank_masking_ratio": _value(ranks, of_rank, "masking_ratio"),
    }
    if not is_by_step:
        frames["npuscope_capture_warm_up_steps"] = _value(job, keys, "warm_up_count")
    return frames


def _seconds(rows: pl.DataFrame, keys: list[str], column: str) -> pl.DataFrame:
    """Of a column in ns."""
    return rows.select(*keys, (pl.col(column) / 1e9).alias("value")).drop_nulls("value")


def _value(rows: pl.DataFrame, keys: list[str], column: str) -> pl.DataFrame:
    return rows.select(*keys, pl.col(column).alias("value")).drop_nulls("value")
