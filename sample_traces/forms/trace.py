"""The timeline of one rank, trace_view.json: host calls, device tasks, communication, flows.

Order as the profiler writes it: framework slices and their metadata, then everything CANN saw by
time, then the flows from framework operators to kernels. Metadata follow first use.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..capture import NONE_32, Capture, CommOp, CommTask, Launch
from .reports import overlap_slices

Event = dict[str, object]
_SORT = {"Python GC": 1, "CANN": 7, "Ascend Hardware": 13, "AI Core Freq": 14, "Communication": 15,
         "Overlap Analysis": 23}  # fmt: skip
_OVERLAP = ("Computing", "Communication", "Communication(Not Overlapped)", "Free")
_HOST_DEVICE = 31
_HARDWARE = {"Notify_Record": "Write Value", "Notify_Wait": "Notify Wait"}
_SQE = {"DSA_SQE": "DSA_SQE", "AI_CPU": "AI_CPU", "MIX_AIC": "MIX_AIC", "MIX_AIV": "MIX_AIV"}


def timeline(c: Capture) -> list[Event]:
    """All events of a rank; `ts` is text with three decimals, exact to the ns."""
    return [
        *_framework(c),
        *_framework_metadata(c),
        *_forward_backward(c),
        *device_metadata(c),
        *device_events(c),
        *_operator_flows(c),
    ]


def device_events(c: Capture) -> list[Event]:
    """What CANN saw, by time: all that msprof itself exports, but for `device_metadata`."""
    rows = sorted([*_cann(c), *_device(c), *_overlap(c), *_counters(c)], key=lambda row: row[0])
    return [event for _, event in rows]


def microseconds(ns: int) -> str:
    """Decimal text with three digits, exact to the ns."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def _pid(c: Capture, process: str) -> int:
    device = _HOST_DEVICE if process in ("CANN", "Python GC") else c.device_id
    return (c.process_id << 10 | _SORT[process] << 5 | device) & 0xFFFFFFFF


def _thread(c: Capture, launch: Launch) -> int:
    return c.backward_thread if launch.backward else c.main_thread


def _slice(
    name: str, pid: int, tid: int, start_ns: int, end_ns: int, args: Event | None = None
) -> Event:
    dur_ns = end_ns - start_ns
    dur = dur_ns // 1000 if dur_ns == 0 else dur_ns / 1000
    event: Event = {
        "name": name, "pid": pid, "tid": tid, "ts": microseconds(start_ns), "dur": dur}  # fmt: skip
    if args is not None:
        event["args"] = args
    return {**event, "ph": "X"}


def _framework_slice(
    name: str, pid: int, tid: int, times: tuple[int, int], cat: str, args: Event
) -> Event:
    start_ns, end_ns = times
    return {
        "ph": "X", "name": name, "pid": pid, "tid": tid, "ts": microseconds(start_ns),
        "dur": (end_ns - start_ns) / 1000, "cat": cat, "args": args,
    }  # fmt: skip


def _flow(ph: str, name: str, id_: int, pid: int, tid: int, ns: int, cat: str) -> Event:
    return {
        "ph": ph, "bp": "e", "name": name, "id": id_, "pid": pid, "tid": tid,
        "ts": microseconds(ns), "cat": cat,
    }  # fmt: skip


