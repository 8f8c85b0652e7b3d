"""The text export of one rank: tables and communication files beside the timeline."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from .. import memory
from ..capture import NONE_32, Capture
from . import reports
from .pmu import cube_utilization, pmu
from .trace import microseconds, timeline

KERNEL_HEADER = (
    "Step Id,Device_id,Model ID,Task ID,Stream ID,Name,Type,OP State,Accelerator Core,"
    "Start Time(us),Duration(us),Wait Time(us),Block Dim,Mix Block Dim,HF32 Eligible,"
    "Input Shapes,Input Data Types,Input Formats,Output Shapes,Output Data Types,Output Formats,"
    "Context ID,aicore_time(us),aic_total_cycles,aic_mac_time(us),aic_mac_ratio,"
    "aic_scalar_time(us),aic_scalar_ratio,aic_mte1_time(us),aic_mte1_ratio,aic_mte2_time(us),"
    "aic_mte2_ratio,aic_fixpipe_time(us),aic_fixpipe_ratio,aic_icache_miss_rate,aiv_time(us),"
    "aiv_total_cycles,aiv_vec_time(us),aiv_vec_ratio,aiv_scalar_time(us),aiv_scalar_ratio,"
    "aiv_mte2_time(us),aiv_mte2_ratio,aiv_mte3_time(us),aiv_mte3_ratio,aiv_icache_miss_rate,"
    "cube_utilization(%)"
)
Unit = Literal["MB", "KB"]
_UNIT_BYTES = {"MB": 2**20, "KB": 2**10}
_NO_COUNTERS = ["N/A"] * 25
_BLOCK_HEADER = (
    "Name,Size(KB),Allocation Time(us),Release Time(us),Active Release Time(us),Duration(us),"
    "Active Duration(us),Allocation Total Allocated({unit}),Allocation Total Reserved({unit}),"
    "Allocation Total Active({unit}),Release Total Allocated({unit}),"
    "Release Total Reserved({unit}),Release Total Active({unit}),Stream Ptr,{device}"
)


def write_text(c: Capture, folder: Path) -> None:
    """Writes ASCEND_PROFILER_OUTPUT's text files into `folder`."""
    with (folder / "trace_view.json").open("w", encoding="utf-8", newline="") as file:
        json.dump(timeline(c), file, ensure_ascii=False)
    write_lines(folder / "kernel_details.csv", KERNEL_HEADER, kernel_rows(c))
    write_steps(c, folder)
    write_lines(
        folder / "op_statistic.csv",
        "Device_id,OP Type,Core Type,Count,Total Time(us),Min Time(us),Avg Time(us),Max Time(us),"
        "Ratio(%)",
        _statistic_rows(c),
    )
    write_communication(c, folder)
    if c.job.memory:
        write_memory([c], folder)


def write_steps(c: Capture, folder: Path) -> None:
    """The profiler's own table of steps."""
    header = ",".join(("Device_id", "Step", *reports.STEP_COLUMNS))
    steps = [
        ",".join(map(str, (c.device_id, step.step, *row)))
        for step, row in zip(c.steps, reports.step_trace_text(c), strict=True)
    ]
    write_lines(folder / "step_trace_time.csv", header, steps)


def write_communication(c: Capture, folder: Path) -> None:
    """What HCCL tells of operations and links, where it was recorded."""
    if c.comm_ops and c.job.comm_tasks:
        write_json(folder / "communication.json", communication(c))
        write_json(folder / "communication_matrix.json", matrix(c))


def write_lines(path: Path, header: str, rows: list[str]) -> None:
    """Writes a CSV file of finished rows."""
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write("\n".join([header, *rows, ""]))


def write_json(path: Path, content: object) -> None:
    """Writes JSON without line breaks."""
    with path.open("w", encoding="utf-8", newline="") as file:
        json.dump(content, file)


def kernel_rows(c: Capture) -> list[str]:
    """Rows under KERNEL_HEADER by start."""
    rows: list[tuple[int, str]] = []
    for kernel in c.kernels:
        work, metrics = kernel.work, pmu(kernel.work, kernel.dur_ns, c.frequency_mhz)
        cells: list[object] = [
            kernel.step, c.device_id, NONE_32, kernel.task_id, kernel.stream_id, work.name,
            work.type, "dynamic", work.core, f"{microseconds(kernel.start_ns)}\t",
            microseconds(kernel.dur_ns), _wait(kernel.wait_ns), work.block_count,
            work.mix_block_count, "NO", *_tensors(work.input_shapes, work.input_dtypes),
            *_tensors(work.output_shapes, work.output_dtypes),
            "N/A" if kernel.context_id is None else kernel.context_id,
        ]  # fmt: skip
        if metrics is None:
            cells += _NO_COUNTERS
        else:
            cells += [v / 1000 if n.endswith("_time") else v for n, v in metrics.items()]
            cells.append(cube_utilization(metrics, kernel.dur_ns, c.frequency_mhz) or "0.000")
        rows.append((kernel.start_ns, ",".join(map(str, cells))))
    for op in c.comm_ops:
        cells = [
            op.step, c.device_id, NONE_32, "N/A", "N/A", op.name, op.hccl_type, "N/A",
            "COMMUNICATION", f"{microseconds(op.start_ns)}\t", microseconds(op.dur_ns),
            _wait(op.wait_ns), 0, *["N/A"] * 9, *_NO_COUNTERS,
        ]  # fmt: skip
        rows.append((op.start_ns, ",".join(map(str, cells))))
    return [row for _, row in sorted(rows, key=lambda row: row[0])]


