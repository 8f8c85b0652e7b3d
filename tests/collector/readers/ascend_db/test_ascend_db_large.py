"""Large tables of a profiler database: filled in parts, in the order of their segments."""

from __future__ import annotations

import random
from typing import Any

import duckdb
import pytest

from npuscope.collector import schema
from npuscope.collector.readers import words
from npuscope.collector.readers.ascend_db import ascend_db, large_tables
from npuscope.collector.readers.text import kernel_details
from npuscope.errors import TraceFormatError
from tests.collector.conftest import Staged
from tests.collector.readers.ascend_db.profiler_databases import (
    STRINGS,
    T0,
    TASK,
    Tables,
    task,
    write,
)

HIGH_TID = 5 << 32 | 9
N = 400


def job() -> Tables:
    """Kernels on three streams, out of order, each launched by a call below an operator."""
    pick = random.Random(7)
    starts = [pick.randrange(100_000) for _ in range(N)]
    tasks = []
    for n, start in enumerate(starts):
        row = list(task(n, start, 50, 1000 + n))
        row[7] = n % 3
        tasks.append(tuple(row))
    pick.shuffle(tasks)
    names = [(1, 15, 0.5 * n, n) for n in range(N)]
    return {
        "STRING_IDS": STRINGS,
        "TASK": (TASK, tasks),
        "COMPUTE_TASK_INFO": (
            "name, globalTaskId, taskType, opType, inputShapes",
            [(2, n, 3, 1, 13) for n in range(0, N, 2)],
        ),
        "COMMUNICATION_OP": (
            "opName, startNs, endNs, connectionId, groupName, opId, opType",
            [(6, T0 + 9 * n, T0 + 9 * n + 5, 1000 + n, 8, n, 7) for n in range(0, N, 5)],
        ),
        "TASK_PMU_INFO": (
            "globalTaskId, name, value",
            [(n, metric, value) for _, _, value, n in names for metric in (15, 16)],
        ),
        "CANN_API": (
            "startNs, endNs, type, globalTid, connectionId, name",
            [(T0 + s - 9, T0 + s - 3, 10000, HIGH_TID, 1000 + n, 11) for n, s in enumerate(starts)],
        ),
        "PYTORCH_API": (
            "startNs, endNs, globalTid, connectionId, name, type",
            [(str(T0 + s - 20), str(T0 + s), HIGH_TID, n, 12, 50001)
             for n, s in enumerate(starts)],
        ),
        "CONNECTION_IDS": ("id, connectionId", [(n, 1000 + n) for n in range(N)]),
        "STEP_TIME": ("id, startNs, endNs", [(7, T0, T0 + 60_000), (8, T0 + 60_000, T0 + 200_000)]),
    }  # fmt: skip


def order(table: str) -> str:
    return ", ".join(schema.tables()[table].sort_columns)


def content(con: duckdb.DuckDBPyConnection, table: str) -> list[Any]:
    columns = ", ".join(
        f'cast("{c.name}" as {c.type})' if c.type.startswith("map") else f'cast("{c.name}" as text)'
        for c in schema.tables()[table].columns
    )
    found: list[Any] = con.execute(f"select {columns} from {table} order by all").fetchall()
    return found


def name_type(con: duckdb.DuckDBPyConnection, table: str) -> str:
    [(kind,)] = con.execute(
        f"""select column_type from (describe {table})
        where column_name in ('name', 'target_name')"""
    ).fetchall()
    return str(kind).partition("(")[0]


def test_words_say_what_text_does(stage: Staged, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(stage.folder / "a.db", job())
    stage.read(ascend_db, {"main_db": path})
    text = {table: content(stage.con, table) for table in words.LARGE}
    assert all(text.values())
    assert {name_type(stage.con, table) for table in words.LARGE} == {"VARCHAR"}
    for table in words.LARGE:
        stage.con.execute(f"delete from {table}")
    monkeypatch.setattr(ascend_db, "WORDS_FROM_BYTES", 0)
    stage.read(ascend_db, {"main_db": path})
    assert {table: content(stage.con, table) for table in words.LARGE} == text
    assert {name_type(stage.con, table) for table in words.LARGE} == {"ENUM"}


@pytest.mark.slow
def test_parts_add_up_and_stand_in_order(stage: Staged, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ascend_db, "WORDS_FROM_BYTES", 0)
    path = write(stage.folder / "a.db", job())
    stage.read(ascend_db, {"main_db": path})
    whole = {table: content(stage.con, table) for table in words.LARGE}
    assert [len(whole[table]) for table in ("kernels", "launches", "host_ops")] == [
        N // 2, N + N // 5, 2 * N
    ]  # fmt: skip
    assert {step for (step,) in stage.rows("select distinct step from kernels")} == {7, 8}
    for table in words.LARGE:
        stage.con.execute(f"delete from {table}")
        words.spell_out(stage.con, table)
    monkeypatch.setattr(large_tables, "_KERNELS_AT_ONCE", 13)
    monkeypatch.setattr(large_tables, "_ROWS_AT_ONCE", 17)
    monkeypatch.setattr(words, "_WORDS_AT_MOST", 0)
    stage.read(ascend_db, {"main_db": path})
    for table in words.LARGE:
        assert content(stage.con, table) == whole[table]
        keys = f"select {order(table)} from {table}"
        assert stage.rows(keys) == stage.rows(f"{keys} order by {order(table)}")


def test_words_are_text_again_for_other_readers(
    stage: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ascend_db, "WORDS_FROM_BYTES", 0)
    tables = {**job(), "COMPUTE_TASK_INFO": ("name, globalTaskId", [(2, N + 1)])}
    stage.read(ascend_db, {"main_db": write(stage.folder / "a.db", tables)})
    csv = stage.folder / "kernel_details.csv"
    csv.write_text(
        "Name,Type,Accelerator Core,Start Time(us),Duration(us),aic_new_ratio\n"
        "unheard of,New,AI_CORE,1700000000000000.001\t,5.5,0.25\n"
    )
    stage.read(kernel_details, {"kernels": csv}, only=frozenset({"kernels"}))
    assert stage.rows("select name, pmu['aic_new_ratio'] from kernels") == [("unheard of", 0.25)]


def test_a_reading_that_fails_leaves_nothing_behind(
    stage: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ascend_db, "WORDS_FROM_BYTES", 0)
    many = [(n, n + 1, 1, n) for n in range(20_000)]
    tables = {**job(), "MEMORY_RECORD": ("component, timestamp, totalAllocated, streamPtr", many)}
    path = write(stage.folder / "a.db", tables)
    path.write_bytes(path.read_bytes()[:-200_000])
    with pytest.raises(TraceFormatError, match="damaged"):
        stage.read(ascend_db, {"main_db": path})
    for table in words.LARGE:
        assert stage.rows(f"select count(*) from {table}") == [(0,)]
        found = stage.rows(f"select column_name, lower(column_type) from (describe {table})")
        assert found == [(c.name, c.type.lower()) for c in schema.tables()[table].columns]
