"""Real profiler databases against their exact figures."""

from __future__ import annotations

import contextlib
import math
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

from npuscope.collector import schema
from npuscope.collector.groups import group_hash
from npuscope.collector.model import RankSource, ReadLog, SourceFile
from npuscope.collector.readers.ascend_db import ascend_db
from npuscope.collector.staging import open_staging
from tests.collector.conftest import Staged

REAL = [(f"alexnet_ddp_db_level{level}", rank) for level in (0, 1) for rank in (0, 1)]


@dataclass(frozen=True)
class Real(Staged):
    """A real database as it was read, and its golden figures."""

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
    yield Real(con, folder, goldens[dataset][str(rank)], rank, log)
    con.close()


@pytest.mark.parametrize(
    ("change", "light"),
    [
        ("drop table STEP_TIME", False),
        ("delete from STEP_TIME", True),
        ("update STEP_TIME set startNs = null", False),
    ],
)
def test_steps_without_a_table_of_their_own(
    real: Real, stage: Staged, change: str, light: bool
) -> None:
    """The framework names its steps as well; its ranges are those of STEP_TIME."""
    path = stage.folder / "a.db"
    shutil.copyfile(next(real.folder.glob("ascend_pytorch_profiler_*.db")), path)
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute(change)
        db.commit()
    file = SourceFile(str(path), path.stat().st_size, 0)
    source = RankSource("job", "pytorch", real.rank, "test", {"main_db": (file,)})
    source = replace(source, selection=replace(source.selection, light=light))
    log = ReadLog()
    ascend_db.read(stage.con, source, log, frozenset({"steps", "marks"}), lambda _: None)
    assert log.rules["steps"] == "ProfilerStep marks of the DB"
    [(step, start, end)] = stage.rows("select step, window_start_ns, window_end_ns from steps")
    gold = real.gold["steps"]["50"]["db"]
    assert (step, start, end) == (50, gold["host_start"], gold["host_end"])
    assert "steps" not in real.log.rules
    if not light:
        assert stage.rows("from steps") == real.rows("from steps")


def union_ns(intervals: list[tuple[int, int]]) -> int:
    total, reach = 0, -1
    for start, end in sorted(intervals):
        total += max(end - max(start, reach), 0)
        reach = max(reach, end)
    return total


def in_step(con: duckdb.DuckDBPyConnection, table: str) -> str:
    """Rows of a table that start in the device range of the only step."""
    [(start, end)] = con.execute("select device_start_ns, device_end_ns from steps").fetchall()
    return f"(select * from {table} where start_ns >= {start} and start_ns < {end})"


def test_real_steps(real: Real) -> None:
    gold = real.gold["steps"]["50"]["db"]
    assert real.rows("from steps") == [
        (50, gold["host_start"], gold["host_end"], gold["window_start"], gold["window_end"])
    ]
    kernels, comm = in_step(real.con, "kernels where is_compute"), in_step(real.con, "comm_ops")
    kernels = kernels.replace("is_compute where", "is_compute and")
    busy = real.rows(f"select start_ns, start_ns + dur_ns from {kernels}")
    talk = real.rows(f"select start_ns, start_ns + dur_ns from {comm}")
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
            for name, total, count in real.rows(
                f"select {key}, sum(dur_ns)::bigint, count(*) from kernels group by 1"
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
    assert (min(real.rows(f"select {known} from kernels")[0]) > 0) == level1
    if not level1:
        assert real.rows(f"select {known} from kernels") == [(0, 0, 0, 0)]


def test_real_pmu(stage: Staged, real_data: Path) -> None:
    folder = real_data / "alexnet_ddp_db_level1/rank0_ascend_pt/ASCEND_PROFILER_OUTPUT"
    stage.read(ascend_db, {"main_db": folder / "ascend_pytorch_profiler_0.db"})
    [kernel] = stage.records("from kernels order by start_ns limit 1")
    assert kernel["aiv_time_ns"] == pytest.approx(49912.98611111111, abs=0)
    assert kernel["aiv_cycles"] == 2874988
    assert kernel["pmu"]["aiv_vec_ratio"] == pytest.approx(0.18843904739776304, abs=0)
    assert "aiv_total_time" not in kernel["pmu"]
    assert (kernel["input_shapes"], kernel["block_count"]) == ("32,3,224,224", 32)
    [(cells,)] = stage.rows("select sum(cardinality(pmu) + 4)::bigint from kernels")
    assert cells == 5180  # every row of TASK_PMU_INFO


def test_real_communication(real: Real) -> None:
    gold, rank = real.gold, real.rank
    found = real.records("from comm_ops order by start_ns")
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
            real.rows(f"select coalesce(task_type, 'N/A'), count(*) from {tasks} group by 1")
        )
        assert kinds == op["types"]
        links = {
            link: {"bytes": size, "dur_ns": dur, "n": count}
            for link, size, dur, count in real.rows(
                f"""select transport || '/' || link, sum(size_bytes)::bigint, sum(dur_ns)::bigint,
                    count(*) from {tasks} where link is not null group by 1""",
            )
        }
        assert links == op["links"]
    unmatched = "select count(*) from comm_tasks where op_id not in (select op_id from comm_ops)"
    assert real.rows(unmatched) == [(0,)]


