"""Tables of a profiler database: which columns we read, and how they get into the staging database.

A SQLite table T becomes the temp table `_t` (lower case) with every column named here, whatever the
file has: a missing table is empty, a missing column NULL; `durNs` is added to intervals. Tables and
columns we do not know are not read. `_string` holds STRING_IDS with 'N/A' as NULL, `_enum` every
enumeration as (kind, id, name).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import duckdb
import pyarrow as pa

from ...model import ReadLog
from ...staging import run, run_on
from ..sqlite import SqliteFile, SqlType

# `id`: an integer whose markers of "none" (4294967295, 2^63-1, negatives) become NULL.
# `step`: its number, or text that ends in it.
Kind = Literal["integer", "id", "real", "text", "step"]
_KINDS: dict[str, Kind] = {
    "": "integer", "id": "id", "real": "real", "text": "text", "step": "step"
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class WantedColumn:
    """A column to read: `names` are its spellings, newest first."""

    name: str
    kind: Kind = "integer"
    names: tuple[str, ...] = ()


def _columns(text: str) -> tuple[WantedColumn, ...]:
    """`a, b:text, c:id=c|old_c` as columns; integer where no kind is given."""
    columns_here = []
    for item in text.replace("\n", " ").split(","):
        head, _, spellings = item.strip().partition("=")
        name, _, kind = head.partition(":")
        columns_here.append(WantedColumn(name, _KINDS[kind], tuple(spellings.split("|"))))
    return tuple(columns_here)


TABLES: dict[str, tuple[WantedColumn, ...]] = {
    table: _columns(text)
    for table, text in {
        "STRING_IDS": "id, value:text",
        "SESSION_TIME_INFO": "startTimeNs, endTimeNs",
        "NPU_INFO": "id:id, name:text",
        "HOST_INFO": "hostUid:text, hostName:text",
        "RANK_DEVICE_MAP": "rankId:id, deviceId:id",
        "META_DATA": "name:text, value:text",
        "TASK": "startNs, endNs, deviceId:id, connectionId:id, globalTaskId, taskType,"
        " contextId:id, streamId:id, taskId:id, modelId:id",
        # A `blockDim` counts cores only where there is no `blockNum`.
        "COMPUTE_TASK_INFO": "name, globalTaskId, blockNum=blockNum|blockDim|block_dim,"
        " mixBlockNum=mixBlockNum|mixBlockDim|mix_block_dim, taskType, opType, inputFormats,"
        " inputDataTypes, inputShapes, outputFormats, outputDataTypes, outputShapes, opState,"
        " hf32Eligible",
        "COMMUNICATION_SCHEDULE_TASK_INFO": "name, globalTaskId, taskType, opType",
        "TASK_PMU_INFO": "globalTaskId, name, value:real",
        "COMMUNICATION_OP": "opName, startNs, endNs, connectionId:id, groupName, opId:id, relay,"
        " retry, dataType, algType, count:id, opType, deviceId:id, rankSize:id",
        "COMMUNICATION_TASK_INFO": "name, globalTaskId, taskType, planeId:id, groupName,"
        " notifyId:id, rdmaType, srcRank:id, dstRank:id, transportType, size:id, dataType,"
        " linkType, opId:id, isMaster",
        "CANN_API": "startNs, endNs, type, globalTid, connectionId:id, name",
        "MSTX_EVENTS": "startNs, endNs, message, globalTid, domainId, connectionId:id",
        "STEP_TIME": "id:step, startNs, endNs",
        "PYTORCH_API": "startNs, endNs, globalTid, connectionId:id, name, sequenceNumber:id,"
        " fwdThreadId:id, inputDtypes, inputShapes, callchainId:id, type",
        "CONNECTION_IDS": "id, connectionId:id",
        "PYTORCH_CALLCHAINS": "id, stack, stackDepth",
        "GC_RECORD": "startNs, endNs, globalTid",
        "MEMORY_RECORD": "component, timestamp, totalAllocated, totalReserved, totalActive,"
        " streamPtr:id, deviceId:id",
        "OP_MEMORY": "name, size, allocationTime:id, releaseTime:id, activeReleaseTime:id,"
        " duration:id, activeDuration:id, allocationTotalAllocated, allocationTotalReserved,"
        " allocationTotalActive, releaseTotalAllocated, releaseTotalReserved, releaseTotalActive,"
        " streamPtr:id, deviceId:id",
        "NPU_MEM": "type, ddr:id, hbm:id, timestampNs, deviceId:id",
        "NPU_MODULE_MEM": "moduleId, timestampNs, totalReserved:id, deviceId:id",
        "NPU_OP_MEM": "timestampNs, totalAllocate:id, totalReserve:id, component, deviceId:id",
        "AICORE_FREQ": "deviceId:id, timestampNs, freq:real",
    }.items()
}

# kind -> (its table in the database, names by id for databases without it). A database's own table
# always wins: ids moved between versions.
ENUMS: dict[str, tuple[str, dict[int, str]]] = {
    "api": (
        "ENUM_API_TYPE",
        {20000: "acl", 15000: "model", 10000: "node", 5500: "communication", 5000: "runtime",
         50001: "op", 50002: "queue", 50003: "trace", 50004: "mstx"},
    ),
    "data": (
        "ENUM_HCCL_DATA_TYPE",
        {0: "INT8", 1: "INT16", 2: "INT32", 3: "FP16", 4: "FP32", 5: "INT64", 6: "UINT64",
         7: "UINT8", 8: "UINT16", 9: "UINT32", 10: "FP64", 11: "BFP16",
         12: "INT128", 14: "HIF8", 15: "FP8E4M3", 16: "FP8E5M2", 17: "FP8E8M0"},
    ),
    "link": (
        "ENUM_HCCL_LINK_TYPE",
        {0: "ON_CHIP", 1: "HCCS", 2: "PCIE", 3: "ROCE", 4: "SIO", 5: "HCCS_SW", 6: "STANDARD_ROCE",
         7: "UB", 8: "UBoE"},
    ),
    "transport": (
        "ENUM_HCCL_TRANSPORT_TYPE", {0: "SDMA", 1: "RDMA", 2: "LOCAL", 3: "UB", 4: "ROCE"},
    ),
    "rdma": (
        "ENUM_HCCL_RDMA_TYPE",
        {0: "RDMA_SEND_NOTIFY", 1: "RDMA_SEND_PAYLOAD", 2: "RDMA_PAYLOAD_PREPARE",
         3: "RDMA_PAYLOAD_CHECK", 4: "RDMA_PAYLOAD_ACK", 5: "RDMA_SEND_OP"},
    ),
    # Ids that kept their name in every version; the others were renamed or removed.
    "module": (
        "ENUM_MODULE",
        {0: "SLOG", 3: "HCCL", 6: "DVPP", 7: "RUNTIME", 8: "CCE", 9: "HDC", 10: "DRV", 22: "DEVMM",
         23: "KERNEL", 28: "HCCP", 29: "ROCE", 31: "PROFILING", 32: "DP", 33: "APP", 34: "TS",
         36: "AICPU", 38: "TDT", 39: "FE", 45: "GE", 48: "ASCENDCL", 62: "FFTS", 77: "CUSTOM"},
    ),
}  # fmt: skip
# An instant further from zero than 146 years is damage; two that are not can be subtracted.
LAST_NS = (1 << 62) - 1
_INSTANTS = frozenset({
    "startNs", "endNs", "startTimeNs", "endTimeNs", "timestamp", "timestampNs", "allocationTime",
    "releaseTime", "activeReleaseTime",
})  # fmt: skip
# Numbers that canonical tables keep in 32 bits.
_SMALL = frozenset({
    "deviceId", "planeId", "srcRank", "dstRank", "rankSize", "rankId", "blockNum", "mixBlockNum",
})  # fmt: skip
# As many rows as all others together, and each but a value of a task.
_NO_CHECK = ("TASK_PMU_INFO",)
_NO_NAMES = ("N/A", "INVALID_TYPE", "RESERVED", "")


def temp_name(table: str) -> str:
    """Name of the staging table that a table of the DB is loaded into."""
    return "_string" if table == "STRING_IDS" else f"_{table.lower()}"


def spelling(file: SqliteFile, table: str, column: WantedColumn) -> str | None:
    """How this file spells a column, or None where it has none."""
    present = {name.lower(): name for name in file.tables.get(table, {})}
    for name in (column.name, *column.names):
        if name and name.lower() in present:
            return present[name.lower()]
    return None


def rounds_times(file: SqliteFile, table: str) -> bool:
    """Whether a table's starts are floating-point numbers, which keep 256 ns of today's epoch."""
    starts = (spelling(file, table, one) for one in TABLES[table] if one.name == "startNs")
    name = next(starts, None)
    return name is not None and file.tables[table][name].upper() in ("REAL", "DOUBLE", "FLOAT")


def load_table(
    con: duckdb.DuckDBPyConnection, file: SqliteFile, table: str, spend: Callable[[int], None]
) -> None:
    """Make the temp table of one of TABLES.

    spend: called with the Arrow bytes of each batch read.
    Raises TraceFormatError when the file turns out damaged.
    """
    fields = TABLES[table]
    target = temp_name(table)
    typed = ", ".join(f'{_cast(column)} as "{column.name}"' for column in fields)
    if {"startNs", "endNs"} <= {column.name for column in fields}:
        typed += (
            f", cast(case when startNs >= -{LAST_NS} and endNs between startNs and {LAST_NS}"
            " then endNs - startNs end as bigint) as durNs"
        )
    if table == "STRING_IDS":
        typed = (
            "cast(id as bigint) as id, nullif(nullif(cast(value as varchar), 'N/A'), '') as value"
        )
    if table not in file.tables:
        empty = ", ".join(f'null as "{column.name}"' for column in fields)
        run(con, f"create temp table {target} as select {typed} from (select {empty}) limit 0")
        return
    if table not in _NO_CHECK:
        file.check(table)
    sql = f"create temp table {target} as select {typed} from _incoming"
    stream_columns(con, file.select(_sources(file, table, fields), file.rows_of(table)), sql, spend)


_SQL_TYPES: dict[Kind, SqlType] = {"real": "real", "text": "text", "step": "text"}


def _sources(
    file: SqliteFile, table: str, columns: tuple[WantedColumn, ...]
) -> dict[str, tuple[SqlType, str]]:
    sources: dict[str, tuple[SqlType, str]] = {}
    for column in columns:
        name = spelling(file, table, column)
        kind = _SQL_TYPES.get(column.kind, "integer")
        sources[column.name] = (kind, f'"{name}"' if name else "null")
    return sources


def stream_columns(
    con: duckdb.DuckDBPyConnection,
    reader: pa.RecordBatchReader,
    sql: str,
    spend: Callable[[int], None],
) -> None:
    """Run SQL that reads the reader's batches as `_incoming`."""
    run_on(con, pa.RecordBatchReader.from_batches(reader.schema, _meter(reader, spend)), sql)


