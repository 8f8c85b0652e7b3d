"""TASK_PMU_INFO, one row per task and metric, as one row per task.

The rows come metric by metric or task by task, and there are dozens for every kernel: most of such
a database. They are put into place as arrays, range by range of the tasks' ids:

    task  name  value               v0 (name 4)   v1 (name 7)
    11    4     0.5        11           0.5          NULL
    12    4     0.7   ->   12           0.7           9.0
    12    7     9.0

Times stay in ns and ratios in 0..1 as the database has them.
"""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

# Names of one value: with and without core prefix (older chips have one kind of core).
_COLUMNS = {
    "aic_total_time": "aic_time_ns", "aicore_time": "aic_time_ns", "aic_time": "aic_time_ns",
    "total_time": "aic_time_ns", "aic_total_cycles": "aic_cycles", "total_cycles": "aic_cycles",
    "aiv_total_time": "aiv_time_ns", "aiv_time": "aiv_time_ns", "aiv_total_cycles": "aiv_cycles",
    "cube_utilization": "cube_utilization_ratio",
}  # fmt: skip
_PERCENT = {"cube_utilization_ratio"}
# Up to this many ids there is a place for each; further apart, only those that occur have one.
_DENSE_IDS = 1 << 18


def metric_ids(con: duckdb.DuckDBPyConnection) -> list[int]:
    """Ids of the metrics' names, ascending: metric n is column `vn` of `pmu_values`."""
    sql = "select distinct name from _task_pmu_info where name is not null order by 1"
    return [key for (key,) in con.execute(sql).fetchall()]


def pmu_values(
    con: duckdb.DuckDBPyConnection, metrics: list[int], part: int, low: int, high: int
) -> pa.Table:
    """globalTaskId, v0, v1, ... of those tasks of a part in `_part` that have any row.

    low, high: the part's first and last id. Of a metric that comes twice the larger value counts.
    """
    rows = con.execute(
        """select globalTaskId, name, value from _task_pmu_info
        where globalTaskId between ? and ? and globalTaskId in (select id from _part where part = ?)
        """,
        [low, high, part],
    ).fetchnumpy()
    task, name, value = rows["globalTaskId"], rows["name"], np.ma.filled(rows["value"], np.nan)
    if high - low < _DENSE_IDS:
        tasks, place = np.arange(low, high + 1), task - low
        present = np.zeros(len(tasks), bool)
        present[place] = True
    else:
        tasks, place = np.unique(task, return_inverse=True)
        present = np.ones(len(tasks), bool)
    named = ~np.ma.getmaskarray(name)
    if not named.all():
        name, place, value = name[named], place[named], value[named]
    cells = np.searchsorted(np.array(metrics, np.int64), np.asarray(name)) * len(tasks) + place
    values = _placed(cells, value, len(metrics) * len(tasks)).reshape(len(metrics), len(tasks))
    columns = {"globalTaskId": pa.array(tasks[present])}
    for number, column in enumerate(values):
        columns[f"v{number}"] = pa.array(column[present], from_pandas=True)  # NaN as NULL
    return pa.table(columns)


def _placed(cells: Any, value: Any, n_cells: int) -> Any:
    """An array with each value in its cell, NaN where there is none."""
    values = np.full(n_cells, np.nan)
    values[cells] = value
    if np.isnan(values).sum() - np.isnan(value).sum() != n_cells - len(value):  # one came twice
        values.fill(np.nan)
        np.fmax.at(values, cells, value)
    return values


def pmu_sql(con: duckdb.DuckDBPyConnection, metrics: list[int]) -> tuple[str, list[str]]:
    """SQL of the PMU columns of `kernels` over a row `p` of `pmu_values`, which may be missing.

    Also the keys of its column `pmu`.
    """
    sql = "select id, value from _string where value is not null and id in (select unnest(?))"
    names = dict(con.execute(sql, [metrics]).fetchall())
    own: dict[str, list[str]] = {column: [] for column in dict.fromkeys(_COLUMNS.values())}
    others: dict[str, list[str]] = {}
    for number, key in enumerate(metrics):
        if key in names:
            target = own.get(_COLUMNS.get(names[key], ""))
            (others.setdefault(names[key], []) if target is None else target).append(f"p.v{number}")
    columns = [
        f"{_first(values)}{' / 100' if column in _PERCENT else ''} as {column}"
        for column, values in own.items()
    ]
    metrics_sql = _map_sql({name: _first(values) for name, values in others.items()})
    return f"{', '.join(columns)}, {metrics_sql} as pmu", list(others)


def _map_sql(metrics: dict[str, str]) -> str:
    """SQL of a map from metric to value that leaves out unknown values."""
    if not metrics:
        return "cast(null as map(varchar, double))"
    entries = ", ".join(f"{{'k': {_literal(name)}, 'v': {v}}}" for name, v in metrics.items())
    known = f"map_from_entries(list_filter([{entries}], lambda x: x.v is not null))"
    cases = "when p.globalTaskId is null then null"
    if len({name.lower() for name in metrics}) == len(metrics):
        # Where nothing is unknown a struct turns into the map seven times as fast.
        struct = ", ".join(f"{_literal(name)}: {v}" for name, v in metrics.items())
        complete = " and ".join(f"{v} is not null" for v in metrics.values())
        cases += f" when {complete} then cast({{{struct}}} as map(kernels_key, double))"
    return f"case {cases} else cast({known} as map(kernels_key, double)) end"


def _first(values: list[str]) -> str:
    return f"coalesce({', '.join(values)})" if values else "cast(null as double)"


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
