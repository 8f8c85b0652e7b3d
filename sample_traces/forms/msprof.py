"""The form of the msprof command: one PROF folder for the devices of one host.

It carries no framework: no operators, no steps, no names or members of groups, no Step Id. Of
graphs it tells iterations (`step_trace_*`), which here are the steps.

What a PROF folder says of the machine, its devices and the session: info.json, start_info.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

from ..capture import Capture, CommOp, Copy, Kernel, Launch
from ..kernels import AI_CORES
from . import db, reports
from .text import (
    KERNEL_HEADER,
    kernel_rows,
    link_block,
    operation_entry,
    total_entry,
    write_json,
    write_lines,
    write_memory,
)
from .trace import device_events, device_metadata, microseconds

_NAMES = {
    "Name": "Op Name", "Type": "OP Type", "Accelerator Core": "Task Type",
    "Start Time(us)": "Task Start Time(us)", "Duration(us)": "Task Duration(us)",
    "Wait Time(us)": "Task Wait Time(us)",
}  # fmt: skip
# Ids of one process's devices never meet.
_APART = 1_000_000
Item = TypeVar("Item", Kernel, CommOp, Copy)


def write_msprof(
    captures: Sequence[Capture],
    out: Path,
    *,
    text: bool = True,
    database: bool = False,
    slices: int = 1,
    iterations: bool = True,
    ranks: bool = True,
) -> Path:
    """Writes a PROF folder of captures of one host, a device each, into `out`; returns it.

    slices: files that the timeline and the kernel table are cut into. iterations: whether it ran
    whole graphs. ranks: whether info.json tells the rank of a device.
    """
    first = captures[0]
    captures = [_apart(c, number) for number, c in enumerate(captures)]
    ended = _moment(max(c.session_end_ns for c in captures) + 20_000_000_000)
    chance = random.Random(f"{first.job.seed}/msprof/{first.rank}")
    letters = "".join(chance.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(16))
    root = out / f"PROF_{first.rank + 1:06d}_{_moment(first.session_start_ns)}_{letters}"
    stamp = f"_{ended[:14]}"
    _write_info(captures, root, ranks=ranks)
    folder = root / "mindstudio_profiler_output"
    folder.mkdir()
    if text:
        _write_timeline(captures, folder, stamp, slices)
        _write_table(captures, folder, "op_summary", stamp, slices)
        header = "Device_id,kernel_name,kernel_type,stream_id,task_id,task_time(us),task_start(us)"
        rows = [row for c in captures for row in _task_rows(c)]
        write_lines(folder / f"task_time{stamp}.csv", f"{header},task_stop(us)", rows)
        if first.job.memory:
            write_memory(captures, folder, stamp=stamp, unit="KB")
        if first.comm_ops and first.job.comm_tasks and len(captures) == 1:
            _write_analysis(first, root / "analyze")
    if iterations:
        _write_iterations(captures, folder, stamp)
    if database:
        _write_database(captures, root / f"msprof{stamp}.db")
    return root


def _moment(ns: int) -> str:
    at = datetime.fromtimestamp(ns // 10**9, tz=timezone.utc)
    return f"{at:%Y%m%d%H%M%S}{ns // 10**6 % 1000:03d}"


def _apart(c: Capture, number: int) -> Capture:
    if not number:
        return c

    def move(launch: Launch) -> Launch:
        return replace(
            launch,
            connection_id=launch.connection_id + number * _APART,
            api_connection_id=launch.api_connection_id + number * _APART,
        )

    def all_moved(items: list[Item]) -> list[Item]:
        return [replace(item, launch=move(item.launch)) for item in items]

    return replace(
        c,
        kernels=all_moved(c.kernels),
        comm_ops=[replace(op, op_id=op.op_id + number * _APART) for op in all_moved(c.comm_ops)],
        copies=all_moved(c.copies),
        waits=[(start, end, connection + number * _APART) for start, end, connection in c.waits],
    )


def _write_timeline(captures: Sequence[Capture], folder: Path, stamp: str, slices: int) -> None:
    """Only the first slice has the names of processes and threads."""
    events: list[Any] = [event for c in captures for event in device_metadata(c)]
    events += [event for c in captures for event in device_events(c)]
    for name, part in _parts("msprof", stamp, events, slices):
        with (folder / f"{name}.json").open("w", encoding="utf-8") as file:
            json.dump(part, file)


def _write_table(
    captures: Sequence[Capture], folder: Path, name: str, stamp: str, slices: int
) -> None:
    titles = KERNEL_HEADER.split(",")[1:]  # no Step Id
    header = ",".join(_NAMES.get(title, title) for title in titles)
    rows = [row.partition(",")[2] for c in captures for row in kernel_rows(c)]
    for file, part in _parts(name, stamp, rows, slices):
        write_lines(folder / f"{file}.csv", header, part)


def _parts(name: str, stamp: str, rows: list[Any], slices: int) -> list[tuple[str, list[Any]]]:
    if slices == 1:
        return [(f"{name}{stamp}", rows)]
    each = -(-len(rows) // slices)
    return [(f"{name}_slice_{n}{stamp}", rows[n * each : (n + 1) * each]) for n in range(slices)]


def _task_rows(c: Capture) -> list[str]:
    """Every task of the device; only kernels have names."""
    tasks = [
        (x.start_ns, x.dur_ns, x.work.name, x.work.core, x.stream_id, x.task_id) for x in c.kernels
    ]
    tasks += [
        (x.start_ns, x.dur_ns, "N/A", "MEMCPY_ASYNC", x.stream_id, x.task_id) for x in c.copies
    ]
    tasks += [
        (task.start_ns, task.dur_ns, "N/A", "SDMA", op.stream_id, op.task_id)
        for op in c.comm_ops
        for task in op.tasks
    ]
    return [
        f"{c.device_id},{name},{kind},{stream},{task},{microseconds(dur_ns)}\t,"
        f"{microseconds(start_ns)}\t,{microseconds(start_ns + dur_ns)}\t"
        for start_ns, dur_ns, name, kind, stream, task in sorted(tasks)
    ]


def _write_iterations(captures: Sequence[Capture], folder: Path, stamp: str) -> None:
    rows: list[str] = []
    events: list[Any] = []
    for c in captures:
        for name, args in (
            ("process_name", {"name": "Step Trace"}),
            ("thread_name", {"name": "Step Trace(Model ID:1)"}),
        ):
            place = {"pid": c.process_id, "tid": c.device_id}
            events.append({"name": name, "ph": "M", **place, "args": args})
        for step in c.steps:
            start, end = microseconds(step.device_start_ns), microseconds(step.device_end_ns)
            length = microseconds(step.device_end_ns - step.device_start_ns)
            rows.append(
                f"{c.device_id},{step.step},{start}\t,{end}\t,{end}\t,{length},{length},0,0,1,,"
            )
            events.append({
                "name": f"Iteration {step.step}", "cat": "Iteration Time", "ph": "X", "ts": start,
                "pid": c.process_id, "tid": c.device_id,
                "dur": (step.device_end_ns - step.device_start_ns) / 1000,
                "args": {"Iteration ID": step.step},
            })  # fmt: skip
    header = (
        "Device_id,Iteration ID,FP Start(us),BP End(us),Iteration End(us),Iteration Time(us),"
        "FP to BP Time(us),Iteration Refresh(us),Data Aug Bound(us),Model ID,Reduce Start(us),"
        "Reduce Duration(us)"
    )
    write_lines(folder / f"step_trace{stamp}.csv", header, rows)
    write_json(folder / f"step_trace{stamp}.json", events)


def _write_analysis(c: Capture, folder: Path) -> None:
    """What `msprof --analyze=on` makes: flat, and of every operation by itself."""
    folder.mkdir()
    entries = reports.op_reports(c)
    measures = {report.key: operation_entry(report) for report in entries}
    write_json(folder / "communication.json", {**measures, "total": total_entry(entries)})
    matrix = {
        report.key: {
            f"{row.source}-{row.target}": link_block(row) for row in reports.op_links(report.op)
        }
        for report in entries
    }
    write_json(folder / "communication_matrix.json", matrix)


def _write_database(captures: Sequence[Capture], path: Path) -> None:
    """CANN's tables only; no rank is named."""
    rows: db.Rows = {table: [] for table in db.TABLES}
    pool = db.Pool()
    for c in captures:
        db.add_tasks(c, rows, pool)
        db.add_calls(c, rows, pool)
        rows["AICORE_FREQ"] += db.frequency_rows(c)
        rows["RANK_DEVICE_MAP"].append((-1, c.device_id))
        if c.job.memory:
            rows["NPU_MODULE_MEM"] += db.module_rows(c)
    first = captures[0]
    rows["HOST_INFO"] = [(first.host_uid, first.host_name)]
    rows["NPU_INFO"] = [(device, "Ascend910B") for device in range(first.job.ranks_per_host)]
    ends = min(c.session_start_ns for c in captures), max(c.session_end_ns for c in captures)
    rows["SESSION_TIME_INFO"] = [ends]
    rows["META_DATA"] = [("SCHEMA_VERSION", "1.0.0")]
    db.save_main(path, rows, [pool])


