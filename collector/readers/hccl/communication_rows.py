"""From HCCL's figures in JSON or an analysis database to the canonical communication tables.

Both forms are brought to the same raw columns first, so that one run gives the same rows from
either. Times arrive in ms, start instants in us, sizes in MB of 10^6 bytes, bandwidths in GB/s of
10^9.
"""

from __future__ import annotations

from typing import TypeAlias

import duckdb
import pyarrow as pa

from ...staging import run_on

_OP = [("step", pa.string()), ("category", pa.string()), ("name", pa.string()),
       ("group_hash", pa.string())]  # fmt: skip

# One row per operation.
TIMES = pa.schema([
    *_OP, ("start_us", pa.float64()), ("elapse_ms", pa.float64()), ("transit_ms", pa.float64()),
    ("wait_ms", pa.float64()), ("synchronization_ms", pa.float64()), ("idle_ms", pa.float64()),
])  # fmt: skip

# One row per operation, link and packet size; packet columns are NULL without counted packets.
PACKETS = pa.schema([
    *_OP, ("link", pa.string()), ("size_mb", pa.float64()), ("time_ms", pa.float64()),
    ("bandwidth_gb_s", pa.float64()), ("large_packet_ratio", pa.float64()),
    ("packet_mb", pa.float64()), ("packet_count", pa.float64()), ("packet_ms", pa.float64()),
])  # fmt: skip

# One row per matrix entry and link; `name` is `allreduce-top1` or, in old exports, an operation.
MATRIX = pa.schema([
    *_OP, ("src", pa.string()), ("dst", pa.string()), ("link", pa.string()),
    ("size_mb", pa.float64()), ("time_ms", pa.float64()), ("bandwidth_gb_s", pa.float64()),
    ("op_name", pa.string()),
])  # fmt: skip

_VARIANT = "'-(total|top\\d*|middle|bottom\\d*)$'"

# What every table starts with. Flat exports of msprof do not say whether an operation is p2p.
_COMMON = r"""
    step_number(step) as step,
    coalesce(cell(category), case when regexp_matches(lower(name),
        '^(hcom_)?(send|receive|batchsendrecv)') then 'p2p' else 'collective' end) as category,
    cell(group_hash) as group_hash"""

# Sums over operations are none.
_IS_OPERATION = "lower(coalesce(name, '')) not like 'total%'"

_INSERT_TIMES = f"""
    insert into comm_times by name
    select {_COMMON}, cell(name) as name, comm_op_type(name) as op_type,
        -- Split before scaling: a double of microseconds times 1000 would lose the fraction.
        case when start_us > 0 and start_us < 4.6e15 then try_cast(floor(start_us) as bigint) * 1000
            + try_cast(round_even((start_us - floor(start_us)) * 1000, 0) as bigint) end
            as start_ns,
        finite(elapse_ms * 1e6) as elapse_ns, finite(transit_ms * 1e6) as transit_ns,
        finite(wait_ms * 1e6) as wait_ns, finite(synchronization_ms * 1e6) as synchronization_ns,
        finite(idle_ms * 1e6) as idle_ns
    from _incoming where {_IS_OPERATION}"""

# A link without traffic has no row: the databases leave it out, the JSON files write zeros.
_INSERT_LINKS = f"""
    insert into comm_links by name
    select {_COMMON}, cell(name) as name, comm_op_type(name) as op_type, cell(link) as link,
        any_value(finite(size_mb * 1e6)) as size_bytes, any_value(finite(time_ms * 1e6)) as time_ns,
        any_value(finite(bandwidth_gb_s * 1e9)) as bandwidth_bytes_per_s,
        any_value(finite(large_packet_ratio)) as large_packet_ratio,
        list({{'size_bytes': finite(packet_mb * 1e6),
               'packet_count': try_cast(packet_count as bigint),
               'time_ns': finite(packet_ms * 1e6)}} order by packet_mb)
            filter (packet_count > 0) as packets
    from _incoming where {_IS_OPERATION}
    group by all
    having size_bytes > 0 or time_ns > 0 or packets is not null"""

_INSERT_MATRIX = f"""
    insert into comm_matrix by name
    select {_COMMON},
        comm_op_type(coalesce(op, regexp_replace(name, {_VARIANT}, ''))) as op_type,
        coalesce(nullif(variant, ''), 'op') as variant,
        case when variant <> '' then op else cell(name) end as name,
        try_cast(src as integer) as src_group_rank, try_cast(dst as integer) as dst_group_rank,
        cell(link) as link, finite(size_mb * 1e6) as size_bytes, finite(time_ms * 1e6) as time_ns,
        finite(bandwidth_gb_s * 1e9) as bandwidth_bytes_per_s
    from (from _incoming select *, cell(op_name) as op,
              regexp_extract(name, {_VARIANT}, 1) as variant where {_IS_OPERATION})"""


Raw: TypeAlias = pa.Table | pa.RecordBatchReader


def insert_times(con: duckdb.DuckDBPyConnection, data: Raw, *, of_ranks: bool = False) -> None:
    """Add rows of schema TIMES to `comm_times`; with `of_ranks` both have a column `rank` too."""
    _insert(con, data, _INSERT_TIMES, of_ranks)


def insert_packets(con: duckdb.DuckDBPyConnection, data: Raw, *, of_ranks: bool = False) -> None:
    """Add rows of schema PACKETS to `comm_links`; those of one operation come in one call."""
    _insert(con, data, _INSERT_LINKS, of_ranks)


def insert_matrix(con: duckdb.DuckDBPyConnection, data: Raw, *, of_ranks: bool = False) -> None:
    """Add rows of schema MATRIX to `comm_matrix`."""
    _insert(con, data, _INSERT_MATRIX, of_ranks)


def _insert(con: duckdb.DuckDBPyConnection, data: Raw, sql: str, of_ranks: bool) -> None:
    run_on(con, data, sql.replace("select", "select rank,", 1) if of_ranks else sql)
