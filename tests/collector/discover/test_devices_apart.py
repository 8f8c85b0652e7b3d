"""Several devices in one profile: each is a rank of its own, with the rows it would have alone.

A process that knows its rank is that rank, and its busiest device.
"""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import npuscope
from npuscope.collector.discover.devices import by_device
from npuscope.collector.discover.search import discover
from npuscope.collector.model import Role, SourceFile
from npuscope.collector.store.manifest import manifests
from npuscope.sample_traces.capture import Capture, captures
from npuscope.sample_traces.forms.msprof import write_msprof
from npuscope.sample_traces.generate import Job, write_job
from tests.collector.readers.msprof.msprof_stores import Rows, read, rows, table

JOB = Job(name="apart", layers=2, dp=2, pp=2, ep=2, seed=21, ranks_per_host=2)
TEXT = ("kernels", "comm_ops", "comm_tasks", "steps", "counters", "memory", "operator_memory",
        "host_ops", "launches")  # fmt: skip
DATABASE = ("kernels", "comm_ops", "comm_tasks", "steps", "counters", "host_ops", "launches")
# Ids of one process's calls; numbers that a database has not, or has otherwise.
UNLIKE = {"connection_id"}
HCCL = ("comm_times", "comm_links", "comm_matrix")


@pytest.fixture(scope="module")
def job_captures() -> list[Capture]:
    return captures(JOB)


def by_host(seen: list[Capture]) -> list[list[Capture]]:
    return [seen[:2], seen[2:]]


