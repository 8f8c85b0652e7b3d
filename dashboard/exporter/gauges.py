"""Every gauge of the exporter, from the heads of metrics, and what it shows.

All have the label `run`. A sample is of a run's newest capture; seconds are of one step, ratios
0 to 1. Names ending in neither are numbers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import duckdb
import polars as pl

from npuscope.analysis.catalog import metric, metrics
from npuscope.analysis.host.free_time import mean_free_time
from npuscope.analysis.means import mean_parts
from npuscope.analysis.metric import Gauge
from npuscope.analysis.operators.classes import operator_classes
from npuscope.analysis.views import frame

Frames = dict[str, pl.DataFrame]
# What no metric tells: of the store itself.
_OWN = (
    Gauge(
        "npuscope_last_ingest_timestamp_seconds", (), (),
        "When a rank of the run was last ingested, as Unix time.",
    ),
    Gauge(
        "npuscope_profile_end_timestamp_seconds", (), (),
        "When the newest profile of the run ended, as Unix time.",
    ),
)  # fmt: skip
GAUGES = (*_OWN, *(gauge for one in metrics() for gauge in one.gauges))
BY_NAME = {gauge.name: gauge for gauge in GAUGES}
_NS = re.compile(r"\b(\w+_)?ns\b")


def detail(gauge: Gauge) -> int:
    """What goes first when there are too many series: the highest."""
    order = (("expert", 3), ("rank", 2), ("position", 2), ("layer", 1))
    return next((dear for label, dear in order if label in gauge.labels), 0)


def metric_gauges(con: duckdb.DuckDBPyConnection, keys: Sequence[str]) -> Frames:
    """Values of each of `keys` (run and capture, or these and step) by gauge, of all metrics that
    are views, and of the parts, free time and operators of a mean step: keys, labels, value; where
    they know nothing, no row. Of captures means are without warm-up."""
    parts = mean_parts(con, by="step" if "step" in keys else "capture")
    frames = gauges_of("mean_parts", parts, keys)
    if "step" not in keys:
        frames |= gauges_of("mean_free_time", mean_free_time(con, by="cause"), keys)
        frames |= gauges_of("operator_classes", operator_classes(con), keys)
    for entry in metrics():
        columns = {column.name for column in entry.columns}
        if entry.gauges and entry.view and columns >= {*keys}:
            frames |= gauges_of(entry.name, frame(con, f'from "{entry.view}"'), keys)
    return frames


def gauges_of(name: str, rows: pl.DataFrame, keys: Sequence[str]) -> Frames:
    """The same of rows of the metric of that name."""
    return {gauge.name: _values(gauge, rows, keys) for gauge in metric(name).gauges}


def _values(gauge: Gauge, rows: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    own = [label for label in gauge.labels if label in rows.columns]
    (named,) = {*gauge.labels}.difference(own) or {""}
    if "by_key" in rows.columns:
        # What rows are by: their labels, and the step; by kind, a column tells of steps.
        by = own if "by_step" in rows.columns or "step" not in keys else [*own, "step"]
        rows = rows.filter(pl.col("by_key") == ("_".join(by) or "capture"))
    if "by_step" in rows.columns:
        rows = rows.filter(pl.col("by_step") == ("step" in keys))
    values = []
    for value in gauge.values:
        expression = pl.sql_expr(value).cast(pl.Float64)
        part = rows.select(*dict.fromkeys([*keys, *own]), expression.alias("value"))
        if gauge.name.endswith("_seconds") and _NS.search(value):
            part = part.with_columns(pl.col("value") / 1e9)
        values.append(
            part.with_columns(pl.lit(value.removesuffix("_ns")).alias(named)) if named else part
        )
    # Queries give rows in any order: files of two scrapes differ in what changed alone.
    by = [*dict.fromkeys([*keys, *own])]
    return pl.concat(values).drop_nulls("value").sort(by, maintain_order=True)
