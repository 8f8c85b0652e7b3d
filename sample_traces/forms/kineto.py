"""The trace of one rank as PyTorch's profiler writes it on a GPU: the same job, told by Kineto.

Same events at the same instants: framework slices stay, CANN calls become runtime calls inside
their operator (a GPU has no task queue), device tasks kernels and copies, HCCL's operations NCCL's
kernels. What only an NPU has is left out: HCCL's wrapper kernels, planes, counters of cores.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .. import memory
from ..capture import Capture, CommOp, Copy, Kernel, Launch
from .trace import microseconds

DEVICE_NAME, MULTIPROCESSORS = "NVIDIA H100 80GB HBM3", 132
_QUARTER_NS = 90 * 24 * 3600 * 10**9
_CALL_NS = 900
# Ours: how PyTorch names the collective, how NCCL names its kernel.
_COLLECTIVES = {
    "allReduce": ("allreduce", "AllReduce_Sum_bf16_RING_LL"),
    "allGather": ("_allgather_base", "AllGather_RING_LL"),
    "reduceScatter": ("_reduce_scatter_base", "ReduceScatter_Sum_bf16_RING_LL"),
    "allToAllV": ("all_to_allv", "SendRecv"),
    "send": ("send", "SendRecv"),
    "receive": ("recv", "SendRecv"),
}
_DATA_TYPES = {"BFP16": "BFloat16", "FP32": "Float"}
_STORAGE = "(ncclDevKernelArgsStorage<4096ul>)"

Event = dict[str, object]


@dataclass(frozen=True, slots=True)
class NumberText:
    """Text that stands in JSON as it is: a number with its digits."""

    text: str


def file_name(c: Capture) -> str:
    """Host, process and when it was written, as tensorboard_trace_handler puts them together."""
    return f"{c.host_name}_{c.process_id}.{c.session_end_ns + 7_301_455}.pt.trace.json"


def write_kineto(c: Capture, folder: Path) -> Path:
    """Writes the rank's trace into `folder`; ranks may share it."""
    path = folder / file_name(c)
    path.write_text(kineto_text(c, events(c)), encoding="utf-8", newline="")
    return path


def kineto_text(c: Capture, trace_events: Iterable[Event]) -> str:
    """A whole file with these events."""
    body = ",".join(event_text(event) for event in trace_events)
    return f'{head_text(c)}{body}\n  ],\n  "traceName": "{file_name(c)}"\n}}'


def head_text(c: Capture) -> str:
    """What stands before the events, and the bracket that opens them."""
    devices = [
        {"id": number, "name": DEVICE_NAME, "totalGlobalMem": 85_029_158_912, "computeMajor": 9,
         "computeMinor": 0, "maxThreadsPerBlock": 1024, "warpSize": 32,
         "sharedMemPerBlock": 49_152, "numSms": MULTIPROCESSORS}
        for number in range(c.job.ranks_per_host)
    ]  # fmt: skip
    groups = [
        {"pg_name": group.name, "pg_desc": group.label, "backend_config": "cuda:nccl",
         "pg_size": len(group.ranks), "ranks": list(group.ranks)}
        for group in c.groups
    ]  # fmt: skip
    info = {"backend": "nccl", "rank": c.rank, "world_size": c.job.world_size,
            "pg_count": len(groups), "pg_config": groups, "nccl_version": "2.27.5"}  # fmt: skip
    lines = [
        '"schemaVersion": 1',
        f'"deviceProperties": {json.dumps(devices)}',
        '"cuda_runtime_version": 12080',
        f'"distributedInfo": {json.dumps(info)}',
        '"record_shapes": 1',
        *(['"profile_memory": 1'] if c.job.memory else []),
        f'"host_name": "{c.host_name}"',
        '"displayTimeUnit": "ms"',
        f'"baseTimeNanoseconds": {base_ns(c)}',
        '"traceEvents": [',
    ]
    return " {\n    " + ",\n    ".join(lines)


def base_ns(c: Capture) -> int:
    """The instant that the file's times count from: the beginning of a quarter."""
    return c.session_start_ns - c.session_start_ns % _QUARTER_NS


