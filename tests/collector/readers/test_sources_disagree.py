"""Kernel table and timeline of one rank that do not agree to the ns, or of which one is damaged."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from npuscope.analysis.summaries import summarise
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.store import store
from npuscope.sample_traces.generate import small, write_job

US = 1_736_408_883_704_643
OPERATION = "hcom_allReduce__868_{}_1"
HEADER = "Step Id,Name,Type,Accelerator Core,Start Time(us),Duration(us)"
Ask = Callable[[str], list[Any]]


def row(step: str, name: str, core: str, start: str, dur: int) -> str:
    return f"{step},{name},{name},{core},{start},{dur}"


def kernel(at_us: int = 0, step: str = "7") -> str:
    return row(step, "MatMul", "AI_CORE", f"{US + at_us}.5", 40)


def operation(number: int, at_us: int, *, step: str = "7", digits: str = ".0") -> str:
    return row(step, OPERATION.format(number), "HCCL", f"{US + at_us}{digits}", 50)


def event(pid: int, name: str, at_us: int, dur: int, digits: str = ".000", **args: Any) -> Any:
    ts = f"{US + at_us}{digits}"
    return {"ph": "X", "pid": pid, "tid": 0, "name": name, "ts": ts, "dur": dur, "args": args}


def timeline(*events: Any) -> list[Any]:
    named = [(1, "Python"), (2, "HCCL"), (3, "Ascend Hardware")]
    labels = [
        {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}
        for pid, name in named
    ]
    return [event(1, "ProfilerStep#7", -100, 1_000), *labels, *events]


def trace(number: int, at_us: int, digits: str = ".000") -> Any:
    return event(2, OPERATION.format(number), at_us, 50, digits, data_type="FP32")


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Ask]:
    """`read({file name: text})` ingests a rank and returns a way to query it."""

    def run(files: dict[str, str]) -> Ask:
        folder = tmp_path / "source" / "host_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
        folder.mkdir(parents=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        ingest(tmp_path / "source", tmp_path / "store")
        return lambda sql: store.open(tmp_path / "store").execute(sql).fetchall()

    return run


def table(*rows: str) -> str:
    return "\n".join([HEADER, *rows]) + "\n"


def test_an_operation_that_old_files_round_apart_is_one(read: Callable[..., Ask]) -> None:
    ask = read(
        {
            "kernel_details.csv": table(kernel(), operation(0, 10, digits=".3")),
            "trace_view.json": json.dumps(timeline(trace(0, 10, ".125"))),
        }
    )
    assert ask("select step, start_ns from comm_ops") == [(7, (US + 10) * 1000 + 125)]


def test_an_operation_missing_from_a_cut_timeline_comes_from_the_table(
    read: Callable[..., Ask],
) -> None:
    ask = read(
        {
            "kernel_details.csv": table(kernel(), operation(0, 10), operation(0, 60)),
            "trace_view.json": json.dumps(timeline(trace(0, 10))),
        }
    )
    starts = ask("select start_ns from comm_ops order by 1")
    assert starts == [((US + 10) * 1000,), ((US + 60) * 1000,)]


def test_devices_of_one_rank_run_operations_of_one_name_at_once(
    read: Callable[..., Ask],
) -> None:
    """The other device's, of which the timeline tells nothing, is not the rank's: it is neither
    joined with the rank's own nor told as one more."""
    rows = [f"{device},{operation(0, 10)}" for device in (0, 1)]
    ask = read(
        {
            "../profiler_info_0.json": "{}",  # without it each device would be a rank
            "kernel_details.csv": "\n".join([f"Device_id,{HEADER}", f"0,{kernel()}", *rows, ""]),
            "trace_view.json": json.dumps(
                [
                    *timeline(trace(0, 10)),
                    {"ph": "M", "pid": 2, "name": "process_labels", "args": {"labels": "NPU 0"}},
                ]
            ),
        }
    )
    assert ask("select device_id, start_ns from comm_ops") == [(0, (US + 10) * 1000)]


