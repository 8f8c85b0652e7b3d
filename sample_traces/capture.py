"""What the profiler of one rank saw: kernels, communication, host calls, on the rank's clock."""

from __future__ import annotations

import gc
import random
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from npuscope.analysis.pipeline.schedules import Pass

from . import kernels as k
from .calls import CommCall, CopyCall, KernelCall, link
from .job import Group, Job, coordinates, group_hash, recorded_groups
from .simulate import Event, HostTimes, Wait, Window, on_clock, run

NONE_32 = 4294967295
TYPE_BYTES = {"BFP16": 2, "FP32": 4}
_SESSION_END_NS = 3_000_000
_HCCL_NAMES = {"allToAllV": "alltoallv"}
_ALGORITHMS = {"allToAllV": "PAIRWISE", "send": "RING", "receive": "RING"}


@dataclass(frozen=True, slots=True)
class Launch:
    """A call on its way from the framework to the device."""

    operator: str
    api: str
    times: HostTimes
    connection_id: int
    api_connection_id: int
    correlation_id: int
    sequence: int
    backward: bool


@dataclass(frozen=True, slots=True)
class Kernel:
    """A row of the kernel table that is no communication operation; `part`: of which pass;
    `block`, `frees`: memory, as of its call."""

    step: int
    stream_id: int
    task_id: int
    context_id: int | None
    work: k.Work
    start_ns: int
    dur_ns: int
    launch: Launch
    wait_ns: int = 0
    part: Pass | None = None
    block: int = -1
    frees: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CommTask:
    """`context_id` numbers it inside its operation; ranks are positions in the group."""

    plane_id: int
    task_type: str
    start_ns: int
    dur_ns: int
    src: int
    dst: int
    transport: str
    link: str
    rdma_type: str
    size_bytes: int
    data_type: str
    notify_id: int
    context_id: int


@dataclass(frozen=True, slots=True)
class CommOp:
    """A communication operation with what it did on its planes."""

    step: int
    op_id: int
    name: str
    op_type: str
    group: Group
    stream_id: int
    task_id: int
    start_ns: int
    dur_ns: int
    algorithm: str
    data_type: str
    element_count: int
    tasks: tuple[CommTask, ...]
    launch: Launch
    wait_ns: int = 0

    @property
    def size_bytes(self) -> int:
        return self.element_count * TYPE_BYTES[self.data_type]

    @property
    def hccl_type(self) -> str:
        return f"hcom_{_HCCL_NAMES.get(self.op_type, self.op_type)}_"


@dataclass(frozen=True, slots=True)
class Copy:
    """A device task without a row in the kernel table."""

    name: str
    stream_id: int
    task_id: int
    start_ns: int
    dur_ns: int
    launch: Launch


@dataclass(frozen=True, slots=True)
class HostCall:
    """What else the main thread did: an operator that launches nothing, or garbage collection."""

    kind: str
    name: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Step:
    """The host range of a step, and the device range of what it launched."""

    step: int
    window_start_ns: int
    window_end_ns: int
    device_start_ns: int
    device_end_ns: int


