"""The summaries that the profiler computes itself, by its own rules, for text and database.

They differ from the truth where the rules do: the profiler looks at one step at a time, sums in
floating microseconds, and merges intervals that touch across a step's edge.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from ..capture import Capture, CommOp
from ..job import group_hash

Interval = tuple[int, int]
LINKS = ("RDMA", "HCCS", "PCIE", "SDMA", "SIO")
_BANDS = {"HCCS": "HCCS", "ROCE": "RDMA"}
_LARGE_BYTES = {"HCCS": 32e6, "RDMA": 0.5e6}
STEP_COLUMNS = (
    "Computing", "Communication(Not Overlapped)", "Overlapped", "Communication", "Free", "Stage",
    "Bubble", "Communication(Not Overlapped and Exclude Receive)", "Preparing",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Band:
    """Traffic of an operation over one kind of link: MB, ms, GB/s, and the packets behind them."""

    size_mb: float
    time_ms: float
    bandwidth_gb_s: float
    large_ratio: float
    packets: dict[float, tuple[int, float]]


@dataclass(frozen=True, slots=True)
class OpReport:
    """Times of an operation on its master plane, in ms, and its traffic on all planes."""

    op: CommOp
    elapse_ms: float
    transit_ms: float
    wait_ms: float
    synchronization_ms: float
    idle_ms: float
    bands: dict[str, Band]

    @property
    def key(self) -> str:
        return f"{self.op.name}@{group_hash(self.op.group.name)}"


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """One link of one kind of operation: the best, middle and worst operation, or their total."""

    name: str
    step: int
    category: str
    source: int
    target: int
    transport: str
    size_mb: float
    time_ms: float
    bandwidth_gb_s: float
    op_name: str


def overlap_slices(c: Capture) -> list[tuple[str, int, int]]:
    """Rows of the "Overlap Analysis" tracks by start: name, start, end."""
    computing = union_of(
        [(x.start_ns, x.start_ns + x.dur_ns) for x in c.kernels if x.work.is_compute]
    )
    talking = union_of([(x.start_ns, x.start_ns + x.dur_ns) for x in c.comm_ops])
    busy = union_of(computing + talking)
    free = [(a[1], b[0]) for a, b in pairwise(busy)]
    named = {
        "Computing": computing,
        "Communication": talking,
        "Communication(Not Overlapped)": without(talking, computing),
        "Free": free,
    }
    return sorted(
        ((name, a, b) for name, spans in named.items() for a, b in spans), key=lambda row: row[1]
    )


def step_trace_text(c: Capture) -> list[tuple[float, ...]]:
    """STEP_COLUMNS in us for each step, from the slices that start in it."""
    rows: list[tuple[float, ...]] = []
    slices = overlap_slices(c)
    for step in c.steps:
        inside = [row for row in slices if step.device_start_ns <= row[1] < step.device_end_ns]
        total = dict.fromkeys(STEP_COLUMNS[:5], 0.0)
        for name, start_ns, end_ns in inside:
            total[name] += (end_ns - start_ns) / 1000
        total["Overlapped"] = total["Communication"] - total["Communication(Not Overlapped)"]
        starts_us = [start_ns / 1000 for _, start_ns, _ in inside]
        ends_us = [start_ns / 1000 + (end_ns - start_ns) / 1000 for _, start_ns, end_ns in inside]
        bubble = sum((op.dur_ns / 1000 for op in _receives(c, inside_of=step.step)), 0.0)
        first = min(a for name, a, _ in inside if name in ("Computing", "Communication"))
        exposed = max(total["Communication(Not Overlapped)"] - bubble, 0.0)
        rows.append((
            *total.values(), max(ends_us) - min(starts_us) - bubble, bubble, exposed,
            first / 1000 - step.window_start_ns / 1000,
        ))  # fmt: skip
    return rows


def step_trace_db(c: Capture) -> list[tuple[float, ...]]:
    """STEP_COLUMNS in us for each step, from the step's own kernels and operations alone."""
    rows: list[tuple[float, ...]] = []
    for step in c.steps:

        def mine(
            start_ns: int, first: int = step.device_start_ns, last: int = step.device_end_ns
        ) -> bool:
            return first <= start_ns < last

        computing = union_of([
            (x.start_ns, x.start_ns + x.dur_ns)
            for x in c.kernels if x.work.is_compute and mine(x.start_ns)
        ])  # fmt: skip
        talking = union_of([
            (x.start_ns, x.start_ns + x.dur_ns) for x in c.comm_ops if mine(x.start_ns)
        ])  # fmt: skip
        busy = union_of(computing + talking)
        talk, exposed = _length(talking), _length(without(talking, computing))
        span = busy[-1][1] - busy[0][0]
        bubble = sum(op.dur_ns for op in _receives(c, inside_of=step.step))
        rows.append(tuple(ns / 1000 for ns in (
            _length(computing), exposed, talk - exposed, talk, span - _length(busy), span - bubble,
            bubble, max(exposed - bubble, 0), busy[0][0] - step.window_start_ns,
        )))  # fmt: skip
    return rows


def op_reports(c: Capture) -> list[OpReport]:
    """Every operation in launch order."""
    return [_report(op) for op in c.comm_ops]


