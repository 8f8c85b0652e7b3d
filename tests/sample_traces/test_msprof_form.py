"""msprof's form of a job, in the layout that documents and one real profile of msprof show."""

from __future__ import annotations

import csv
import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from npuscope.sample_traces.capture import Capture, captures
from npuscope.sample_traces.forms.msprof import write_msprof
from npuscope.sample_traces.generate import small, write_job

PROF = re.compile(r"PROF_\d{6}_\d{17}_[A-Z]{16}")


@pytest.fixture(scope="module")
def profiles() -> list[Capture]:
    return captures(small(seed=4))


@pytest.fixture(scope="module")
def root(profiles: list[Capture], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_msprof(profiles, tmp_path_factory.mktemp("msprof"), database=True, slices=2)


def table(root: Path, pattern: str) -> tuple[list[str], list[dict[str, str]]]:
    titles: list[str] = []
    found: list[dict[str, str]] = []
    for path in sorted((root / "mindstudio_profiler_output").glob(pattern)):
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, strict=True)
            found += list(reader)
            titles = list(reader.fieldnames or ())
    return titles, found


def test_places_and_names(root: Path) -> None:
    assert PROF.fullmatch(root.name)
    inside = {path.name for path in root.iterdir()}
    (database,) = (name for name in inside if name.endswith(".db"))
    assert re.fullmatch(r"msprof_\d{14}\.db", database)
    folders = {"host", "device_0", "device_1", "mindstudio_profiler_output"}
    assert inside == {*folders, database}  # several devices: HCCL's measures would mix
    stamps = {
        found[1]
        for path in (root / "mindstudio_profiler_output").iterdir()
        if (found := re.fullmatch(r"[a-z_]+?(?:_slice_\d)?_(\d{14})\.(?:json|csv)", path.name))
    }
    assert len(stamps) == 1
    assert len(list((root / "mindstudio_profiler_output").iterdir())) == 2 + 2 + 1 + 2 + 3


def test_the_kernel_table_has_msprofs_titles(root: Path, profiles: list[Capture]) -> None:
    titles, found = table(root, "op_summary_slice_*.csv")
    assert titles[:10] == [
        "Device_id", "Model ID", "Task ID", "Stream ID", "Op Name", "OP Type", "OP State",
        "Task Type", "Task Start Time(us)", "Task Duration(us)",
    ]  # fmt: skip
    assert len(found) == sum(len(c.kernels) + len(c.comm_ops) for c in profiles)
    places = [(int(row["Device_id"]), float(row["Task Start Time(us)"])) for row in found]
    assert places == sorted(places)  # by device, then by start
    operations = [row for row in found if row["Task Type"] == "COMMUNICATION"]
    assert len(operations) == sum(len(c.comm_ops) for c in profiles)


def test_memory_is_in_kb(root: Path) -> None:
    for name in ("memory_record", "operator_memory", "npu_module_mem"):
        titles, found = table(root, f"{name}_*.csv")
        assert titles[-1] == "Device"
        assert any("(KB)" in title for title in titles)
        assert not any("(MB)" in title for title in titles)
        assert {row["Device"] for row in found} == {"NPU:0", "NPU:1"}


def test_iterations_are_told_twice_alike(root: Path, profiles: list[Capture]) -> None:
    _, found = table(root, "step_trace_*.csv")
    (path,) = (root / "mindstudio_profiler_output").glob("step_trace_*.json")
    slices = [event for event in json.loads(path.read_text()) if event["ph"] == "X"]
    assert len(found) == len(slices) == sum(len(c.steps) for c in profiles)
    for row, event in zip(found, slices, strict=True):
        assert event["args"]["Iteration ID"] == int(row["Iteration ID"])
        assert event["dur"] == float(row["Iteration Time(us)"])
        end = float(row["Iteration End(us)"]) - float(row["Iteration Time(us)"])
        assert abs(float(event["ts"]) - end) < 1


def test_keys_of_info_json_are_those_of_a_real_one(root: Path, real_data: Path) -> None:
    (real,) = (real_data / "msprof_timeline_2023").glob("PROF_*/device_0")
    ours, theirs = (
        {name: json.loads((folder / name).read_text()) for name in
         ("info.json.0", "start_info.0", "end_info.0")}
        for folder in (root / "device_0", real)
    )  # fmt: skip
    for name in ours:
        # What later versions added, and what a rank does not need.
        assert ours[name].keys() - {"hostUid"} <= theirs[name].keys(), name
        kinds: list[dict[str, Any]] = [
            {key: type(value) for key, value in told[name].items() if key in ours[name]}
            for told in (ours, theirs)
        ]
        kinds[0].pop("hostUid", None)
        assert kinds[0] == kinds[1], name
    (device,) = ours["info.json.0"]["DeviceInfo"]
    assert device.keys() <= theirs["info.json.0"]["DeviceInfo"][0].keys()


def test_the_database_knows_cann_only(root: Path, profiles: list[Capture]) -> None:
    (path,) = root.glob("msprof_*.db")
    with closing(sqlite3.connect(path)) as database:
        tables = {name for (name,) in database.execute("select name from sqlite_master")}
        mapped = database.execute("select * from RANK_DEVICE_MAP").fetchall()
        tasks = database.execute("select distinct deviceId from TASK order by 1").fetchall()
        (kernels,) = database.execute("select count(*) from COMPUTE_TASK_INFO").fetchall()
    assert not tables & {"PYTORCH_API", "STEP_TIME", "MEMORY_RECORD", "OP_MEMORY"}
    assert mapped == [(-1, 0), (-1, 1)]
    assert tasks == [(0,), (1,)]
    assert kernels[0] == sum(len(c.kernels) for c in profiles)


def test_a_job_is_written_in_any_form(tmp_path: Path) -> None:
    write_job(small(), tmp_path, forms={0: ("msprof",), 1: ("text",)})
    facts = json.loads((tmp_path / "truth.json").read_text())["captures"]
    folders = {rank: tmp_path / facts[rank]["folder"] for rank in facts}
    assert PROF.fullmatch(folders["0"].name)
    assert folders["1"].name.endswith("_ascend_pt")
    for rank, folder in folders.items():
        found = (p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
        assert sorted(found) == facts[rank]["files"]


def test_equal_jobs_give_equal_files(profiles: list[Capture], tmp_path: Path) -> None:
    first, second = (write_msprof(profiles[:1], tmp_path / name) for name in ("a", "b"))
    assert first.name == second.name
    files = sorted(p.relative_to(first) for p in first.rglob("*") if p.is_file())
    assert files
    for file in files:
        assert (first / file).read_bytes() == (second / file).read_bytes()