@dataclass(frozen=True, slots=True)
class Capture:
    """One rank's profile."""

    job: Job
    rank: int
    place: dict[str, int]
    groups: list[Group]
    process_id: int
    session_start_ns: int
    session_end_ns: int
    steps: list[Step]
    kernels: list[Kernel]
    comm_ops: list[CommOp]
    copies: list[Copy]
    waits: list[tuple[int, int, int]]  # for the device: start, end, connection
    host_calls: list[HostCall] = field(default_factory=list)

    @property
    def device_id(self) -> int:
        return self.rank % self.job.ranks_per_host

    @property
    def host_name(self) -> str:
        return f"node{self.rank // self.job.ranks_per_host:02d}"

    @property
    def host_uid(self) -> str:
        return str(3538958389648580163 + self.rank // self.job.ranks_per_host)

    @property
    def frequency_mhz(self) -> int:
        return round(k.FREQUENCY_MHZ / self.job.clock_slowness(self.rank))

    @property
    def main_thread(self) -> int:
        return self.process_id

    @property
    def backward_thread(self) -> int:
        return self.process_id + 1207

    @property
    def queue_thread(self) -> int:
        return self.process_id + 611

    def stream_ids(self) -> list[int]:
        items: list[Kernel | CommOp | Copy] = [*self.kernels, *self.comm_ops, *self.copies]
        return sorted({item.stream_id for item in items})

    def launches(self) -> list[Launch]:
        """In the order of the host."""
        launches: dict[int, Launch] = {}
        items: list[Kernel | CommOp | Copy] = [*self.kernels, *self.comm_ops, *self.copies]
        for item in items:
            launches[item.launch.connection_id] = item.launch
        return sorted(launches.values(), key=lambda launch: launch.times.operator_start_ns)


@contextmanager
def without_collection() -> Iterator[None]:
    """No search for garbage: among millions of new objects, none of which is, it would take a third
    of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@without_collection()
def captures(job: Job) -> list[Capture]:
    """Every rank of the job, simulated and seen by its profiler."""
    return [
        _capture(job, rank, *on_clock(job, rank, *ran)) for rank, ran in sorted(run(job).items())
    ]


def _capture(
    job: Job, rank: int, events: list[Event], waits: list[Wait], windows: list[Window]
) -> Capture:
    chance = random.Random(f"{job.seed}/process/{rank}")
    process_id = chance.randrange(300_000, 4_000_000)
    connection, correlation = 900 + chance.randrange(300), 5 * 2**28 + chance.randrange(5_000)
    tasks, names = dict[int, int](), dict[str, int]()
    kernels, comm_ops, copies = list[Kernel](), list[CommOp](), list[Copy]()
    begins = [w.start_ns for w in windows]
    for event in events:
        connection, correlation = connection + 3, correlation + 1
        call = event.call
        tasks[call.stream] = tasks.get(call.stream, 30_000) + 1
        launch = _launch(event, connection, correlation)
        step = windows[bisect_right(begins, event.host.operator_start_ns) - 1].step
        here = (call.stream, tasks[call.stream])
        start_ns, dur_ns = event.start_ns, event.end_ns - event.start_ns
        if isinstance(call, KernelCall):
            context = 0 if call.work.core.startswith("MIX") else None
            kernels.append(Kernel(step, *here, context, call.work, start_ns, dur_ns, launch,
                                  part=call.part, block=call.block, frees=call.frees))  # fmt: skip
        elif isinstance(call, CopyCall):
            copies.append(Copy(call.name, *here, start_ns, dur_ns, launch))
        else:
            name = names[call.group.name] = names.get(call.group.name, -1) + 1
            comm_ops.append(_comm_op(job, rank, event, step, name, here, launch, len(comm_ops) + 1))
            if call.on_vector_cores:
                work = k.aiv_collective(event.transfers[0].dur_ns)
                start_ns = event.ready_ns
                kernels.append(Kernel(step, *here, None, work, start_ns, work.dur_ns, launch))
    last_ns = max(event.end_ns for event in events)
    return Capture(
        job, rank, coordinates(job, rank), recorded_groups(job, rank), process_id,
        job.clock_ns(rank, job.start_ns), max(last_ns, windows[-1].end_ns) + _SESSION_END_NS,
        [_step(window, events) for window in windows],
        *_with_waits(kernels, comm_ops), copies,
        [(w.start_ns, w.end_ns, connection + 3 + i)
         for i, w in enumerate(w for w in waits if w.kind == "api")],
        [HostCall("operator" if w.kind == "api" else w.kind, w.operator, w.start_ns, w.end_ns)
         for w in waits if w.operator],
    )  # fmt: skip


def _launch(event: Event, connection: int, correlation: int) -> Launch:
    call, times = event.call, event.host
    if isinstance(call, KernelCall):
        operator, api, sequence, backward = (
            call.work.operator, call.work.api, call.sequence, call.backward)  # fmt: skip
    elif isinstance(call, CommCall):
        operator, sequence, backward = f"c10d::{call.collective.lower()}_", -1, call.backward
        api = f"hcom_{_HCCL_NAMES.get(call.collective, call.collective)}_"
    else:
        operator, api, sequence, backward = "aten::copy_", "aclrtMemcpyAsync", -1, False
    return Launch(operator, api, times, connection, connection + 1, correlation, sequence, backward)


def _step(window: Window, events: list[Event]) -> Step:
    """The device range: what the host launched inside the window, not ending before it."""
    mine = [e for e in events if window.start_ns <= e.host.operator_start_ns < window.end_ns]
    start_ns = min(e.start_ns for e in mine)
    end_ns = max([window.end_ns, *(e.end_ns for e in mine)])
    return Step(window.step, window.start_ns, window.end_ns, start_ns, end_ns)


def _with_waits(kernels: list[Kernel], comm_ops: list[CommOp]) -> tuple[list[Kernel], list[CommOp]]:
    """Wait of each row of the kernel table: from the end of the row before it, if later."""
    waits: dict[int, int] = {}
    before: int | None = None
    rows: list[Kernel | CommOp] = [*kernels, *comm_ops]
    for row in sorted(rows, key=lambda row: (row.start_ns, row.stream_id)):
        waits[id(row)] = 0 if before is None else max(0, row.start_ns - before)
        before = row.start_ns + row.dur_ns
    by_start = sorted(kernels, key=lambda kernel: (kernel.start_ns, kernel.stream_id))
    return (
        [_after(waits[id(row)], row) if waits[id(row)] else row for row in by_start],
        [replace(op, wait_ns=waits[id(op)]) if waits[id(op)] else op for op in comm_ops],
    )


def _after(wait_ns: int, row: Kernel) -> Kernel:
    """The kernel with its wait (`replace` takes three times as long)."""
    return Kernel(
        row.step, row.stream_id, row.task_id, row.context_id, row.work, row.start_ns, row.dur_ns,
        row.launch, wait_ns, row.part, row.block, row.frees,
    )  # fmt: skip


def _comm_op(
    job: Job,
    rank: int,
    event: Event,
    step: int,
    index: int,
    here: tuple[int, int],
    launch: Launch,
    op_id: int,
) -> CommOp:
    call = event.call
    assert isinstance(call, CommCall)
    hccl = _HCCL_NAMES.get(call.collective, call.collective)
    op = CommOp(
        step, op_id, f"hcom_{hccl}__{group_hash(call.group.name) % 1000:03d}_{index}_1",
        call.collective, call.group, *here, event.start_ns,
        event.end_ns - event.start_ns, _ALGORITHMS.get(call.collective, "MESH-RING"),
        call.data_type, call.element_count, (), launch,
    )  # fmt: skip
    if call.on_vector_cores or not job.comm_tasks:
        return op
    return replace(op, tasks=tuple(_tasks(job, rank, event, call)))


def _tasks(job: Job, rank: int, event: Event, call: CommCall) -> list[CommTask]:
    """Per peer: signal, wait until all are ready, move the data, wait for the last; one plane each.

    The master plane closes with a copy inside the device.
    """
    me = call.group.ranks.index(rank)
    end_ns = event.end_ns
    tasks: list[CommTask] = []

    def task(
        plane: int, kind: str, start_ns: int, until_ns: int, peer: int, size_bytes: int = 0
    ) -> None:
        moves = kind in ("Memcpy", "Reduce_Inline", "RDMASend")
        wire = "ON_CHIP" if peer == me else link(job, rank, call.group.ranks[peer])
        tasks.append(
            CommTask(
                plane, kind, start_ns, until_ns - start_ns, me, peer,
                "LOCAL" if kind == "Notify_Wait" else "RDMA" if wire == "ROCE" else "SDMA",
                wire if moves else "INVALID_TYPE",
                "RDMA_SEND_PAYLOAD" if kind == "RDMASend" else "INVALID_TYPE",
                size_bytes, call.data_type if kind == "Reduce_Inline" else "INVALID_TYPE",
                64 + 8 * len(tasks), len(tasks),
            )
        )  # fmt: skip

    for plane, (peer, size_bytes, payload_ns, from_ns) in enumerate(event.transfers):
        start_ns, ready_ns = event.start_ns + 260 * plane, event.ready_ns + from_ns
        closing_ns = end_ns - 1_400 if plane == 0 else end_ns
        task(plane, "Notify_Record", start_ns, start_ns + 700, peer)
        task(plane, "Notify_Wait", start_ns + 900, ready_ns, peer)
        sent_ns = ready_ns + payload_ns
        if payload_ns:
            remote = link(job, rank, call.group.ranks[peer]) == "ROCE"
            reduces = call.collective in ("allReduce", "reduceScatter")
            kind = "RDMASend" if remote else "Reduce_Inline" if reduces else "Memcpy"
            if call.collective == "allReduce":
                half_ns = ready_ns + payload_ns // 2
                task(plane, kind, ready_ns, half_ns, peer, size_bytes)
                task(plane, "RDMASend" if remote else "Memcpy", half_ns, sent_ns, peer, size_bytes)
            else:
                task(plane, kind, ready_ns, sent_ns, peer, size_bytes)
        task(plane, "Notify_Wait", sent_ns + 100, closing_ns, peer)
        if plane == 0:
            task(plane, "Memcpy", end_ns - 1_300, end_ns, me, size_bytes)
    return tasks
