"""The tables with about as many rows as the database: kernels, launches, host_ops, comm_tasks.

They are filled part by part, so that no join needs more memory than a rank may have, and where it
pays, in the order of their segments: sorting them when they are complete would cost more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources

import duckdb

from ...ingest.link import cut_steps
from ...model import ReadLog
from ...staging import scalar
from .lookups import (
    build_group_hashes,
    build_host_words,
    build_kernel_words,
    build_operator_calls,
    build_queue_calls,
    build_stacks,
    build_targets,
    parts,
    ranges,
)
from .pmu import metric_ids, pmu_sql, pmu_values
from .words import enumerate_words, spell_out

_KERNELS_AT_ONCE = 32_768
_ROWS_AT_ONCE = 131_072
LARGE = ("kernels", "launches", "host_ops")


def fill_kernels(con: duckdb.DuckDBPyConnection, log: ReadLog) -> None:
    """Fill `kernels`, with their steps. Needs TASK and what tells of its kernels, and `steps`."""
    kernels = """select globalTaskId as id from _compute_task_info
        union all select globalTaskId from _communication_schedule_task_info"""
    cut_steps(con)
    build_kernel_words(con)
    texts = ("name", "type", "core", "op_state", "input_shapes", "input_dtypes", "input_formats",
             "output_shapes", "output_dtypes", "output_formats")  # fmt: skip
    metrics = metric_ids(con)
    columns, keys = pmu_sql(con, metrics)
    enumerate_words(con, "kernels", texts, words=("value", "cell"), keys=keys)
    order = f"""
        select globalTaskId as id, min((streamId, startNs)) as place
        from _task where globalTaskId in ({kernels}) group by globalTaskId"""
    text = sql("kernels").format(pmu_columns=columns)
    for part, low, high in parts(con, order, _KERNELS_AT_ONCE):
        con.register("_pmu", pmu_values(con, metrics, part, low, high))
        _insert_part(con, text, {"part": part, "low": low, "high": high})
        con.unregister("_pmu")
    note_taskless(con, "kernels", kernels, log)


def fill_comm_tasks(con: duckdb.DuckDBPyConnection, log: ReadLog) -> None:
    """Fill `comm_tasks`. Needs TASK, COMMUNICATION_TASK_INFO and COMMUNICATION_OP."""
    build_group_hashes(con)
    tasks = "select globalTaskId as id from _communication_task_info"
    for low, high in ranges(con, tasks, 4 * _ROWS_AT_ONCE):
        con.execute(sql("comm_tasks"), {"low": low, "high": high})
    note_taskless(con, "comm_tasks", tasks, log)


def fill_launches(con: duckdb.DuckDBPyConnection) -> None:
    """Fill `launches`. Needs TASK, CANN_API and who called it, and what ran on the device."""
    build_operator_calls(con)
    build_targets(con)
    enumerate_words(con, "launches", ("api_name", "operator_name", "target_name"))
    connections = """select min(connectionId), max(connectionId) from _target
        where rowid between $low and $high"""
    for low in range(0, scalar(con, "select count(*) from _target"), _ROWS_AT_ONCE):
        span = {"low": low, "high": low + _ROWS_AT_ONCE - 1}
        [(first, last)] = con.execute(connections, span).fetchall()
        _insert_part(con, sql("launches"), {**span, "first": first, "last": last})


def fill_host_ops(con: duckdb.DuckDBPyConnection, log: ReadLog) -> None:
    """Fill `host_ops`. Needs PYTORCH_API, CANN_API and GC_RECORD and what they refer to."""
    known = "select id from _enum where kind = 'api' and name is not null"
    unknown = f"select count(*) from _pytorch_api where coalesce(type not in ({known}), true)"
    if lost := scalar(con, unknown):
        log.rows_lost += lost
        log.warn(f"PYTORCH_API: {lost} rows of an unknown type are left out")
    build_stacks(con)
    build_queue_calls(con)
    build_host_words(con)
    texts = ("name", "input_shapes", "input_dtypes")
    enumerate_words(con, "host_ops", texts, words=("value", "cell"), more=("GC",))
    starts = """select startNs as id from _pytorch_api union all select startNs from _cann_api
        union all select startNs from _gc_record"""
    for low, high in ranges(con, starts, _ROWS_AT_ONCE):
        _insert_part(con, sql("host_ops"), {"low": low, "high": high})


def sql(name: str) -> str:
    """The SQL that fills a canonical table."""
    return resources.files(__package__).joinpath("sql", f"{name}.sql").read_text("utf-8")


def note_taskless(con: duckdb.DuckDBPyConnection, table: str, ids_sql: str, log: ReadLog) -> None:
    """Tell of rows whose task is not in TASK: without it they have no time."""
    told = scalar(con, f"select count(*) from ({ids_sql})")
    lost = told - scalar(con, f"select count(*) from {table}")
    if lost > 0:
        log.rows_lost += lost
        log.warn(f"{table}: {lost} rows without a task in TASK are left out")


def _insert_part(con: duckdb.DuckDBPyConnection, text: str, parameters: dict[str, int]) -> None:
    """Run SQL whose first statement makes `_ordered`, rows of ids in the order of the segment, and
    whose second spells them out."""
    order, insert = con.extract_statements(text)
    con.execute(order, parameters)
    # With these rows always on the left, joins keep their order.
    disabled = scalar(con, "select current_setting('disabled_optimizers')")
    con.execute(f"set disabled_optimizers = 'join_order,build_side_probe_side,{disabled}'")
    try:
        con.execute(insert)
    finally:
        con.execute(f"set disabled_optimizers = '{disabled}'")


@contextmanager
def words_for_text(con: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """For other readers: tables that stay empty, or are left half-filled, get their text back."""
    try:
        yield
    except BaseException:
        for table in LARGE:
            con.execute(f'delete from "{table}"')
        raise
    finally:
        for table in LARGE:
            spell_out(con, table)
