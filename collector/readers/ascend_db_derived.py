"""Temp tables between a profiler database's and ours: words, stacks, operators, groups."""

from __future__ import annotations

import duckdb
import pyarrow as pa

from ..groups import group_hash


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


def build_kernel_words(con: duckdb.DuckDBPyConnection) -> None:
    """Make `_kernel_word`: the strings of kernels, and what they say as a name or a core."""
    con.execute("""create or replace temp table _kernel_word as
        select id, value, cell(value) as cell,
            is_compute_row(null, value) as is_compute_name,
            is_compute_row(value, null) as is_compute_core,
            is_comm_row(null, value) as is_comm_name,
            is_comm_row(value, null) as is_comm_core
        from _string where id in (
            select unnest([name, taskType, opType, opState, hf32Eligible, inputFormats,
                inputDataTypes, inputShapes, outputFormats, outputDataTypes, outputShapes])
            from _compute_task_info
            union all select unnest([name, taskType, opType])
            from _communication_schedule_task_info)""")


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
