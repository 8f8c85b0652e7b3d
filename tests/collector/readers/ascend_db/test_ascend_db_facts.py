"""Counters, memory, and what a database says of its rank and its job."""

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


def test_counters_keep_their_values(stage: Staged) -> None:
    fill(stage, {
        "STRING_IDS": STRINGS,
        "AICORE_FREQ": ("deviceId, timestampNs, freq, dieId", [(0, T0, 1800, 0), (0, T0, 800, 1)]),
        "HBM": ("deviceId, timestampNs, bandwidth NUMERIC, hbmId, type", [(0, T0, 12.5, 2, 18)]),
        "LLC": ("deviceId, llcId, timestampNs, hitRate, throughput, mode", [
            (0, 1, T0, 89.1, 7, 18)]),
        "ROCE": ("deviceId, timestampNs, bandwidth, rxErrors, funcId", [(0, T0, 5, 0, 3)]),
        "NPU_MEM": ("type, ddr, hbm, timestampNs, deviceId", [(17, 700, 99, T0, 0)]),
        "SIO": ("deviceId, name, timestampNs, rxReq", [(0, "die0", T0, 4), (0, "die1", None, 4)]),
        "CPU_USAGE": ("timestampNs, cpuId, usage", [(T0, 3, 40.5)]),
        "HCCS": ("deviceId, timestampNs, txThroughput, note", [
            (NONE, T0, None, "x"), (0, T0, 8, "x")]),
    })  # fmt: skip
    assert stage.rows(
        "select device_id, name, series, value from counters order by name, series"
    ) == [
        (0, "AI Core Freq", "MHz", 1800),
        (0, "AI Core Freq", "MHz die 1", 800),
        (0, "APP/DDR", "B", 700),
        (0, "APP/HBM", "B", 99),
        (0, "APP/Memory", "B", 799),
        (None, "CPU 3", "usage", 40.5),
        (0, "HBM 2/Read", "Read(B/s)", 12.5),
        (0, "HCCS", "txThroughput", 8),
        (0, "LLC 1 Read/Hit Rate", "Hit Rate(%)", 89.1),
        (0, "LLC 1 Read/Throughput", "Throughput(B/s)", 7),
        (0, "RoCE 3", "bandwidth", 5),
        (0, "RoCE 3", "rxErrors", 0),
        (0, "SIO die0", "rxReq", 4),
    ]


def test_memory_without_the_frameworks_curve(stage: Staged) -> None:
    strings = (STRINGS[0], [*STRINGS[1], (50, "MindSpore")])
    log = fill(stage, {
        "STRING_IDS": strings,
        "NPU_OP_MEM": ("timestampNs, totalAllocate, totalReserve, component, deviceId", [
            (T0, 5, 8, 50, 0)]),
        "NPU_MEM": ("type, ddr, hbm, timestampNs, deviceId", [(17, 0, 99, T0 + 1, 0)]),
        "NPU_MODULE_MEM": ("moduleId, timestampNs, totalReserved, deviceId", [
            (3, T0 + 2, 1024, 0), (404, T0 + 3, -1024, 0)]),
    })  # fmt: skip
    assert stage.rows("""select source, component, allocated_bytes, reserved_bytes from memory
        order by timestamp_ns""",
    ) == [
        ("record", "MindSpore", 5, 8), ("record", "APP", None, 99),
        ("module", "HCCL", None, 1024), ("module", None, None, None),
    ]  # fmt: skip
    assert log.rules["ascend_db.memory_curve"] == "NPU_OP_MEM"


def test_what_a_process_holds_is_in_both_kinds_of_memory(stage: Staged) -> None:
    strings = (STRINGS[0], [*STRINGS[1], (51, "device")])
    unknown, most = -1, (1 << 63) - 1
    fill(stage, {
        "STRING_IDS": strings,
        "NPU_MEM": ("type, ddr, hbm, timestampNs, deviceId", [
            (17, 700, 99, T0, 0), (51, 900, 100, T0 + 1, 0), (17, 5, unknown, T0 + 2, 0),
            (17, unknown, 8, T0 + 3, 0), (17, None, None, T0 + 4, 0),
            (17, most - 1, most - 1, T0 + 5, 0),
        ]),
    })  # fmt: skip

    assert stage.rows("select component, reserved_bytes from memory order by timestamp_ns") == [
        ("APP", 799), ("DEVICE", 1000), ("APP", 5), ("APP", 8), ("APP", None), ("APP", None),
    ]  # fmt: skip


def test_a_database_without_a_column_for_ddr_gives_what_is_in_hbm(stage: Staged) -> None:
    fill(stage, {
        "STRING_IDS": STRINGS, "NPU_MEM": ("type, hbm, timestampNs, deviceId", [(17, 99, T0, 0)]),
    })  # fmt: skip

    assert stage.rows("select reserved_bytes from memory") == [(99,)]


@pytest.mark.parametrize(
    ("mapping", "expected"),
    [([(2, 4), (1, 6)], 4), ([(-1, 6)], 6), ([(5, 6)], 3), ([], 3)],
)
def test_the_ranks_device(stage: Staged, mapping: list[tuple[int, int]], expected: int) -> None:
    fill(stage, {
        "TASK": (TASK, [task(1, 0, 1, device=3), task(2, 1, 1, device=3), task(3, 2, 1, device=4)]),
        "RANK_DEVICE_MAP": ("rankId, deviceId", mapping),
        "NPU_INFO": ("id, name", [(3, "Ascend910A"), (4, "Ascend910B"), (6, "Ascend950")]),
    }, rank=2)  # fmt: skip
    chip = {3: "Ascend910A", 4: "Ascend910B", 6: "Ascend950"}[expected]
    assert stage.rows("select device_id, chip_name from ranks") == [(expected, chip)]


def test_groups_and_layout_of_the_job(stage: Staged) -> None:
    group = '{"group_name_0": {"group_name": "tp", "group_rank": 1, "global_ranks": [0, 1]}}'
    log = fill(stage, {
        "META_DATA": ("name TEXT, value TEXT", [
            ("ENV_VARIABLES", "{}"), ("ENV_VARIABLES", "{}"), ("SCHEMA_VERSION", "1.2.0"),
            ("parallel_group_info", group), ("distributed_args", '{"world_size": 4}')]),
    }, rank=1)  # fmt: skip
    assert stage.rows("from groups") == [
        ("5862276093215481612", "group_name_0", "tp", "tp", 1, [0, 1])
    ]
    assert stage.rows("select world_size, tp_size, tp_rank from ranks") == [(4, 2, 1)]
    assert log.rules["ascend_db.schema_version"] == "1.2.0"
