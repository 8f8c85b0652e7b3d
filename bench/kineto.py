"""The sample job as a GPU's profiler would have written it: input for tools that know no NPU.

Same events, same instants: framework slices stay, device tasks become kernels, CANN calls become
runtime calls that carry the correlation. Counters are left out: such traces have none.
"""

from __future__ import annotations

import json
from pathlib import Path

from captures import job_of, period_ns_of
from tiled_text import growths
from tiling import Rule, tile
from trace_detail import Detail, detailed

from npuscope.sample_traces.capture import Capture, CommOp, Copy, Kernel, captures
from npuscope.sample_traces.trace import timeline

Event = dict[str, object]
_INSTANT = r'"ts": (\d{16})(?=[.,}])'
_KEPT = {"cpu_op": "cpu_op", "python_function": "python_function", "enqueue": "cpu_op",
         "dequeue": "cpu_op"}  # fmt: skip


def write_kineto(out: Path, size_bytes: int) -> int:
    """Writes one rank's trace of about `size_bytes`; returns its events."""
    job = job_of(2)
    c = captures(job)[0]
    grow = growths(c, period_ns_of([c]))
    plain, _ = detailed(c, timeline(c), Detail(stacks=True, seed="kineto"))
    items: list[Kernel | CommOp | Copy] = [*c.kernels, *c.comm_ops, *c.copies]
    tasks = {item.launch.connection_id for item in items}
    metadata = [event for event in plain if event["ph"] == "M"]
    events = [kept for event in plain if (kept := _converted(c, event, tasks)) is not None]
    rules: list[Rule] = [
        (_INSTANT, grow.period_ns // 1000),
        (r"ProfilerStep#(\d+)", grow.steps),
        (r'"(?:correlation|External id)": (\d+)', grow.connections),
        (r'"id": (\d+)', grow.connections),
    ]
    cut = tile(json.dumps(events)[1:-1], rules)
    repetitions = max(1, round(size_bytes / len(cut.text(0))))
    head = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "device", "totalGlobalMem": 2**36, "numSms": 108}],
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", encoding="utf-8") as file:
        file.write(f'{json.dumps(head)[:-1]}, "traceEvents": [')
        file.writelines([json.dumps(metadata)[1:-1]])
        file.writelines(f", {text}" for text in cut.texts(repetitions))
        file.write("]}")
    return len(metadata) + repetitions * len(events)


def _converted(c: Capture, event: Event, tasks: set[int]) -> Event | None:
    """The event as it would stand there; None where nothing corresponds to it."""
    phase, category, args = event["ph"], str(event.get("cat")), event.get("args")
    if phase not in ("X", "s", "f") or event["name"] == "PROFILING_ENABLE":
        return None
    moved: Event = {**event, "ts": float(str(event["ts"]))}
    if phase != "X":
        if category != "HostToDevice":
            return None
        return {**moved, "cat": "ac2g", "name": "ac2g", "id": int(str(event["id"])) >> 32}
    known: Event = dict(args) if isinstance(args, dict) else {}
    known.pop("Call stack", None)  # there, stacks are slices of Python functions only
    if category in _KEPT:
        return {**moved, "cat": _KEPT[category], "args": known}
    connection = known.get("connection_id")
    if "Task Type" in known or ("model id" in known and "task type" not in known):
        place: Event = {"device": c.device_id, "stream": event["tid"], "correlation": connection}
        name = str(event["name"]) if "Task Type" in known else f"ncclDevKernel_{event['name']}"
        return {**moved, "cat": "kernel", "name": name, "args": {**known, **place}}
    if "level" in known and connection in tasks:
        called: Event = {**known, "correlation": connection}
        return {**moved, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "args": called}
    return None
