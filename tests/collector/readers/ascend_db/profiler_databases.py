"""Profiler databases made up by tests: their strings, their tasks, and what was read of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from npuscope.collector.model import ReadLog
from npuscope.collector.readers.ascend_db import ascend_db
from tests.collector.conftest import Staged

Tables = Mapping[str, tuple[str, list[tuple[Any, ...]]]]
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


def fill(staged: Staged, tables: Tables, **options: Any) -> ReadLog:
    """What the reader says of a database with these tables."""
    path = write(staged.folder / "a.db", tables)
    return staged.read(ascend_db, {"main_db": path}, **options)


def task(
    number: int, start: int, dur: int, connection: int = NONE, device: int = 0
) -> tuple[Any, ...]:
    return (T0 + start, T0 + start + dur, device, connection, number, 5, NONE, 2, 65535, NONE)


CANN = ("startNs, endNs, type, globalTid, connectionId, name", [
    (T0 + 100, T0 + 110, 10000, 5 << 32 | 9, 70, 11),    # in step 7, its task begins later
    (T0 + 190, T0 + 210, 10000, 5 << 32 | 9, 71, 11),    # begins in the step, ends after it
    (T0 + 200, T0 + 201, 10000, 5 << 32 | 9, 72, 11),    # begins at its end: outside
    (T0 + 101, T0 + 102, 20000, 5 << 32 | 9, 73, 11),    # not at node level
    (T0 + 103, T0 + 104, 10000, 5 << 32 | 9, 74, 11),    # launched nothing
])  # fmt: skip
LAUNCHED = (TASK, [task(1, 150, 10, 70), task(2, 160, 10, 70), task(3, 400, 50, 71),
                   task(4, 20, 10, 72), task(5, 30, 10, 73), task(6, 31, 10)])  # fmt: skip
