"""How much of what uneven all-to-alls take longer delays a step: what compute does not hide.

    bytes of an even device    |=======|
    bytes of the fullest       |=================|     excess: the end of it
    compute beside             |###########|
    exposed                                |-----|     of the excess at most that

Compute that is as long as it is whatever the load hides the beginning of an operation first. So a
masking ratio of a half may hide nothing of the excess, and nothing is left of it where an operation
is hidden in full.
"""

from __future__ import annotations

import polars as pl

from ..load.load import ExpertTables
from .exchanges import of_captures
from .token_times import CAPTURE

_OPERATIONS: dict[str, type[pl.DataType]] = {
    "run": pl.String, "capture": pl.String, "step": pl.Int64, "stage": pl.Int32,
    "over_bytes": pl.Float64, "exposed": pl.Float64,
}  # fmt: skip
SHARES: dict[str, type[pl.DataType]] = {
    "run": pl.String, "capture": pl.String, "step": pl.Int64, "stage": pl.Int32,
    "exchange_exposed_ratio": pl.Float64,
}  # fmt: skip


def exposed_ratios(rows: pl.DataFrame, times: pl.DataFrame, tables: ExpertTables) -> pl.DataFrame:
    """HIDDEN: a row per step and pipeline stage, and one of stage NULL for all stages together.

    `rows` are of `exchanges.exchanges`, `times` of `exchanges.exchange_times`. The ratio is the sum
    over operations of the lesser of excess and exposed time by the sum of excess: ns per byte x
    (bytes of the fullest member - mean), and the time without compute beside on the member that
    took shortest, as the others are exposed while they wait. Of operations that all members
    recorded; no row where there are none.
    """
    stages = tables.ranks.select(
        *CAPTURE, "rank", stage=pl.col("pp_rank").fill_null(0).cast(pl.Int32)
    )
    ratios = [
        _operations(part, stages.filter(pl.col("run") == run, pl.col("capture") == capture))
        for (run, capture), part in of_captures(rows)
    ]
    met = (
        pl.concat([pl.DataFrame(schema=_OPERATIONS), *ratios])
        .join(times, on=CAPTURE)
        .with_columns(excess=pl.col("over_bytes") * pl.col("ns_per_byte"))
        .filter(pl.col("exposed").is_not_null())
    )
    ratio = pl.min_horizontal("excess", "exposed").sum() / pl.col("excess").sum()
    by_stage = met.group_by(*CAPTURE, "step", "stage").agg(exchange_exposed_ratio=ratio)
    whole = met.group_by(*CAPTURE, "step").agg(
        pl.lit(None, pl.Int32).alias("stage"), exchange_exposed_ratio=ratio
    )
    return pl.concat(
        one.filter(pl.col("exchange_exposed_ratio").is_finite()).select(
            pl.col(name).cast(kind) for name, kind in SHARES.items()
        )
        for one in (by_stage, whole)
    )


def _operations(part: pl.DataFrame, stages: pl.DataFrame) -> pl.DataFrame:
    """_OPERATIONS of one capture: bytes of the fullest member beyond the mean, and the time without
    compute beside on the member that took shortest."""
    is_shortest = pl.col("dur_ns") == pl.col("dur_ns").min()
    return (
        part.filter("is_complete", pl.col("load_bytes") > 0)
        .join(stages, on="rank")
        .group_by("instance", "step", "stage")
        .agg(
            pl.col(CAPTURE).first(),
            over_bytes=pl.col("load_bytes").max() - pl.col("load_bytes").mean(),
            exposed=pl.col("exposed_ns").filter(is_shortest).min(),
        )
        .select(pl.col(name).cast(kind) for name, kind in _OPERATIONS.items())
    )
