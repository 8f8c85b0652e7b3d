"""A GPU's trace as canonical rows: one of everything, by hand."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from npuscope.collector.groups import group_hash, parallel_kind
from npuscope.collector.readers.kineto.gpu_comm import RULE
from npuscope.collector.readers.trust import KINETO_FILLS
from npuscope.collector.selection import Selection
from tests.collector.readers.kineto.written_kineto import (
    BASE_NS,
    DEVICE_EVENTS,
    EVENTS,
    FLASH,
    HEAD,
    HOST,
    NCCL,
    NCCL_STREAM,
    TENSOR_GROUP,
    call,
    read_path,
    rows,
    task,
    write,
    x,
)

TENSOR_HASH = group_hash("3[4,5]")


@pytest.fixture(scope="module")
def con(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    path = write(tmp_path_factory.mktemp("kineto") / "w.pt.trace.json")
    con, log = read_path(path, stacks=True)
    assert (log.warnings, log.rows_lost, log.bytes_lost) == ([], 0, 0)
    yield con
    con.close()


def ns(us: float) -> int:
    return BASE_NS + round(us * 1000)


def test_kernels_are_what_computed_and_what_moved_data(con: duckdb.DuckDBPyConnection) -> None:
    assert rows(
        con,
        "select name, type, core, is_compute, device_id, stream_id, start_ns, dur_ns, connection_id"
        " from kernels order by start_ns",
    ) == [
        ("void gemm<float>(float*)", "aten::mm", None, True, 1, 7, ns(1030), 25_000, "101"),
        (FLASH, "aten::mm", None, True, 1, 7, ns(1105.5), 40_000, "103"),
        ("Memcpy HtoD (Pinned -> Device)", None, "MEMCPY", False, 1, 7, ns(1150), 2000, "104"),
        ("Memset (Device)", None, "MEMSET", False, 1, 7, ns(1153), 1000, "105"),
    ]


def test_a_communication_kernel_is_an_operation_and_no_kernel(
    con: duckdb.DuckDBPyConnection,
) -> None:
    assert rows(
        con,
        "select name, op_type, group_hash, start_ns, dur_ns, algorithm, data_type, element_count,"
        " size_bytes, group_size, connection_id, device_id from comm_ops",
    ) == [
        (NCCL, "allReduce", TENSOR_HASH, ns(1060), 30_000, "RING-LL", "BFP16", 1000, 2000, 2,
         "102", 1),
    ]  # fmt: skip


def test_launches_join_calls_operators_and_tasks(con: duckdb.DuckDBPyConnection) -> None:
    found = rows(
        con,
        "select connection_id, api_name, api_thread_id, api_start_ns, api_end_ns, operator_name,"
        " operator_start_ns, target, stream_id, latency_ns from launches order by connection_id",
    )
    gemm = ("101", "cudaLaunchKernel", HOST, ns(1012), ns(1014.5), "aten::mm", ns(1010.125))
    assert found[0] == (*gemm, "kernel", 7, 18_000)
    step = "Optimizer.step#AdamW.step"
    assert [(one[0], one[5], one[7]) for one in found[1:]] == [
        ("102", "c10d::allreduce_", "communication"), ("103", "aten::mm", "kernel"),
        ("104", step, "task"), ("105", step, "task"),
    ]  # fmt: skip
    assert found[1][8] == NCCL_STREAM


def test_a_step_reaches_from_its_first_to_its_last_launched_task(
    con: duckdb.DuckDBPyConnection,
) -> None:
    assert rows(con, "from steps order by step") == [
        (3, ns(1000), ns(1100), ns(1030), ns(1145.5)),
        (4, ns(1100), ns(1200), ns(1150), ns(1200)),
    ]
    assert rows(con, "select kind, name, thread_id from marks order by start_ns") == [
        ("profiler_step", "ProfilerStep#3", HOST), ("profiler_step", "ProfilerStep#4", HOST),
    ]  # fmt: skip


def test_host_operations_keep_shapes_and_stacks(con: duckdb.DuckDBPyConnection) -> None:
    assert rows(
        con,
        "select name, start_ns, dur_ns, sequence_number, forward_thread_id, input_shapes,"
        " input_dtypes, call_stack from host_ops where name = 'aten::mm'",
    ) == [
        ("aten::mm", ns(1010.125), 5000, 9, None, "8,64;;2,3;4", "float;Scalar;TensorList",
         "a.py(1): f\nb.py(2): g"),
    ]  # fmt: skip
    assert rows(con, "select kind, level, count(*) from host_ops group by all order by all") == [
        ("api", "runtime", 7), ("operator", None, 3), ("python", None, 1),
    ]  # fmt: skip
    assert rows(con, "select distinct process_id, thread_id from host_ops") == [(HOST, HOST)]


def test_memory_of_the_device_and_counters(con: duckdb.DuckDBPyConnection) -> None:
    assert rows(
        con,
        "select device_id, source, component, timestamp_ns, allocated_bytes, reserved_bytes,"
        " active_bytes from memory",
    ) == [(1, "record", "PTA", ns(1011.001), 512, 4096, None)]
    assert rows(con, "from counters") == [(1, "SM Clock", "MHz", ns(1040), 1980.0)]


def test_the_head_tells_rank_device_and_groups(con: duckdb.DuckDBPyConnection) -> None:
    assert rows(
        con,
        "select device_id, host_name, chip_name, ai_core_count, world_size, tp_size, tp_rank,"
        " dp_size from ranks",
    ) == [(1, "node7", "NVIDIA H100 80GB HBM3", 132, 8, 2, 1, None)]
    assert rows(con, "from groups order by group_name") == [
        (group_hash("0[0,1,2,3,4,5,6,7]"), "0", "default_pg", "world", 5, list(range(8))),
        (TENSOR_HASH, "3", "TENSOR_MODEL_PARALLEL_GROUP", "tp", 1, [4, 5]),
    ]


@pytest.mark.parametrize(
    ("collective", "given", "got", "op_type", "count"),
    [
        ("allreduce", 64, 64, "allReduce", 64),
        ("_allgather_base", 16, 64, "allGather", 16),
        ("allgather_into_tensor_coalesced", 16, 64, "allGather", 16),
        ("_reduce_scatter_base", 64, 16, "reduceScatter", 16),
        ("all_to_all", 64, 64, "allToAll", 64),
        ("all_to_allv", 40, 64, "allToAllV", 40),
        ("_broadcast_oop", 64, 64, "broadcast", 64),
        ("send", 8, 8, "send", 8),
        ("recv", 0, 8, "receive", 8),
        ("barrier", None, None, "barrier", None),
        ("coalesced", 8, 8, "batchSendRecv", 8),
        (None, None, None, "batchSendRecv", None),
    ],
)
def test_pytorch_names_the_collective_else_the_kernel(
    tmp_path: Path,
    collective: str | None,
    given: int | None,
    got: int | None,
    op_type: str,
    count: int | None,
) -> None:
    told = {"Collective name": collective, "In msg nelems": given, "Out msg nelems": got}
    args: dict[str, Any] = {key: value for key, value in told.items() if value is not None}
    kernel = task("ncclDevKernel_SendRecv(x)", 1, 5.0, 1.0, dtype="Float", **args)
    con, _ = read_path(write(tmp_path / "t.json", [kernel]))

    size = None if count is None else 4 * count
    assert rows(con, "select op_type, element_count, size_bytes, data_type from comm_ops") == [
        (op_type, count, size, "FP32")
    ]


def test_types_and_groups_that_nobody_knows_stay_what_they_are(tmp_path: Path) -> None:
    group = {"Name": "77", "Ranks": "[0, 1, 2, ...]", "Description": "undefined"}
    odd = {**TENSOR_GROUP, **{f"Process Group {key}": value for key, value in group.items()}}
    odd["dtype"] = "Fancy12"
    con, log = read_path(write(tmp_path / "t.json", [task(NCCL, 1, 5.0, 1.0, **odd)]))

    assert rows(con, "select data_type, element_count, size_bytes, group_hash from comm_ops") == [
        ("Fancy12", 1000, None, group_hash("77"))
    ]
    assert rows(con, "select parallel_kind, global_ranks from groups where group_name = '77'") == [
        ("unknown", None)
    ]
    assert not log.warnings


def test_groups_stand_in_operations_where_the_head_has_none(tmp_path: Path) -> None:
    head = {**HEAD, "distributedInfo": {"backend": "nccl", "rank": 5, "world_size": 8}}
    path = write(tmp_path / "t.json", [task(NCCL, 1, 5.0, 1.0, **TENSOR_GROUP)], head=head)
    con, _ = read_path(path)

    assert rows(con, "select group_hash from comm_ops") == [(TENSOR_HASH,)]
    assert rows(con, "select group_hash, parallel_kind, global_ranks from groups") == [
        (TENSOR_HASH, "tp", [4, 5])
    ]
    assert rows(con, "select tp_size, tp_rank from ranks") == [(2, 1)]


def test_one_name_of_other_members_is_another_group() -> None:
    assert group_hash("1[0,1]") != group_hash("1[2,3]")


def test_two_levels_of_data_parallelism_have_no_one_size(tmp_path: Path) -> None:
    groups = [
        {"pg_name": "1", "pg_desc": "mesh_dp_shard", "pg_size": 2, "ranks": [4, 5]},
        {"pg_name": "2", "pg_desc": "mesh_dp_replicate", "pg_size": 2, "ranks": [1, 5]},
    ]
    info = {"rank": 5, "world_size": 8, "pg_config": groups}
    con, _ = read_path(write(tmp_path / "t.json", head={**HEAD, "distributedInfo": info}))

    assert rows(con, "select dp_size, dp_rank, world_size from ranks") == [(None, None, 8)]


@pytest.mark.parametrize(
    ("label", "kind"),
    [
        ("default_pg", "world"), ("TENSOR_MODEL_PARALLEL_GROUP", "tp"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"), ("DATA_PARALLEL_GROUP", "dp"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "dp_cp"), ("CONTEXT_PARALLEL_GROUP", "cp"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "ep"), ("EXPERT_DATA_PARALLEL_GROUP", "dp_ep"),
        ("TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP", "tp_dp_cp"), ("EMBEDDING_GROUP", "embd"),
        ("MODEL_PARALLEL_GROUP", "mp"), ("mesh_tp", "tp"), ("mesh_ep", "ep"),
        ("mesh_dp_shard_cp", "dp_cp"), ("mesh_dim_0", "unknown"), ("undefined", "unknown"),
        ("hccl_world_group", "world"), ("dp_modulo_exp", "dp_ep"),
    ],
)  # fmt: skip
def test_what_frameworks_call_their_groups(label: str, kind: str) -> None:
    assert parallel_kind(label) == kind


def test_a_site_adds_its_own_communication_kernels(tmp_path: Path) -> None:
    events = [
        task("void acme::a2a::go<int>(int*)", 1, 5.0, 1.0),
        task("acme_quick_gather(int)", 2, 7.0, 1.0),
        task("void acme::gemm<acme::a2a::Tag>(int*)", 3, 9.0, 1.0),
    ]
    path = write(tmp_path / "t.json", events)
    con, _ = read_path(path, rules=[(RULE, "acme::a2a::=all_to_all_v, acme_quick_")])

    assert rows(con, "select op_type from comm_ops order by start_ns") == [
        ("allToAllV",), ("gather",),
    ]  # fmt: skip
    assert rows(con, "select name from kernels") == [("void acme::gemm<acme::a2a::Tag>(int*)",)]

    assert rows(read_path(path)[0], "select count(*) from kernels") == [(3,)]


def test_without_calls_the_devices_own_ranges_tell_the_steps(tmp_path: Path) -> None:
    events = [
        x("gpu_user_annotation", "ProfilerStep#8", (1, 7), 10.0, 20.0),
        x("gpu_user_annotation", "ProfilerStep#8", (1, 20), 5.0, 30.0),
        task("k", 1, 12.0, 3.0),
    ]
    con, log = read_path(write(tmp_path / "t.json", events))

    assert rows(con, "from steps") == [(8, None, None, ns(5), ns(35))]
    assert not log.warnings  # no call is missed where none was recorded


def test_tasks_whose_call_is_missing_are_told(tmp_path: Path) -> None:
    events = [call(1, 5.0, 3), task("k", 1, 12.0, 3.0), task("late", 2, 20.0, 3.0)]
    con, log = read_path(write(tmp_path / "t.json", events))

    assert rows(con, "select connection_id from launches") == [("1",)]
    assert log.warnings == ["trace: 1 device tasks whose launching call was not recorded"]


@pytest.mark.slow
def test_another_devices_tasks_are_left_out_and_told(tmp_path: Path) -> None:
    """Of a process with two GPUs: what one computes hides no communication of the other."""
    elsewhere = [
        {**one, "pid": 0, "args": {**one["args"], "device": 0, "correlation": 900 + number}}
        for number, one in enumerate(DEVICE_EVENTS[2:4])
    ]
    ranges = [x("gpu_user_annotation", "ProfilerStep#3", (0, 7), 10.0, 9000.0)]
    told, log = read_path(write(tmp_path / "t.json", [*DEVICE_EVENTS, *elsewhere, *ranges]))
    alone, _ = read_path(write(tmp_path / "u.json", DEVICE_EVENTS))
    for table in ("kernels", "comm_ops", "steps", "ranks"):
        assert rows(told, f"from {table}") == rows(alone, f"from {table}"), table
    assert log.warnings == [
        "trace: figures are of device 1: 2 tasks of others (0) are left out, as a rank is one"
        " device with a process of its own"
    ]


def test_a_graph_launches_many_kernels_by_one_call(tmp_path: Path) -> None:
    tasks = [task(f"k{n}", 9, 10.0 + n, 0.5, graph_node=n) for n in range(3)]
    con, _ = read_path(write(tmp_path / "t.json", [call(9, 5.0, 0, "cudaGraphLaunch"), *tasks]))

    assert rows(con, "select target_name, api_name from launches order by device_start_ns") == [
        (f"k{n}", "cudaGraphLaunch") for n in range(3)
    ]


def test_streams_and_categories_of_old_versions(tmp_path: Path) -> None:
    old = [
        {**x("Kernel", "k", (0, "stream 7"), 10, 3), "args": {}},
        x("Memcpy", "Memcpy DtoH", (0, "stream 7"), 14, 3, device=0, stream=7),
        x("Operator", "aten::mm", (HOST, HOST), 5, 2),
        x("Runtime", "cudaLaunchKernel", (HOST, HOST), 6, 1, correlation=4),
    ]
    con, _ = read_path(write(tmp_path / "t.json", old))

    assert rows(con, "select name, device_id, stream_id, is_compute from kernels order by all") == [
        ("Memcpy DtoH", 0, 7, False), ("k", 0, 7, True),
    ]  # fmt: skip
    assert rows(con, "select kind, name from host_ops order by all") == [
        ("api", "cudaLaunchKernel"), ("operator", "aten::mm"),
    ]  # fmt: skip
    # All of it as torch 1.8 says it tells the same: ids in lower case, steps among operators.
    events = json.loads(json.dumps(EVENTS))
    for one in events:
        if one.get("cat") in ("cuda_runtime", "kernel", "gpu_memcpy", "gpu_memset"):
            one["args"] = {key.replace("External", "external"): value
                           for key, value in one["args"].items()}  # fmt: skip
        if one.get("name", "").startswith("ProfilerStep") and one["cat"] == "user_annotation":
            one["cat"] = "Operator"
        if one["name"] == "[memory]":
            del one["cat"]
    groups: Any = [
        {"pg_name": "0", "pg_desc": "default_pg", "group_size": "8", "ranks": "[]"},
        {"pg_name": "3", "pg_desc": "TENSOR_MODEL_PARALLEL_GROUP", "ranks": "[4, 5]"},
    ]
    head = {**HEAD, "distributedInfo": {"rank": 5, "world_size": 8, "pg_config": groups}}
    old_con, log = read_path(write(tmp_path / "old.json", events, head=head))
    new_con, _ = read_path(write(tmp_path / "new.json", EVENTS))
    assert not log.warnings
    for table in KINETO_FILLS:
        assert rows(old_con, f"from {table} order by all") == rows(
            new_con, f"from {table} order by all"
        ), table
    # A call tells the operator of what it launched, where that does not.
    for one in events:
        if one.get("cat") == "kernel":
            one["args"].pop("external id")
    con, _ = read_path(write(tmp_path / "calls.json", events, head=head))
    for table in ("kernels", "launches"):
        assert rows(con, f"from {table} order by all") == rows(
            new_con, f"from {table} order by all"
        ), table
    # Until torch 2.1 kernels do not tell their collective: what issued it does, where all-to-all
    # has a kernel of the name that point to point has. Of a batch nothing stands around the call.
    places = [("c10d::alltoall_base_", 100, 30), ("record_param_comms", 101, 28),
              ("nccl:all_to_all", 102, 9), ("c10d::send", 140, 20), ("nccl:send 0->1", 141, 8),
              ("c10d::recv_", 170, 20), ("c10d::allreduce_", 200, 20)]  # fmt: skip
    around = [x("cpu_op", name, (HOST, HOST), ts, dur) for name, ts, dur in places]
    calls = [call(n, ts, 0) for n, ts in enumerate((115, 145, 180, 205, 230, 180.5))]
    calls[5]["tid"] = 7  # another thread's
    kernels = [task("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", n, 500 + n, 0.5)
               for n in range(6)]  # fmt: skip
    kernels[3]["name"] = "ncclDevKernel_Generic(ncclDevComm*)"  # RCCL's
    con, log = read_path(write(tmp_path / "2023.json", [*around, *calls, *kernels]))
    assert rows(con, "select op_type from comm_ops order by start_ns") == [
        ("allToAll",), ("send",), ("receive",), ("allReduce",), ("batchSendRecv",),
        ("batchSendRecv",),
    ]  # fmt: skip
    assert not log.warnings
    con, log = read_path(write(tmp_path / "bare.json", [*calls, *kernels]))
    assert [text.partition(" are taken")[0] for text in log.warnings] == [
        "trace: 5 kernels called SendRecv"
    ]


def test_a_light_reading_takes_only_the_head(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", EVENTS)
    light = Selection(light=True)
    con, _ = read_path(path, frozenset({"ranks", "groups", "steps"}), selection=light)

    assert rows(con, "select count(*) from groups") == [(2,)]
    assert rows(con, "select world_size, host_name from ranks") == [(8, "node7")]
    assert rows(con, "select count(*) from steps") == [(0,)]


def test_only_what_is_wanted_is_filled(tmp_path: Path) -> None:
    con, _ = read_path(write(tmp_path / "t.json"), frozenset({"kernels", "steps"}))

    assert rows(con, "select count(*) from kernels") == [(4,)]
    assert rows(con, "select count(*) from comm_ops") == [(0,)]
    assert rows(con, "select count(*) from host_ops") == [(0,)]


@pytest.mark.parametrize("form", ["shuffled", "bom", "crlf", "dense", "sorted keys"])
def test_what_the_text_looks_like_changes_nothing(
    con: duckdb.DuckDBPyConnection, tmp_path: Path, form: str
) -> None:
    events = list(EVENTS)
    if form == "shuffled":
        random.Random(5).shuffle(events)
    trace = {**HEAD, "traceEvents": events, "traceName": "x"}
    text = json.dumps(trace, indent=2, sort_keys=form == "sorted keys")
    if form == "dense":
        text = json.dumps(trace, separators=(",", ":"))
    path = tmp_path / "t.json"
    content = text.replace("\n", "\r\n") if form == "crlf" else text
    path.write_bytes((b"\xef\xbb\xbf" if form == "bom" else b"") + content.encode())
    found, log = read_path(path, stacks=True)

    for table in sorted(KINETO_FILLS - {"comm_tasks"}):
        query = f"select * from {table} order by all"
        assert rows(found, query) == rows(con, query), table
    assert (log.warnings, log.rows_lost, log.bytes_lost) == ([], 0, 0)


def test_nothing_stays_behind(con: duckdb.DuckDBPyConnection) -> None:
    assert (
        rows(con, "select table_name from duckdb_tables() where table_name like '%kineto%'") == []
    )
    assert rows(con, "select view_name from duckdb_views() where view_name like '%kineto%'") == []