@pytest.fixture(scope="module")
def alone(job_captures: list[Capture], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Stores of the same devices with a folder each, from text and from a database."""
    found = {}
    for form in ("text", "database"):
        out = tmp_path_factory.mktemp("alone") / form
        out.mkdir()
        for c in job_captures:
            write_msprof([c], out, text=form == "text", database=form == "database")
        found[form], result = read(out)
        assert result.is_complete
    return found


@pytest.mark.slow
@pytest.mark.parametrize("slices", [1, 3])
def test_text(
    tmp_path: Path, job_captures: list[Capture], alone: dict[str, Path], slices: int
) -> None:
    for host in by_host(job_captures):
        write_msprof(host, tmp_path / "job", slices=slices)

    place, result = read(tmp_path / "job")

    assert result.is_complete
    for name in TEXT:
        assert table(place, name, UNLIKE) == table(alone["text"], name, UNLIKE), name
    found = manifests(place)
    assert [(m.rank, m.rank_origin) for m in found] == [
        (n, "rank_id in info.json") for n in range(4)
    ]
    assert len({m.capture for m in found}) == 1
    for m in found:
        assert m.rules["devices"] == "several in the same files, each a rank of its own"
        assert m.rules["trace.device"] == "label"
        assert "devices_apart" in (m.unverified or ())
        assert m.rows_lost == 0


@pytest.mark.slow
def test_databases(tmp_path: Path, job_captures: list[Capture], alone: dict[str, Path]) -> None:
    for host in by_host(job_captures):
        write_msprof(host, tmp_path / "job", text=False, database=True, ranks=False)

    place, result = read(tmp_path / "job")

    assert result.is_complete
    for name in DATABASE:
        assert table(place, name, UNLIKE) == table(alone["database"], name, UNLIKE), name
    assert [(m.rank, m.rank_origin) for m in manifests(place)] == [
        (n, "numbered in order of host, device and folder") for n in range(4)
    ]
    told = rows(place, "select rank, device_id, host_name from ranks order by 1")
    assert told == [(0, 0, "node00"), (1, 1, "node00"), (2, 0, "node01"), (3, 1, "node01")]


@pytest.mark.slow
def test_tables_without_a_device_are_nobodys(
    tmp_path: Path, job_captures: list[Capture], alone: dict[str, Path]
) -> None:
    """Kernels and steps then are those of the timeline, which names devices."""
    root = write_msprof(job_captures[:2], tmp_path / "job")
    output = root / "mindstudio_profiler_output"
    for path in [*output.glob("op_summary_*.csv"), *output.glob("step_trace_*.csv"),
                 *output.glob("task_time_*.csv")]:  # fmt: skip
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line.partition(",")[2] for line in lines))

    place, result = read(tmp_path / "job")

    assert result.is_complete
    for m in manifests(place):
        assert m.rules["from.kernels"] == "trace_view"
        assert sum("its rows do not record their device" in w for w in m.warnings) == 2
        assert "steps" not in m.tables
    sql = "select rank, name, start_ns, dur_ns, device_id from kernels where {} order by all"
    assert rows(place, sql.format("true")) == rows(alone["text"], sql.format("rank < 2"))


def test_what_hccl_measured_is_of_no_device(tmp_path: Path, job_captures: list[Capture]) -> None:
    root = write_msprof(job_captures[:2], tmp_path / "job")
    other = write_msprof(job_captures[:1], tmp_path / "one")
    shutil.copytree(other / "analyze", root / "analyze")

    place, result = read(tmp_path / "job")

    assert result.is_complete
    for m in manifests(place):
        assert any("HCCL's measurements" in warning for warning in m.warnings)
        assert not m.tables.keys() & set(HCCL)


@pytest.mark.slow
@pytest.mark.parametrize("shift", [0, 7])
def test_devices_without_a_number_in_their_label(
    tmp_path: Path, job_captures: list[Capture], alone: dict[str, Path], shift: int
) -> None:
    """Before 2025-06 only the made-up id of a process has the device; others tell nothing."""
    same_process = [replace(c, process_id=job_captures[0].process_id) for c in job_captures[:2]]
    root = write_msprof(same_process, tmp_path / "job")
    (trace,) = (root / "mindstudio_profiler_output").glob("msprof_*.json")
    events = json.loads(trace.read_text())
    for event in events:
        event["pid"] += shift
        if event["name"] == "process_labels":
            event["args"]["labels"] = re.sub(r"NPU \d", "NPU", event["args"]["labels"])
    trace.write_text(json.dumps(events))

    place, result = read(tmp_path / "job")

    assert result.is_complete
    of_two = "rank < 2"
    assert table(place, "kernels", UNLIKE) == table(alone["text"], "kernels", UNLIKE, of_two)
    rules = manifests(place)[0].rules
    operations = table(alone["text"], "comm_ops", UNLIKE, of_two)
    if shift:  # no id of the form: operations are those of the kernel table, their groups the ends
        # of ids that names keep
        assert rules["trace.device"] == "none"
        assert len(table(place, "comm_ops", UNLIKE)) == len(operations)
        ends = "'...' || regexp_extract(name, '__([0-9]+)_', 1)"
        told = f"select bool_and(group_hash = {ends}), count(distinct device_id) from comm_ops"
        assert rows(place, told) == [(True, 2)]
        assert any("do not record their device" in str(w) for w in manifests(place)[0].warnings)
    else:
        assert rules["trace.device"] == "process id"
        assert table(place, "comm_ops", UNLIKE) == operations


@pytest.mark.slow
def test_one_process_with_several_devices_under_torch_npu(
    tmp_path: Path, job_captures: list[Capture]
) -> None:
    """Without a rank of its own each device is a rank; a told rank is believed."""
    two = replace(JOB, dp=2, pp=1, name="torch")
    write_job(two, tmp_path / "text", forms=("text",))
    pair = sorted(p for p in (tmp_path / "text").iterdir() if p.is_dir())
    alone, _ = read(tmp_path / "text")
    merged = tmp_path / "merged" / "host_1_2025_ascend_pt"
    shutil.copytree(pair[0], merged)
    output = merged / "ASCEND_PROFILER_OUTPUT"
    for name in ("kernel_details.csv", "step_trace_time.csv", "memory_record.csv",
                 "operator_memory.csv", "npu_module_mem.csv"):  # fmt: skip
        lines = (pair[1] / "ASCEND_PROFILER_OUTPUT" / name).read_text().splitlines(keepends=True)
        with (output / name).open("a") as file:
            file.writelines(lines[1:])
    (info,) = merged.glob("profiler_info_*.json")
    info.rename(merged / "profiler_info.json")
    text = (merged / "profiler_info.json").read_text()
    (merged / "profiler_info.json").write_text(re.sub(r'"rank_id": "\d+"', '"rank_id": -1', text))
    assert '"rank_id": -1' in (merged / "profiler_info.json").read_text()
    (output / "trace_view.json").unlink()

    place, result = read(tmp_path / "merged")

    assert result.is_complete
    assert [(m.rank, m.window_start_ns) for m in manifests(place)] == [
        (rank, manifests(place)[0].window_start_ns) for rank in (0, 1)
    ]
    for name in ("profiler_steps", "memory", "operator_memory"):
        assert table(place, name) == table(alone, name), name
    untraced = {*UNLIKE, "group_hash", "algorithm", "data_type", "element_count", "size_bytes",
                "relay", "retry", "group_size", "stream_id", "peer_ranks"}  # fmt: skip
    for name in ("kernels", "comm_ops"):
        assert table(place, name, untraced) == table(alone, name, untraced), name

    (merged / "profiler_info.json").rename(merged / "profiler_info_5.json")
    (source,) = discover(tmp_path / "merged").ranks
    assert (source.rank, source.device_id) == (5, None)


def test_a_process_that_knows_its_rank_is_its_busiest_device(tmp_path: Path) -> None:
    """By hand: device 3 computes for 100 us, communicates for 80, computes for 100. What device 0
    computes meanwhile hides nothing of it, nor is its communication the rank's."""
    output = tmp_path / "job" / "host_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    (output.parent / "profiler_info_5.json").write_text('{"rank_id": 5}')
    title = "Step Id,Device_id,Name,Type,Accelerator Core,Start Time(us),Duration(us)"
    events = ["3,MatMul,MatMul,AI_CORE,{}000.000,100.0", "3,hcom_x,hcom_x,HCCL,{}100.000,80.0",
              "3,MatMul,MatMul,AI_CORE,{}180.000,100.0", "0,Add,Add,AI_CORE,{}090.000,95.0",
              "0,hcom_y,hcom_y,HCCL,{}150.000,900.0"]  # fmt: skip
    lines = [title, *(f"7,{event.format('1700000000000')}" for event in events)]
    (output / "kernel_details.csv").write_text("\n".join([*lines, ""]))

    place, _ = read(tmp_path / "job")

    with npuscope.open(place) as job:
        [step] = job.steps().to_dicts()
    assert (step["rank"], step["computing_ns"], step["communication_ns"]) == (5, 200_000, 80_000)
    assert (step["exposed_communication_ns"], step["free_ns"]) == (80_000, 0)
    assert rows(place, "select device_id from ranks") == [(3,)]
    [told] = [str(warning) for warning in manifests(place)[0].warnings]
    assert "of device 3: 2 kernels and operations of others (0) are left out" in told

    table = output.parent.with_name("light_ascend_pt") / "ASCEND_PROFILER_OUTPUT"
    shutil.move(output.parent, tmp_path / "read")
    table.mkdir(parents=True)
    (table.parent / "profiler_info_5.json").write_text('{"rank_id": 5}')
    (table / "step_trace_time.csv").write_text("Device_id,Step,Computing\n0,7,95\n3,7,200\n")
    with npuscope.open(tmp_path / "job") as job:
        assert job.steps()["computing_ns"].to_list() == [200_000]


def of(paths: dict[Role, list[Path]]) -> dict[Role, tuple[SourceFile, ...]]:
    return {
        role: tuple(SourceFile(str(p), p.stat().st_size, 0) for p in found)
        for role, found in paths.items()
    }


def test_devices_are_found_in_any_part_of_a_large_table(tmp_path: Path) -> None:
    file = tmp_path / "op_summary_20250101000000.csv"
    with file.open("w") as out:
        out.write("Device_id,Op Name,Task Start Time(us),Task Duration(us)\n")
        for device in (0, 3, 7):
            out.writelines(f'{device},"op, with a comma",1.5,{n}\n' for n in range(30_000))
    assert file.stat().st_size > 1 << 20

    parts = by_device("msprof", of({"kernels": [file]}))

    assert [(part.device_id, part.other_devices) for part in parts] == [
        (0, (3, 7)), (3, (0, 7)), (7, (0, 3))]  # fmt: skip


@pytest.mark.parametrize(
    ("mapped", "tasks", "expected"),
    [
        ([(-1, 2)], [2] * 100, [None]),
        ([(-1, 2), (-1, 5)], [2] * 100, [2, 5]),
        ([], [1] * 50_000 + [6] * 50_000, [1, 6]),
        ([(3, 0), (4, 1)], [0, 1] * 50, [0, 1]),  # databases that somebody merged
        ([(3, 0), (3, 1)], [0, 1] * 50, [None]),  # one rank that used two devices
        ([(3, 0)], [0, 1] * 50, [None]),
        ([(3, 0), (4, 1)], [1] * 100, [None]),  # all ranks of the host, of which one ran here
    ],
)
def test_devices_of_a_database(
    tmp_path: Path, mapped: list[tuple[int, int]], tasks: list[int], expected: list[int | None]
) -> None:
    path = tmp_path / "ascend_pytorch_profiler.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("create table RANK_DEVICE_MAP (rankId integer, deviceId integer)")
        database.executemany("insert into RANK_DEVICE_MAP values (?, ?)", mapped)
        database.execute("create table TASK (startNs integer, deviceId integer)")
        database.executemany("insert into TASK values (0, ?)", [(device,) for device in tasks])
        database.commit()

    parts = by_device("pytorch", of({"main_db": [path]}))

    assert [part.device_id for part in parts] == expected


@pytest.mark.slow
def test_rows_of_a_device_that_nobody_told_of_are_told(
    tmp_path: Path, job_captures: list[Capture]
) -> None:
    root = write_msprof(job_captures[:2], tmp_path / "job")
    (kernels,) = (root / "mindstudio_profiler_output").glob("op_summary_*.csv")
    lines = kernels.read_text().splitlines(keepends=True)
    lines += ["9" + line[1:] for line in lines[1:4]]
    # So few rows that looking here and there misses them.
    padded = [*lines[:-3], *lines[1:-3] * 60, *lines[-3:], *lines[1:-3] * 60]
    kernels.write_text("".join([lines[0], *(line for line in padded if line != lines[0])]))
    assert kernels.stat().st_size > 1 << 20
    sources = discover(tmp_path / "job").ranks
    assert [source.other_devices for source in sources] == [(1,), (0,)]

    place, _ = read(tmp_path / "job")

    for m in manifests(place):
        assert any("rows of device 9 left out" in warning for warning in m.warnings)
        assert m.rows_lost == 3
    assert rows(place, "select distinct rank, device_id from kernels order by 1") == [
        (0, 0),
        (1, 1),
    ]


def test_ranks_that_every_info_json_claims_are_none(
    tmp_path: Path, job_captures: list[Capture]
) -> None:
    roots = [write_msprof([c], tmp_path / "job") for c in job_captures]
    for c, root in zip(job_captures, roots, strict=True):
        path = root / f"device_{c.device_id}" / f"info.json.{c.device_id}"
        path.write_text(json.dumps({**json.loads(path.read_text()), "rank_id": 0}))

    found = discover(tmp_path / "job").ranks

    assert sorted(source.rank for source in found) == [0, 1, 2, 3]
    by_place: Rows = sorted((Path(source.root).name[5:11], source.rank) for source in found)
    assert by_place == [(f"{n + 1:06d}", n) for n in range(4)]
    assert all("records rank 0: ignored" in source.warnings[0] for source in found)
