"""Profiler databases made up to meet every documented variant, and some that nobody documented."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import duckdb
import pytest

from npuscope.collector.model import RankSource, ReadLog, SourceFile
from npuscope.collector.readers import ascend_db
from npuscope.collector.readers.ascend_db_derived import ranges
from npuscope.errors import TraceFormatError

Read = Callable[..., ReadLog]
Tables = Mapping[str, tuple[str, list[tuple[Any, ...]]]]


def rows(con: duckdb.DuckDBPyConnection, sql: str) -> list[Any]:
    return con.execute(sql).fetchall()


def records(con: duckdb.DuckDBPyConnection, sql: str) -> list[dict[str, Any]]:
    result = con.execute(sql)
    names = [column[0] for column in result.description or ()]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


T0 = 1_700_000_000_000_000_000
TASK = (
    "startNs, endNs, deviceId, connectionId, globalTaskId, taskType, contextId, streamId, taskId,"
    " modelId"
)
NONE = 4294967295
STRINGS = (
    "id INTEGER PRIMARY KEY, value TEXT",
    [
        (1, "MatMulV3"), (2, "matmul"), (3, "AI_CORE"), (4, "N/A"), (5, "KERNEL_AICORE"),
        (6, "hcom_allReduce__097_0_1"), (7, "hcom_allReduce_"), (8, "group_name_0"),
        (9, "allReduceAicpuKernel"), (10, "AI_CPU"), (11, "launch"), (12, "aten::mm"),
        (13, '"2,3;3,4"'), (14, "ProfilerStep#7"), (15, "aic_total_time"), (16, "aic_mac_ratio"),
        (17, "app"), (18, "read"), (19, "Memcpy"), (20, "message"), (21, "aten::backward"),
    ],
)  # fmt: skip


def write(path: Path, tables: Tables) -> Path:
    with sqlite3.connect(path) as db:
        for name, (columns, values) in tables.items():
            db.execute(f"create table {name} ({columns})")
            if values:
                db.executemany(
                    f"insert into {name} values ({','.join('?' * len(values[0]))})", values
                )
    db.close()
    return path


def task(
    number: int, start: int, dur: int, connection: int = NONE, device: int = 0
) -> tuple[Any, ...]:
    return (T0 + start, T0 + start + dur, device, connection, number, 5, NONE, 2, 65535, NONE)


@pytest.mark.parametrize(
    ("columns", "expected", "rule"),
    [
        ("blockNum, blockDim", 24, "blockNum"),
        ("blockDim, other", 24, "blockDim"),
        ("block_dim, other", 24, "block_dim"),
        ("other, another", None, "none"),
    ],
)
def test_block_count_variants(
    read: Read, staging: duckdb.DuckDBPyConnection, tmp_path: Path,
    columns: str, expected: int | None, rule: str,
) -> None:  # fmt: skip
    info = (
        f"name, globalTaskId, taskType, opType, inputShapes, {columns}",
        [(2, 1, 3, 1, 13, 24, 3)],
    )
    path = write(tmp_path / "a.db", {
        "STRING_IDS": STRINGS, "TASK": (TASK, [task(1, 0, 10)]), "COMPUTE_TASK_INFO": info,
    })  # fmt: skip
    log = read(ascend_db, {"main_db": path})
    [kernel] = records(staging, "from kernels")
    assert (kernel["block_count"], log.rules["ascend_db.block_count_column"]) == (expected, rule)
    assert (kernel["name"], kernel["type"], kernel["core"]) == ("matmul", "MatMulV3", "AI_CORE")
    assert (kernel["input_shapes"], kernel["is_compute"]) == ("2,3;3,4", True)
    # 65535 is a task id like any other; 4294967295 is none.
    assert (kernel["task_id"], kernel["context_id"], kernel["connection_id"]) == (65535, None, None)


def test_kernels_that_do_not_compute(
    read: Read, staging: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    info = "name, globalTaskId, taskType, opType"
    path = write(tmp_path / "a.db", {
        "STRING_IDS": STRINGS,
        "TASK": (TASK, [task(1, 0, 10), task(2, 5, 10), task(3, 9, 1), task(4, 9, 1)]),
        "COMPUTE_TASK_INFO": (info, [(2, 1, 3, 1), (9, 2, 10, 4)]),
        "COMMUNICATION_SCHEDULE_TASK_INFO": (info, [(6, 3, 10, 4)]),
    })  # fmt: skip
    read(ascend_db, {"main_db": path})
    assert rows(
        staging, "select name, type, is_compute from kernels order by task_id, start_ns, name"
    ) == [
        ("matmul", "MatMulV3", True),
        ("allReduceAicpuKernel", None, False),
        ("hcom_allReduce__097_0_1", None, False),
    ]


def test_pmu_values(read: Read, staging: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    path = write(tmp_path / "a.db", {
        "STRING_IDS": STRINGS,
        "TASK": (TASK, [task(n, n, 1) for n in (1, 2, 3)]),
        "COMPUTE_TASK_INFO": ("name, globalTaskId", [(2, n) for n in (1, 2, 3)]),
        # A metric that comes twice, one that is missing, and one whose name is unknown.
        "TASK_PMU_INFO": ("globalTaskId, name, value NUMERIC", [
            (1, 15, 1234.5), (1, 16, 0.25), (1, 16, 0.25), (2, 15, 7), (2, 999, 3)]),
    })  # fmt: skip
    read(ascend_db, {"main_db": path})
    assert rows(staging, "select aic_time_ns, pmu from kernels order by start_ns") == [
        (1234.5, {"aic_mac_ratio": 0.25}), (7.0, {}), (None, None),
    ]  # fmt: skip


def test_communication_variants(
    read: Read, staging: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    strings = (STRINGS[0], [*STRINGS[1], (30, "5862276093215481612")])
    path = write(tmp_path / "a.db", {
        "STRING_IDS": strings,
        "TASK": (TASK, [task(1, 0, 10, 70), task(2, 5, 10, 71, 3), task(3, 6, 1, 72),
                        task(4, 6, 1, 72, 3)]),
        # An opType of -1 is a viewer's column; ids 404 and data type 3 have no or another name.
        "COMMUNICATION_OP": ("opName, startNs, endNs, connectionId, groupName, opId, relay, retry,"
                             " dataType, algType, count, opType, rankSize", [
            (6, T0, T0 + 9, 70, 8, 1, 0, 1, 3, 404, 100, -1, 8),
            (6, T0, T0 + 9, 71, 30, 2, 7, 0, 404, 4, 100, 7, NONE),
            (6, T0, T0 + 9, 72, 404, 3, 0, 0, 65534, 4, -1, 7, 2)]),
        "COMMUNICATION_TASK_INFO": ("name, globalTaskId, taskType, planeId, groupName, notifyId,"
                                    " rdmaType, srcRank, dstRank, transportType, size, dataType,"
                                    " linkType, opId", [
            (6, 2, 19, 0, 8, 9223372036854775807, 65535, 0, 1, 0, 512, 3, 7, 2),
            (6, 3, 19, 1, 8, 17, 404, 0, NONE, 404, -1, 404, 404, 3)]),
        "ENUM_HCCL_DATA_TYPE": ("id, name", [(3, "INT32"), (65534, "N/A")]),
    })  # fmt: skip
    log = read(ascend_db, {"main_db": path})
    assert rows(
        staging,
        """select op_id, device_id, op_type, group_hash, data_type, size_bytes, relay, retry,
            group_size, element_count from comm_ops order by op_id""",
    ) == [
        (1, 0, "allReduce", "5862276093215481612", "INT32", 400, False, True, 8, 100),
        (2, 3, "allReduce", "5862276093215481612", None, None, None, False, None, 100),
        (3, None, "allReduce", None, None, None, False, False, 2, None),
    ]
    assert rows(
        staging,
        """select task_type, plane_id, notify_id, rdma_type, src_group_rank, dst_group_rank,
            transport, size_bytes, data_type, link, start_ns from comm_tasks order by op_id""",
    ) == [
        ("Memcpy", 0, None, None, 0, 1, "SDMA", 512, "INT32", "UB", T0 + 5),
        ("Memcpy", 1, "17", None, 0, None, None, None, None, None, T0 + 6),
    ]
    assert "data" not in log.rules["ascend_db.enumerations"]
    assert "link" in log.rules["ascend_db.enumerations"]
    assert any("several devices (0, 3)" in warning for warning in log.warnings)


CANN = ("startNs, endNs, type, globalTid, connectionId, name", [
    (T0 + 100, T0 + 110, 10000, 5 << 32 | 9, 70, 11),    # in step 7, its task begins later
    (T0 + 190, T0 + 210, 10000, 5 << 32 | 9, 71, 11),    # begins in the step, ends after it
    (T0 + 200, T0 + 201, 10000, 5 << 32 | 9, 72, 11),    # begins at its end: outside
    (T0 + 101, T0 + 102, 20000, 5 << 32 | 9, 73, 11),    # not at node level
    (T0 + 103, T0 + 104, 10000, 5 << 32 | 9, 74, 11),    # launched nothing
])  # fmt: skip
LAUNCHED = (TASK, [task(1, 150, 10, 70), task(2, 160, 10, 70), task(3, 400, 50, 71),
                   task(4, 20, 10, 72), task(5, 30, 10, 73), task(6, 31, 10)])  # fmt: skip


def test_step_range_on_the_device(
    read: Read, staging: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    steps = ("id, startNs, endNs", [
        (7, T0 + 50, T0 + 200), (7, T0 + 50, T0 + 200), (8, T0 + 300, T0 + 350)])  # fmt: skip
    path = write(tmp_path / "a.db", {"TASK": LAUNCHED, "CANN_API": CANN, "STEP_TIME": steps})
    read(ascend_db, {"main_db": path})
    assert rows(staging, "select * from steps order by step") == [
        (7, T0 + 50, T0 + 200, T0 + 150, T0 + 450),
        (8, T0 + 300, T0 + 350, T0 + 300, T0 + 350),
    ]


def test_launches_and_their_operators(
    read: Read, staging: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    api = ("startNs TEXT, endNs TEXT, globalTid, connectionId, name, sequenceNumber, fwdThreadId,"
           " inputDtypes, inputShapes, callchainId, type")  # fmt: skip
    path = write(tmp_path / "a.db", {
        "STRING_IDS": STRINGS, "TASK": LAUNCHED, "CANN_API": CANN,
        "COMPUTE_TASK_INFO": ("name, globalTaskId", [(2, 1)]),
        "COMMUNICATION_OP": ("opName, startNs, endNs, connectionId", [(6, T0 + 165, T0 + 170, 70)]),
        "PYTORCH_API": (api, [
            (str(T0 + 90), str(T0 + 115), 5 << 32 | 4, 1, 12, 3, 0, None, None, None, 50001),
            # An autograd id that equals connection 70 by chance, long before and after.
            (str(T0 + 10), str(T0 + 15), 5 << 32 | 4, 2, 21, 3, 1, None, None, None, 50001),
            (str(T0 + 120), str(T0 + 121), 5 << 32 | 4, 2, 21, 3, 1, None, None, None, 50001),
            # Queue ids and calls above the node level join no operator.
            (str(T0 + 99), str(T0 + 100), 5 << 32 | 4, 1, 11, -1, 0, None, None, None, 50002),
            (str(T0 + 100), str(T0 + 101), 5 << 32 | 4, 3, 12, -1, 0, None, None, None, 50001),
            (str(T0 + 50), str(T0 + 200), 5 << 32 | 4, None, 14, -1, 0, None, None, None, 50001)]),
        "CONNECTION_IDS": ("id, connectionId", [(1, 70), (1, 71), (2, 70), (3, 73)]),
    })  # fmt: skip
    read(ascend_db, {"main_db": path})
    assert rows(
        staging,
        f"""select connection_id, target, target_name, operator_name, operator_start_ns - {T0},
            latency_ns, api_thread_id from launches order by device_start_ns""",
    ) == [
        ("72", "task", "KERNEL_AICORE", None, None, -180, 9),
        ("73", "task", "KERNEL_AICORE", None, None, -71, 9),
        ("70", "kernel", "matmul", "aten::mm", 90, 50, 9),
        ("70", "task", "KERNEL_AICORE", "aten::mm", 90, 60, 9),
        ("70", "communication", "hcom_allReduce__097_0_1", "aten::mm", 90, 65, 9),
        ("71", "task", "KERNEL_AICORE", "aten::mm", 90, 210, 9),
    ]
    assert rows(
        staging, "select kind, name, start_ns, dur_ns, process_id, thread_id from marks"
    ) == [("profiler_step", "ProfilerStep#7", T0 + 50, 150, 5, 4)]
    assert rows(
        staging,
        """select kind, name, connection_id, sequence_number, forward_thread_id from host_ops
        where kind <> 'api' order by start_ns""",
    ) == [
        ("operator", "aten::backward", None, 3, 1),
        ("operator", "aten::mm", None, 3, None),
        ("enqueue", "launch", "70", None, None),
        ("operator", "aten::mm", None, None, None),
        ("operator", "aten::backward", None, 3, 1),
    ]


def test_call_stacks(read: Read, staging: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    strings = (STRINGS[0], [*STRINGS[1], (40, "inner.py(1): f"), (41, "outer.py(2): g")])
    api = "startNs, endNs, globalTid, name, type, callchainId, inputShapes, inputDtypes"
    path = write(tmp_path / "a.db", {
        "STRING_IDS": strings,
        "PYTORCH_API": (api, [
            (T0 + n, T0 + n + 1, 1, 12, 50001, chain, 13, 3)
            for n, chain in enumerate((1, 2, 3, None))]),
        "PYTORCH_CALLCHAINS": ("id, stack, stackDepth", [
            (1, 41, 1), (1, 40, 0), (2, 40, 0), (2, 41, 1), (3, 40, 1), (3, 41, 0)]),
    })  # fmt: skip
    read(ascend_db, {"main_db": path})
    one, other = "inner.py(1): f\nouter.py(2): g", "outer.py(2): g\ninner.py(1): f"
    assert rows(staging, "select call_stack from host_ops order by start_ns") == [
        (one,), (one,), (other,), (None,),
    ]  # fmt: skip
    # Where each stands in its own column, they stay there.
    assert rows(staging, "select distinct input_shapes, input_dtypes from host_ops") == [
        ('"2,3;3,4"', "AI_CORE")
    ]


def test_marks_are_counted_once(
    read: Read, staging: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    api = "startNs, endNs, globalTid, connectionId, name, type"
    path = write(tmp_path / "a.db", {
        "STRING_IDS": STRINGS,
        "TASK": (TASK, [task(1, 150, 10, 4000000001)]),
        "MSTX_EVENTS": ("startNs, endNs, eventType, message, globalTid, domainId, connectionId", [
            (T0, T0 + 5, 2, 20, 5 << 32 | 9, 4, 4000000001),
            (T0, T0, 0, 20, 5 << 32 | 9, 3, 4000000000)]),
        "PYTORCH_API": (api, [(T0, T0 + 5, 1, 1, 20, 50004), (T0 + 8, T0 + 9, 1, 2, 20, 50004)]),
        "CONNECTION_IDS": ("id, connectionId", [(1, 4000000001), (2, 4000000007)]),
    })  # fmt: skip
    read(ascend_db, {"main_db": path})
    assert rows(
        staging,
        "select kind, name, domain, start_ns, dur_ns, device_start_ns, device_dur_ns from marks"
        " order by start_ns, dur_ns desc",
    ) == [
        ("mstx", "message", None, T0, 5, T0 + 150, 10),
        ("mstx", "message", "AI_CORE", T0, 0, None, None),
        ("mstx", "message", None, T0 + 8, 1, None, None),
    ]


def test_counters_keep_their_values(
    read: Read, staging: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.db", {
        "STRING_IDS": STRINGS,
        "AICORE_FREQ": ("deviceId, timestampNs, freq, dieId", [(0, T0, 1800, 0), (0, T0, 800, 1)]),
        "HBM": ("deviceId, timestampNs, bandwidth NUMERIC, hbmId, type", [(0, T0, 12.5, 2, 18)]),
        "LLC": ("deviceId, llcId, timestampNs, hitRate, throughput, mode", [
            (0, 1, T0, 89.1, 7, 18)]),
        "ROCE": ("deviceId, timestampNs, bandwidth, rxErrors, funcId", [(0, T0, 5, 0, 3)]),
        "SIO": ("deviceId, name, timestampNs, rxReq", [(0, "die0", T0, 4), (0, "die1", None, 4)]),
        "CPU_USAGE": ("timestampNs, cpuId, usage", [(T0, 3, 40.5)]),
        "HCCS": ("deviceId, timestampNs, txThroughput, note", [
            (NONE, T0, None, "x"), (0, T0, 8, "x")]),
    })  # fmt: skip
    read(ascend_db, {"main_db": path})
    assert rows(
        staging, "select device_id, name, series, value from counters order by name, series"
    ) == [
        (0, "AI Core Freq", "MHz", 1800),
        (0, "AI Core Freq", "MHz die 1", 800),
        (None, "CPU 3", "usage", 40.5),
        (0, "HBM 2/Read", "Read(B/s)", 12.5),
        (0, "HCCS", "txThroughput", 8),
        (0, "LLC 1 Read/Hit Rate", "Hit Rate(%)", 89.1),
        (0, "LLC 1 Read/Throughput", "Throughput(B/s)", 7),
        (0, "RoCE 3", "bandwidth", 5),
        (0, "RoCE 3", "rxErrors", 0),
        (0, "SIO die0", "rxReq", 4),
    ]


def test_memory_without_the_frameworks_curve(
    read: Read, staging: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    strings = (STRINGS[0], [*STRINGS[1], (50, "MindSpore")])
    path = write(tmp_path / "a.db", {
        "STRING_IDS": strings,
        "NPU_OP_MEM": ("timestampNs, totalAllocate, totalReserve, component, deviceId", [
            (T0, 5, 8, 50, 0)]),
        "NPU_MEM": ("type, ddr, hbm, timestampNs, deviceId", [(17, 0, 99, T0 + 1, 0)]),
        "NPU_MODULE_MEM": ("moduleId, timestampNs, totalReserved, deviceId", [
            (3, T0 + 2, 1024, 0), (404, T0 + 3, -1024, 0)]),
    })  # fmt: skip
    log = read(ascend_db, {"main_db": path})
    assert rows(
        staging,
        """select source, component, allocated_bytes, reserved_bytes from memory
        order by timestamp_ns""",
    ) == [
        ("record", "MindSpore", 5, 8), ("record", "APP", None, 99),
        ("module", "HCCL", None, 1024), ("module", None, None, None),
    ]  # fmt: skip
    assert log.rules["ascend_db.memory_curve"] == "NPU_OP_MEM"


@pytest.mark.parametrize(
    ("mapping", "expected"),
    [([(2, 4), (1, 6)], 4), ([(-1, 6)], 6), ([(5, 6)], 3), ([], 3)],
)
def test_the_ranks_device(
    read: Read, staging: duckdb.DuckDBPyConnection, tmp_path: Path,
    mapping: list[tuple[int, int]], expected: int,
) -> None:  # fmt: skip
    path = write(tmp_path / "a.db", {
        "TASK": (TASK, [task(1, 0, 1, device=3), task(2, 1, 1, device=3), task(3, 2, 1, device=4)]),
        "RANK_DEVICE_MAP": ("rankId, deviceId", mapping),
        "NPU_INFO": ("id, name", [(3, "Ascend910A"), (4, "Ascend910B"), (6, "Ascend950")]),
    })  # fmt: skip
    read(ascend_db, {"main_db": path}, rank=2)
    chip = {3: "Ascend910A", 4: "Ascend910B", 6: "Ascend950"}[expected]
    assert rows(staging, "select device_id, chip_name from ranks") == [(expected, chip)]


def test_groups_and_layout_of_the_job(
    read: Read, staging: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    group = '{"group_name_0": {"group_name": "tp", "group_rank": 1, "global_ranks": [0, 1]}}'
    path = write(tmp_path / "a.db", {
        "META_DATA": ("name TEXT, value TEXT", [
            ("ENV_VARIABLES", "{}"), ("ENV_VARIABLES", "{}"), ("SCHEMA_VERSION", "1.2.0"),
            ("parallel_group_info", group), ("distributed_args", '{"world_size": 4}')]),
    })  # fmt: skip
    log = read(ascend_db, {"main_db": path}, rank=1)
    assert rows(staging, "from groups") == [
        ("5862276093215481612", "group_name_0", "tp", "tp", 1, [0, 1])
    ]
    assert rows(staging, "select world_size, tp_size, tp_rank from ranks") == [(4, 2, 1)]
    assert log.rules["ascend_db.schema_version"] == "1.2.0"


def test_values_of_another_kind_are_unknown(
    read: Read, staging: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.db", {
        "STRING_IDS": ("id, value", [("2", "matmul"), (None, "x"), (3, None)]),
        "TASK": ("startNs, endNs, globalTaskId", [
            (str(T0), T0 + 5, "1"), ("soon", T0, 2), (T0 + 1, "late", 3), (T0 + 2, T0, 4)]),
        "COMPUTE_TASK_INFO": ("globalTaskId, name", [(1, "2"), (2, 2), (3, 2), (4, "two")]),
    })  # fmt: skip
    log = read(ascend_db, {"main_db": path})
    assert rows(staging, "select start_ns, dur_ns, name from kernels order by start_ns") == [
        (T0, 5, "matmul"), (T0 + 1, None, "matmul"), (T0 + 2, None, None),
    ]  # fmt: skip
    assert (log.rows_lost, log.warnings) == (2, [
        "TASK: 1 rows without a start time are left out",
        "kernels: 1 rows without a task in TASK are left out",
    ])  # fmt: skip


def test_kernels_without_a_task_are_told(
    read: Read, staging: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.db", {
        "TASK": (TASK, [task(1, 0, 10)]),
        "COMPUTE_TASK_INFO": ("name, globalTaskId", [(2, 1), (2, 8), (2, None)]),
        "COMMUNICATION_TASK_INFO": ("name, globalTaskId", [(6, 9)]),
    })  # fmt: skip
    log = read(ascend_db, {"main_db": path})
    assert rows(staging, "select start_ns, name from kernels") == [(T0, None)]
    assert (log.rows_lost, log.warnings) == (3, [
        "kernels: 2 rows without a task in TASK are left out",
        "comm_tasks: 1 rows without a task in TASK are left out",
    ])  # fmt: skip


def test_only_wanted_tables_are_filled(
    read: Read, staging: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.db", {
        "STRING_IDS": STRINGS, "TASK": LAUNCHED, "CANN_API": CANN,
        "COMPUTE_TASK_INFO": ("name, globalTaskId", [(2, 1)]),
        "META_DATA": ("name, value", [("distributed_args", '{"world_size": 4}')]),
    })  # fmt: skip
    read(ascend_db, {"main_db": path}, wanted=frozenset({"kernels"}))
    assert rows(staging, "select count(*) from kernels") == [(1,)]
    for table in ("ranks", "launches", "host_ops"):
        assert rows(staging, f"select count(*) from {table}") == [(0,)]
    left = "select count(*) from duckdb_tables() where temporary"
    assert rows(staging, left) == [(0,)]


def test_foreign_tables_beside_empty_ones(
    read: Read, staging: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.db", {
        "TASK": (TASK, []), "_COMPUTE_TASK_INFO_old_20251014": ("name", [(1,)]),
        "status_info": ("key, value", [("a", "b")]),
    })  # fmt: skip
    read(ascend_db, {"main_db": path})
    assert rows(staging, "select device_id, clock, framework from ranks") == [
        (None, None, "pytorch")
    ]
    assert rows(staging, "select count(*) from kernels") == [(0,)]


@pytest.mark.parametrize("tables", [{}, {"status_info": ("key", [("a",)])}])
def test_a_database_of_something_else(
    read: Read, staging: duckdb.DuckDBPyConnection, tmp_path: Path, tables: Tables
) -> None:
    path = tmp_path / "a.db"
    with sqlite3.connect(path) as db:
        db.execute("create table t (id integer primary key autoincrement)")
        db.execute("drop table t")
    db.close()
    with pytest.raises(TraceFormatError, match="none of a profiler's"):
        read(ascend_db, {"main_db": write(path, tables)})


def test_rows_still_in_the_log(
    read: Read, staging: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.db", {"TASK": (TASK, [])})
    db = sqlite3.connect(path)
    db.execute("pragma journal_mode = wal")
    db.execute("create table COMPUTE_TASK_INFO (name, globalTaskId)")
    db.execute("insert into COMPUTE_TASK_INFO values (2, 1)")
    db.execute(f"insert into TASK values ({','.join('?' * 10)})", task(1, 0, 10))
    db.commit()
    assert (tmp_path / "a.db-wal").stat().st_size > 0
    read(ascend_db, {"main_db": path})
    db.close()
    assert rows(staging, "select start_ns, dur_ns from kernels") == [(T0, 10)]


def test_a_cut_database(read: Read, staging: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    many = (TASK, [task(n, n, 1) for n in range(5000)])
    path = write(tmp_path / "a.db", {"TASK": many, "STRING_IDS": STRINGS})
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2 // 4096 * 4096])
    with pytest.raises(TraceFormatError, match="damaged or cut short"):
        read(ascend_db, {"main_db": path})
    assert rows(staging, "select count(*) from duckdb_tables() where temporary") == [(0,)]


def test_ranges_meet_without_gap_or_overlap(staging: duckdb.DuckDBPyConnection) -> None:
    ids = "select unnest([5, 1, 1, 9, 1, 2, null, 30]) as id"
    found = ranges(staging, ids, 2)
    assert [id_ for low, high in found for id_ in range(low, high + 1)] == sorted(
        {id_ for low, high in found for id_ in range(low, high + 1)}
    )
    assert {1, 2, 5, 9, 30} <= {id_ for low, high in found for id_ in range(low, high + 1)}
    assert len(found) > 1


def test_no_database_is_nothing_to_do(staging: duckdb.DuckDBPyConnection) -> None:
    source = RankSource("job", "pytorch", 0, "test", {})
    ascend_db.read(staging, source, ReadLog(), frozenset({"ranks"}), lambda _: None)
    assert rows(staging, "select count(*) from ranks") == [(0,)]


def test_a_second_database_is_named(
    read: Read, staging: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    one = write(tmp_path / "msprof_2.db", {"TASK": (TASK, [])})
    two = write(tmp_path / "msprof_1.db", {"TASK": (TASK, [])})
    log = read(ascend_db, {"main_db": [one, two]})
    assert log.warnings == ["msprof_1.db: not read, msprof_2.db is the rank's database"]


def test_progress_ends_at_the_files_size(
    staging: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.db", {"STRING_IDS": STRINGS, "TASK": LAUNCHED, "CANN_API": CANN})
    size = path.stat().st_size
    source = RankSource("job", "pytorch", 0, "test", {"main_db": (SourceFile(str(path), size, 0),)})
    spent: list[int] = []
    ascend_db.read(staging, source, ReadLog(), frozenset({"launches"}), spent.append)
    assert sum(spent) == size
    assert len(spent) > 3
