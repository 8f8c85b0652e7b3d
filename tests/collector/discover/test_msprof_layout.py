"""Names and places of msprof's exports; what tells of the session, the machine and iterations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npuscope.collector.discover import msprof_layout
from npuscope.collector.discover.identity import session_ns
from npuscope.collector.discover.roles import role_of
from npuscope.collector.model import SourceFile
from npuscope.collector.readers.metadata import msprof_info
from npuscope.collector.readers.text import iterations, task_time
from tests.collector.conftest import Staged


def test_devices_are_told_by_their_own_folders_only() -> None:
    told = {
        "/x/PROF_1/device_3/info.json.3": 3,
        "/x/PROF_1/device_3/timeline/msprof_3_2_1.json": 3,
        "/x/PROF_1/device_12/summary/op_summary_12_2_1.csv": 12,
        "/x/PROF_1/host/info.json": None,
        "/x/device_7/PROF_1/mindstudio_profiler_output/op_summary_20250101000000.csv": None,
    }
    assert {path: msprof_layout.device_of(path) for path in told} == told


def test_the_same_slices_are_read_once() -> None:
    names = [
        "msprof_0_2_1.json", "hccl_0_2_1.json", "task_time_0_2_1.json", "step_trace_0_2_1.json",
        "hccl_0_2_2.json", "task_time_0_2_2.json", "msprof_slice_0_0_2_3.json",
        "msprof_slice_1_0_2_3.json", "hccl_0_2_3.json", "msprof_0_2_4_20230901000000.json",
        "hccl_0_2_4_20230901000001.json", "notes.json",
    ]  # fmt: skip
    assert sorted(msprof_layout.timeline_roles(names)) == [
        "hccl_0_2_2.json", "msprof_0_2_1.json", "msprof_0_2_4_20230901000000.json",
        "msprof_slice_0_0_2_3.json", "msprof_slice_1_0_2_3.json", "task_time_0_2_2.json",
    ]  # fmt: skip


def test_the_newest_export_of_each_iteration_in_order() -> None:
    names = [
        "msprof_0_2_10_20230901000005.json", "msprof_0_2_2_20230901000003.json",
        "msprof_0_2_2_20230901000009.json", "msprof_0_2_1.json",
    ]  # fmt: skip
    kept = msprof_layout.newest_of_each([SourceFile(f"/t/{name}", 1, 1) for name in names])
    assert [Path(file.path).name for file in kept] == [
        "msprof_0_2_1.json", "msprof_0_2_2_20230901000009.json",
        "msprof_0_2_10_20230901000005.json",
    ]  # fmt: skip


def test_roles_of_names() -> None:
    told = {
        "msprof_20250101000000.json": "trace",
        "msprof_slice_12_20250101000000.json": "trace",
        "op_summary_slice_0_20250101000000.csv": "kernels",
        "op_summary_0_slice_1.csv": "kernels",
        "msprof_20250101000000.db": "main_db",
        "step_trace_20250101000000.csv": "iterations",
        "step_trace_20250101000000.json": "iterations",
        "step_trace_0_2_10.json": "iterations",
        "step_trace_time.csv": "step_trace",
        "task_time_slice_1_20250101000000.csv": "task_time",
        "task_time.csv": "task_time",
        "memory_record_20250101000000.csv": "memory_record",
        "npu_module_mem_slice_0_20250101000000.csv": "module_memory",
        "start_info.0": "session",
        "end_info": "session",
        "end_info.0.done": None,
        "info.json.3": "info",
        "communication_statistic_20250101000000.csv": None,
        "communication_analyzer.db": "analysis_db",
    }
    assert {name: role_of(name) for name in told} == told


def test_names_tell_who_wrote_a_folder() -> None:
    assert msprof_layout.is_msprof(["op_summary_20250101000000.csv", "notes.txt"])
    assert msprof_layout.is_msprof(["msprof_20250101000000.db"])
    assert not msprof_layout.is_msprof(["communication.json"])
    assert not msprof_layout.is_msprof(["msprof_20250101000000.json", "kernel_details.csv"])


US = 1_736_412_474_000_000


@pytest.fixture
def session(tmp_path: Path) -> list[str]:
    paths = []
    for folder, late in (("host", 5), ("device_0", 0)):
        (tmp_path / folder).mkdir()
        for which, word, at in (("start", "Begin", 0), ("end", "End", 1_000_000)):
            path = tmp_path / folder / f"{which}_info{'.0' if folder != 'host' else ''}"
            clock = {
                f"collectionTime{word}": str(US + at + late),
                "clockMonotonicRaw": str(7_000_000_000 + at * 1000),
            }
            path.write_text(json.dumps(clock))
            paths.append(str(path))
    return paths


@pytest.mark.parametrize(
    ("event_ns", "expected"),
    [
        (US * 1000 + 17, (US * 1000, US * 1000 + 10**9)),
        (7_000_000_017, (7_000_000_000, 8_000_000_000)),
        (0, (US * 1000, US * 1000 + 10**9)),
        (5, None),  # of no clock that is told
        (US * 1000 + 5 * 10**9, None),
    ],
)
def test_the_session_on_the_clock_of_events(
    session: list[str], event_ns: int, expected: tuple[int, int] | None
) -> None:
    assert session_ns(session, event_ns) == expected


def test_a_session_that_nobody_ended(session: list[str]) -> None:
    assert session_ns([path for path in session if "start" in path], 0) is None
    for path in session:
        Path(path).write_text("{")
    assert session_ns(session, 0) is None


def test_what_info_json_tells(stage: Staged) -> None:
    (stage.folder / "host").mkdir()
    (stage.folder / "device_3").mkdir()
    host, device = stage.folder / "host" / "info.json", stage.folder / "device_3" / "info.json.3"
    host.write_text(json.dumps({"hostname": "node7", "hostUid": "42", "platform_version": "5"}))
    entry = {"id": 3, "ai_core_num": 24, "aic_frequency": "1850"}
    device.write_text(json.dumps({"hostname": "", "DeviceInfo": [{"id": 1}, entry], "pid": "77"}))

    stage.read(msprof_info, {"info": [host, device]})

    sql = """select device_id, host_name, host_uid, chip_name, ai_core_count,
        ai_core_frequency_mhz from ranks"""
    assert stage.rows(sql) == [(3, "node7", "42", "Ascend910B", 24, 1850.0)]


def test_an_info_json_that_is_none(stage: Staged) -> None:
    broken, strange = stage.folder / "info.json", stage.folder / "info.json.1"
    broken.write_text("{")
    strange.write_text(json.dumps({"DeviceInfo": "none", "hostname": 5, "platform_version": 99}))

    log = stage.read(msprof_info, {"info": [broken, strange]})

    assert stage.rows("select count(*) from ranks") == [(0,)]
    assert set(log.damage) == {str(broken)}


def iteration(number: int, start: float, dur: float, tid: int = 1) -> dict[str, object]:
    return {"ph": "X", "name": f"Iteration {number}", "pid": 9, "tid": tid, "ts": start, "dur": dur}


def thread(tid: int, model: int) -> dict[str, object]:
    args = {"name": f"Step Trace(Model ID:{model})"}
    return {"ph": "M", "name": "thread_name", "pid": 9, "tid": tid, "args": args}


STEPS = "select step, window_start_ns, window_end_ns, device_start_ns, device_end_ns from steps"


def test_iterations_of_a_timeline(stage: Staged) -> None:
    """Numbers keep their digits; each iteration counts once, however many files have it."""
    paths = []
    for number in (1, 2):
        path = stage.folder / f"step_trace_0_2_{number}.json"
        events = [thread(1, 2), iteration(1, 56635864652.490005, 47587.81), iteration(2, 1e11, 5)]
        path.write_text(json.dumps(events))
        paths.append(path)

    log = stage.read(iterations, {"iterations": paths})

    first = (1, 56635864652490, 56635912240300)
    assert stage.rows(STEPS) == [
        (*first, *first[1:]),
        (2, 10**14, 10**14 + 5000, 10**14, 10**14 + 5000),
    ]
    assert log.rules["steps"] == "iterations of step_trace_*.json"
    assert log.warnings == []


def test_only_one_models_iterations_are_steps(stage: Staged) -> None:
    path = stage.folder / "step_trace_20250101000000.json"
    events = [
        thread(1, 2), thread(2, 1), iteration(1, 1000, 9), iteration(1, 2000, 4, tid=2),
        iteration(2, 3000, 4, tid=2),
    ]  # fmt: skip
    path.write_text(json.dumps(events))

    log = stage.read(iterations, {"iterations": path})

    assert [row[:2] for row in stage.rows(STEPS)] == [(1, 1_000_000)]
    assert log.warnings == [
        "iterations of 2 models: those of model 2, which ran longest, are used as steps; not"
        " those of 1"
    ]


HEADER = "Device_id,Iteration ID,Iteration End(us),Iteration Time(us),Model ID"


def test_iterations_of_a_table(stage: Staged) -> None:
    path = stage.folder / "step_trace_20250101000000.csv"
    rows = ["0,0,N/A,N/A,4", f"0,1,{US}.500\t,20.250,4", f"0,2,{US + 100}.750\t,10,4"]
    path.write_text("\n".join([HEADER, *rows, ""]))
    beside = stage.folder / "step_trace_20250101000000.json"
    beside.write_text("[]")

    log = stage.read(iterations, {"iterations": [path, beside]})

    found = [row[:3] for row in stage.rows(STEPS)]
    assert found == [
        (1, US * 1000 - 19_750, US * 1000 + 500),
        (2, US * 1000 + 90_750, US * 1000 + 100_750),
    ]
    assert log.rules["steps"] == "iterations of step_trace_*.csv"
    assert not log.warnings
    path.write_text("\n".join([HEADER, *rows, "0,3,####,10,4", ""]))
    log = stage.read(iterations, {"iterations": path})
    assert log.warnings == [
        f"{path.name}: 1 values in Iteration End(us) are no numbers: they are unknown"
    ]


def test_no_iterations_are_no_steps(stage: Staged) -> None:
    path = stage.folder / "step_trace_20250101000000.csv"
    path.write_text(f"{HEADER}\n0,0,N/A,N/A,4\n")

    log = stage.read(iterations, {"iterations": path})

    assert stage.rows(STEPS) == []
    assert "steps" not in log.rules


def test_tasks_with_a_kernels_name(stage: Staged) -> None:
    path = stage.folder / "task_time_20250101000000.csv"
    rows = [
        f"3,MatMul,KERNEL_AICORE,2,7,10.5\t,{US}.250\t,0",
        f"3,N/A,EVENT_WAIT,2,8,10.5\t,{US}.250\t,0",
        f"3,Sort,AI_CPU,4294967295,9,1,{US + 1},0",
        f"3,hcom_allReduce_AicpuKernel,AI_CPU,2,10,1,{US + 2},0",
        "3,Lost,AI_CORE,2,11,1,N/A,0",
        f"3,hcom_allReduce__1_2_3,AI_CORE,2,12,1,{US + 3},0",
        f"3,N/A,SDMA_SQE,2,13,2,{US + 4},0",
    ]
    header = "Device_id,kernel_name,kernel_type,stream_id,task_id,task_time(us),task_start(us)"
    path.write_text("\n".join([f"{header},task_stop(us)", *rows, ""]))

    log = stage.read(task_time, {"task_time": path})

    sql = "select name, core, is_compute, device_id, stream_id, start_ns, dur_ns from kernels"
    assert stage.rows(sql) == [
        ("MatMul", "AI_CORE", True, 3, 2, US * 1000 + 250, 10_500),
        ("Sort", "AI_CPU", True, 3, None, US * 1000 + 1000, 1000),
        ("hcom_allReduce_AicpuKernel", "AI_CPU", False, 3, 2, US * 1000 + 2000, 1000),
    ]
    assert (log.rows_lost, log.rules["kernels"]) == (1, "task_time")
    assert stage.rows("select type from device_tasks") == [("EVENT_WAIT",)]
    # Somebody communicated, and the file has no operations: how long is unknown, and not 0.
    assert stage.rows("select task_id, op_id, start_ns from comm_tasks") == [
        (13, None, US * 1000 + 4000)
    ]
