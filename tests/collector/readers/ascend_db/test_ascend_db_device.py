"""What ran on the device, in every documented variant of a profiler's database."""

from __future__ import annotations

import pytest

from tests.collector.conftest import Staged
from tests.collector.readers.ascend_db.profiler_databases import (
    NONE,
    STRINGS,
    T0,
    TASK,
    fill,
    task,
)


@pytest.mark.parametrize(
    ("columns", "expected", "rule"),
    [
        ("blockNum, blockDim", 24, "blockNum"),
        ("blockDim, other", 24, "blockDim"),
        ("block_dim, other", 24, "block_dim"),
        ("other, another", None, "none"),
    ],
)
def test_block_count_variants(stage: Staged, columns: str, expected: int | None, rule: str) -> None:
    info = (
        f"name, globalTaskId, taskType, opType, inputShapes, {columns}",
        [(2, 1, 3, 1, 13, 24, 3)],
    )
    log = fill(stage, {
        "STRING_IDS": STRINGS, "TASK": (TASK, [task(1, 0, 10)]), "COMPUTE_TASK_INFO": info,
    })  # fmt: skip
    [kernel] = stage.records("from kernels")
    assert (kernel["block_count"], log.rules["ascend_db.block_count_column"]) == (expected, rule)
    assert (kernel["name"], kernel["type"], kernel["core"]) == ("matmul", "MatMulV3", "AI_CORE")
    assert (kernel["input_shapes"], kernel["is_compute"]) == ("2,3;3,4", True)
    # 65535 is a task id like any other; 4294967295 is none.
    assert (kernel["task_id"], kernel["context_id"], kernel["connection_id"]) == (65535, None, None)


def test_kernels_that_do_not_compute(stage: Staged) -> None:
    info = "name, globalTaskId, taskType, opType"
    fill(stage, {
        "STRING_IDS": STRINGS,
        "TASK": (TASK, [task(1, 0, 10), task(2, 5, 10), task(3, 9, 1), task(4, 9, 1)]),
        "COMPUTE_TASK_INFO": (info, [(2, 1, 3, 1), (9, 2, 10, 4)]),
        "COMMUNICATION_SCHEDULE_TASK_INFO": (info, [(6, 3, 10, 4)]),
    })  # fmt: skip
    assert stage.rows(
        "select name, type, is_compute from kernels order by task_id, start_ns, name"
    ) == [
        ("matmul", "MatMulV3", True),
        ("allReduceAicpuKernel", None, False),
        ("hcom_allReduce__097_0_1", None, False),
    ]


def test_pmu_values(stage: Staged) -> None:
    fill(stage, {
        "STRING_IDS": STRINGS,
        "TASK": (TASK, [task(n, n, 1) for n in (1, 2, 3)]),
        "COMPUTE_TASK_INFO": ("name, globalTaskId", [(2, n) for n in (1, 2, 3)]),
        # A metric that comes twice, one that is missing, and one whose name is unknown.
        "TASK_PMU_INFO": ("globalTaskId, name, value NUMERIC", [
            (1, 15, 1234.5), (1, 16, 0.25), (1, 16, 0.25), (2, 15, 7), (2, 999, 3)]),
    })  # fmt: skip
    assert stage.rows("select aic_time_ns, pmu from kernels order by start_ns") == [
        (1234.5, {"aic_mac_ratio": 0.25}), (7.0, {}), (None, None),
    ]  # fmt: skip