@pytest.mark.parametrize("with_timeline", [True, False])
def test_an_operation_that_the_table_puts_outside_every_step_stays_there(
    read: Callable[..., Ask], with_timeline: bool
) -> None:
    files = {"kernel_details.csv": table(kernel(), operation(0, 10), operation(1, 100, step=""))}
    if with_timeline:
        files["trace_view.json"] = json.dumps(timeline(trace(0, 10), trace(1, 100)))
    assert read(files)("select name, step from comm_ops order by 1") == [
        (OPERATION.format(0), 7),
        (OPERATION.format(1), None),
    ]


def test_a_table_without_steps_leaves_them_to_the_timeline(read: Callable[..., Ask]) -> None:
    ask = read(
        {
            "kernel_details.csv": table(kernel(step=""), operation(0, 10, step="")),
            "trace_view.json": json.dumps(timeline(trace(0, 10))),
        }
    )
    assert ask("select step from kernels union all select step from comm_ops") == [(7,), (7,)]


def test_starts_that_a_spreadsheet_rounded_are_no_starts(read: Callable[..., Ask]) -> None:
    mangled = row("7", "Add", "AI_VECTOR_CORE", "1.73641E+15", 30)
    whole = row("7", "Mul", "AI_VECTOR_CORE", "1.7364088837046435E+15", 30)
    ask = read({"kernel_details.csv": table(mangled, whole, operation(0, 10))})
    assert ask("select name, start_ns from kernels") == [("Mul", US * 1000 + 500)]


def test_half_of_a_split_kernel_table_tells_no_operations(read: Callable[..., Ask]) -> None:
    ask = read(
        {
            "op_summary_slice_0_20250109084753.csv": table(kernel(), operation(0, 10)),
            "op_summary_slice_1_20250109084753.csv": "no,kernel,table\n1,2,3\n",
            "step_trace_time.csv": "Step,Computing,Communication\n7,40.0,50.0\n",
        }
    )
    assert ask("from kernels") == ask("from comm_ops") == []
    assert ask("select communication_ns from profiler_steps") == [(50_000.0,)]


def test_tasks_of_operations_without_operations_are_told(tmp_path: Path) -> None:
    folder = tmp_path / "source" / "host_ascend_pt"
    folder.mkdir(parents=True)
    with closing(sqlite3.connect(folder / "ascend_pytorch_profiler_0.db")) as database:
        database.executescript("""
            create table TASK (startNs integer, endNs integer, globalTaskId integer);
            insert into TASK values (1764246877000000000, 1764246877000001000, 1);
            insert into TASK values (1764246877000002000, 1764246877000003000, 2);
            create table COMPUTE_TASK_INFO (name integer, globalTaskId integer);
            insert into COMPUTE_TASK_INFO values (0, 1);
            create table COMMUNICATION_TASK_INFO (globalTaskId integer, opId integer);
            insert into COMMUNICATION_TASK_INFO values (2, 1);
        """)
    [rank] = ingest(tmp_path / "source", tmp_path / "store", summarise=summarise).publications
    assert any("communication of the steps is unknown" in warning for warning in rank.warnings)
    question = "select computing_ns, communication_ns, free_ns from step_summary"
    assert store.query(tmp_path / "store", question).rows() == [(1000, None, None)]


@pytest.mark.slow
def test_operations_known_by_their_tasks_only_last_as_long_as_these(tmp_path: Path) -> None:
    write_job(small(), tmp_path / "job", forms=("db",))
    (database,) = (tmp_path / "job").rglob("ascend_pytorch_profiler_0.db")
    question = "select name, op_type, start_ns, start_ns + dur_ns from comm_ops where rank = 0"
    ingest(tmp_path / "job", tmp_path / "whole", run="job")
    whole = {row[0]: row for row in store.query(tmp_path / "whole", question).rows()}
    with closing(sqlite3.connect(database)) as opened:
        opened.execute("drop table COMMUNICATION_OP")
        opened.commit()

    outcomes = ingest(tmp_path / "job", tmp_path / "tasks", run="job").publications

    assert [any("tasks only" in w for w in o.warnings) for o in outcomes] == [True, False]
    hulls = store.query(tmp_path / "tasks", question).rows()
    assert hulls
    for name, op_type, start_ns, end_ns in hulls:
        _, told_type, told_start_ns, told_end_ns = whole[name]
        assert op_type == told_type
        assert told_start_ns <= start_ns < end_ns <= told_end_ns
