"""Profiler databases: real ones against exact figures, made-up ones for every variant."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pytest

from npuscope.collector import schema
from npuscope.collector.groups import group_hash
from npuscope.collector.model import RankSource, ReadLog, SourceFile
from npuscope.collector.readers import ascend_db
from npuscope.collector.staging import open_staging
from npuscope.errors import TraceFormatError

Read = Callable[..., ReadLog]
Tables = Mapping[str, tuple[str, list[tuple[Any, ...]]]]

REAL = [(f"alexnet_ddp_db_level{level}", rank) for level in (0, 1) for rank in (0, 1)]


def rows(con: duckdb.DuckDBPyConnection, sql: str) -> list[Any]:
    return con.execute(sql).fetchall()


def records(con: duckdb.DuckDBPyConnection, sql: str) -> list[dict[str, Any]]:
    result = con.execute(sql)
    names = [column[0] for column in result.description or ()]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


# -- real databases ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Real:
    """A real database as read into `con`, and its golden figures."""

    con: duckdb.DuckDBPyConnection
    gold: dict[str, Any]
    rank: int
    log: ReadLog


@pytest.fixture(scope="module", params=REAL, ids=lambda item: f"{item[0]}-{item[1]}")
def real(
    request: pytest.FixtureRequest,
    real_data: Path,
    goldens: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Real]:
    dataset, rank = request.param
    folder = real_data / dataset / f"rank{rank}_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    path = folder / f"ascend_pytorch_profiler_{rank}.db"
    file = SourceFile(str(path), path.stat().st_size, 0)
    source = RankSource(str(folder), "pytorch", rank, "test", {"main_db": (file,)})
    log = ReadLog()
    con = open_staging(tmp_path_factory.mktemp("staging"))
    ascend_db.read(con, source, log, frozenset(schema.tables()), lambda _: None)
    yield Real(con, goldens[dataset][str(rank)], rank, log)
    con.close()


def union_ns(intervals: list[tuple[int, int]]) -> int:
    total, reach = 0, -1
    for start, end in sorted(intervals):
        total += max(end - max(start, reach), 0)
        reach = max(reach, end)
    return total


def in_step(con: duckdb.DuckDBPyConnection, table: str) -> str:
    """Rows of a table that start in the device range of the only step."""
    [(start, end)] = rows(con, "select device_start_ns, device_end_ns from steps")
    return f"(select * from {table} where start_ns >= {start} and start_ns < {end})"


def test_real_steps(real: Real) -> None:
    gold = real.gold["steps"]["50"]["db"]
    assert rows(real.con, "from steps") == [
        (50, gold["host_start"], gold["host_end"], gold["window_start"], gold["window_end"])
    ]
    kernels, comm = in_step(real.con, "kernels where is_compute"), in_step(real.con, "comm_ops")
    kernels = kernels.replace("is_compute where", "is_compute and")
    busy = rows(real.con, f"select start_ns, start_ns + dur_ns from {kernels}")
    talk = rows(real.con, f"select start_ns, start_ns + dur_ns from {comm}")
    both = union_ns(busy + talk)
    extent = max(end for _, end in busy + talk) - min(start for start, _ in busy + talk)
    assert (len(busy), len(talk)) == (gold["n_compute"], gold["n_comm"])
    assert sum(end - start for start, end in busy) == gold["compute_sum_ns"]
    assert sum(end - start for start, end in talk) == gold["comm_sum_ns"]
    assert union_ns(busy) == gold["computing_ns"]
    assert union_ns(talk) == gold["communication_ns"]
    assert union_ns(busy) + union_ns(talk) - both == gold["overlapped_ns"]
    assert both == gold["busy_ns"]
    assert (extent, extent - both) == (gold["e2e_ns"], gold["free_ns"])
    first = min(start for start, _ in busy + talk)
    assert first - gold["host_start"] == gold["preparing_ns"]


def test_real_kernels(real: Real) -> None:
    gold = real.gold["steps"]["50"]["db"]

    def totals(key: str) -> dict[str, tuple[int, int]]:
        return {
            name or "N/A": (total, count)
            for name, total, count in rows(
                real.con, f"select {key}, sum(dur_ns)::bigint, count(*) from kernels group by 1"
            )
        }

    for key in ("name", "type"):
        found = totals(key)
        for top in gold[f"top10_by_{key}"]:
            assert found[top["name"]] == (top["total_ns"], top["count"])
        assert len(found) == gold[f"distinct_{key}s"]
    assert totals("core") == {
        core: (value["total_ns"], value["count"]) for core, value in gold["by_core"].items()
    }
    # Level0 records no block count, shapes or PMU: unknown, not 0.
    level1 = "AI_CORE" in gold["by_core"]
    known = "count(block_count), count(input_shapes), count(pmu), count(aiv_time_ns)"
    assert (min(rows(real.con, f"select {known} from kernels")[0]) > 0) == level1
    if not level1:
        assert rows(real.con, f"select {known} from kernels") == [(0, 0, 0, 0)]


def test_real_pmu(read: Read, staging: duckdb.DuckDBPyConnection, real_data: Path) -> None:
    folder = real_data / "alexnet_ddp_db_level1/rank0_ascend_pt/ASCEND_PROFILER_OUTPUT"
    read(ascend_db, {"main_db": folder / "ascend_pytorch_profiler_0.db"})
    [kernel] = records(staging, "from kernels order by start_ns limit 1")
    assert kernel["aiv_time_ns"] == pytest.approx(49912.98611111111, abs=0)
    assert kernel["aiv_cycles"] == 2874988
    assert kernel["pmu"]["aiv_vec_ratio"] == pytest.approx(0.18843904739776304, abs=0)
    assert "aiv_total_time" not in kernel["pmu"]
    assert (kernel["input_shapes"], kernel["block_count"]) == ("32,3,224,224", 32)
    [(cells,)] = rows(staging, "select sum(cardinality(pmu) + 4)::bigint from kernels")
    assert cells == 5180  # every row of TASK_PMU_INFO


def test_real_communication(real: Real) -> None:
    gold, rank = real.gold, real.rank
    found = records(real.con, "from comm_ops order by start_ns")
    assert [(op["name"], op["start_ns"], op["dur_ns"], op["group_hash"]) for op in found] == [
        (op["name"], op["start_ns"], op["dur_ns"], group_hash(op["group"]))
        for op in gold["comm_ops"]
    ]
    for op in found:
        assert (op["op_type"], op["device_id"], op["data_type"]) == ("allReduce", rank, "FP32")
        assert op["size_bytes"] == 4 * op["element_count"]
        assert (op["relay"], op["retry"], op["algorithm"]) == (False, False, "MESH-RING")
    for op in gold["ops_from_tasks"]:
        tasks = f"(from comm_tasks where op_name = '{op['name']}')"
        kinds = dict(
            rows(real.con, f"select coalesce(task_type, 'N/A'), count(*) from {tasks} group by 1")
        )
        assert kinds == op["types"]
        links = {
            link: {"bytes": size, "dur_ns": dur, "n": count}
            for link, size, dur, count in rows(
                real.con,
                f"""select transport || '/' || link, sum(size_bytes)::bigint, sum(dur_ns)::bigint, count(*)
                from {tasks} where link is not null group by 1""",
            )
        }
        assert links == op["links"]
    unmatched = "select count(*) from comm_tasks where op_id not in (select op_id from comm_ops)"
    assert rows(real.con, unmatched) == [(0,)]


def test_placeholders_of_level0_are_unknown(
    read: Read, staging: duckdb.DuckDBPyConnection, real_data: Path
) -> None:
    folder = real_data / "alexnet_ddp_db_level0/rank0_ascend_pt/ASCEND_PROFILER_OUTPUT"
    read(ascend_db, {"main_db": folder / "ascend_pytorch_profiler_0.db"})
    assert rows(
        staging,
        """select count(*), count(plane_id), count(task_type), count(size_bytes), count(src_group_rank),
            count(dst_group_rank), count(transport), count(link), count(rdma_type), count(data_type),
            count(notify_id), count(start_ns) from comm_tasks""",
    ) == [(296, *[0] * 10, 296)]


@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("compute", "('kernel')"), ("comm_op", "('communication')"),
        ("all_tasks", "('kernel', 'task')"),
    ],
)  # fmt: skip
def test_real_launches(real: Real, name: str, targets: str) -> None:
    gold = real.gold[f"launch_latency_{name}"]
    found = [
        latency
        for (latency,) in rows(
            real.con, f"select latency_ns from launches where target in {targets} order by 1"
        )
    ]
    assert len(found) == gold["count"]
    assert (found[0], found[-1], sum(found)) == (gold["min_ns"], gold["max_ns"], gold["sum_ns"])
    for percent in (50, 90, 99):
        assert found[math.ceil(percent * len(found) / 100) - 1] == gold[f"p{percent}_ns"]
    if "negative" in gold:
        assert sum(latency < 0 for latency in found) == gold["negative"]
    if name == "compute":
        assert rows(
            real.con, "select count(operator_name) from launches where target = 'kernel'"
        ) == [(gold["count"],)]


def test_real_memory(real: Real) -> None:
    gold = real.gold["memory"]
    found = {
        component: figures
        for component, *figures in rows(
            real.con,
            """select component, count(*), max(reserved_bytes), max(allocated_bytes),
                coalesce(max(active_bytes), 0)
            from memory where source = 'record' group by 1""",
        )
    }
    for component in ("GE", "PTA", "PTA+GE"):
        wanted = gold[component]
        assert found[component] == [
            wanted["rows"], wanted["peak_reserved_bytes"], wanted["peak_allocated_bytes"],
            wanted["peak_active_bytes"],
        ]  # fmt: skip
    assert found["APP"][1] == gold["NPU_MEM/app"]["peak_hbm_bytes"]
    assert found["DEVICE"][1] == gold["NPU_MEM/device"]["peak_hbm_bytes"]


def test_real_facts(real: Real) -> None:
    gold, rank, log = real.gold, real.rank, real.log
    tables = gold["tables"]
    [[device, chip]] = gold["npu"]
    [facts] = records(real.con, "from ranks")
    assert (facts["device_id"], facts["chip_name"], facts["host_name"]) == (device, chip, "ubuntu")
    assert (facts["ai_core_frequency_mhz"], facts["clock"]) == (1800, "epoch")
    assert facts["window_start_ns"] < facts["window_end_ns"]
    assert log.rules["ascend_db.schema_version"] == gold["meta"]["SCHEMA_VERSION"]
    assert log.rules["ascend_db.block_count_column"] == "blockDim"
    assert log.rules["ascend_db.communication_api_level"] == "hccl"
    assert (log.warnings, log.rows_lost) == ([], 0)

    def count(table: str) -> int:
        return int(rows(real.con, f"select count(*) from {table}")[0][0])

    assert count("(from memory where source = 'module')") == tables["NPU_MODULE_MEM"]
    assert count("operator_memory") == tables["OP_MEMORY"]
    assert count("(from host_ops where kind = 'api')") == tables["CANN_API"]
    assert count("(from host_ops where kind <> 'api')") == tables["PYTORCH_API"] - 1
    assert count("marks") == 1  # the one ProfilerStep
    assert count("(from counters where name = 'AI Core Freq')") == tables["AICORE_FREQ"]
    assert count("(from counters where name like 'HBM %')") == tables["HBM"]
    assert count("(from counters where name like 'LLC %')") == 2 * tables["LLC"]
    assert count("(from counters where series like 'acc %')") == 4 * tables["ACC_PMU"]
    assert rows(real.con, "select distinct device_id from counters") == [(rank,)]
    assert {name for (name,) in rows(real.con, "select distinct level from host_ops")} == {
        None, "acl", "node", "communication",
    }  # fmt: skip


def test_real_host_ops(read: Read, staging: duckdb.DuckDBPyConnection, real_data: Path) -> None:
    folder = real_data / "alexnet_ddp_db_level1/rank0_ascend_pt/ASCEND_PROFILER_OUTPUT"
    read(ascend_db, {"main_db": folder / "ascend_pytorch_profiler_0.db"})
    # This build writes shapes and types into each other's column.
    [conv] = records(staging, "from host_ops where name = 'aten::conv2d' order by start_ns limit 1")
    assert conv["input_shapes"] == "32,3,224,224;64,3,11,11;64;;;;"
    assert conv["input_dtypes"].startswith("float;float;float;ScalarList")
    frames = conv["call_stack"].split("\n")
    assert "torch/nn/modules/conv.py" in frames[0]
    assert "<module>" in frames[-1]
    paired = """select count(*) from host_ops e join host_ops d using (connection_id)
        where e.kind = 'enqueue' and d.kind = 'dequeue' and d.start_ns >= e.start_ns"""
    assert rows(staging, paired) == [(159,)]


# -- made-up databases -------------------------------------------------------------------------

T0 = 1_700_000_000_000_000_000
TASK = "startNs, endNs, deviceId, connectionId, globalTaskId, taskType, contextId, streamId, taskId, modelId"
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
    path = write(tmp_path / "a.db", {
        "STRING_IDS": STRINGS,
        "TASK": (TASK, [task(1, 0, 10), task(2, 5, 10), task(3, 9, 1), task(4, 9, 1)]),
        "COMPUTE_TASK_INFO": ("name, globalTaskId, taskType, opType", [(2, 1, 3, 1), (9, 2, 10, 4)]),
        "COMMUNICATION_SCHEDULE_TASK_INFO": ("name, globalTaskId, taskType, opType", [(6, 3, 10, 4)]),
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
        "TASK": (TASK, [task(1, 0, 10, 70), task(2, 5, 10, 71, 3), task(3, 6, 1, 72), task(4, 6, 1, 72, 3)]),
        # An opType of -1 is a viewer's column; ids 404 and data type 3 have no or another name.
        "COMMUNICATION_OP": ("opName, startNs, endNs, connectionId, groupName, opId, relay, retry,"
                             " dataType, algType, count, opType, rankSize", [
            (6, T0, T0 + 9, 70, 8, 1, 0, 1, 3, 404, 100, -1, 8),
            (6, T0, T0 + 9, 71, 30, 2, 7, 0, 404, 4, 100, 7, NONE),
            (6, T0, T0 + 9, 72, 404, 3, 0, 0, 65534, 4, -1, 7, 2)]),
        "COMMUNICATION_TASK_INFO": ("name, globalTaskId, taskType, planeId, groupName, notifyId, rdmaType,"
                                    " srcRank, dstRank, transportType, size, dataType, linkType, opId", [
            (6, 2, 19, 0, 8, 9223372036854775807, 65535, 0, 1, 0, 512, 3, 7, 2),
            (6, 3, 19, 1, 8, 17, 404, 0, NONE, 404, -1, 404, 404, 3)]),
        "ENUM_HCCL_DATA_TYPE": ("id, name", [(3, "INT32"), (65534, "N/A")]),
    })  # fmt: skip
    log = read(ascend_db, {"main_db": path})
    assert rows(
        staging,
        """select op_id, device_id, op_type, group_hash, data_type, size_bytes, relay, retry, group_size,
            element_count from comm_ops order by op_id""",
    ) == [
        (1, 0, "allReduce", "5862276093215481612", "INT32", 400, False, True, 8, 100),
        (2, 3, "allReduce", "5862276093215481612", None, None, None, False, None, 100),
        (3, None, "allReduce", None, None, None, False, False, 2, None),
    ]
    assert rows(
        staging,
        """select task_type, plane_id, notify_id, rdma_type, src_group_rank, dst_group_rank, transport,
            size_bytes, data_type, link, start_ns from comm_tasks order by op_id""",
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
        """select connection_id, target, target_name, operator_name, operator_start_ns - $t, latency_ns,
            api_thread_id from launches order by device_start_ns""".replace("$t", str(T0)),
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
            (T0 + n, T0 + n + 1, 1, 12, 50001, chain, 13, 3) for n, chain in enumerate((1, 2, 3, None))]),
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
            (T0, T0 + 5, 2, 20, 5 << 32 | 9, 4, 4000000001), (T0, T0, 0, 20, 5 << 32 | 9, 3, 4000000000)]),
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
        "LLC": ("deviceId, llcId, timestampNs, hitRate, throughput, mode", [(0, 1, T0, 89.1, 7, 18)]),
        "ROCE": ("deviceId, timestampNs, bandwidth, rxErrors, funcId", [(0, T0, 5, 0, 3)]),
        "SIO": ("deviceId, name, timestampNs, rxReq", [(0, "die0", T0, 4), (0, "die1", None, 4)]),
        "CPU_USAGE": ("timestampNs, cpuId, usage", [(T0, 3, 40.5)]),
        "HCCS": ("deviceId, timestampNs, txThroughput, note", [(NONE, T0, None, "x"), (0, T0, 8, "x")]),
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
        "NPU_OP_MEM": ("timestampNs, totalAllocate, totalReserve, component, deviceId", [(T0, 5, 8, 50, 0)]),
        "NPU_MEM": ("type, ddr, hbm, timestampNs, deviceId", [(17, 0, 99, T0 + 1, 0)]),
        "NPU_MODULE_MEM": ("moduleId, timestampNs, totalReserved, deviceId", [
            (3, T0 + 2, 1024, 0), (404, T0 + 3, -1024, 0)]),
    })  # fmt: skip
    log = read(ascend_db, {"main_db": path})
    assert rows(
        staging, "select source, component, allocated_bytes, reserved_bytes from memory order by timestamp_ns"
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
    assert (log.rows_lost, log.warnings) == (1, ["TASK: 1 rows without a start time are left out"])


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
    found = ascend_db.ranges(staging, ids, 2)
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
