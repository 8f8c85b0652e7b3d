"""A timeline written by hand that holds one of everything, and what a reader makes of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import duckdb

from npuscope.collector.model import RankSource, ReadLog, SourceFile
from npuscope.collector.readers.trace_view import trace_view
from npuscope.collector.selection import Selection
from npuscope.collector.staging import open_staging

Event = dict[str, Any]
TABLES = frozenset(
    {"kernels", "steps", "host_ops", "launches", "comm_ops", "comm_tasks", "counters", "marks"}
)
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
    {"ph": "C", "name": "LLC 0 Read/Throughput", "pid": HBM, "tid": 0, "ts": "1004.000",
     "args": {"Throughput(MB/s)": 7166.236}},
    {"ph": "C", "name": "LLC 0 Read/Hit Rate", "pid": HBM, "tid": 0, "ts": "1005.000",
     "args": {"Hit Rate(%)": 0.801}},
    {"ph": "C", "name": "Device/HBM", "pid": HBM, "tid": 0, "ts": "1006.000",
     "args": {"KB": 2402436.0}},
    {"ph": "C", "name": "MEM", "pid": HBM, "tid": 0, "ts": "1003.000", "args": {"a": 1, "b": "2"}},
]  # fmt: skip
TRACE = [*SLICES, *FLOWS, *COUNTERS, *METADATA]


def write(path: Path, events: Iterable[Event]) -> Path:
    path.write_text(json.dumps(list(events), ensure_ascii=False))
    return path


def read_paths(
    paths: Sequence[Path],
    folder: Path,
    wanted: frozenset[str] = TABLES,
    *,
    stacks: bool = True,
    processes: int = 1,
) -> tuple[duckdb.DuckDBPyConnection, ReadLog]:
    con, log = open_staging(folder), ReadLog()
    read_into(con, paths, log, wanted, stacks=stacks, processes=processes)
    return con, log


def read_into(
    con: duckdb.DuckDBPyConnection,
    paths: Sequence[Path],
    log: ReadLog,
    wanted: frozenset[str] = TABLES,
    *,
    stacks: bool = True,
    processes: int = 1,
) -> None:
    files = tuple(SourceFile(str(path), path.stat().st_size, 0) for path in paths)
    source = RankSource(
        "root",
        "pytorch",
        0,
        "test",
        {"trace": files},
        selection=Selection(stacks=stacks),
        processes=processes,
    )
    told: list[int] = []
    trace_view.read(con, source, log, wanted, told.append)
    assert sum(told) == sum(file.size_bytes for file in files)


def rows(con: duckdb.DuckDBPyConnection, query: str) -> list[tuple[Any, ...]]:
    return con.execute(query).fetchall()


def everything(con: duckdb.DuckDBPyConnection) -> dict[str, list[tuple[Any, ...]]]:
    return {table: sorted(rows(con, f'from "{table}"'), key=repr) for table in TABLES}