def test_communication_variants(stage: Staged) -> None:
    strings = (STRINGS[0], [*STRINGS[1], (30, "5862276093215481612")])
    log = fill(stage, {
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
    assert stage.rows(
        """select op_id, device_id, op_type, group_hash, data_type, size_bytes, relay, retry,
            group_size, element_count from comm_ops order by op_id""",
    ) == [
        (1, 0, "allReduce", "5862276093215481612", "INT32", 400, False, True, 8, 100),
        (2, 3, "allReduce", "5862276093215481612", None, None, None, False, None, 100),
        (3, None, "allReduce", None, None, None, False, False, 2, None),
    ]
    assert stage.rows(
        """select task_type, plane_id, notify_id, rdma_type, src_group_rank, dst_group_rank,
            transport, size_bytes, data_type, link, start_ns from comm_tasks order by op_id""",
    ) == [
        ("Memcpy", 0, None, None, 0, 1, "SDMA", 512, "INT32", "UB", T0 + 5),
        ("Memcpy", 1, "17", None, 0, None, None, None, None, None, T0 + 6),
    ]
    assert "data" not in log.rules["ascend_db.enumerations"]
    assert "link" in log.rules["ascend_db.enumerations"]
    assert log.warnings == []  # which of several devices is the rank's, linking knows


def test_values_of_another_kind_are_unknown(stage: Staged) -> None:
    log = fill(stage, {
        "STRING_IDS": ("id, value", [("2", "matmul"), (None, "x"), (3, None)]),
        "TASK": ("startNs, endNs, globalTaskId", [
            (f"{T0}\t", f"{T0 + 5}.0", "1"), ("soon", T0, 2), (T0 + 1, "late", 3),
            (T0 + 2, T0, 4)]),
        "COMPUTE_TASK_INFO": ("globalTaskId, name", [(1, "2"), (2, 2), (3, 2), (4, "two")]),
    })  # fmt: skip
    assert stage.rows("select start_ns, dur_ns, name from kernels order by start_ns") == [
        (T0, 5, "matmul"), (T0 + 1, None, "matmul"), (T0 + 2, None, None),
    ]  # fmt: skip
    assert (log.rows_lost, log.warnings) == (2, [
        "TASK: 1 rows without a start time are left out",
        "TASK: 1 rows end before they start: their duration is unknown",
        "TASK: 1 rows have no end: their duration is unknown",
        "kernels: 1 rows without a task in TASK are left out",
    ])  # fmt: skip


def test_kernels_without_a_task_are_told(stage: Staged) -> None:
    log = fill(stage, {
        "TASK": (TASK, [task(1, 0, 10)]), "STRING_IDS": STRINGS,
        "COMPUTE_TASK_INFO": ("name, globalTaskId", [(2, 1), (2, 8), (2, None)]),
        "COMMUNICATION_TASK_INFO": ("name, globalTaskId", [(6, 9)]),
    })  # fmt: skip
    assert stage.rows("select start_ns, name from kernels") == [(T0, "matmul")]
    assert (log.rows_lost, log.warnings) == (3, [
        "kernels: 2 rows without a task in TASK are left out",
        "comm_tasks: 1 rows without a task in TASK are left out",
    ])  # fmt: skip


def test_a_task_around_its_kernels_is_no_other_work(stage: Staged) -> None:
    def of_context(one: tuple[object, ...], context: int) -> tuple[object, ...]:
        place = TASK.replace(" ", "").split(",").index("contextId")
        return (*one[:place], context, *one[place + 1 :])

    kernel = of_context(task(2, 12, 10, 70), 0)
    # The numbers of tasks come again, and one call may launch a copy, too.
    others = [task(3, 90, 5, 70), task(4, 13, 2, 71), of_context(task(5, 10, 12, 70), 1)]
    fill(stage, {
        "STRING_IDS": STRINGS, "TASK": (TASK, [task(1, 10, 14, 70), kernel, *others]),
        "COMPUTE_TASK_INFO": ("name, globalTaskId, taskType, opType", [(2, 2, 3, 1)]),
    })  # fmt: skip
    assert len(stage.rows("from kernels")) == 1
    starts = stage.rows("select start_ns from device_tasks order by start_ns")
    assert starts == [(T0 + 10,), (T0 + 13,), (T0 + 90,)]
    assert stage.rows("select dur_ns from device_tasks where start_ns = ?", (T0 + 10,)) == [(12,)]
