"""Gauges of a training's health, from the log that is kept with each run's newest capture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import duckdb
import polars as pl

from npuscope.analysis.health.health import summary_row
from npuscope.analysis.health.post_training import health_phases
from npuscope.analysis.health.run_health import run_health
from npuscope.analysis.health.token_drops import health_dropped
from npuscope.analysis.scope import Scope
from npuscope.analysis.views import frame

from .gauges import Frames, gauges_of

_NEWEST = "select run, max(capture) as capture from train_log group by run order by run"


def health_gauges(
    con: duckdb.DuckDBPyConnection, keys: Sequence[str], *, store: Path | None = None
) -> Frames:
    """Values of `keys` (run and capture) by gauge; of runs without a log none. `store`: where the
    tables lie, for what the job told of its routers."""
    frames: Frames = {}
    for run, capture in frame(con, _NEWEST).iter_rows():
        health = run_health(con, Scope(run))
        if health is None:
            continue
        dropped, _ = health_dropped(con, Scope(run), target=store)
        place = [pl.lit(run).alias("run"), pl.lit(capture).alias("capture")]
        for name, rows in (
            ("health_summary", summary_row(health)), ("health_phases", health_phases(health.steps)),
            ("health_dropped", dropped.drop_nulls("dropped_ratio").tail(1)),
        ):  # fmt: skip
            for gauge, values in gauges_of(name, rows.select(*place, pl.all()), keys).items():
                frames[gauge] = pl.concat([frames[gauge], values]) if gauge in frames else values
    return frames
