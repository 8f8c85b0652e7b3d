"""The form of MindSpore's profiler: `rank_N/..._ascend_ms`, text or database.

As torch_npu's, but for these: the framework's process is called MindSpore and its slices have no
category, there is no task queue, and scopes of the network stand on tracks of their own; memory is
counted in KB, under other names; kernels may carry the stack that launched them in their name. The
database is CANN's alone, without steps, operators, groups or memory of the framework, and
communication_analyzer.db has neither steps nor kinds of operations.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from ..capture import Capture
from ..job import group_hash
from . import db, reports
from .metadata import CANN_VERSION, folder_name, profiler_info, profiler_metadata
from .text import (
    KERNEL_HEADER,
    kernel_rows,
    write_communication,
    write_json,
    write_lines,
    write_steps,
)
from .text import write_memory as write_torch_memory
from .trace import Event, microseconds, timeline

FRAMEWORK_VERSION = "2.7.0"
COMPONENTS = {"PTA": "MindSpore", "PTA+GE": "MindSpore+GE"}
_STACK = "\nFile 'train.py', line 12, in construct\nFile 'cell.py', line 641, in __call__"
_SCOPE_PID = 4_000_000_000
_ABSENT = ("enqueue", "dequeue", "async_task_queue", "fwdbwd")
_ANALYSIS = {
    "CommAnalyzerTime": "hccl_op_name TEXT, group_name TEXT, start_timestamp NUMERIC, "
    "elapse_time NUMERIC, transit_time NUMERIC, wait_time NUMERIC, synchronization_time NUMERIC, "
    "idle_time NUMERIC",
    "CommAnalyzerBandwidth": "hccl_op_name TEXT, group_name TEXT, transport_type TEXT, "
    "transit_size NUMERIC, transit_time NUMERIC, bandwidth NUMERIC, large_packet_ratio NUMERIC, "
    "package_size NUMERIC, count NUMERIC, total_duration NUMERIC",
    "CommAnalyzerMatrix": "hccl_op_name TEXT, group_name TEXT, src_rank TEXT, dst_rank TEXT, "
    "transport_type TEXT, transit_size NUMERIC, transit_time NUMERIC, bandwidth NUMERIC",
}


def write_mindspore(
    c: Capture, out: Path, form: Literal["text", "db"], *, stacks: bool = False
) -> Path:
    """Writes a rank's folder below `out`; returns it. stacks: kernels' names end in a stack."""
    root = out / f"rank_{c.rank}" / folder_name(c).replace("_ascend_pt", "_ascend_ms")
    folder = root / "ASCEND_PROFILER_OUTPUT"
    folder.mkdir(parents=True, exist_ok=True)
    info = profiler_info(c, [form])
    del info["torch_npu_version"]
    info |= {"ms_version": FRAMEWORK_VERSION, "cann_version": CANN_VERSION}
    (root / f"profiler_info_{c.rank}.json").write_text(json.dumps(info), encoding="utf-8")
    (root / "profiler_metadata.json").write_text(
        json.dumps({"parallel_group_info": profiler_metadata(c)["parallel_group_info"]}),
        encoding="utf-8",
    )
    if form == "text":
        _write_text(c, folder, stacks=stacks)
    else:
        _write_db(c, folder)
    return root


def _write_text(c: Capture, folder: Path, *, stacks: bool) -> None:
    write_json(folder / "trace_view.json", list(_timeline(c)))
    rows = kernel_rows(c)
    rows = [_with_stack(row) for row in rows] if stacks else rows
    write_lines(folder / "kernel_details.csv", KERNEL_HEADER, rows)
    write_steps(c, folder)
    write_communication(c, folder)
    if c.job.memory:
        _write_memory(c, folder)
    write_lines(
        folder / "dataset.csv",
        "Operation,Stage,Occurrences,Avg. time(us),Custom Info",
        ["batch,build,1,120.5,"],
    )


def _with_stack(row: str) -> str:
    """A row whose kernel's name is followed by its stack, in one quoted cell."""
    cells = row.split(",", 6)
    cells[5] = f'"{cells[5]}{_STACK}"'
    return ",".join(cells)


def _timeline(c: Capture) -> Iterator[Event]:
    for event in timeline(c):
        category = event.get("cat")
        if category in _ABSENT or event["name"] == "enqueue_to_dequeue":
            continue
        if event["name"] == "process_name" and event["args"] == {"name": "Python"}:
            yield {**event, "args": {"name": "MindSpore"}}
        elif category == "cpu_op":
            yield {key: value for key, value in event.items() if key not in ("cat", "args")}
        elif event["name"] == "torch_to_npu":
            yield {**event, "name": "mindspore_to_npu"}
        else:
            yield event
    place: Event = {"pid": _SCOPE_PID, "tid": 0}
    yield {"ph": "M", "name": "process_name", **place, "args": {"name": "Scope Layer"}}
    for step in c.steps:
        span = step.device_end_ns - step.device_start_ns
        yield {
            "ph": "X", "name": "Default", **place, "ts": microseconds(step.device_start_ns),
            "dur": span / 1000,
        }  # fmt: skip


def _write_memory(c: Capture, folder: Path) -> None:
    write_torch_memory([c], folder, unit="KB")
    path = folder / "memory_record.csv"
    header, *rows = path.read_text(encoding="utf-8").splitlines()
    parts = [row.partition(",") for row in rows]
    write_lines(path, header, [f"{COMPONENTS.get(name, name)},{rest}" for name, _, rest in parts])


def _write_db(c: Capture, folder: Path) -> None:
    rows: db.Rows = {table: [] for table in db.TABLES}
    pool = db.Pool()
    db.add_tasks(c, rows, pool)
    db.add_calls(c, rows, pool)
    rows |= db.session_rows(c)
    rows["META_DATA"] = [("SCHEMA_VERSION", "1.0.0")]
    if c.job.memory:
        rows["NPU_MODULE_MEM"] = db.module_rows(c)
    db.save_main(folder / f"ascend_mindspore_profiler_{c.rank}.db", rows, [pool])
    if c.comm_ops and c.job.comm_tasks:
        db.save(folder / "communication_analyzer.db", _ANALYSIS, _analysis(c), ())


def _analysis(c: Capture) -> db.Rows:
    rows: db.Rows = {table: [] for table in _ANALYSIS}
    for report in reports.op_reports(c):
        op = report.op
        head = (op.name, str(group_hash(op.group.name)))
        rows["CommAnalyzerTime"].append((
            *head, op.start_ns / 1000, report.elapse_ms, report.transit_ms, report.wait_ms,
            report.synchronization_ms, report.idle_ms,
        ))  # fmt: skip
        for link, band in report.bands.items():
            size = (link, band.size_mb, band.time_ms, band.bandwidth_gb_s, band.large_ratio)
            packets = [(mb, *packet) for mb, packet in band.packets.items()] or [(0, 0, 0)]
            rows["CommAnalyzerBandwidth"] += [(*head, *size, *packet) for packet in packets]
        rows["CommAnalyzerMatrix"] += [
            (*head, str(row.source), str(row.target), row.transport, row.size_mb, row.time_ms,
             row.bandwidth_gb_s)
            for row in reports.op_links(op)
        ]  # fmt: skip
    return rows
