"""Gauges of time: steps, masking, exposed communication by kind, waiting of stages."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import polars as pl

from npuscope.analysis import query
from npuscope.analysis.flops.lengths import step_lengths
from npuscope.analysis.parts import mean_exposed, step_parts
from npuscope.analysis.views import frame

Frames = dict[str, pl.DataFrame]
_STAGES = "select run, capture, rank, any_value(pp_rank) as stage, any_value(pp_size) as pp_size"
_PLACE = ["run", "capture", "rank", "step"]
_PARTS = {
    "computing": "computing_ns",
    "exposed_communication": "exposed_communication_ns",
    "free": "free_ns",
}


def step_gauges(con: duckdb.DuckDBPyConnection, keys: Sequence[str]) -> Frames:
    """Values of each of `keys` (run and capture, or these and step) by metric: keys, labels, value.

    Seconds are means of what is known, ratios quotients of sums; without either, no row.
    """
    keys = list(keys)
    steps = query.steps(con).with_columns(
        extent_ns=pl.coalesce(
            pl.col("end_ns") - pl.col("start_ns"),
            pl.sum_horizontal(pl.col(column) for column in _PARTS.values()),
        )
    )
    lengths = step_lengths(con)
    stages = frame(con, f"{_STAGES} from ranks group by all")
    comm = query.comm(con, by="kind").join(
        steps.select(_PLACE), on=_PLACE, how="semi", nulls_equal=True
    )
    staged = steps.join(stages, on=_PLACE[:3]).filter(
        pl.col("stage").is_not_null(), pl.col("pp_size") > 1
    )
    longest = lengths.group_by("run", "capture", "step").agg(pl.col("step_ns").max())
    of_rank = [*keys, "rank"]
    parts = [
        _mean(steps, keys, column).with_columns(part=pl.lit(part))
        for part, column in _PARTS.items()
    ]
    return {
        "npuscope_step_seconds": _mean(longest, keys, "step_ns"),
        "npuscope_step_part_seconds": pl.concat(parts),
        "npuscope_job_masking_ratio": _ratio(steps, keys, "overlapped_ns", "communication_ns"),
        "npuscope_masking_ratio": _ratio(comm, [*keys, "kind"], "masked_ns", "union_ns"),
        "npuscope_exposed_seconds": _exposed(comm, steps, keys),
        "npuscope_exposed_part_seconds": mean_exposed(step_parts(con), keys).select(
            *keys, "part", (pl.col("ns") / 1e9).alias("value")
        ),
        "npuscope_free_ratio": _ratio(steps, keys, "free_ns", "extent_ns"),
        "npuscope_pipeline_wait_ratio": _ratio(
            staged, [*keys, "stage"], "bubble_ns", "extent_ns"
        ),
        "npuscope_rank_step_seconds": _mean(lengths, of_rank, "step_ns"),
        "npuscope_rank_computing_seconds": _mean(steps, of_rank, "computing_ns"),
        "npuscope_rank_exposed_seconds": _mean(steps, of_rank, "exposed_communication_ns"),
        "npuscope_rank_free_seconds": _mean(steps, of_rank, "free_ns"),
        "npuscope_rank_masking_ratio": _ratio(
            steps, of_rank, "overlapped_ns", "communication_ns"
        ),
    }  # fmt: skip


def _mean(rows: pl.DataFrame, keys: list[str], column: str) -> pl.DataFrame:
    """Seconds of a column in ns."""
    found = rows.group_by(keys, maintain_order=True).agg(
        (pl.col(column).mean() / 1e9).alias("value")
    )
    return found.drop_nulls("value")


def _ratio(rows: pl.DataFrame, keys: list[str], part: str, whole: str) -> pl.DataFrame:
    known = rows.filter(pl.col(part).is_not_null(), pl.col(whole).is_not_null())
    found = known.group_by(keys, maintain_order=True).agg(pl.col(part, whole).sum())
    return found.filter(pl.col(whole) > 0).select(
        *keys, (pl.col(part) / pl.col(whole)).alias("value")
    )


def _exposed(comm: pl.DataFrame, steps: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Of a mean rank and step, also of those that have none of the kind: so kinds add up."""
    known = steps.filter(pl.col("exposed_communication_ns").is_not_null())
    counted = known.group_by(keys).agg(pl.len().alias("count"))
    rows = comm.filter(pl.col("exposed_attributed_ns").is_not_null()).join(
        known.select(_PLACE), on=_PLACE, how="semi", nulls_equal=True
    )
    return (
        rows.group_by([*keys, "kind"], maintain_order=True)
        .agg(pl.col("exposed_attributed_ns").sum())
        .join(counted, on=keys, nulls_equal=True)
        .select(
            *keys, "kind", (pl.col("exposed_attributed_ns") / pl.col("count") / 1e9).alias("value")
        )
    )