def _tensors(shapes: str, dtypes: str) -> list[str]:
    """Shapes keep literal quotes inside the quoted cell."""
    if dtypes == "N/A":
        return ["N/A"] * 3
    return [f'"""{shapes}"""', dtypes, ";".join(["ND"] * (dtypes.count(";") + 1))]


def _wait(wait_ns: int) -> str:
    return f"{microseconds(wait_ns)}000" if wait_ns else "0"


def _statistic_rows(c: Capture) -> list[str]:
    by_type: dict[tuple[str, str], list[int]] = {}
    for kernel in c.kernels:
        by_type.setdefault((kernel.work.type, kernel.work.core), []).append(kernel.dur_ns)
    whole = sum(sum(durations) for durations in by_type.values())
    rows = sorted(by_type.items(), key=lambda item: -sum(item[1]))
    return [
        ",".join(map(str, (
            c.device_id, *key, len(ns), sum(ns) / 1000, min(ns) / 1000,
            round(sum(ns) / 1000 / len(ns), 3), max(ns) / 1000, round(100 * sum(ns) / whole, 3),
        )))
        for key, ns in rows
    ]  # fmt: skip


def communication(c: Capture) -> dict[str, dict[str, dict[str, object]]]:
    """Content of communication.json."""
    tree: dict[str, dict[str, dict[str, object]]] = {
        f"step{step.step}": {"p2p": {}, "collective": {}} for step in c.steps
    }
    sums: dict[tuple[str, str], list[reports.OpReport]] = {}
    for report in reports.op_reports(c):
        step, kind = f"step{report.op.step}", reports.category(report.op)
        sums.setdefault((step, kind), []).append(report)
        tree[step][kind][report.key] = operation_entry(report)
    for (step, kind), mine in sums.items():
        tree[step][kind]["Total Op Info"] = total_entry(mine)
    return tree


def operation_entry(report: reports.OpReport) -> dict[str, object]:
    """What communication.json says of an operation."""
    return {
        "Communication Time Info": {
            "Start Timestamp(us)": report.op.start_ns / 1000,
            **_times([report]),
        },
        "Communication Bandwidth Info": {
            name: _band(report.bands.get(name), total=False) for name in reports.LINKS
        },
    }


def total_entry(mine: list[reports.OpReport]) -> dict[str, object]:
    """What it says of operations together."""
    return {
        "Communication Time Info": _times(mine),
        "Communication Bandwidth Info": {
            name: _band(_sum_bands(mine, name), total=True) for name in reports.LINKS
        },
    }


def _times(mine: list[reports.OpReport]) -> dict[str, float]:
    elapse, transit = sum(r.elapse_ms for r in mine), sum(r.transit_ms for r in mine)
    wait, sync = sum(r.wait_ms for r in mine), sum(r.synchronization_ms for r in mine)
    return {
        "Elapse Time(ms)": elapse,
        "Transit Time(ms)": transit,
        "Wait Time(ms)": wait,
        "Synchronization Time(ms)": sync,
        "Idle Time(ms)": sum(r.idle_ms for r in mine),
        "Wait Time Ratio": round(wait / (wait + transit), 4) if wait + transit else 0,
        "Synchronization Time Ratio": round(sync / (sync + transit), 4) if sync + transit else 0,
    }


def _band(band: reports.Band | None, *, total: bool) -> dict[str, object]:
    """A link's block; totals lack bandwidth and large packets, as the profiler's do."""
    band = band or reports.Band(0, 0, 0, 0, {})
    sizes = {str(size): list(packet) for size, packet in band.packets.items()}
    rates = {"Bandwidth(GB/s)": band.bandwidth_gb_s, "Large Packet Ratio": band.large_ratio}
    return {
        "Transit Size(MB)": band.size_mb,
        "Transit Time(ms)": band.time_ms,
        **({} if total else rates),
        "Size Distribution": sizes,
    }