def _meter(reader: pa.RecordBatchReader, spend: Callable[[int], None]) -> Iterator[pa.RecordBatch]:
    for batch in reader:
        spend(batch.nbytes)
        yield batch


def _cast(column: WantedColumn) -> str:
    name = f'"{column.name}"'
    if column.name in _INSTANTS:
        first = 0 if column.kind == "id" else -LAST_NS
        return f"cast(case when {name} between {first} and {LAST_NS} then {name} end as bigint)"
    match column.kind:
        case _ if column.name in _SMALL:
            return f"cast(case when {name} between 0 and {(1 << 31) - 1} then {name} end as bigint)"
        case "id":
            return (
                f"cast(case when {name} >= 0 and {name} not in (4294967295, 9223372036854775807)"
                f" then {name} end as bigint)"
            )
        case "integer":
            return f"cast({name} as bigint)"
        case "real":
            return f"finite(cast({name} as double))"
        case "text":
            return f"cast({name} as varchar)"
        case "step":
            return f"step_number(cast({name} as varchar))"


def load_enums(con: duckdb.DuckDBPyConnection, file: SqliteFile, log: ReadLog) -> None:
    """Make `_enum` (kind, id, name) from the database's own enumerations."""
    own_names = _own_names(file)
    rows: list[tuple[str, int, str | None]] = []
    missing = []
    for kind, (_, defaults) in ENUMS.items():
        own = own_names.get(kind)
        if not own:
            missing.append(kind)
        for key, name in (own or defaults).items():
            rows.append((kind, key, None if name in _NO_NAMES else name))
            if kind == "api" and name in ("hccl", "communication"):
                log.rules["ascend_db.communication_api_level"] = name if own else "documented"
    log.rules["ascend_db.enumerations"] = (
        f"documented for {', '.join(missing)}" if missing else "the database's own"
    )
    arrow = pa.table(
        {
            "kind": [row[0] for row in rows],
            "id": pa.array([row[1] for row in rows], pa.int64()),
            "name": pa.array([row[2] for row in rows], pa.string()),
        }
    )
    run_on(con, arrow, "create temp table _enum as select * from _incoming")


def _own_names(file: SqliteFile) -> dict[str, dict[int, str | None]]:
    """kind -> names by id, of the enumerations a database has; read by one statement, since each
    takes longer than the few rows of a table."""
    parts = []
    for kind, (table, _) in ENUMS.items():
        if {"id", "name"} <= {name.lower() for name in file.tables.get(table, ())}:
            file.check(table)
            parts.append(f"select '{kind}' as kind, id, name from \"{table}\"")
    names: dict[str, dict[int, str | None]] = {}
    if parts:
        columns: dict[str, tuple[SqlType, str]] = {
            "kind": ("text", "kind"), "id": ("integer", "id"), "name": ("text", "name")
        }  # fmt: skip
        rows = file.select(columns, f"from ({' union all '.join(parts)})").read_all()
        for row in rows.to_pylist():
            if row["id"] is not None:
                names.setdefault(row["kind"], {})[row["id"]] = row["name"]
    return names