def event_text(event: Event) -> str:
    """An event in the profiler's own layout."""
    args = event.get("args")
    fields = [f'"{key}": {_json(value)}' for key, value in event.items() if key != "args"]
    if isinstance(args, dict):
        inner = ", ".join(f'"{key}": {_json(value)}' for key, value in args.items())
        fields.append(f'"args": {{\n      {inner}\n    }}')
    return "\n  {\n    " + ",\n    ".join(fields) + "\n  }"


def _json(value: object) -> str:
    return value.text if isinstance(value, NumberText) else json.dumps(value)


def events(c: Capture) -> list[Event]:
    """All events of the rank, in the profiler's order: host, device, memory, its own span."""
    events = [*_metadata(c), *_annotations(c), *_operators(c), *_calls(c), *_device(c)]
    if c.job.memory:
        events += _memory(c)
    return [*events, *_span(c)]


def slice_of(
    c: Capture, cat: str, name: str, place: tuple[int, int], times: tuple[int, int], args: Event
) -> Event:
    """A slice at (process, thread) from start to end."""
    pid, tid = place
    start_ns, end_ns = times
    return {
        "ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": _us(c, start_ns),
        "dur": NumberText(microseconds(end_ns - start_ns)), "args": args,
    }  # fmt: skip


def _us(c: Capture, ns: int) -> NumberText:
    return NumberText(microseconds(ns - base_ns(c)))


def _metadata(c: Capture) -> Iterator[Event]:
    named = {c.process_id: ("python", "CPU")}
    named |= {n: ("python", f"GPU {n}") for n in range(c.job.ranks_per_host)}
    for pid, (process, label) in named.items():
        for name, key, text in (
            ("process_name", "name", process), ("process_labels", "labels", label)
        ):  # fmt: skip
            at, args = _us(c, c.session_start_ns), {key: text}
            yield {"ph": "M", "name": name, "ts": at, "pid": pid, "tid": 0, "args": args}


def _annotations(c: Capture) -> Iterator[Event]:
    """Steps, on the host and on each of the device's streams."""
    for step in c.steps:
        name, window = f"ProfilerStep#{step.step}", (step.window_start_ns, step.window_end_ns)
        args: Event = {"External id": step.step, "Record function id": 0}
        place = (c.process_id, c.main_thread)
        yield slice_of(c, "user_annotation", name, place, window, args)
        streams: dict[int, tuple[int, int]] = {}
        for item in _tasks(c):
            if window[0] <= item.launch.times.operator_start_ns < window[1]:
                end_ns = item.start_ns + item.dur_ns
                start_ns, last_ns = streams.get(item.stream_id, (item.start_ns, end_ns))
                streams[item.stream_id] = min(start_ns, item.start_ns), max(last_ns, end_ns)
        for stream, times in sorted(streams.items()):
            place = (c.device_id, stream)
            yield slice_of(c, "gpu_user_annotation", name, place, times, args)


def _tasks(c: Capture) -> list[Kernel | CommOp | Copy]:
    """What ran on the device by its start; HCCL's own kernels have no counterpart."""
    kernels = [kernel for kernel in c.kernels if kernel.work.is_compute]
    tasks: list[Kernel | CommOp | Copy] = [*kernels, *c.comm_ops, *c.copies]
    return sorted(tasks, key=lambda item: (item.start_ns, item.stream_id))


def _thread(c: Capture, launch: Launch) -> int:
    return c.backward_thread if launch.backward else c.main_thread


def _operators(c: Capture) -> Iterator[Event]:
    shapes = {kernel.launch.connection_id: kernel.work for kernel in c.kernels}
    for launch in c.launches():
        args: Event = {"External id": launch.connection_id, "Record function id": 0}
        if launch.sequence >= 0:
            forward = c.main_thread if launch.backward else 0
            args |= {"Sequence number": launch.sequence, "Fwd thread id": forward}
        work = shapes.get(launch.connection_id)
        if work is not None and work.input_shapes:
            tensors = work.input_shapes.split(";")
            args["Input type"] = ["c10::BFloat16"] * len(tensors)
            args["Input Dims"] = [[int(n) for n in dims.split(",") if n] for dims in tensors]
        t, place = launch.times, (c.process_id, _thread(c, launch))
        times = (t.operator_start_ns, t.operator_end_ns)
        yield slice_of(c, "cpu_op", launch.operator, place, times, args)


