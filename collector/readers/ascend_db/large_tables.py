"""The tables with about as many rows as the database: kernels, launches, host_ops, comm_tasks.

They are filled part by part, so that no join needs more memory than a rank may have, and where it
pays, in the order of their segments: sorting them when they are complete would cost more.

TASK_PMU_INFO has one row per task and metric, metric by metric or task by task, and dozens for
every kernel: most of such a database. They are put into place as arrays, range by range of ids:

    task  name  value               v0 (name 4)   v1 (name 7)
    11    4     0.5        11           0.5          NULL
    12    4     0.7   ->   12           0.7           9.0
    12    7     9.0

Times stay in ns and ratios in 0..1 as the database has them.

A database names things by ids into STRING_IDS. Spelled out they would fill most of the memory, and
be sorted into dictionaries once more when written. So while a canonical table is filled from a
large database (`in_words`), its text columns are enumerations of the words it uses. Written, they
are text again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from ... import schema
from ...literals import sql_literal
from ...model import ReadLog
from ...staging import parse_statements, run, scalar
from ...step_segments import cut_steps
from ..words import enumerate_words
from .lookups import (
    build_host_words,
    build_kernel_words,
    build_operator_calls,
    build_queue_calls,
    build_stacks,
    build_targets,
    parts,
    ranges,
)

_KERNELS_AT_ONCE = 32_768
_ROWS_AT_ONCE = 131_072


def fill_kernels(con: duckdb.DuckDBPyConnection, log: ReadLog, *, in_words: bool) -> None:
    """Fill `kernels`, with their steps. Needs TASK and what tells of its kernels, and `steps`."""
    kernels = """select globalTaskId as id from _compute_task_info
        union all select globalTaskId from _communication_schedule_task_info"""
    cut_steps(con)
    build_kernel_words(con)
    texts = ("name", "type", "core", "op_state", "input_shapes", "input_dtypes", "input_formats",
             "output_shapes", "output_dtypes", "output_formats")  # fmt: skip
    metrics = _metric_ids(con)
    columns, keys = _pmu_sql(con, metrics, "kernels_key" if in_words else "varchar")
    if in_words:
        _enumerate_words(con, "kernels", texts, words=("value", "cell"), keys=keys)
    order = f"""
        select globalTaskId as id, min((streamId, startNs)) as place
        from _task where globalTaskId in ({kernels}) group by globalTaskId"""
    text = sql("kernels").format(pmu_columns=columns)
    for part, low, high in parts(con, order, _KERNELS_AT_ONCE):
        con.register("_pmu", _pmu_values(con, metrics, part, low, high))
        _insert_part(con, text, {"part": part, "low": low, "high": high})
        con.unregister("_pmu")
    note_taskless(con, "kernels", kernels, log)


def fill_comm_tasks(con: duckdb.DuckDBPyConnection, log: ReadLog) -> None:
    """Fill `comm_tasks`. Needs TASK, COMMUNICATION_TASK_INFO and `_group`."""
    tasks = "select globalTaskId as id from _communication_task_info"
    for low, high in ranges(con, tasks, 4 * _ROWS_AT_ONCE):
        run(con, sql("comm_tasks"), {"low": low, "high": high})
    note_taskless(con, "comm_tasks", tasks, log)


def fill_launches(con: duckdb.DuckDBPyConnection, *, in_words: bool) -> None:
    """Fill `launches`. Needs TASK, CANN_API and who called it, and what ran on the device."""
    build_operator_calls(con)
    build_targets(con)
    if in_words:
        _enumerate_words(con, "launches", ("api_name", "operator_name", "target_name"))
    connections = """select min(connectionId), max(connectionId) from _target
        where rowid between $low and $high"""
    for low in range(0, scalar(con, "select count(*) from _target"), _ROWS_AT_ONCE):
        span = {"low": low, "high": low + _ROWS_AT_ONCE - 1}
        [(first, last)] = run(con, connections, span).fetchall()
        _insert_part(con, sql("launches"), {**span, "first": first, "last": last})


def fill_host_ops(con: duckdb.DuckDBPyConnection, log: ReadLog, *, in_words: bool) -> None:
    """Fill `host_ops`. Needs PYTORCH_API, CANN_API and GC_RECORD and what they refer to."""
    query = "select id from _enum where kind = 'api' and name is not null"
    unknown = f"select count(*) from _pytorch_api where coalesce(type not in ({query}), true)"
    if lost := scalar(con, unknown):
        log.rows_lost += lost
        log.warn("PYTORCH_API: {lost} rows of an unknown type are left out", lost=lost)
    build_stacks(con)
    build_queue_calls(con)
    build_host_words(con)
    if in_words:
        texts = ("name", "input_shapes", "input_dtypes")
        _enumerate_words(con, "host_ops", texts, words=("value", "cell"), more=("GC",))
    starts = """select startNs as id from _pytorch_api union all select startNs from _cann_api
        union all select startNs from _gc_record"""
    for low, high in ranges(con, starts, _ROWS_AT_ONCE):
        _insert_part(con, sql("host_ops"), {"low": low, "high": high})


def sql(name: str) -> str:
    """The SQL that fills a canonical table."""
    return schema.sql(f"readers/ascend_db/sql/{name}.sql")


def note_taskless(con: duckdb.DuckDBPyConnection, table: str, ids_sql: str, log: ReadLog) -> None:
    """Tell of rows whose task is not in TASK: without it they have no time."""
    count = scalar(con, f"select count(*) from ({ids_sql})")
    lost = count - scalar(con, f"select count(*) from {table}")
    if lost > 0:
        log.rows_lost += lost
        log.warn("{table}: {lost} rows without a task in TASK are left out", table=table, lost=lost)


def _insert_part(con: duckdb.DuckDBPyConnection, text: str, parameters: dict[str, int]) -> None:
    """Run SQL whose first statement makes `_ordered`, rows of ids in the order of the segment, and
    whose second spells them out."""
    order, insert = parse_statements(con, text)
    con.execute(order, parameters)
    # With these rows always on the left, joins keep their order.
    disabled = scalar(con, "select current_setting('disabled_optimizers')")
    if {"join_order", "build_side_probe_side"} <= {*disabled.split(",")}:
        con.execute(insert)
        return
    con.execute(f"set disabled_optimizers = 'join_order,build_side_probe_side,{disabled}'")
    try:
        con.execute(insert)
    finally:
        con.execute(f"set disabled_optimizers = '{disabled}'")


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


def _metric_ids(con: duckdb.DuckDBPyConnection) -> list[int]:
    """Ids of the metrics' names, ascending: metric n is column `vn` of `_pmu_values`."""
    sql = "select distinct name from _task_pmu_info where name is not null order by 1"
    return [key for (key,) in run(con, sql).fetchall()]


