"""analysis.db as MindSpore and msprof write it, with columns missing, with nothing in it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from npuscope.collector.readers.ascend_db import analysis_db
from tests.collector.conftest import Staged

HASH = "5862276093215481612"


def database(folder: Path, *statements: str) -> Path:
    path = folder / "analysis.db"
    with sqlite3.connect(path) as con:
        for statement in statements:
            con.execute(statement)
    con.close()
    return path


def test_databases_of_mindspore_and_msprof(stage: Staged) -> None:
    path = database(
        stage.folder,
        "create table CommAnalyzerTime (hccl_op_name, group_name, start_timestamp, elapse_time,"
        " transit_time, wait_time, synchronization_time, idle_time)",
        "insert into CommAnalyzerTime values"
        f" ('hcom_receive__1_1', '{HASH}', 10.25, 1, 0.5, 0, 0, 0)",
        "create table CommAnalyzerBandwidth (hccl_op_name, group_name, transport_type,"
        " transit_size, transit_time, bandwidth, large_packet_ratio, package_size, count,"
        " total_duration)",
        f"insert into CommAnalyzerBandwidth values"
        f" ('hcom_receive__1_1', '{HASH}', 'HCCS', 3, 1, 3, 0, 1, 1, 0.25),"
        f" ('hcom_receive__1_1', '{HASH}', 'HCCS', 3, 1, 3, 0, 2, 1, 0.75),"
        f" ('hcom_receive__1_1', '{HASH}', 'SDMA', 3, 1, 3, 0, 0, 0, 0)",
        "create table CommAnalyzerMatrix (hccl_op_name, group_name, src_rank, dst_rank,"
        " transport_type, transit_size, transit_time, bandwidth)",
        "insert into CommAnalyzerMatrix values"
        f" ('hcom_receive__1_1', '{HASH}', '1', '0', 'HCCS', 3, 1, 3)",
    )
    stage.read(analysis_db, {"analysis_db": path})
    assert stage.rows("select step, op_type, category, start_ns, elapse_ns from comm_times") == [
        (None, "receive", "p2p", 10250, 1e6)
    ]
    links = stage.con.execute("select link, size_bytes, packets from comm_links order by 1")
    assert links.fetchall() == [
        ("HCCS", 3e6, [{"size_bytes": 1e6, "packet_count": 1, "time_ns": 2.5e5},
                       {"size_bytes": 2e6, "packet_count": 1, "time_ns": 7.5e5}]),
        ("SDMA", 3e6, None),
    ]  # fmt: skip
    assert stage.rows(
        "select variant, name, op_type, src_group_rank, dst_group_rank from comm_matrix"
    ) == [("op", "hcom_receive__1_1", "receive", 1, 0)]


def test_steps_and_missing_columns_of_the_step_table(stage: Staged) -> None:
    path = database(
        stage.folder,
        "create table StepTraceTime (step text, computing numeric, communication numeric, stage)",
        "insert into StepTraceTime values ('50', 4001.281999999992, 'N/A', '12.5'),"
        " (null, 1, 2, 3), ('step13', null, 0, 'x')",
    )
    stage.read(analysis_db, {"analysis_db": path})
    assert stage.rows(
        "select step, computing_ns, communication_ns, stage_ns, preparing_ns from profiler_steps"
    ) == [
        (50, 4001281.999999992, None, 12500.0, None), (None, 1000.0, 2000.0, 3000.0, None),
        (13, None, 0.0, None, None),
    ]  # fmt: skip


def test_an_empty_file_and_an_empty_schema(stage: Staged) -> None:
    nothing = stage.folder / "communication_analyzer.db"
    nothing.touch()
    bare = database(
        stage.folder, "create table t (id integer primary key autoincrement)", "drop table t"
    )
    log = stage.read(analysis_db, {"analysis_db": [nothing, bare]})
    assert log.warnings == ["communication_analyzer.db: empty file"]
    assert log.damage == {str(nothing): "empty file"}


def test_a_database_of_something_else_is_told(stage: Staged) -> None:
    log = stage.read(
        analysis_db, {"analysis_db": [database(stage.folder, "create table unrelated (a)")]}
    )
    [reason] = log.damage.values()
    assert reason == "none of the tables of an analysis database, but unrelated"


def test_sums_over_operations_are_none(stage: Staged) -> None:
    names = ("hcom_send__1_1", "Total Op Info", "TOTAL", None)
    path = database(
        stage.folder,
        "create table CommAnalyzerTime (hccl_op_name, group_name, start_timestamp, elapse_time)",
        "create table CommAnalyzerBandwidth (hccl_op_name, group_name, transport_type,"
        " transit_size, transit_time)",
        "create table CommAnalyzerMatrix (hccl_op_name, group_name, src_rank, dst_rank,"
        " transit_size)",
    )
    with sqlite3.connect(path) as con:
        for table, values in (
            ("Time", "10, 1"),
            ("Bandwidth", "'HCCS', 3, 1"),
            ("Matrix", "0, 1, 3"),
        ):
            sql = f"insert into CommAnalyzer{table} values (?, '{HASH}', {values})"
            con.executemany(sql, [(name,) for name in names])
    con.close()
    stage.read(analysis_db, {"analysis_db": path})
    for table in ("comm_times", "comm_links", "comm_matrix"):
        rows = stage.rows(f"select name from {table} order by 1")
        assert rows == [("hcom_send__1_1",), (None,)], table  # one without a name is one
