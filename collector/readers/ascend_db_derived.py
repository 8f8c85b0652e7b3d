"""Temp tables between a profiler database's and ours: PMU values, stacks, operators, groups."""

from __future__ import annotations

import duckdb
import pyarrow as pa

from ..groups import group_hash

# Names of one value: with and without core prefix (older chips have one kind of core).
_PMU_COLUMNS = {
    "aic_total_time": "aic_time_ns", "aicore_time": "aic_time_ns", "aic_time": "aic_time_ns",
    "total_time": "aic_time_ns", "aic_total_cycles": "aic_cycles", "total_cycles": "aic_cycles",
    "aiv_total_time": "aiv_time_ns", "aiv_time": "aiv_time_ns", "aiv_total_cycles": "aiv_cycles",
    "cube_utilization": "cube_utilization_ratio",
}  # fmt: skip
_PERCENT = {"cube_utilization_ratio"}


def ranges(con: duckdb.DuckDBPyConnection, ids_sql: str, rows: int) -> list[tuple[int, int]]:
    """First and last id of ranges that hold `rows` rows of `ids_sql` (a column `id`), in order.

    What joins large tables goes range by range: several joins that spill at once need more memory
    than a rank may have.
    """
    return con.execute(f"""
        select min(id), max(id) from (
            select id, (rank() over (order by id) - 1) // {rows} as part from ({ids_sql})
            where id is not null)
        group by part order by part
    """).fetchall()


def pmu_sql(con: duckdb.DuckDBPyConnection) -> str:
    """SQL making `_pmu`, one row per task from $low to $high, from `_task_pmu_info`.

    Times stay in ns and ratios in 0..1 as the database has them. One aggregate per metric needs far
    less memory than lists, and does not mind a metric that comes twice.
    """
    names = con.execute("""
        select m.name, s.value from (select distinct name from _task_pmu_info) as m
        join _string as s on s.id = m.name where s.value is not null order by 1
    """).fetchall()
    own: dict[str, list[str]] = {column: [] for column in dict.fromkeys(_PMU_COLUMNS.values())}
    others: dict[str, list[str]] = {}
    grouped = ["globalTaskId"]
    for number, (key, name) in enumerate(names):
        grouped.append(f"max(case when name = {int(key)} then value end) as v{number}")
        target = own.get(_PMU_COLUMNS.get(name, ""))
        (others.setdefault(name, []) if target is None else target).append(f"v{number}")
    columns = [
        f"{_first(values)}{' / 100' if column in _PERCENT else ''} as {column}"
        for column, values in own.items()
    ]
    metrics = {name: _first(values) for name, values in others.items()}
    return f"""
        create or replace temp table _pmu as
        select globalTaskId, {", ".join(columns)}, {_map_sql(metrics)} as pmu
        from (select {", ".join(grouped)} from _task_pmu_info
              where globalTaskId between $low and $high group by globalTaskId)"""


def _map_sql(metrics: dict[str, str]) -> str:
    """SQL of a map from metric to value that leaves out unknown values."""
    if not metrics:
        return "cast(null as map(varchar, double))"
    entries = ", ".join(f"{{'k': {_literal(name)}, 'v': {v}}}" for name, v in metrics.items())
    known = f"map_from_entries(list_filter([{entries}], lambda x: x.v is not null))"
    if len({name.lower() for name in metrics}) < len(metrics):
        return known
    # Where nothing is unknown a struct turns into the map four times as fast.
    struct = ", ".join(f"{_literal(name)}: {v}" for name, v in metrics.items())
    complete = " and ".join(f"{v} is not null" for v in metrics.values())
    return f"case when {complete} then cast({{{struct}}} as map(varchar, double)) else {known} end"


def _first(values: list[str]) -> str:
    return f"coalesce({', '.join(values)})" if values else "cast(null as double)"


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def build_stacks(con: duckdb.DuckDBPyConnection) -> None:
    """Make `_stack_of` (call chain id, key) and `_stack` (key, frames), each distinct stack once.

    Training repeats the same stacks in every step: the key, a sum over hashed (frame, depth) pairs,
    is cheap for any number of chains, and only one chain per key is spelled out.
    """
    con.execute("""create or replace temp table _stack_of as
        select id, sum(cast(hash(stack, stackDepth) as hugeint)) as key
        from _pytorch_callchains where id is not null group by id""")
    con.execute("""create or replace temp table _stack as
        select o.key, string_agg(s.value, chr(10) order by c.stackDepth) as frames
        from (select key, min(id) as id from _stack_of group by key) as o
        join _pytorch_callchains as c on c.id = o.id
        join _string as s on s.id = c.stack
        group by o.key""")


def build_operator_calls(con: duckdb.DuckDBPyConnection) -> None:
    """Make `_operator_call`: the connections of every framework operator."""
    con.execute("""create or replace temp table _operator_call as
        select c.connectionId, p.startNs, p.name, p.globalTid
        from _pytorch_api as p
        join _connection_ids as c on c.id = p.connectionId
        where p.type in (select id from _enum where kind = 'api' and name = 'op')
        order by c.connectionId""")


def build_group_hashes(con: duckdb.DuckDBPyConnection) -> None:
    """Make `_group` (id of a communicator's name, hash); a name of digits only is a hash."""
    named = con.execute("""
        select id, value from _string where value is not null and id in (
            select groupName from _communication_op
            union select groupName from _communication_task_info)
    """).fetchall()
    hashes = [
        name if name.isdecimal() and len(name) >= 15 else group_hash(name) for _, name in named
    ]
    ids = pa.array([key for key, _ in named], pa.int64())
    con.register("_batches", pa.table({"id": ids, "hash": pa.array(hashes, pa.string())}))
    con.execute("create or replace temp table _group as select * from _batches")
    con.unregister("_batches")