def _framework(c: Capture) -> Iterator[Event]:
    pid, queue = c.process_id, c.queue_thread
    for step in c.steps:
        window = (step.window_start_ns, step.window_end_ns)
        args: Event = {"Sequence number": -1, "Fwd thread id": 0}
        yield _framework_slice(
            f"ProfilerStep#{step.step}", pid, c.main_thread, window, "cpu_op", args
        )
    launches = c.launches()
    for launch in launches:
        times = (launch.times.operator_start_ns, launch.times.operator_end_ns)
        args = {
            "Sequence number": launch.sequence,
            "Fwd thread id": c.main_thread if launch.backward and launch.sequence >= 0 else 0,
        }
        yield _framework_slice(launch.operator, pid, _thread(c, launch), times, "cpu_op", args)
    for call in c.host_calls:
        if call.kind == "operator":
            args = {"Sequence number": -1, "Fwd thread id": 0}
            within = (call.start_ns, call.end_ns)
            yield _framework_slice(call.name, pid, c.main_thread, within, "cpu_op", args)
        else:
            yield _framework_slice("GC", _pid(c, "Python GC"), 0, (call.start_ns, call.end_ns),
                                   "GC", {})  # fmt: skip
    for launch in launches:
        t, thread, id_ = launch.times, _thread(c, launch), launch.correlation_id
        name, args = f"Enqueue@{launch.operator}", {"correlation_id": id_}
        window = (t.enqueue_ns, t.enqueue_ns + 900)
        yield _framework_slice(name, pid, thread, window, "enqueue", args)
        yield _flow("s", "enqueue_to_dequeue", id_, pid, thread, t.enqueue_ns, "async_task_queue")
    for launch in launches:
        t, id_ = launch.times, launch.correlation_id
        name, args = f"Dequeue@{launch.api}", {"correlation_id": id_}
        window = (t.dequeue_ns, t.dequeue_end_ns)
        yield _framework_slice(name, pid, queue, window, "dequeue", args)
        yield _flow("f", "enqueue_to_dequeue", id_, pid, queue, t.dequeue_ns, "async_task_queue")


def _framework_metadata(c: Capture) -> Iterator[Event]:
    def meta(name: str, tid: int, args: Event) -> Event:
        return {"ph": "M", "name": name, "pid": c.process_id, "tid": tid, "args": args}

    yield meta("process_name", 0, {"name": "Python"})
    if any(call.kind == "gc" for call in c.host_calls):
        named = meta("process_name", 0, {"name": "Python GC"})
        yield {**named, "pid": _pid(c, "Python GC")}
    yield meta("process_labels", 0, {"labels": "CPU"})
    yield meta("process_sort_index", 0, {"sort_index": 0})
    threads = (c.main_thread, c.backward_thread, c.queue_thread)
    for tid in threads:
        last = max(threads) + 1 if tid == c.queue_thread else tid  # the queue is sorted last
        yield meta("thread_name", tid, {"name": f"Thread {tid}"})
        yield meta("thread_sort_index", tid, {"sort_index": last})


def _forward_backward(c: Capture) -> Iterator[Event]:
    forward = {x.sequence: x for x in c.launches() if not x.backward and x.sequence >= 0}
    for launch in c.launches():
        start = forward.get(launch.sequence)
        if launch.backward and start is not None:
            for ph, at in (("s", start), ("f", launch)):
                yield _flow(
                    ph, "fwdbwd", launch.sequence, c.process_id, _thread(c, at),
                    at.times.operator_start_ns, "fwdbwd",
                )  # fmt: skip


def device_metadata(c: Capture) -> Iterator[Event]:
    """Names of the processes and threads of `device_events`."""

    def meta(name: str, pid: int, tid: int, args: Event) -> Event:
        return {"name": name, "pid": pid, "tid": tid, "args": args, "ph": "M"}

    tracks = _tracks(c)
    named: dict[str, dict[int, str]] = {
        "Ascend Hardware": {stream: f"Stream {stream}" for stream in (0, *c.stream_ids())},
        "Communication": {
            tid: f"Plane {plane}" if plane >= 0 else f"Group {group} Communication"
            for (group, plane), tid in tracks.items()
        },
        "CANN": {tid: f"Thread {tid}" for tid in (c.main_thread, c.queue_thread)},
        "AI Core Freq": {},
        "Overlap Analysis": dict(enumerate(_OVERLAP)),
    }
    for process, threads in named.items():
        pid = _pid(c, process)
        yield meta("process_name", pid, 0, {"name": process})
        for tid, name in threads.items():
            yield meta("thread_name", pid, tid, {"name": name})
        if process != "Overlap Analysis":
            for tid in threads:
                yield meta("thread_sort_index", pid, tid, {"sort_index": tid})
        labels = "CPU" if process == "CANN" else f"NPU {c.device_id}"
        yield meta("process_labels", pid, 0, {"labels": labels})
        yield meta("process_sort_index", pid, 0, {"sort_index": _SORT[process]})


