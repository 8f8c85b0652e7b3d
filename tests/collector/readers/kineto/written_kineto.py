"""A GPU's trace written by hand that holds one of everything, and what a reader makes of it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import duckdb

from npuscope.collector.model import RankSource, ReadLog, SourceFile
from npuscope.collector.readers.kineto import kineto
from npuscope.collector.readers.trust import KINETO_FILLS
from npuscope.collector.selection import Selection
from npuscope.collector.staging import open_staging

Event = dict[str, Any]
BASE_NS = 1_790_857_026_000_000_000
HOST, GPU = 4242, 1
NCCL_STREAM = 20

HEAD: dict[str, Any] = {
    "schemaVersion": 1,
    "deviceProperties": [
        {"id": 0, "name": "NVIDIA A100-SXM4-80GB", "numSms": 108},
        {"id": 1, "name": "NVIDIA H100 80GB HBM3", "numSms": 132},
    ],
    "record_shapes": 1,
    "distributedInfo": {
        "backend": "nccl", "rank": 5, "world_size": 8, "pg_count": 2, "nccl_version": "2.27.5",
        "pg_config": [
            {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 8, "ranks": []},
            {"pg_name": "3", "pg_desc": "TENSOR_MODEL_PARALLEL_GROUP", "pg_size": 2,
             "ranks": [4, 5]},
        ],
    },
    "host_name": "node7",
    "baseTimeNanoseconds": BASE_NS,
}  # fmt: skip


def x(cat: str, name: str, place: tuple[Any, Any], ts: Any, dur: Any, **args: Any) -> Event:
    pid, tid = place
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur,
            "args": args}  # fmt: skip


def call(correlation: int, ts: Any, external: int, name: str = "cudaLaunchKernel") -> Event:
    return x("cuda_runtime", name, (HOST, HOST), ts, 2.5, correlation=correlation, cbid=211,
             **{"External id": external})  # fmt: skip


def task(
    name: str, correlation: int, ts: Any, dur: Any, *, cat: str = "kernel", stream: int = 7,
    external: int = 0, **args: Any,
) -> Event:  # fmt: skip
    return x(cat, name, (GPU, stream), ts, dur, device=GPU, context=1, stream=stream,
             correlation=correlation, **{"External id": external}, **args)  # fmt: skip


NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
TENSOR_GROUP: dict[str, Any] = {
    "Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000,
    "Group size": 2, "dtype": "BFloat16", "Process Group Name": "3",
    "Process Group Description": "TENSOR_MODEL_PARALLEL_GROUP", "Process Group Ranks": "[4, 5]",
}  # fmt: skip
FLASH = (
    "void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel"
    "<Traits<cutlass::arch::ClusterBarrier, nccl::Fake, deep_ep::Fake>, true>(flash::Params)"
)
HOST_EVENTS = [
    x("user_annotation", "ProfilerStep#3", (HOST, HOST), 1000.0, 100, **{"External id": 1}),
    x("user_annotation", "ProfilerStep#4", (HOST, HOST), 1100.0, 100, **{"External id": 2}),
    x("cpu_op", "aten::mm", (HOST, HOST), 1010.125, 5.0005,
      **{"External id": 11, "Sequence number": 9, "Fwd thread id": 0,
         "Input Dims": [[8, 64], [], [[2, 3], [4]]],
         "Input type": ["float", "Scalar", "TensorList"],
         "Call stack": "a.py(1): f;b.py(2): g"}),
    x("cpu_op", "c10d::allreduce_", (HOST, HOST), 1050.0, 20, **{"External id": 12}),
    x("user_annotation", "Optimizer.step#AdamW.step", (HOST, HOST), 1120, 30,
      **{"External id": 13}),
    x("python_function", "train.py(7): step", (HOST, HOST), 1001, 90, **{"Python id": 1}),
    call(101, 1012.0, 11), call(102, 1055.0, 12), call(103, 1095.0, 11),
    x("cuda_driver", "cuLaunchKernel", (HOST, HOST), 1012.5, 1, correlation=101),
    call(104, 1121.0, 13, "cudaMemcpyAsync"), call(105, 1125.0, 13, "cudaMemsetAsync"),
    x("cuda_runtime", "cudaDeviceSynchronize", (HOST, HOST), 1180, 5, correlation=106),
]  # fmt: skip
DEVICE_EVENTS = [
    task("void gemm<float>(float*)", 101, 1030.0, 25, external=11, grid=[4, 1, 1],
         block=[128, 1, 1]),
    task(NCCL, 102, 1060.0, 30, stream=NCCL_STREAM, external=12, **TENSOR_GROUP),
    task(FLASH, 103, 1105.5, 40, external=11),
    task("Memcpy HtoD (Pinned -> Device)", 104, 1150, 2, cat="gpu_memcpy", external=13, bytes=64),
    task("Memset (Device)", 105, 1153, 1, cat="gpu_memset", external=13),
    x("gpu_user_annotation", "ProfilerStep#3", (GPU, 7), 1030.0, 115.5),
    x("gpu_user_annotation", "nccl:all_reduce", (GPU, NCCL_STREAM), 1060.0, 30),
    x("cuda_sync", "Stream Sync", (GPU, 7), 1154, 3, correlation=106),
]  # fmt: skip
OTHER_EVENTS = [
    {"ph": "s", "id": 101, "pid": HOST, "tid": HOST, "ts": 1012.0, "cat": "ac2g", "name": "ac2g"},
    {"ph": "f", "id": 101, "pid": GPU, "tid": 7, "ts": 1030.0, "cat": "ac2g", "name": "ac2g"},
    {"ph": "M", "name": "process_labels", "pid": GPU, "tid": 0, "args": {"labels": "GPU 1"}},
    {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": HOST, "tid": HOST,
     "ts": 1011.001, "args": {"Total Reserved": 4096, "Total Allocated": 512, "Bytes": 512,
                              "Device Id": 1, "Device Type": 1, "Addr": 5}},
    {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": HOST, "tid": HOST,
     "ts": 1011.5, "args": {"Total Reserved": 0, "Total Allocated": 99, "Bytes": 99,
                            "Device Id": -1, "Device Type": 0}},
    {"ph": "C", "name": "SM Clock", "pid": GPU, "ts": 1040.0, "args": {"MHz": 1980}},
    {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans",
     "tid": "PyTorch Profiler", "ts": 990.0, "dur": 300.0, "args": {"Op count": 0}},
    {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 1290.0},
]  # fmt: skip
EVENTS = [*HOST_EVENTS, *DEVICE_EVENTS, *OTHER_EVENTS]


def text(events: Iterable[Event] | str = (), head: dict[str, Any] | None = None) -> str:
    """A whole file; `events` may be text that stands where events do."""
    body = events if isinstance(events, str) else json.dumps(list(events))[1:-1]
    opening = json.dumps(HEAD if head is None else head)[:-1]
    comma = ", " if opening != "{" else ""
    return f'{opening}{comma}"traceEvents": [{body}], "traceName": "x.json"}}'


def write(path: Path, events: Iterable[Event] | str = EVENTS, **more: Any) -> Path:
    content = text(events, **more).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.name.endswith(".gz") else content)
    return path


def read_path(
    path: Path,
    wanted: frozenset[str] = KINETO_FILLS,
    *,
    stacks: bool = False,
    rank: int = 5,
    rules: Sequence[tuple[str, str]] = (),
    selection: Selection | None = None,
) -> tuple[duckdb.DuckDBPyConnection, ReadLog]:
    """Staging tables of one file, and what the reader says of it."""
    con, log = open_staging(path.parent), ReadLog()
    size = path.stat().st_size
    source = RankSource(
        str(path), "kineto", rank, "test", {"kineto": (SourceFile(str(path), size, 0),)},
        selection=selection or Selection(stacks=stacks), rules=tuple(rules),
    )  # fmt: skip
    told: list[int] = []
    kineto.read(con, source, log, wanted, told.append)
    assert sum(told) in (0, size)
    return con, log


def rows(con: duckdb.DuckDBPyConnection, query: str) -> list[tuple[Any, ...]]:
    return con.execute(query).fetchall()