_BOOTED_NS = 4_699_801_002_845_430


def _write_info(captures: Sequence[Capture], root: Path, *, ranks: bool) -> None:
    """Makes the folders host and device_N of a PROF folder with what they tell."""
    _write(root / "host", "", captures[0], _machine(captures[0]))
    for c in captures:
        rank = c.rank if ranks else -1
        device = {**_machine(c), "devices": str(c.device_id), "DeviceInfo": [_device(c)]}
        _write(root / f"device_{c.device_id}", f".{c.device_id}", c, {**device, "rank_id": rank})


def _machine(c: Capture) -> dict[str, object]:
    return {
        "jobInfo": "NA", "version": "1.0", "mac": "", "OS": "Linux-5.10.0.aarch64", "cpuCores": 1,
        "hostname": c.host_name, "hwtype": "aarch64", "devices": "", "platform": "",
        "CPU": [{"Id": 0, "Name": "HiSilicon", "Frequency": 1000, "Logical_CPU_Count": 192,
                 "Type": "TaishanV110"}],
        "DeviceInfo": [], "platform_version": "5", "pid": str(c.process_id), "pid_name": "python",
        "memoryTotal": 791_800_000, "cpuNums": 192, "sysClockFreq": 100, "hostUid": c.host_uid,
    }  # fmt: skip


def _device(c: Capture) -> dict[str, object]:
    return {
        "id": c.device_id, "env_type": 3, "ctrl_cpu_id": "ARMv8_Cortex_A55", "ai_cpu_core_num": 6,
        "ai_core_num": AI_CORES, "aiv_num": 2 * AI_CORES, "hwts_frequency": "50",
        "aic_frequency": str(c.frequency_mhz), "aiv_frequency": str(c.frequency_mhz),
    }  # fmt: skip


def _write(folder: Path, suffix: str, c: Capture, info: dict[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"info.json{suffix}").write_text(json.dumps(info))
    for which, word, ns in (
        ("start", "Begin", c.session_start_ns),
        ("end", "End", c.session_end_ns),
    ):
        at = datetime.fromtimestamp(ns // 10**9, tz=timezone.utc)
        fields = {
            f"collectionDate{word}": f"{at:%Y-%m-%d %H:%M:%S}.{ns // 1000 % 10**6:06d}",
            f"collectionTime{word}": str(ns // 1000),
            "clockMonotonicRaw": str(_BOOTED_NS + ns - c.session_start_ns),
        }
        (folder / f"{which}_info{suffix}").write_text(json.dumps(fields))