def _tracks(c: Capture) -> dict[tuple[str, int], int]:
    """Thread of each group (plane -1) and of its planes, which follow their group."""
    planes: dict[str, int] = {}
    for op in c.comm_ops:
        count = max((task.plane_id + 1 for task in op.tasks), default=1)
        planes[op.group.name] = max(planes.get(op.group.name, 0), count)
    tracks: dict[tuple[str, int], int] = {}
    for group, count in planes.items():
        for plane in range(-1, count):
            tracks[group, plane] = len(tracks)
    return tracks


def _cann(c: Capture) -> Iterator[tuple[int, Event]]:
    pid, queue = _pid(c, "CANN"), c.queue_thread
    communicates = {op.launch.connection_id: op for op in c.comm_ops}

    def call(
        layer: str, api: str, times: tuple[int, int], tid: int, mode: str, connection: int,
        item: str = "0",
    ) -> tuple[int, Event]:  # fmt: skip
        level = {"AscendCL": "acl", "Node": "node", "Communication": "communication"}[layer]
        id_ = api if layer == "AscendCL" else "0"
        args: Event = {"Thread Id": tid, "Mode": mode, "level": level, "id": id_, "item_id": item,
                       "connection_id": connection}  # fmt: skip
        return times[0], _slice(f"{layer}@{api}", pid, tid, *times, args)

    names = {kernel.launch.connection_id: kernel.work.name for kernel in c.kernels}
    for launch in c.launches():
        t, connection = launch.times, launch.connection_id
        api, outer = launch.api, (t.api_start_ns, t.api_end_ns)
        inner = (t.launch_start_ns, t.launch_end_ns)
        from_ns = t.launch_start_ns
        if connection in communicates:
            yield call("AscendCL", api, outer, queue, "ACL_OTHERS", connection)
            yield call("Communication", "Launch_Ffts", inner, queue, "master",
                       launch.api_connection_id, "Launch_Ffts")  # fmt: skip
            from_ns = t.api_start_ns
        elif connection in names:
            yield call("AscendCL", api, outer, queue, "ACL_NN", launch.api_connection_id)
            yield call("Node", "launch", inner, queue, "launch", connection, names[connection])
        else:
            yield call("AscendCL", api, outer, queue, "ACL_RTS", connection)
            from_ns = t.api_start_ns
        flow = connection << 32
        yield from_ns, {
            "name": f"HostToDevice{flow}", "ph": "s", "cat": "HostToDevice", "id": str(flow),
            "pid": pid, "tid": queue, "ts": microseconds(from_ns),
        }  # fmt: skip
    for start_ns, end_ns, connection in c.waits:
        api = "aclrtSynchronizeStreamWithTimeout"
        yield call("AscendCL", api, (start_ns, end_ns), c.main_thread, "ACL_RTS", connection)


def _host_to_device(pid: int, tid: int, ns: int, connection: int) -> tuple[int, Event]:
    flow = connection << 32
    return ns, {
        "name": f"HostToDevice{flow}", "ph": "f", "id": str(flow), "ts": microseconds(ns),
        "cat": "HostToDevice", "pid": pid, "tid": tid, "bp": "e",
    }  # fmt: skip


