"""Temp tables between a profiler database's and ours: words, stacks, operators, groups."""

from __future__ import annotations

import duckdb
import pyarrow as pa

from ...groups import group_hash
from ...staging import run_on


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


def parts(con: duckdb.DuckDBPyConnection, order_sql: str, rows: int) -> list[tuple[int, int, int]]:
    """Cut what is to be inserted into parts of `rows` rows, in the order of a canonical table.

    order_sql: columns `id` (each once) and `place`, a sort key. Makes `_part` (id, part). Returns
    each part with its first and last id, in order.
    """
    con.execute(f"""
        create or replace temp table _part as
        select id, (row_number() over (order by place, id) - 1) // {rows} as part
        from ({order_sql}) order by part""")
    return con.execute(
        "select part, min(id), max(id) from _part group by part order by part"
    ).fetchall()


def build_kernel_words(con: duckdb.DuckDBPyConnection) -> None:
    """Make `_word`: the strings of kernels, and what they say as a name or a core."""
    con.execute("""create or replace temp table _word as
        select id, value, cell(value) as cell,
            is_compute_row(null, value) as is_compute_name,
            is_compute_row(value, null) as is_compute_core,
            is_comm_row(null, value) as is_comm_name,
            is_comm_row(value, null) as is_comm_core
        from _string where value is not null and id in (
            select unnest([name, taskType, opType, opState, hf32Eligible, inputFormats,
                inputDataTypes, inputShapes, outputFormats, outputDataTypes, outputShapes])
            from _compute_task_info
            union all select unnest([name, taskType, opType])
            from _communication_schedule_task_info)""")


def build_host_words(con: duckdb.DuckDBPyConnection) -> None:
    """Make `_word`: the strings of host operations; `cell` is the string as shapes or types."""
    con.execute("""create or replace temp table _word as
        select id, value,
            replace(replace(value, chr(13), ''), chr(10), '') as cell,
            regexp_matches(value, '[A-Za-z]') as lettered,
            starts_with(value, 'ProfilerStep#') as is_step,
            value ilike 'dequeue%' as is_dequeue
        from _string where value is not null and id in (
            select unnest([name, inputShapes, inputDtypes]) from _pytorch_api
            union all select name from _cann_api)""")


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


def build_targets(con: duckdb.DuckDBPyConnection) -> None:
    """Make `_target`, device tasks and communication operations with a connection to a CANN call,
    in the order of `launches`; and `_word`, the strings these need."""
    con.execute("""create or replace temp table _target as
        select * from (
            select t.connectionId, t.deviceId, t.streamId, t.startNs,
                case when k.globalTaskId is null then 'task' else 'kernel' end as target,
                case when k.globalTaskId is null then t.taskType else k.name end as name
            from _task as t
            left join _compute_task_info as k on k.globalTaskId = t.globalTaskId
            where t.connectionId in (select connectionId from _cann_api)
            union all by name
            select connectionId, deviceId, startNs, 'communication' as target, opName as name
            from _communication_op where connectionId in (select connectionId from _cann_api))
        order by streamId, startNs""")
    con.execute("""create or replace temp table _word as
        select id, value from _string where value is not null and id in (
            select name from _target union all select name from _cann_api
            union all select name from _operator_call)""")


def build_queue_calls(con: duckdb.DuckDBPyConnection) -> None:
    """Make `_queue_call` (id, connectionId): the one connection of each enqueue and dequeue."""
    con.execute("""create or replace temp table _queue_call as
        select id, min(connectionId) as connectionId
        from _connection_ids where id in (
            select connectionId from _pytorch_api
            where type in (select id from _enum where kind = 'api' and name = 'queue'))
        group by id order by id""")


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
    rows = pa.table({"id": ids, "hash": pa.array(hashes, pa.string())})
    run_on(con, rows, "create or replace temp table _group as select * from _incoming")