def matrix_rows(c: Capture) -> list[MatrixRow]:
    """Links of all operations, by step, category, type and group, as the profiler ranks them."""
    by_key: dict[tuple[int, str, str, int, int], list[MatrixRow]] = {}
    for op in c.comm_ops:
        for row in op_links(op):
            key = (op.step, category(op), _matrix_name(op), row.source, row.target)
            by_key.setdefault(key, []).append(row)
    return [
        MatrixRow(
            f"{name.split('@')[0]}-{variant}@{name.split('@')[1]}", step, kind, source, target,
            row.transport, row.size_mb, row.time_ms, row.bandwidth_gb_s, row.op_name,
        )
        for (step, kind, name, source, target), rows in by_key.items()
        for variant, row in _rank_rows(rows)
    ]  # fmt: skip


def op_links(op: CommOp) -> list[MatrixRow]:
    """Links of one operation."""
    sums: dict[int, tuple[int, int, str]] = {}
    for task in op.tasks:
        if task.link == "INVALID_TYPE":
            continue
        transport = "LOCAL" if task.link == "ON_CHIP" else _BANDS[task.link]
        size, time, _ = sums.get(task.dst, (0, 0, ""))
        sums[task.dst] = (size + task.size_bytes, time + task.dur_ns, transport)
    return [
        _matrix_row("", op, target, transport, size / 1e6, time / 1e6)
        for target, (size, time, transport) in sums.items()
    ]


def category(op: CommOp) -> str:
    """How the profiler files an operation: p2p or collective."""
    return "p2p" if op.op_type in ("send", "receive", "batchSendRecv") else "collective"


def union_of(intervals: list[Interval]) -> list[Interval]:
    """Sorted, without overlaps; touching ones become one, empty ones vanish."""
    union: list[Interval] = []
    for start, end in sorted(i for i in intervals if i[1] > i[0]):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(end, union[-1][1]))
        else:
            union.append((start, end))
    return union


def without(first: list[Interval], second: list[Interval]) -> list[Interval]:
    """What of the first merged list lies outside the second."""
    result: list[Interval] = []
    for start, end in first:
        for a, b in second:
            if b <= start:
                continue
            if a >= end:
                break
            if a > start:
                result.append((start, a))
            start = max(start, b)
        if start < end:
            result.append((start, end))
    return result


def _length(intervals: list[Interval]) -> int:
    return sum(end - start for start, end in intervals)


def _receives(c: Capture, *, inside_of: int) -> list[CommOp]:
    return [op for op in c.comm_ops if op.step == inside_of and op.op_type == "receive"]


def _report(op: CommOp) -> OpReport:
    master = [task for task in op.tasks if task.plane_id == 0]
    moves = [t for t in master if t.link not in ("INVALID_TYPE", "ON_CHIP")]
    waits = [t for t in master if t.task_type == "Notify_Wait"]
    first_ns = moves[0].start_ns if moves else op.start_ns + op.dur_ns
    elapse = op.dur_ns / 1e6
    transit = sum(t.dur_ns for t in moves) / 1e6
    wait = sum(t.dur_ns for t in waits) / 1e6
    synchronization = sum(t.dur_ns for t in waits if t.start_ns < first_ns) / 1e6
    bands: dict[str, Band] = {}
    for link, band in _BANDS.items():
        tasks = [t for t in op.tasks if t.link == link]
        if tasks:
            packets: dict[float, tuple[int, float]] = {}
            for task in tasks:
                count, time = packets.get(task.size_bytes / 1e6, (0, 0.0))
                packets[task.size_bytes / 1e6] = (count + 1, time + task.dur_ns / 1e6)
            size = sum(t.size_bytes for t in tasks)
            time = sum(t.dur_ns for t in tasks) / 1e6
            large = sum(1 for t in tasks if t.size_bytes > _LARGE_BYTES[band]) / len(tasks)
            bands[band] = Band(
                size / 1e6, time, round(size / 1e6 / time, 4) if time else 0.0, large, packets
            )
    if "HCCS" in bands:
        hccs = bands["HCCS"]
        bands["SDMA"] = Band(hccs.size_mb, hccs.time_ms, hccs.bandwidth_gb_s, 0, {})
    return OpReport(op, elapse, transit, wait, synchronization, elapse - transit - wait, bands)


def _matrix_name(op: CommOp) -> str:
    name = {"reduceScatter": "reduce", "allToAllV": "alltoall"}.get(op.op_type, op.op_type.lower())
    return f"{name}@{group_hash(op.group.name)}"


def _matrix_row(
    name: str, op: CommOp, target: int, transport: str, size_mb: float, time_ms: float
) -> MatrixRow:
    source = op.tasks[0].src
    bandwidth = round(size_mb / time_ms, 4) if time_ms else 0.0
    return MatrixRow(
        name, op.step, category(op), source, target, transport, size_mb, time_ms, bandwidth, op.name
    )


def _rank_rows(rows: list[MatrixRow]) -> list[tuple[str, MatrixRow]]:
    """Best, middle, worst three and total of one link's operations."""
    rows = sorted(rows, key=lambda row: -row.bandwidth_gb_s)
    size, time = sum(r.size_mb for r in rows), sum(r.time_ms for r in rows)
    first = rows[0]
    total = MatrixRow(
        "", first.step, first.category, first.source, first.target, first.transport, size, time,
        round(size / time, 4) if time else 0.0, "",
    )  # fmt: skip
    worst = [(f"bottom{place}", rows[-place]) for place in (1, 2, 3) if place <= len(rows)]
    return [("top1", rows[0]), ("middle", rows[len(rows) // 2]), *worst, ("total", total)]