def test_placeholders_of_level0_are_unknown(stage: Staged, real_data: Path) -> None:
    folder = real_data / "alexnet_ddp_db_level0/rank0_ascend_pt/ASCEND_PROFILER_OUTPUT"
    stage.read(ascend_db, {"main_db": folder / "ascend_pytorch_profiler_0.db"})
    assert stage.rows(
        """select count(*), count(plane_id), count(task_type), count(size_bytes),
            count(src_group_rank), count(dst_group_rank), count(transport), count(link),
            count(rdma_type), count(data_type), count(notify_id), count(start_ns)
        from comm_tasks""",
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
        for (latency,) in real.rows(
            f"select latency_ns from launches where target in {targets} order by 1"
        )
    ]
    assert len(found) == gold["count"]
    assert (found[0], found[-1], sum(found)) == (gold["min_ns"], gold["max_ns"], gold["sum_ns"])
    for percent in (50, 90, 99):
        assert found[math.ceil(percent * len(found) / 100) - 1] == gold[f"p{percent}_ns"]
    if "negative" in gold:
        assert sum(latency < 0 for latency in found) == gold["negative"]
    if name == "compute":
        assert real.rows("select count(operator_name) from launches where target = 'kernel'") == [
            (gold["count"],)
        ]


def test_real_memory(real: Real) -> None:
    gold = real.gold["memory"]
    found = {
        component: figures
        for component, *figures in real.rows(
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
    [facts] = real.records("from ranks")
    assert (facts["device_id"], facts["chip_name"], facts["host_name"]) == (device, chip, "ubuntu")
    assert (facts["ai_core_frequency_mhz"], facts["clock"]) == (1800, "epoch")
    assert facts["window_start_ns"] < facts["window_end_ns"]
    assert log.rules["ascend_db.schema_version"] == gold["meta"]["SCHEMA_VERSION"]
    assert log.rules["ascend_db.block_count_column"] == "blockDim"
    assert log.rules["ascend_db.communication_api_level"] == "hccl"
    assert (log.warnings, log.rows_lost) == ([], 0)

    def count(table: str) -> int:
        return int(real.rows(f"select count(*) from {table}")[0][0])

    assert count("(from memory where source = 'module')") == tables["NPU_MODULE_MEM"]
    assert count("operator_memory") == tables["OP_MEMORY"]
    assert count("(from host_ops where kind = 'api')") == tables["CANN_API"]
    assert count("(from host_ops where kind <> 'api')") == tables["PYTORCH_API"] - 1
    assert count("marks") == 1  # the one ProfilerStep
    assert count("(from counters where name = 'AI Core Freq')") == tables["AICORE_FREQ"]
    assert count("(from counters where name like 'HBM %')") == tables["HBM"]
    assert count("(from counters where name like 'LLC %')") == 2 * tables["LLC"]
    assert count("(from counters where series like 'acc %')") == 4 * tables["ACC_PMU"]
    assert real.rows("select distinct device_id from counters") == [(rank,)]
    assert {name for (name,) in real.rows("select distinct level from host_ops")} == {
        None, "acl", "node", "communication",
    }  # fmt: skip


def test_real_host_ops(stage: Staged, real_data: Path) -> None:
    folder = real_data / "alexnet_ddp_db_level1/rank0_ascend_pt/ASCEND_PROFILER_OUTPUT"
    stage.read(ascend_db, {"main_db": folder / "ascend_pytorch_profiler_0.db"})
    # This build writes shapes and types into each other's column.
    [conv] = stage.records("from host_ops where name = 'aten::conv2d' order by start_ns limit 1")
    assert conv["input_shapes"] == "32,3,224,224;64,3,11,11;64;;;;"
    assert conv["input_dtypes"].startswith("float;float;float;ScalarList")
    frames = conv["call_stack"].split("\n")
    assert "torch/nn/modules/conv.py" in frames[0]
    assert "<module>" in frames[-1]
    paired = """select count(*) from host_ops e join host_ops d using (connection_id)
        where e.kind = 'enqueue' and d.kind = 'dequeue' and d.start_ns >= e.start_ns"""
    assert stage.rows(paired) == [(159,)]
