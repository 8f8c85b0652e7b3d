"""The text export of one rank: tables and communication files beside the timeline."""

from __future__ import annotations

import json
from pathlib import Path

from . import memory, reports
from .capture import NONE_32, Capture
from .pmu import cube_utilization, pmu
from .trace import microseconds, timeline

_KERNEL_HEADER = (
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
_NO_COUNTERS = ["N/A"] * 25
_BLOCK_HEADER = (
    "Name,Size(KB),Allocation Time(us),Release Time(us),Active Release Time(us),Duration(us),"
    "Active Duration(us),Allocation Total Allocated(MB),Allocation Total Reserved(MB),"
    "Allocation Total Active(MB),Release Total Allocated(MB),Release Total Reserved(MB),"
    "Release Total Active(MB),Stream Ptr,Device Type"
)


def write_text(c: Capture, folder: Path) -> None:
    """Writes ASCEND_PROFILER_OUTPUT's text files into `folder`."""
    with (folder / "trace_view.json").open("w", encoding="utf-8", newline="") as file:
        json.dump(timeline(c), file, ensure_ascii=False)
    _write(folder / "kernel_details.csv", _KERNEL_HEADER, _kernel_rows(c))
    header = ",".join(("Device_id", "Step", *reports.STEP_COLUMNS))
    steps = [
        ",".join(map(str, (c.device_id, step.step, *row)))
        for step, row in zip(c.steps, reports.step_trace_text(c), strict=True)
    ]
    _write(folder / "step_trace_time.csv", header, steps)
    _write(
        folder / "op_statistic.csv",
        "Device_id,OP Type,Core Type,Count,Total Time(us),Min Time(us),Avg Time(us),Max Time(us),"
        "Ratio(%)",
        _statistic_rows(c),
    )
    if c.comm_ops and c.job.comm_tasks:
        _write_json(folder / "communication.json", _communication(c))
        _write_json(folder / "communication_matrix.json", _matrix(c))
    if c.job.memory:
        _write_memory(c, folder)


def _write(path: Path, header: str, rows: list[str]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write("\n".join([header, *rows, ""]))


def _write_json(path: Path, content: object) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        json.dump(content, file)


def _kernel_rows(c: Capture) -> list[str]:
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
    found: dict[tuple[str, str], list[int]] = {}
    for kernel in c.kernels:
        found.setdefault((kernel.work.type, kernel.work.core), []).append(kernel.dur_ns)
    whole = sum(sum(durations) for durations in found.values())
    rows = sorted(found.items(), key=lambda item: -sum(item[1]))
    return [
        ",".join(map(str, (
            c.device_id, *key, len(ns), sum(ns) / 1000, min(ns) / 1000,
            round(sum(ns) / 1000 / len(ns), 3), max(ns) / 1000, round(100 * sum(ns) / whole, 3),
        )))
        for key, ns in rows
    ]  # fmt: skip


def _communication(c: Capture) -> dict[str, dict[str, dict[str, object]]]:
    found: dict[str, dict[str, dict[str, object]]] = {
        f"step{step.step}": {"p2p": {}, "collective": {}} for step in c.steps
    }
    sums: dict[tuple[str, str], list[reports.OpReport]] = {}
    for report in reports.op_reports(c):
        step, kind = f"step{report.op.step}", reports.category(report.op)
        sums.setdefault((step, kind), []).append(report)
        found[step][kind][report.key] = {
            "Communication Time Info": {
                "Start Timestamp(us)": report.op.start_ns / 1000,
                **_times([report]),
            },
            "Communication Bandwidth Info": {
                name: _band(report.bands.get(name), total=False) for name in reports.LINKS
            },
        }
    for (step, kind), mine in sums.items():
        found[step][kind]["Total Op Info"] = {
            "Communication Time Info": _times(mine),
            "Communication Bandwidth Info": {
                name: _band(_summed(mine, name), total=True) for name in reports.LINKS
            },
        }
    return found


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


def _summed(mine: list[reports.OpReport], name: str) -> reports.Band:
    bands = [r.bands[name] for r in mine if name in r.bands]
    packets: dict[float, tuple[int, float]] = {}
    for band in bands:
        for size, (count, time) in band.packets.items():
            had = packets.get(size, (0, 0.0))
            packets[size] = (had[0] + count, had[1] + time)
    return reports.Band(sum(b.size_mb for b in bands), sum(b.time_ms for b in bands), 0, 0, packets)


def _matrix(c: Capture) -> dict[str, dict[str, dict[str, dict[str, object]]]]:
    found: dict[str, dict[str, dict[str, dict[str, object]]]] = {
        f"step{step.step}": {"p2p": {}, "collective": {}} for step in c.steps
    }
    for row in reports.matrix_rows(c):
        block: dict[str, object] = {
            "Transport Type": row.transport,
            "Transit Size(MB)": row.size_mb,
            "Transit Time(ms)": row.time_ms,
            "Bandwidth(GB/s)": row.bandwidth_gb_s,
        }
        if row.op_name:
            block["Op Name"] = row.op_name
        kind = found[f"step{row.step}"][row.category]
        kind.setdefault(row.name, {})[f"{row.source}-{row.target}"] = block
    return found


def _write_memory(c: Capture, folder: Path) -> None:
    levels, blocks = memory.curve(c)
    samples = memory.module_samples(c)
    device, pointer, mb = f"NPU:{c.device_id}", memory.STREAM_PTR, 2**20
    rows = [
        f"APP,{microseconds(time_ns)}\t,,{size / mb},,,{device}"
        for module, time_ns, size in samples if module == "APP"
    ]  # fmt: skip
    for level in levels:
        for component, extra in (("PTA", 0), ("PTA+GE", level.ge_bytes)):
            rows.append(
                f"{component},{microseconds(level.timestamp_ns)}\t,"
                f"{(level.allocated_bytes + extra) / mb},{(level.reserved_bytes + extra) / mb},"
                f"{level.allocated_bytes / mb},{pointer},{device}"
            )
    _write(
        folder / "memory_record.csv",
        "Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB),Total Active(MB),"
        "Stream Ptr,Device Type",
        rows,
    )
    rows = []
    for block in blocks:
        born, died = block.allocated, block.released
        before = [born.allocated_bytes / mb, born.reserved_bytes / mb, born.allocated_bytes / mb]
        at = f"{microseconds(born.timestamp_ns)}\t"
        cells: list[object] = [block.name, block.size_bytes / 1024, at]
        if died is None:
            cells += ["", "", "", "", *before, "", "", ""]
        else:
            held = f"{microseconds(died.timestamp_ns - born.timestamp_ns)}\t"
            freed = f"{microseconds(died.timestamp_ns)}\t"
            after = [died.allocated_bytes / mb, died.reserved_bytes / mb, died.allocated_bytes / mb]
            cells += [freed, freed, held, held, *before, *after]
        rows.append(",".join(map(str, [*cells, pointer, device])))
    _write(folder / "operator_memory.csv", _BLOCK_HEADER, rows)
    _write(
        folder / "npu_module_mem.csv",
        "Device_id,Component,Timestamp(us),Total Reserved(MB),Device",
        [f"{c.device_id},{m},{microseconds(t)}\t,{size / mb},{device}" for m, t, size in samples],
    )