def _pmu_values(
    con: duckdb.DuckDBPyConnection, metrics: list[int], part: int, low: int, high: int
) -> pa.Table:
    """globalTaskId, v0, v1, ... of those tasks of a part in `_part` that have any row.

    low, high: the part's first and last id. Of a metric that comes twice the larger value counts.
    """
    rows = run(
        con,
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
    values = _place_values(cells, value, len(metrics) * len(tasks)).reshape(
        len(metrics), len(tasks)
    )
    columns = {"globalTaskId": pa.array(tasks[present])}
    for number, column in enumerate(values):
        columns[f"v{number}"] = pa.array(column[present], from_pandas=True)  # NaN as NULL
    return pa.table(columns)


def _place_values(cells: Any, value: Any, n_cells: int) -> Any:
    """An array with each value in its cell, NaN where there is none."""
    values = np.full(n_cells, np.nan)
    values[cells] = value
    if np.isnan(values).sum() - np.isnan(value).sum() != n_cells - len(value):  # one came twice
        values.fill(np.nan)
        np.fmax.at(values, cells, value)
    return values


def _pmu_sql(
    con: duckdb.DuckDBPyConnection, metrics: list[int], key_type: str
) -> tuple[str, list[str]]:
    """SQL of the PMU columns of `kernels` over a row `p` of `_pmu_values`, which may be missing.

    Also the keys of its column `pmu`, which are of key_type.
    """
    sql = "select id, value from _string where value is not null and id in (select unnest(?))"
    names = dict(run(con, sql, [metrics]).fetchall())
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
    metrics_sql = _map_sql({name: _first(values) for name, values in others.items()}, key_type)
    return f"{', '.join(columns)}, {metrics_sql} as pmu", list(others)


def _map_sql(metrics: dict[str, str], key_type: str) -> str:
    """SQL of a map from metric to value that leaves out unknown values."""
    if not metrics:
        return "cast(null as map(varchar, double))"
    entries = ", ".join(f"{{'k': {sql_literal(name)}, 'v': {v}}}" for name, v in metrics.items())
    mapping = f"map_from_entries(list_filter([{entries}], lambda x: x.v is not null))"
    cases = "when p.globalTaskId is null then null"
    if len({name.lower() for name in metrics}) == len(metrics):
        # Where nothing is unknown a struct turns into the map seven times as fast.
        struct = ", ".join(f"{sql_literal(name)}: {v}" for name, v in metrics.items())
        complete = " and ".join(f"{v} is not null" for v in metrics.values())
        cases += f" when {complete} then cast({{{struct}}} as map({key_type}, double))"
    return f"case {cases} else cast({mapping} as map({key_type}, double)) end"


def _first(values: list[str]) -> str:
    return f"coalesce({', '.join(values)})" if values else "cast(null as double)"


def _enumerate_words(
    con: duckdb.DuckDBPyConnection,
    table: str,
    columns: Iterable[str],
    *,
    words: Iterable[str] = ("value",),
    more: Iterable[str] = (),
    keys: Iterable[str] = (),
) -> None:
    """Let text `columns` of an empty canonical table, and the columns `words` of `_word`, be an
    enumeration of what these hold and `more`; too many words stay text.

    keys: the keys of the table's maps, which become an enumeration too.
    """
    kinds: dict[str, str] = {}
    if keys := [sql_literal(key) for key in keys]:
        con.execute(f"create type {table}_key as enum ({', '.join(keys)})")
        for column in schema.tables()[table].columns:
            if column.type.startswith("map(varchar,"):
                kinds[column.name] = column.type.replace("varchar", f"{table}_key")
    values = " union all ".join(
        [f"select {word} as word from _word" for word in words]
        + [f"select {sql_literal(word)}" for word in more]
    )
    if enumerate_words(con, table, columns, values, kinds):
        casts = ", ".join(f"cast({word} as {table}_word) as {word}" for word in words)
        con.execute(f"create or replace temp table _word as select * replace ({casts}) from _word")
