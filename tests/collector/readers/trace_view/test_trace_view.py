"""The timeline reader: what it makes of each kind of event, and of tables read before it."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from npuscope.collector.groups import group_hash
from npuscope.collector.model import ReadLog
from npuscope.collector.staging import open_staging
from tests.collector.readers.trace_view.written_traces import (
    CANN,
    NPU,
    OS_PID,
    TABLES,
    TRACE,
    arrow,
    names,
    read_into,
    read_paths,
    rows,
    write,
    x,
)


def test_steps_by_what_they_launched(trace_tables: duckdb.DuckDBPyConnection) -> None:
    assert rows(trace_tables, "from steps order by step") == [
        (3, 1_000_000, 1_100_000, 1_110_000, 1_140_000),
        (4, 1_100_000, 1_200_000, 1_100_000, 1_200_000),
    ]


def test_steps_from_cann_calls_without_framework_arrows(tmp_path: Path) -> None:
    events = [event for event in TRACE if event.get("cat") != "async_npu"]
    con, _ = read_paths([write(tmp_path / "trace_view.json", events)], tmp_path)
    assert rows(con, "select step, device_start_ns, device_end_ns from steps where step = 3") == [
        (3, 1_110_000, 1_250_000)
    ]


def test_call_stacks_are_read_only_on_demand(tmp_path: Path) -> None:
    con, _ = read_paths([write(tmp_path / "trace_view.json", TRACE)], tmp_path, stacks=False)
    assert rows(con, "select count(*), count(call_stack), count(input_shapes) from host_ops") == [
        (6, 0, 1)
    ]


def test_host_operations(trace_tables: duckdb.DuckDBPyConnection) -> None:
    found = rows(
        trace_tables,
        "select kind, level, name, process_id, thread_id, start_ns, dur_ns, connection_id"
        " from host_ops order by start_ns",
    )
    assert found == [
        ("python", None, "nn.Module: A_0", OS_PID, 7, 1_005_000, 50_000, None),
        ("operator", None, "aten::mm", OS_PID, 7, 1_010_000, 5_000, None),
        ("enqueue", None, "Enqueue@aclnnMm", OS_PID, 7, 1_012_000, 1_000, "77"),
        ("api", "acl", "aclnnMm", OS_PID, 8, 1_018_000, 9_000, "4"),
        ("api", "node", "launch", OS_PID, 8, 1_020_000, 3_000, "5"),
        ("api", "communication", "hcom_allReduce_", OS_PID, 8, 1_024_000, 3_000, "6"),
    ]
    assert rows(
        trace_tables,
        "select sequence_number, forward_thread_id, input_shapes, input_dtypes, call_stack"
        " from host_ops where kind = 'operator'",
    ) == [(9, None, "2,3;;3,4", "float;None;float", "a.py(1): f\nb.py(2): g")]


def test_launches_bind_both_ends(trace_tables: duckdb.DuckDBPyConnection) -> None:
    found = rows(
        trace_tables,
        "select connection_id, api_name, api_thread_id, api_start_ns, api_end_ns, operator_name,"
        " target, target_name, device_id, stream_id, device_start_ns, latency_ns"
        " from launches order by device_start_ns",
    )
    assert found == [
        ("5", "launch", 8, 1_020_000, 1_023_000, "aten::mm", "kernel", "MatMulV3", 3, 2,
         1_110_000, 90_000),
        ("5", "launch", 8, 1_020_000, 1_023_000, None, "task", "MEMCPY_ASYNC", 3, 2,
         1_141_000, 121_000),
        # this arrow starts within its call, not with it
        ("6", "hcom_allReduce_", 8, 1_025_000, 1_027_000, None, "communication",
         "hcom_allReduce__612_0_1", 3, None, 1_150_000, 125_000),
    ]  # fmt: skip


def test_kernels_are_tasks_that_compute(trace_tables: duckdb.DuckDBPyConnection) -> None:
    assert rows(
        trace_tables,
        "select name, core, is_compute, device_id, stream_id, task_id, model_id, start_ns, dur_ns,"
        " connection_id from kernels order by start_ns",
    ) == [
        ("MatMulV3", "AI_CORE", True, 3, 2, 11, None, 1_110_000, 30_000, "5"),
        ("allReduceAicpuKernel", "AI_CPU", False, 3, 2, 14, None, 1_147_000, 2_000, None),
    ]


def test_communication_operations_and_their_tasks(trace_tables: duckdb.DuckDBPyConnection) -> None:
    named = group_hash("group_name_0")
    assert rows(
        trace_tables,
        "select op_id, name, op_type, group_hash, start_ns, dur_ns, data_type, element_count,"
        " size_bytes, relay, retry, group_size, connection_id, device_id from comm_ops"
        " order by op_id",
    ) == [
        (0, "hcom_allReduce__612_0_1", "allReduce", named, 1_150_000, 100_000, "FP32", 1000, 4000,
         True, False, 8, "6", 3),
        (1, "hcom_send__111_0_1", "send", None, 1_155_000, 10_000, "BFP16", 8, 16,
         None, None, None, None, 3),
    ]  # fmt: skip
    assert rows(
        trace_tables,
        "select op_id, group_hash, plane_id, task_type, transport, link, src_group_rank,"
        " dst_group_rank, size_bytes, data_type, notify_id, stream_id, task_id, src_rank"
        " from comm_tasks order by start_ns",
    ) == [
        (0, named, 0, "Notify_Wait", "LOCAL", None, 0, None, 0, None, None, 5, 6, None),
        (1, None, 0, "Memcpy", "LOCAL", None, 0, None, 0, None, None, 5, 6, None),
        (0, named, 1, "Memcpy", "SDMA", "HCCS", 0, 4, 512, "FP32", "3", 5, 6, None),
    ]


def test_counters(trace_tables: duckdb.DuckDBPyConnection) -> None:
    assert rows(trace_tables, "from counters order by timestamp_ns, series") == [
        (3, "HBM 0/Read", "Read(B/s)", 1_001_000, 12.5 * 2**20),
        (3, "read_ost", "acc 1", 1_002_000, 3.0),
        (3, "MEM", "a", 1_003_000, 1.0),
        (3, "MEM", "b", 1_003_000, 2.0),
        (3, "LLC 0 Read/Throughput", "Throughput(B/s)", 1_004_000, 7_514_343_079.0),
        (3, "LLC 0 Read/Hit Rate", "Hit Rate(%)", 1_005_000, 80.10000000000001),
        (3, "Device/HBM", "B", 1_006_000, 2402436.0 * 1024),
    ]


@pytest.mark.slow
def test_hit_rates_that_are_percent_stay(tmp_path: Path) -> None:
    percent = [
        {**event, "name": f"LLC {llc} Read/Hit Rate", "args": {"Hit Rate(%)": value}}
        for llc, value in enumerate((0.5, 87.5))
        for event in TRACE
        if event["name"] == "LLC 0 Read/Hit Rate"
    ]
    con, _ = read_paths([write(tmp_path / "trace_view.json", percent)], tmp_path)
    assert rows(con, "select value from counters order by 1") == [(0.5,), (87.5,)]


def test_nothing_of_the_workshop_stays(trace_tables: duckdb.DuckDBPyConnection) -> None:
    left = "select table_name from duckdb_tables() where temporary"
    assert rows(trace_tables, left) == []


def test_only_what_is_wanted(tmp_path: Path) -> None:
    path = write(tmp_path / "trace_view.json", TRACE)
    con, _ = read_paths([path], tmp_path, frozenset({"launches"}))
    filled = {table for table in TABLES if rows(con, f"select count(*) from {table}") != [(0,)]}
    assert filled == {"launches"}
    assert rows(con, "select count(operator_name) from launches") == [(1,)]
    # Kernels that begin together share their arrows' id: calls keep the order of operators.
    more = [
        *names(NPU, "Ascend Hardware", "NPU 3", {4: "Stream 4"}),
        x(OS_PID, 7, "aten::add", "1016.000", 2, cat="cpu_op"),
        x(NPU, 4, "Add", "1110.000", 5, args={"Task Type": "AI_VECTOR_CORE", "connection_id": 7}),
        *arrow("HostToDevice", "7", (CANN, 8, "1026.500"), (NPU, 4, "1110.000")),
        *arrow("async_npu", 1736412474730135222, (OS_PID, 7, "1016.000"), (NPU, 4, "1110.000")),
    ]
    con, _ = read_paths([write(path, [*more, *TRACE])], tmp_path, frozenset({"launches"}))
    assert rows(
        con, "select target_name, operator_name, operator_start_ns from launches"
        " where operator_name is not null order by all"
    ) == [("Add", "aten::add", 1_016_000), ("MatMulV3", "aten::mm", 1_010_000)]  # fmt: skip


def test_kernel_tables_get_connections_and_give_steps(tmp_path: Path) -> None:
    con, log = open_staging(tmp_path), ReadLog()
    con.execute(
        "insert into kernels (name, start_ns, dur_ns, step) values ('MatMulV3', 1109999, 30000, 4)"
    )
    con.execute(
        "create temp table _comm_rows (step bigint, name varchar, start_ns bigint, dur_ns bigint)"
    )
    con.execute("insert into _comm_rows values (4, 'hcom_allReduce__612_0_1', 1149999, 100000)")
    con.execute("insert into _comm_rows values (5, 'hcom_send__111_0_1', 1160000, 100000)")
    path = write(tmp_path / "trace_view.json", TRACE)
    read_into(con, [path], log, TABLES - {"kernels"})
    kernel = "select connection_id, step, stream_id, task_id, context_id from kernels"
    assert rows(con, kernel) == [("5", 4, 2, 11, None)]  # as of Level0, which has no column of them
    assert rows(con, "select step from comm_ops order by op_id") == [(4,), (None,)]
    assert rows(con, "select target from launches order by device_start_ns limit 1") == [
        ("kernel",)
    ]
    assert rows(con, "select count(*) from _comm_rows") == [(2,)]


def test_marks_of_users(tmp_path: Path) -> None:
    events = [
        *TRACE,
        *names(950, "MsprofTx", "CPU", {7: "Thread 7"}),
        x(
            950,
            7,
            "load batch",
            "1030.000",
            4,
            args={"event_type": "push/pop", "domain": "default"},
        ),
        x(NPU, 2, "load batch", "1180.000", 6, args={"Task Type": "MARK_SQE"}),
        *arrow("MsTx", 4000000001, (950, 7, "1030.000"), (NPU, 2, "1180.000")),
        x(960, 1, "GC", "1031.000", 2, cat="GC"),
    ]
    con, _ = read_paths([write(tmp_path / "trace_view.json", events)], tmp_path)
    assert rows(con, "from marks where kind = 'mstx'") == [
        ("mstx", "load batch", "default", 950, 7, 1_030_000, 4_000, "4000000001", 1_180_000, 6_000)
    ]
    assert rows(con, "select name, dur_ns from host_ops where kind = 'gc'") == [("GC", 2_000)]
