"""The timeline reader: exact figures of real traces, every documented variant on written ones."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from npuscope.collector.groups import group_hash
from npuscope.collector.model import RankSource, ReadLog, SourceFile
from npuscope.collector.readers import trace_view
from npuscope.collector.readers.trace_events import nanoseconds
from npuscope.collector.staging import open_staging
from npuscope.errors import TraceFormatError

TABLES = frozenset(
    {"kernels", "steps", "host_ops", "launches", "comm_ops", "comm_tasks", "counters", "marks"}
)
REAL = [(f"alexnet_ddp_text_level{level}", rank) for level in ("0", "1") for rank in ("0", "1")]
Event = dict[str, Any]


def read_paths(
    paths: Sequence[Path], folder: Path, wanted: frozenset[str] = TABLES
) -> tuple[duckdb.DuckDBPyConnection, ReadLog]:
    con, log = open_staging(folder), ReadLog()
    read_into(con, paths, log, wanted)
    return con, log


def read_into(
    con: duckdb.DuckDBPyConnection,
    paths: Sequence[Path],
    log: ReadLog,
    wanted: frozenset[str] = TABLES,
) -> None:
    files = tuple(SourceFile(str(path), path.stat().st_size, 0) for path in paths)
    source = RankSource("root", "pytorch", 0, "test", {"trace": files})
    told: list[int] = []
    trace_view.read(con, source, log, wanted, told.append)
    assert sum(told) == sum(file.size_bytes for file in files)


def rows(con: duckdb.DuckDBPyConnection, query: str) -> list[tuple[Any, ...]]:
    return con.execute(query).fetchall()


def half_even(value: float | int) -> int:
    return round(Fraction(value))


# Real traces


@pytest.fixture(scope="module", params=REAL, ids=lambda param: "-".join(param))
def real(
    request: pytest.FixtureRequest,
    real_data: Path,
    goldens: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[duckdb.DuckDBPyConnection, dict[str, Any]]:
    dataset, rank = request.param
    folder = real_data / dataset / f"rank{rank}_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    con, log = read_paths([folder / "trace_view.json"], tmp_path_factory.mktemp("real"))
    assert (log.warnings, log.rows_lost, log.bytes_lost) == ([], 0, 0)
    return con, goldens[dataset][rank]


Real = tuple[duckdb.DuckDBPyConnection, dict[str, Any]]


def test_real_launch_latencies(real: Real) -> None:
    con, golden = real
    expected = golden["flows"]["HostToDevice"]
    latencies = [row[0] for row in rows(con, "select latency_ns from launches order by 1")]
    assert len(latencies) == expected["count"]
    assert (latencies[0], latencies[-1]) == (expected["min_ns"], expected["max_ns"])
    assert sum(latencies) == expected["sum_ns"]
    assert sum(latency < 0 for latency in latencies) == expected["negative"]
    for percent in (50, 90, 99):
        at = math.ceil(percent * len(latencies) / 100) - 1
        assert latencies[at] == expected[f"p{percent}_ns"], percent


def test_real_launches_name_both_ends(real: Real) -> None:
    con, golden = real
    found = dict(
        rows(
            con, "select target, count(*) from launches where operator_name is not null group by 1"
        )
    )
    n_async = golden["flows"]["async_npu"]["count"]
    assert sum(found.values()) == n_async
    assert (found["kernel"], found["communication"]) == (187, 4)
    recorded = rows(con, "select count(*) from host_ops where kind = 'api'")[0][0]
    named = rows(con, "select count(api_name), count(*) from launches")[0]
    assert named == ((215, 215) if recorded else (0, 215))


def test_real_communication_operations(real: Real) -> None:
    con, golden = real
    found = rows(
        con,
        "select name, start_ns, dur_ns, connection_id, data_type, algorithm, element_count,"
        " size_bytes, op_type, step from comm_ops order by start_ns",
    )
    expected = [
        (op["name"], op["start_ns"], half_even(op["dur_ns"]), str(op["connection_id"]),
         op["data_type"], op["alg_type"], op["count"], op["count"] * 4, "allReduce", None)
        for op in golden["comm_ops"]
    ]  # fmt: skip
    assert found == expected


def test_real_communication_tasks(real: Real) -> None:
    con, golden = real
    for op in golden["ops_from_tasks"] or []:
        name = op["name"]
        (count,) = rows(con, f"select count(*) from comm_tasks where op_name = '{name}'")[0]
        assert count == op["tasks"]
        links = rows(
            con,
            "select link, sum(size_bytes), sum(dur_ns), count(*) from comm_tasks"
            f" where op_name = '{name}' and task_type in ('Memcpy', 'Reduce_Inline') group by link",
        )
        assert {link for link, *_ in links} == set(op["sdma_link"])
        for link, size_bytes, dur_ns, n in links:
            told = op["sdma_link"][link]
            assert (size_bytes, n) == (told["bytes"], told["n"])
            assert abs(dur_ns - told["dur_ns"]) <= n / 2
        waits = f"where op_name = '{name}' and task_type = 'Notify_Wait'"
        wait_ns, n = rows(con, f"select sum(dur_ns), count(*) from comm_tasks {waits}")[0]
        assert abs(wait_ns - op["notify_wait_ns_all_planes"]) <= n / 2
    if golden["ops_from_tasks"] is None:
        assert rows(con, "select count(*) from comm_tasks") == [(0,)]


def test_real_step_ranges(real: Real) -> None:
    con, golden = real
    (told,) = golden["steps"]["50"]["profiler_step"]
    end_ns = told["start_ns"] + told["dur_ns"]
    assert rows(con, "select kind, name, start_ns, dur_ns from marks") == [
        ("profiler_step", told["name"], told["start_ns"], told["dur_ns"])
    ]
    ((step, start_ns, found_end_ns, device_start_ns, device_end_ns),) = rows(
        con,
        "select step, window_start_ns, window_end_ns, device_start_ns, device_end_ns from steps",
    )
    assert (step, start_ns, found_end_ns) == (50, told["start_ns"], end_ns)
    first = rows(con, "select min(device_start_ns) from launches")[0][0]
    assert device_start_ns == first > start_ns
    assert device_end_ns == end_ns


def test_real_kernels_without_a_kernel_table(real: Real) -> None:
    con, golden = real
    told = golden["steps"]["50"]["trace_view_own"]
    (n, union_ns) = rows(
        con,
        """select count(*), sum(greatest(0, start_ns + dur_ns - greatest(start_ns, before)))
        from (select *, coalesce(max(start_ns + dur_ns) over (order by start_ns, dur_ns
                rows between unbounded preceding and 1 preceding), 0) as before
              from kernels where is_compute)""",
    )[0]
    assert n == told["n_compute"]
    assert abs(union_ns - told["computing_ns"]) <= n


# Written traces

OS_PID, CANN, NPU, COMM, HBM = 4242, 900, 901, 902, 903


def x(pid: int, tid: int, name: str, start: str, dur: Any = 1, **more: Any) -> Event:
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": start, "dur": dur, **more}


def arrow(
    cat: str, id_: Any, begin: tuple[int, int, str], *ends: tuple[int, int, str]
) -> list[Event]:
    places = [("s", *begin), *(("f", *end) for end in ends)]
    return [
        {"ph": ph, "name": cat, "cat": cat, "id": id_, "pid": pid, "tid": tid, "ts": ts, "bp": "e"}
        for ph, pid, tid, ts in places
    ]


def names(pid: int, process: str, label: str, threads: dict[int, str]) -> list[Event]:
    return [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": process}},
        {"ph": "M", "name": "process_labels", "pid": pid, "tid": 0, "args": {"labels": label}},
        *(
            {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
            for tid, name in threads.items()
        ),
    ]


METADATA = [
    *names(OS_PID, "Python", "CPU", {7: "Thread 7"}),
    *names(CANN, "CANN", "CPU", {8: "Thread 8"}),
    *names(NPU, "Ascend Hardware", "NPU 3", {2: "Stream 2"}),
    *names(
        COMM, "Communication", "NPU 3",
        {0: "Group group_name_0 Communication", 1: "Plane 0", 2: "Plane 1",
         3: "Group 1 Communication", 4: "Plane 0"},
    ),
    *names(HBM, "HBM", "NPU 3", {}),
]  # fmt: skip
NONE_32, NONE_64 = 4294967295, "18446744073709551615"
PLANE_ARGS = {
    "notify_id": NONE_64, "stream id": 5, "task id": 6, "task type": "Notify_Wait", "src rank": 0,
    "dst rank": NONE_32, "transport type": "LOCAL", "size(Byte)": 0, "data type": "INVALID_TYPE",
    "link type": "INVALID_TYPE",
}  # fmt: skip
SLICES = [
    x(OS_PID, 7, "ProfilerStep#3", "1000.000", 100, cat="cpu_op"),
    x(OS_PID, 7, "ProfilerStep#4", "1100.000", 100, cat="cpu_op"),
    x(OS_PID, 7, "aten::mm", "1010.000", 5.0005, cat="cpu_op",
      args={"Sequence number": 9, "Fwd thread id": 0, "Input Dims": "2, 3;\r\n;\r\n3, 4",
            "Input type": "float;\r\nNone;\r\nfloat", "Call stack": "a.py(1): f;\r\nb.py(2): g"}),
    x(OS_PID, 7, "nn.Module: A_0", "1005.000", 50, cat="python_function", args={"Python id": 1}),
    x(OS_PID, 7, "Enqueue@aclnnMm", "1012.000", 1, cat="enqueue", args={"correlation_id": 77}),
    x(CANN, 8, "AscendCL@aclnnMm", "1018.000", 9, args={"level": "acl", "connection_id": 4}),
    x(CANN, 8, "Node@launch", "1020.000", 3, args={"level": "node", "connection_id": 5}),
    x(CANN, 8, "Hccl@hcom_allReduce_", "1024.000", 3, args={"level": "hccl", "connection_id": 6}),
    x(NPU, 2, "MatMulV3", "1110.000", 30,
      args={"Task Type": "AI_CORE", "Task Id": 11, "connection_id": 5, "Model Id": NONE_32}),
    x(NPU, 2, "MEMCPY_ASYNC", "1141.000", 2,
      args={"Task Type": "PCIE_DMA_SQE", "Task Id": 12, "connection_id": 5}),
    x(NPU, 2, "SDMA", "1145.000", 2, args={"Task Type": "SDMA", "Task Id": 13}),
    x(NPU, 2, "allReduceAicpuKernel", "1147.000", 2, args={"Task Type": "AI_CPU", "Task Id": 14}),
    x(COMM, 0, "hcom_allReduce__612_0_1", "1150.000", 100,
      args={"connection_id": 6, "data_type": "FP32", "alg_type": "MESH-RING", "count": 1000,
            "relay": "yes", "retry": "no", "rank_size": 8, "model id": NONE_32}),
    x(COMM, 1, "Notify_Wait", "1150.000", 10, args=PLANE_ARGS),
    x(COMM, 2, "Memcpy", "1160.000", 20,
      args={**PLANE_ARGS, "task type": "Memcpy", "dst rank": 4, "transport type": "SDMA",
            "size(Byte)": 512, "data type": "FP32", "link type": "HCCS", "notify_id": "3"}),
    x(COMM, 3, "hcom_send__111_0_1", "1155.000", 10, args={"data_type": "BFP16", "count": 8}),
    x(COMM, 4, "Memcpy", "1156.000", 2, args={**PLANE_ARGS, "task type": "Memcpy"}),
]  # fmt: skip
FLOWS = [
    *arrow("HostToDevice", str(2**64 + 5), (CANN, 8, "1020.000"), (NPU, 2, "1110.000"),
           (NPU, 2, "1141.000")),
    *arrow("HostToDevice", str(2**64 + 6), (CANN, 8, "1025.000"), (COMM, 0, "1150.000")),
    *arrow("async_npu", 1736412474730135222, (OS_PID, 7, "1010.000"), (NPU, 2, "1110.000")),
    *arrow("fwdbwd", 1, (OS_PID, 7, "1010.000"), (OS_PID, 7, "1012.000")),
]  # fmt: skip
COUNTERS = [
    {"ph": "C", "name": "HBM 0/Read", "pid": HBM, "tid": 0, "ts": "1001.000",
     "args": {"Read(MB/s)": 12.5}},
    {"ph": "C", "name": "read_ost", "pid": HBM, "tid": 0, "ts": "1002.000",
     "args": {"value": 3, "acc_id": 1}},
    {"ph": "C", "name": "MEM", "pid": HBM, "tid": 0, "ts": "1003.000", "args": {"a": 1, "b": "2"}},
]  # fmt: skip
TRACE = [*SLICES, *FLOWS, *COUNTERS, *METADATA]


def write(path: Path, events: Iterable[Event]) -> Path:
    path.write_text(json.dumps(list(events), ensure_ascii=False))
    return path


@pytest.fixture
def written(tmp_path: Path) -> duckdb.DuckDBPyConnection:
    con, log = read_paths([write(tmp_path / "trace_view.json", TRACE)], tmp_path)
    assert (log.warnings, log.rows_lost) == ([], 0)
    return con


def everything(con: duckdb.DuckDBPyConnection) -> dict[str, list[tuple[Any, ...]]]:
    return {table: sorted(rows(con, f'from "{table}"'), key=repr) for table in TABLES}


def test_steps_by_what_they_launched(written: duckdb.DuckDBPyConnection) -> None:
    assert rows(written, "from steps order by step") == [
        (3, 1_000_000, 1_100_000, 1_110_000, 1_140_000),
        (4, 1_100_000, 1_200_000, 1_100_000, 1_200_000),
    ]


def test_steps_from_cann_calls_without_framework_arrows(tmp_path: Path) -> None:
    events = [event for event in TRACE if event.get("cat") != "async_npu"]
    con, _ = read_paths([write(tmp_path / "trace_view.json", events)], tmp_path)
    assert rows(con, "select step, device_start_ns, device_end_ns from steps where step = 3") == [
        (3, 1_110_000, 1_250_000)
    ]


def test_host_operations(written: duckdb.DuckDBPyConnection) -> None:
    found = rows(
        written,
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
        written,
        "select sequence_number, forward_thread_id, input_shapes, input_dtypes, call_stack"
        " from host_ops where kind = 'operator'",
    ) == [(9, None, "2,3;;3,4", "float;None;float", "a.py(1): f\nb.py(2): g")]


def test_launches_bind_both_ends(written: duckdb.DuckDBPyConnection) -> None:
    found = rows(
        written,
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


def test_kernels_are_tasks_that_compute(written: duckdb.DuckDBPyConnection) -> None:
    assert rows(
        written,
        "select name, core, is_compute, device_id, stream_id, task_id, model_id, start_ns, dur_ns,"
        " connection_id from kernels order by start_ns",
    ) == [
        ("MatMulV3", "AI_CORE", True, 3, 2, 11, None, 1_110_000, 30_000, "5"),
        ("allReduceAicpuKernel", "AI_CPU", False, 3, 2, 14, None, 1_147_000, 2_000, None),
    ]


def test_communication_operations_and_their_tasks(written: duckdb.DuckDBPyConnection) -> None:
    named = group_hash("group_name_0")
    assert rows(
        written,
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
        written,
        "select op_id, group_hash, plane_id, task_type, transport, link, src_group_rank,"
        " dst_group_rank, size_bytes, data_type, notify_id, stream_id, task_id, src_rank"
        " from comm_tasks order by start_ns",
    ) == [
        (0, named, 0, "Notify_Wait", "LOCAL", None, 0, None, 0, None, None, 5, 6, None),
        (1, None, 0, "Memcpy", "LOCAL", None, 0, None, 0, None, None, 5, 6, None),
        (0, named, 1, "Memcpy", "SDMA", "HCCS", 0, 4, 512, "FP32", "3", 5, 6, None),
    ]


def test_counters(written: duckdb.DuckDBPyConnection) -> None:
    assert rows(written, "from counters order by timestamp_ns, series") == [
        (3, "HBM 0/Read", "Read(MB/s)", 1_001_000, 12.5),
        (3, "read_ost", "acc 1", 1_002_000, 3.0),
        (3, "MEM", "a", 1_003_000, 1.0),
        (3, "MEM", "b", 1_003_000, 2.0),
    ]


def test_nothing_of_the_workshop_stays(written: duckdb.DuckDBPyConnection) -> None:
    left = "select table_name from duckdb_tables() where temporary"
    assert rows(written, left) == []


@pytest.mark.parametrize("seed", range(3))
def test_order_and_slices_of_the_file_do_not_matter(
    written: duckdb.DuckDBPyConnection, tmp_path: Path, seed: int
) -> None:
    events = TRACE.copy()
    random.Random(seed).shuffle(events)
    paths = [
        write(tmp_path / f"msprof_slice_{i}_20250101000000.json", events[i::3]) for i in range(3)
    ]
    con, _ = read_paths(paths, tmp_path)
    assert everything(con) == everything(written)


def test_numbers_as_time_stamps(written: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    text = json.dumps(TRACE)
    for event in TRACE:
        if "ts" in event:
            text = text.replace(f'"ts": "{event["ts"]}"', f'"ts": {event["ts"]}')
    assert '"ts": "' not in text
    path = tmp_path / "numbers.json"
    path.write_text(text)
    con, _ = read_paths([path], tmp_path)
    assert everything(con) == everything(written)


def test_older_names_of_processes(written: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    text = json.dumps(TRACE).replace('"Communication"', '"HCCL"').replace('"NPU 3"', '"NPU"')
    path = tmp_path / "older.json"
    path.write_text(text)
    con, _ = read_paths([path], tmp_path)
    for table in ("comm_ops", "launches", "kernels"):
        plain = f"select * replace (null as device_id) from {table} order by all"
        assert rows(con, plain) == rows(written, plain)


def test_only_what_is_wanted(tmp_path: Path) -> None:
    path = write(tmp_path / "trace_view.json", TRACE)
    con, _ = read_paths([path], tmp_path, frozenset({"launches"}))
    filled = {table for table in TABLES if rows(con, f"select count(*) from {table}") != [(0,)]}
    assert filled == {"launches"}
    assert rows(con, "select count(operator_name) from launches") == [(1,)]


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
    assert rows(con, "select connection_id, step from kernels") == [("5", 4)]
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


HOSTILE: list[Any] = [
    None, 7, "text", [], {}, {"ph": 1}, {"ph": "X"}, {"ph": "X", "name": "no place"},
    x(NPU, 2, "no time", "soon"), x(NPU, 2, "negative", "1000.000", -1),
    {**x(NPU, 2, "far", "1000.000"), "pid": 2**70}, {**x(NPU, 2, "far", "9" * 40)},
    {**x(NPU, 2, "listed", "1000.000"), "tid": [1]},
    {"ph": "s", "cat": "HostToDevice", "id": None, "pid": 1, "tid": 1, "ts": "1.000"},
    {"ph": "f", "cat": "HostToDevice", "id": "1", "pid": 1, "tid": 1},
    {"ph": "C", "name": "c", "pid": 1, "ts": "1.000", "args": {"value": "many"}},
    {"ph": "C", "name": "c", "pid": 1, "args": {"value": 1}},
]  # fmt: skip


def test_hostile_events_are_counted_and_left_out(
    written: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    path = write(tmp_path / "hostile.json", [*HOSTILE, *TRACE])
    con, log = read_paths([path], tmp_path)
    assert everything(con) == everything(written)
    assert log.rows_lost == len(HOSTILE)
    assert log.warnings


def test_args_of_wrong_types_cost_only_themselves(tmp_path: Path) -> None:
    events = [
        x(OS_PID, 7, "aten::a", "1000.000", cat="cpu_op", args={"Sequence number": "x"}),
        x(OS_PID, 7, "aten::b", "1001.000", cat="cpu_op", args=["no", "map"]),
        x(OS_PID, 7, "aten::c", "1002.000", cat="cpu_op", args={"Sequence number": "12"}),
        {"ph": "I", "name": "unknown phase"},
        {"ph": "new", "name": "unknown phase", "args": 3},
    ]
    con, log = read_paths([write(tmp_path / "trace_view.json", events)], tmp_path)
    assert rows(con, "select name, sequence_number from host_ops order by name") == [
        ("aten::a", None), ("aten::b", None), ("aten::c", 12),
    ]  # fmt: skip
    assert log.rows_lost == 0
    assert log.warnings


def test_bytes_that_are_no_utf8(tmp_path: Path) -> None:
    path = tmp_path / "trace_view.json"
    text = json.dumps([x(1, 1, "op-NAME", "1000.000", cat="cpu_op"), *TRACE]).encode()
    path.write_bytes(text.replace(b"op-NAME", b"op-\xff\xfe"))
    con, log = read_paths([path], tmp_path)
    assert rows(con, "select name from host_ops where process_id = 1") == [("op-\ufffd\ufffd",)]
    assert any("UTF-8" in warning for warning in log.warnings)


def test_one_bad_slice_spoils_nothing_else(
    written: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    bad = tmp_path / "msprof_slice_1_1.json"
    bad.write_text("<html>")
    good = write(tmp_path / "msprof_slice_0_1.json", TRACE)
    con, log = read_paths([good, bad], tmp_path)
    assert everything(con) == everything(written)
    assert any("msprof_slice_1_1.json" in warning for warning in log.warnings)
    with pytest.raises(TraceFormatError):
        read_paths([bad], tmp_path)


# Instants and durations


@given(
    st.lists(
        st.one_of(
            st.decimals(min_value=0, max_value=10**9, places=9),
            st.integers(0, 10**6).map(lambda n: Fraction(n, 2000)),
            st.decimals(min_value=10**15, max_value=9 * 10**15, places=3),
            st.floats(0, 1e8, allow_subnormal=False),
        ),
        min_size=1,
        max_size=30,
    ),
    st.booleans(),
)
def test_times_are_exact_and_round_half_to_even(values: list[Any], quoted: bool) -> None:
    texts = [
        repr(value) if isinstance(value, float)
        else f"{float(value):.4f}" if isinstance(value, Fraction)
        else f"{value:f}"
        for value in values
    ]  # fmt: skip
    raws = [Raw((f'"{text}"' if quoted else text).encode()) for text in texts]
    assert nanoseconds(raws).to_pylist() == [round(Fraction(text) * 1000) for text in texts]


def test_times_that_are_none() -> None:
    texts = ['"soon"', "null", "[1, 2]", '""', "1e400", '"1.2.345"', "9" * 30, "1.5e1", '"7"']
    raws = [Raw(text.encode()) for text in texts]
    assert nanoseconds(raws).to_pylist() == [None] * 7 + [15_000, 7_000]
    for raw, value in zip(raws, [None] * 7 + [15_000, 7_000], strict=True):
        assert nanoseconds([raw]).to_pylist() == [value]
    assert nanoseconds([]).to_pylist() == []
