"""Cases that damaged files brought to light: each once gave an error of the engine, a value that is
none, or rows that were missing without a word."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from npuscope.collector.model import ReadLog
from npuscope.collector.readers.ascend_db import analysis_db, ascend_db
from npuscope.collector.readers.metadata import profiler_metadata
from npuscope.collector.readers.text import kernel_details, memory_record
from npuscope.collector.readers.trace_view import trace_view
from tests.collector.conftest import Staged
from tests.collector.readers.ascend_db.profiler_databases import (
    STRINGS,
    T0,
    TASK,
    Tables,
    task,
    write,
)

FAR_US = "9000000000000000.000"  # 285 years
COMPUTE = ("name, globalTaskId, taskType, opType", [(2, 1, 3, 1), (2, 2, 3, 1)])


def test_times_that_no_sum_can_hold_are_lost_rows(stage: Staged) -> None:
    first, second = task(1, 100, 50), (-(2**63), *task(2, 200, 50)[1:])
    tables = {"STRING_IDS": STRINGS, "TASK": (TASK, [first, second]), "COMPUTE_TASK_INFO": COMPUTE}
    log = stage.read(ascend_db, {"main_db": write(stage.folder / "a.db", tables)})
    assert stage.rows("select start_ns, dur_ns from kernels") == [(T0 + 100, 50)]
    assert log.rows_lost == 2
    assert log.warnings == [
        "TASK: 1 rows without a start time are left out",
        "kernels: 1 rows without a task in TASK are left out",
    ]


def test_numbers_beyond_their_column_are_unknown(stage: Staged) -> None:
    tables = {
        "STRING_IDS": STRINGS,
        "TASK": (TASK, [task(1, 100, 50, device=2**31)]),
        "COMPUTE_TASK_INFO": (
            "name, globalTaskId, taskType, opType, blockNum", [(2, 1, 3, 1, 2**40)]
        ),
        "NPU_MODULE_MEM": ("moduleId, timestampNs, totalReserved, deviceId", [(3, T0, 8, 2**31)]),
        "TASK_PMU_INFO": ("globalTaskId, name, value", [(1, 15, float("inf")), (1, 16, 0.5)]),
        "HBM": ("deviceId, timestampNs, bandwidth, hbmId, type",
                [(2**40, T0, 1.5, 0, 18), (0, T0, float("-inf"), 0, 18)]),
        "HOST_INFO": ("hostUid, hostName", [("", "N/A")]),
    }  # fmt: skip
    log = stage.read(ascend_db, {"main_db": write(stage.folder / "a.db", tables)})
    assert log.warnings == []
    assert stage.rows("select device_id, block_count, aic_time_ns, pmu from kernels") == [
        (None, None, None, {"aic_mac_ratio": 0.5})
    ]
    assert stage.rows("select device_id, reserved_bytes from memory") == [(None, 8)]
    assert stage.rows("select device_id, value from counters") == [(None, 1.5)]
    assert stage.rows("select host_uid, host_name from ranks") == [(None, None)]


def test_intervals_that_end_before_they_start_are_told(stage: Staged) -> None:
    tables = {"STRING_IDS": STRINGS, "TASK": (TASK, [task(1, 100, -50)]),
              "COMPUTE_TASK_INFO": (COMPUTE[0], COMPUTE[1][:1])}  # fmt: skip
    log = stage.read(ascend_db, {"main_db": write(stage.folder / "a.db", tables)})
    assert stage.rows("select start_ns, dur_ns from kernels") == [(T0 + 100, None)]
    assert log.warnings == ["TASK: 1 rows end before they start: their duration is unknown"]


def test_tables_that_are_views_are_told(stage: Staged) -> None:
    path = write(stage.folder / "a.db", {"STRING_IDS": STRINGS, "TASK": (TASK, [task(1, 100, 50)]),
                                     "OTHER": COMPUTE})  # fmt: skip
    with closing(sqlite3.connect(path)) as con:
        con.execute("create view COMPUTE_TASK_INFO as select * from OTHER")
        con.execute("create view somebodys as select 1")
        con.commit()
    log = stage.read(ascend_db, {"main_db": path})
    assert stage.rows("select count(*) from kernels") == [(0,)]
    assert log.damage == {str(path): "COMPUTE_TASK_INFO is a view and no table: not read"}

    analysis = stage.folder / "analysis.db"
    with closing(sqlite3.connect(analysis)) as con:
        con.execute("create table other (hccl_op_name)")
        con.execute("create view CommAnalyzerTime as select * from other")
    log = stage.read(analysis_db, {"analysis_db": analysis})
    assert log.damage == {str(analysis): "CommAnalyzerTime is a view and no table: not read"}


@pytest.mark.slow
def test_what_a_database_wants_computed_is_not_computed(stage: Staged) -> None:
    """Of a million rows it would take days, a small file or not."""
    path = write(stage.folder / "a.db", {"STRING_IDS": STRINGS, "TASK": (TASK, [task(1, 100, 50)])})
    short = "length(replace(hex(zeroblob(1)), '0', '11'))"
    with closing(sqlite3.connect(path)) as con:
        con.execute(f"create table COMPUTE_TASK_INFO (name, globalTaskId, h as ({short}) not null)")
        con.execute(
            f"create table RANK_DEVICE_MAP (rankId, deviceId, check ({short} + rankId > 0))"
        )
        for n in range(8):
            con.execute("insert into COMPUTE_TASK_INFO (name, globalTaskId) values (1, ?)", [n])
            con.execute("insert into RANK_DEVICE_MAP values (?, ?)", [n, n])
        con.execute("pragma writable_schema = on")  # written before, it would take that long here
        con.execute("update sqlite_master set sql = replace(sql, 'zeroblob(1)', 'zeroblob(1e8)')")
        con.commit()
    began_s = time.monotonic()
    log = stage.read(ascend_db, {"main_db": path})
    assert time.monotonic() - began_s < 5
    assert log.damage == {str(path): "COMPUTE_TASK_INFO has computed columns: not read"}


def _tear(path: Path, holding: bytes) -> None:
    """Let the page with some text say that it has one row."""
    data = bytearray(path.read_bytes())
    page_bytes = int.from_bytes(data[16:18], "big")
    page = data.index(holding) // page_bytes * page_bytes
    header = 100 if page == 0 else page
    assert data[header] == 13, "a page of rows"
    data[header + 3 : header + 5] = b"\0\x01"
    path.write_bytes(data)


def test_pages_that_hide_rows_are_told(stage: Staged) -> None:
    tables = {
        "STRING_IDS": STRINGS,
        "TASK": (TASK, [task(1, 100, 50), task(2, 200, 50)]),
        "COMPUTE_TASK_INFO": (
            "globalTaskId, name, note", [(1, 2, "first of two"), (2, 2, "second")]
        ),
    }  # fmt: skip
    path = write(stage.folder / "a.db", tables)
    _tear(path, b"first of two")
    log = stage.read(ascend_db, {"main_db": path})
    assert stage.rows("select start_ns from kernels") == [(T0 + 100,)]
    [told] = log.warnings
    assert told.startswith(
        "a.db: COMPUTE_TASK_INFO is damaged, its rows may be wrong or missing (Fragmentation"
    )
    assert log.damage == {str(path): told.removeprefix("a.db: ")}


def test_a_list_of_tables_that_hides_one_is_told(stage: Staged) -> None:
    path = stage.folder / "analysis.db"
    with closing(sqlite3.connect(path)) as con:
        con.execute("create table StepTraceTime (step text, computing numeric)")
        con.execute("create table CommAnalyzerTime (hccl_op_name)")
    _tear(path, b"CREATE TABLE CommAnalyzerTime")
    log = stage.read(analysis_db, {"analysis_db": path})
    [told] = log.damage.values()
    assert told.startswith("sqlite_master is damaged")


def test_calls_of_a_type_that_no_enumeration_has_are_told(stage: Staged) -> None:
    calls = [(T0, T0 + 5, 5 << 32 | 9, 12, kind) for kind in (50001, 77, None)]
    tables: Tables = {
        "STRING_IDS": STRINGS,
        "PYTORCH_API": ("startNs, endNs, globalTid, name, type", calls),
        "ENUM_API_TYPE": ("id, name", [(50001, "op")]),
    }
    log = stage.read(ascend_db, {"main_db": write(stage.folder / "a.db", tables)})
    assert stage.rows("select kind, name from host_ops") == [("operator", "aten::mm")]
    assert (log.rows_lost, log.warnings) == (
        2, ["PYTORCH_API: 2 rows of an unknown type are left out"]
    )  # fmt: skip


def test_words_for_unknown_and_figures_without_end_in_communication(stage: Staged) -> None:
    path = stage.folder / "analysis.db"
    with closing(sqlite3.connect(path)) as con:
        con.execute(
            "create table CommAnalyzerMatrix (hccl_op_name, group_name, src_rank, dst_rank,"
            " transport_type, transit_size, transit_time)"
        )
        con.execute(
            "insert into CommAnalyzerMatrix values ('hcom_send__1_1', '', 0, 1, '', 9e999, 1)"
        )
        con.execute("create table CommAnalyzerTime (hccl_op_name, start_timestamp, elapse_time)")
        con.execute("insert into CommAnalyzerTime values ('hcom_send__1_1', -5, 1.7e308)")
        con.execute("create table StepTraceTime (deviceId integer, step text, computing)")
        con.execute(f"insert into StepTraceTime values ({2**53}, '7', 1.7e308)")
        con.commit()
    log = stage.read(analysis_db, {"analysis_db": path})
    assert log.warnings == []
    assert stage.rows("select group_hash, link, size_bytes, time_ns from comm_matrix") == [
        (None, None, None, 1e6)
    ]
    assert stage.rows("select name, start_ns, elapse_ns from comm_times") == [
        ("hcom_send__1_1", None, None)
    ]
    assert stage.rows("select device_id, step, computing_ns from profiler_steps") == [
        (None, 7, None)
    ]


@pytest.mark.parametrize(
    ("start", "duration"), [(FAR_US, "1"), ("1", FAR_US), ("4500000000000000", FAR_US)]
)
def test_far_times_of_text_are_lost_rows(stage: Staged, start: str, duration: str) -> None:
    kernels = stage.folder / "kernel_details.csv"
    kernels.write_text(f"Name,Start Time(us),Duration(us)\na,{start},{duration}\nb,1,1\n")
    log = stage.read(kernel_details, {"kernels": kernels})
    assert stage.rows("select name from kernels") == [("b",)]
    assert log.rows_lost == 1

    events = [{"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur}
              for name, ts, dur in (("a", start, float(duration)), ("b", "1", 1))]  # fmt: skip
    trace = stage.folder / "trace_view.json"
    trace.write_text(json.dumps(events))
    log = stage.read(trace_view, {"trace": trace})
    assert stage.rows("select name from host_ops") == [("b",)]
    assert log.rows_lost == 1


def test_far_instants_of_memory_are_unknown(stage: Staged) -> None:
    path = stage.folder / "memory_record.csv"
    path.write_text(f"Component,Timestamp(us),Total Allocated(MB)\nPTA,{FAR_US},1\nPTA,1,1\n")
    log = stage.read(memory_record, {"memory_record": path})
    assert stage.rows("select timestamp_ns from memory") == [(1000,)]
    assert log.rows_lost == 1


def test_metadata_with_the_content_of_its_neighbour_is_told(tmp_path: Path) -> None:
    path = tmp_path / "profiler_metadata.json"
    path.write_text(json.dumps({"config": {}, "start_info": {}, "end_info": {}, "rank_id": 0}))
    log = ReadLog()
    assert profiler_metadata.read_metadata(str(path), log) == profiler_metadata.ProfilerMetadata()
    assert log.damage == {str(path): "content: that of profiler_info.json"}
