"""Memory and counters of one rank over time, and what of them a tile of a timeline shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa

from ..views import frame
from .rank_events import Integers
from .shared_axis import Extent
from .tiles import tile_ns

_SERIES = """
    with
    _raw as (
        select 'memory' as kind, source || ' ' || component as name, 'bytes' as unit, device_id,
            timestamp_ns as at_ns,
            cast(coalesce(reserved_bytes, allocated_bytes) as double) as value
        from memory where {place} and rank = ? and timestamp_ns is not null
        union all
        select 'counter', name, coalesce(series, ''), device_id, timestamp_ns, value
        from counters where {place} and rank = ? and timestamp_ns is not null
    ),
    _devices as (select count(distinct device_id) > 1 as are_several from _raw)
    select kind, concat(name, if(are_several, ' of device ' || device_id, null)) as name, unit,
        at_ns, value
    from _raw, _devices where name is not null"""


@dataclass(frozen=True, slots=True)
class Series:
    """One curve of a rank: instants on the shown clock from the capture's first moment, and values.

    `kind` is memory (reserved bytes of a component) or counter; `least` and `most` of its values.
    """

    kind: str
    name: str
    unit: str
    at: Integers
    value: np.typing.NDArray[np.float64]
    least: float
    most: float


def rank_series(con: duckdb.DuckDBPyConnection, at: Extent, rank: int) -> tuple[Series, ...]:
    """Every curve of a rank that ever changes, and of memory every one that ever holds any."""
    read = frame(con, _SERIES.format(place=at.place), [rank, rank]).filter(
        pl.col("value").is_finite()
    )
    rows_with_places = read.with_columns(pl.col("at_ns") - at.zero_of_ns(rank)).sort(
        "at_ns", maintain_order=True
    )
    curves = rows_with_places.partition_by(
        "kind", "name", "unit", as_dict=True, maintain_order=True
    )
    series = []
    for (kind, name, unit), rows in curves.items():
        value = rows["value"].to_numpy()
        low, high = float(value.min()), float(value.max())
        if low < high or (kind == "memory" and high > 0):
            times = rows["at_ns"].to_numpy().astype(np.int64)
            series.append(Series(str(kind), str(name), str(unit), times, value, low, high))
    return tuple(sorted(series, key=lambda one: (one.kind != "memory", one.name, one.unit)))


# metric: timeline_curves
# How much memory does a rank hold, and how do its counters stand, in a tile of the timeline?
#
# Of each bucket the last value and the highest; before them the last one before the tile, which
# still holds where it begins.
#
# title: Timeline's curves
# meaning: Memory and counters of each rank in a tile of the timeline.
# figure: timeline
#
#   rank     integer  global rank
#   track    integer  position in the rank's curves
#   at_ns    bigint   instant, on the shown clock from the capture's first moment
#   value    double   last value of the bucket, in the curve's unit
#   high     double   highest value of the bucket, in the curve's unit
def timeline_curves(ranks: Mapping[int, tuple[Series, ...]], level: int, index: int) -> pa.Table:
    """Rows of the metric for some ranks."""
    from_ns, to_ns = tile_ns(level, index)
    columns: dict[str, list[np.typing.NDArray[np.generic]]] = {
        name: [] for name in ("rank", "track", "at_ns", "value", "high")
    }
    for rank, curves in ranks.items():
        for track, one in enumerate(curves):
            low, high = np.searchsorted(one.at, (from_ns, to_ns))
            low = max(low - 1, 0)
            if low == high:
                continue
            at, value = one.at[low:high], one.value[low:high]
            buckets = at >> level
            begins = np.flatnonzero(np.append(True, buckets[1:] != buckets[:-1]))
            last = np.append(begins[1:], len(at)) - 1
            columns["rank"].append(np.full(len(begins), rank))
            columns["track"].append(np.full(len(begins), track))
            columns["at_ns"].append(at[begins])
            columns["value"].append(value[last])
            columns["high"].append(np.maximum.reduceat(value, begins))
    types = (pa.int32(), pa.int32(), pa.int64(), pa.float64(), pa.float64())
    return pa.table({
        name: pa.array(np.concatenate(parts or [np.zeros(0)]), type_, safe=False)
        for (name, parts), type_ in zip(columns.items(), types, strict=True)
    })  # fmt: skip