def _sum_bands(mine: list[reports.OpReport], name: str) -> reports.Band:
    bands = [r.bands[name] for r in mine if name in r.bands]
    packets: dict[float, tuple[int, float]] = {}
    for band in bands:
        for size, (count, time) in band.packets.items():
            had = packets.get(size, (0, 0.0))
            packets[size] = (had[0] + count, had[1] + time)
    return reports.Band(sum(b.size_mb for b in bands), sum(b.time_ms for b in bands), 0, 0, packets)


def matrix(c: Capture) -> dict[str, dict[str, dict[str, dict[str, object]]]]:
    """Content of communication_matrix.json."""
    tree: dict[str, dict[str, dict[str, dict[str, object]]]] = {
        f"step{step.step}": {"p2p": {}, "collective": {}} for step in c.steps
    }
    for row in reports.matrix_rows(c):
        block = link_block(row)
        if row.op_name:
            block["Op Name"] = row.op_name
        kind = tree[f"step{row.step}"][row.category]
        kind.setdefault(row.name, {})[f"{row.source}-{row.target}"] = block
    return tree


def link_block(row: reports.MatrixRow) -> dict[str, object]:
    """What communication_matrix.json says of a link."""
    return {
        "Transport Type": row.transport,
        "Transit Size(MB)": row.size_mb,
        "Transit Time(ms)": row.time_ms,
        "Bandwidth(GB/s)": row.bandwidth_gb_s,
    }


def write_memory(
    captures: Sequence[Capture], folder: Path, *, stamp: str = "", unit: Unit = "MB"
) -> None:
    """Writes the memory tables of one process's devices; msprof and MindSpore count in KB."""
    device_title = "Device Type" if unit == "MB" else "Device"
    records, blocks = list[str](), list[str]()
    for c in captures:
        records += _record_rows(c, _UNIT_BYTES[unit])
        blocks += _block_rows(c, _UNIT_BYTES[unit])
    write_lines(
        folder / f"memory_record{stamp}.csv",
        f"Component,Timestamp(us),Total Allocated({unit}),Total Reserved({unit}),"
        f"Total Active({unit}),Stream Ptr,{device_title}",
        records,
    )
    header = _BLOCK_HEADER.format(unit=unit, device=device_title)
    write_lines(folder / f"operator_memory{stamp}.csv", header, blocks)
    write_lines(
        folder / f"npu_module_mem{stamp}.csv",
        f"Device_id,Component,Timestamp(us),Total Reserved({unit}),Device",
        [
            f"{c.device_id},{module},{microseconds(time_ns)}\t,{size / _UNIT_BYTES[unit]},"
            f"NPU:{c.device_id}"
            for c in captures
            for module, time_ns, size in memory.module_samples(c)
        ],
    )


def _record_rows(c: Capture, unit_bytes: int) -> list[str]:
    device = f"NPU:{c.device_id}"
    rows = [
        f"APP,{microseconds(time_ns)}\t,,{size / unit_bytes},,,{device}"
        for module, time_ns, size in memory.module_samples(c) if module == "APP"
    ]  # fmt: skip
    for level in memory.curve(c)[0]:
        for component, extra in (("PTA", 0), ("PTA+GE", level.ge_bytes)):
            sizes = (level.allocated_bytes + extra, level.reserved_bytes + extra)
            rows.append(
                f"{component},{microseconds(level.timestamp_ns)}\t,"
                f"{sizes[0] / unit_bytes},{sizes[1] / unit_bytes},"
                f"{level.allocated_bytes / unit_bytes},{memory.STREAM_PTR},{device}"
            )
    return rows


def _block_rows(c: Capture, unit_bytes: int) -> list[str]:
    rows = []
    for block in memory.curve(c)[1]:
        born, died = block.allocated, block.released
        at = f"{microseconds(born.timestamp_ns)}\t"
        cells: list[object] = [block.name, block.size_bytes / 1024, at]
        if died is None:
            cells += ["", "", "", "", *_totals(born, unit_bytes), "", "", ""]
        else:
            held = f"{microseconds(died.timestamp_ns - born.timestamp_ns)}\t"
            freed = f"{microseconds(died.timestamp_ns)}\t"
            cells += [freed, freed, held, held]
            cells += [*_totals(born, unit_bytes), *_totals(died, unit_bytes)]
        rows.append(",".join(map(str, [*cells, memory.STREAM_PTR, f"NPU:{c.device_id}"])))
    return rows


def _totals(level: memory.Level, unit_bytes: int) -> tuple[float, float, float]:
    """Allocated, reserved, active."""
    allocated = level.allocated_bytes / unit_bytes
    return allocated, level.reserved_bytes / unit_bytes, allocated