def _calls(c: Capture) -> Iterator[Event]:
    """Runtime calls, and the flows from them to what they launched."""
    for item in _tasks(c):
        launch, id_ = item.launch, item.launch.connection_id
        name = "cudaMemcpyAsync" if isinstance(item, Copy) else "cudaLaunchKernel"
        start_ns, place = launch.times.enqueue_ns, (c.process_id, _thread(c, launch))
        args: Event = {"External id": id_, "cbid": 211, "correlation": id_}
        times = (start_ns, start_ns + _CALL_NS)
        yield slice_of(c, "cuda_runtime", name, place, times, args)
        for ph, (pid, tid), ns in (
            ("s", place, start_ns), ("f", (c.device_id, item.stream_id), item.start_ns)
        ):  # fmt: skip
            end: Event = {"bp": "e"} if ph == "f" else {}
            yield {"ph": ph, "id": id_, "pid": pid, "tid": tid, "ts": _us(c, ns), "cat": "ac2g",
                   "name": "ac2g", **end}  # fmt: skip
    for start_ns, end_ns, connection in c.waits:
        args = {"cbid": 131, "correlation": connection}
        place = (c.process_id, c.main_thread)
        times = (start_ns, end_ns)
        yield slice_of(c, "cuda_runtime", "cudaStreamSynchronize", place, times, args)


def _device(c: Capture) -> Iterator[Event]:
    for item in _tasks(c):
        args: Event = {
            "External id": item.launch.connection_id, "device": c.device_id, "context": 1,
            "stream": item.stream_id, "correlation": item.launch.connection_id,
        }  # fmt: skip
        place, times = (c.device_id, item.stream_id), (item.start_ns, item.start_ns + item.dur_ns)
        if isinstance(item, Copy):
            args["bytes"] = 4096
            name = "Memcpy HtoD (Pinned -> Device)"
            yield slice_of(c, "gpu_memcpy", name, place, times, args)
            continue
        if isinstance(item, Kernel):
            name, grid = item.work.name, item.work.block_count
        else:
            name, grid = f"ncclDevKernel_{_COLLECTIVES[item.op_type][1]}{_STORAGE}", 24
            args |= _collective(item)
        args |= {"queued": 0, "registers per thread": 96, "shared memory": 0,
                 "blocks per SM": grid / MULTIPROCESSORS, "warps per SM": 4.0,
                 "grid": [grid, 1, 1], "block": [128, 1, 1],
                 "est. achieved occupancy %": 6}  # fmt: skip
        yield slice_of(c, "kernel", name, place, times, args)


def _collective(op: CommOp) -> Event:
    """HCCL counts the smaller of what a rank gives and gets."""
    size = len(op.group.ranks)
    count = op.element_count * (size if op.op_type == "reduceScatter" else 1)
    element_count = op.element_count * (size if op.op_type == "allGather" else 1)
    return {
        "Collective name": _COLLECTIVES[op.op_type][0], "In msg nelems": count,
        "Out msg nelems": element_count, "Group size": size, "dtype": _DATA_TYPES[op.data_type],
        "Process Group Name": op.group.name, "Process Group Description": op.group.label,
        "Process Group Ranks": json.dumps(list(op.group.ranks)),
    }  # fmt: skip


def _memory(c: Capture) -> Iterator[Event]:
    """The allocator's totals after each of its events."""
    before = 0
    for number, level in enumerate(memory.curve(c)[0]):
        yield {
            "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]",
            "pid": c.process_id, "tid": c.main_thread, "ts": _us(c, level.timestamp_ns),
            "args": {
                "Total Reserved": level.reserved_bytes, "Total Allocated": level.allocated_bytes,
                "Bytes": level.allocated_bytes - before, "Addr": 2**40 + 512 * number,
                "Device Id": c.device_id, "Device Type": 1, "Ev Idx": number,
            },
        }  # fmt: skip
        before = level.allocated_bytes


def _span(c: Capture) -> Iterator[Event]:
    """The profiler's own record of its session."""
    at = _us(c, c.session_start_ns)
    dur = NumberText(microseconds(c.session_end_ns - c.session_start_ns))
    yield {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans",
           "tid": "PyTorch Profiler", "ts": at, "dur": dur, "args": {"Op count": 0}}  # fmt: skip
    yield {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "",
           "ts": _us(c, c.session_end_ns)}  # fmt: skip