def _device(c: Capture) -> Iterator[tuple[int, Event]]:
    hardware, talk, tracks = _pid(c, "Ascend Hardware"), _pid(c, "Communication"), _tracks(c)

    def task(
        name: str, sqe: str, place: tuple[int, int], start_ns: int, dur_ns: int, connection: int,
        context: int | None = None,
    ) -> tuple[int, Event]:  # fmt: skip
        stream, task_id = place
        args: Event = {
            "Model Id": NONE_32, "Task Type": sqe, "Physic Stream Id": stream, "Task Id": task_id,
            "Batch Id": 0, "Subtask Id": NONE_32 if context is None else context,
            "connection_id": connection,
        }  # fmt: skip
        return start_ns, _slice(name, hardware, stream, start_ns, start_ns + dur_ns, args)

    yield task("PROFILING_ENABLE", "PLACE_HOLDER_SQE", (0, 8), c.session_start_ns, 20, 1)
    for x in c.kernels:
        connection = x.launch.connection_id
        # The hardware calls vector kernels AI_CORE too.
        sqe = _SQE.get(x.work.core, "AI_CORE")
        place = (x.stream_id, x.task_id)
        yield task(x.work.name, sqe, place, x.start_ns, x.dur_ns, connection, x.context_id)
        yield _host_to_device(hardware, x.stream_id, x.start_ns, connection)
    for copy in c.copies:
        connection, place = copy.launch.connection_id, (copy.stream_id, copy.task_id)
        yield task(copy.name, "PCIE_DMA_SQE", place, copy.start_ns, copy.dur_ns, connection)
        yield _host_to_device(hardware, copy.stream_id, copy.start_ns, connection)
    for op in c.comm_ops:
        connection, track = op.launch.connection_id, tracks[op.group.name, -1]
        yield op.start_ns, _operation(op, talk, track)
        yield _host_to_device(talk, track, op.start_ns, connection)
        for part in op.tasks:
            name, place = _HARDWARE.get(part.task_type, "SDMA"), (op.stream_id, op.task_id)
            yield task(name, name, place, part.start_ns, part.dur_ns, connection, part.context_id)
            yield part.start_ns, _plane_task(op, part, talk, tracks[op.group.name, part.plane_id])


def _operation(op: CommOp, pid: int, tid: int) -> Event:
    args: Event = {
        "connection_id": op.launch.connection_id, "model id": NONE_32, "data_type": op.data_type,
        "alg_type": op.algorithm, "count": op.element_count, "relay": "no", "retry": "no",
    }  # fmt: skip
    return _slice(op.name, pid, tid, op.start_ns, op.start_ns + op.dur_ns, args)


def _plane_task(op: CommOp, task: CommTask, pid: int, tid: int) -> Event:
    args: Event = {
        "notify_id": str(task.notify_id),
        "duration estimated(us)": task.dur_ns / 1000,
        "stream id": op.stream_id,
        "task id": op.task_id,
        "context id": task.context_id,
        "task type": task.task_type,
        "src rank": task.src,
        "dst rank": task.dst,
        "transport type": task.transport,
        "size(Byte)": task.size_bytes,
        "data type": task.data_type,
        "link type": task.link,
        "bandwidth(GB/s)": task.size_bytes / task.dur_ns if task.dur_ns else 0.0,
        "model id": NONE_32,
    }
    end_ns = task.start_ns + task.dur_ns
    return _slice(task.task_type, pid, tid, task.start_ns, end_ns, args)


def _overlap(c: Capture) -> Iterator[tuple[int, Event]]:
    pid = _pid(c, "Overlap Analysis")
    for name, start_ns, end_ns in overlap_slices(c):
        yield start_ns, _slice(name, pid, _OVERLAP.index(name), start_ns, end_ns)


def _counters(c: Capture) -> Iterator[tuple[int, Event]]:
    """The clock when profiling begins and ends; whole microseconds come without decimals."""
    for ns in (c.session_start_ns, c.session_end_ns) if c.job.frequency else ():
        text = microseconds(ns) if ns % 1000 or ns == c.session_start_ns else str(ns // 1000)
        yield ns, {
            "name": "AI Core Freq", "ts": text, "pid": _pid(c, "AI Core Freq"), "tid": 0,
            "args": {"MHz": c.frequency_mhz}, "ph": "C",
        }  # fmt: skip


def _operator_flows(c: Capture) -> Iterator[Event]:
    hardware, talk, tracks = _pid(c, "Ascend Hardware"), _pid(c, "Communication"), _tracks(c)
    ends = [(x.start_ns, x.launch, hardware, x.stream_id) for x in c.kernels if x.work.is_compute]
    ends += [(op.start_ns, op.launch, talk, tracks[op.group.name, -1]) for op in c.comm_ops]
    for ns, launch, pid, tid in sorted(ends, key=lambda end: end[0]):
        start_ns, thread = launch.times.operator_start_ns, _thread(c, launch)
        yield _flow("s", "torch_to_npu", ns, c.process_id, thread, start_ns, "async_npu")
        yield _flow("f", "torch_to_npu", ns, pid, tid, ns, "async_npu")
