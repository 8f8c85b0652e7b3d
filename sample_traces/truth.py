"""What is true of a job, by counting: every figure from a sweep over the planted intervals.

Definitions are those of the project's design; nothing here shares code with the analyses.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise

from npuscope.analysis.pipeline.schedules import Pass

from .calls import COMPUTE_STREAM, CopyCall
from .capture import Capture, CommOp, Kernel, without_collection
from .job import Job, group_hash, layer_micro_batches, routed_tokens, stage_layers
from .simulate import run

Interval = tuple[int, int]


def truth(job: Job, captures: list[Capture]) -> dict[str, object]:
    """All planted figures; times in ns on each rank's own clock, keys as text."""
    return {
        "slow_rank": job.slow_rank,
        "slow_factor": job.slow_factor if job.slow_rank is not None else None,
        "clock_offsets_ns": {str(c.rank): job.offset_ns(c.rank) for c in captures},
        "expert_load": [list(row) for row in expert_load(job)],
        "schedule": job.schedule if job.pp > 1 else "none",
        "micro_batches": job.micro_batches,
        "ranks": {str(c.rank): _rank(c) for c in captures},
    }


def expert_load(job: Job) -> list[tuple[int, int, int, int]]:
    """(step, layer, expert, tokens) over all ranks; a tensor-parallel rank routes its own part."""
    rows: list[tuple[int, int, int, int]] = []
    stage_size = job.tp * job.dp
    for step in range(job.first_step, job.first_step + job.steps):
        for layer in range(job.layers):
            total = [0] * job.experts
            for stage in range(job.pp):
                if layer not in stage_layers(job, stage):
                    continue
                for micro_batch in layer_micro_batches(job, stage, layer):
                    for rank in range(stage * stage_size, (stage + 1) * stage_size):
                        tokens = routed_tokens(job, step, micro_batch, layer, rank)
                        total = [one + more for one, more in zip(total, tokens, strict=True)]
            rows += [(step, layer, expert, tokens) for expert, tokens in enumerate(total)]
    return rows


@without_collection()
def step_lengths(job: Job) -> list[int]:
    """Of the whole job, in true time: from a step's latest start over ranks to that of the next,
    the last one's to its latest end."""
    starts, ends = dict[int, int](), dict[int, int]()
    for events, _, windows in run(job).values():
        begins, own = [window.start_ns for window in windows], dict[int, int]()
        for event in events:
            if not isinstance(event.call, CopyCall):
                at = bisect_right(begins, event.host.operator_start_ns) - 1
                own[at] = min(own.get(at, event.start_ns), event.start_ns)
                ends[at] = max(ends.get(at, 0), event.end_ns)
        for at, start_ns in own.items():
            starts[at] = max(starts.get(at, 0), start_ns)
    edges = [*(starts[at] for at in range(job.steps)), ends[job.steps - 1]]
    return [end_ns - start_ns for start_ns, end_ns in pairwise(edges)]


def passes(c: Capture) -> dict[int, list[tuple[Pass, int, int]]]:
    """By step: each pass with the start of its first kernel and the end of its last one on the
    compute stream, by start."""
    spans: dict[tuple[int, Pass], tuple[int, int]] = {}
    for kernel in c.kernels:
        if kernel.part is not None and kernel.stream_id == COMPUTE_STREAM:
            start_ns, end_ns = _interval(kernel)
            low, high = spans.get((kernel.step, kernel.part), (start_ns, end_ns))
            spans[kernel.step, kernel.part] = min(low, start_ns), max(high, end_ns)
    steps: dict[int, list[tuple[Pass, int, int]]] = {}
    for (step, part), (start_ns, end_ns) in sorted(spans.items(), key=lambda one: one[1]):
        steps.setdefault(step, []).append((part, start_ns, end_ns))
    return steps


def phases(events: list[tuple[Pass, int, int]]) -> list[int]:
    """Of a stage's passes in a step: its first start, that of its first backward, the end of its
    last forward (not before), and its last end: between them warm-up, steady phase, cool-down. A
    step without backwards is warm-up alone."""
    start_ns, end_ns = min(one[1] for one in events), max(one[2] for one in events)
    steady_ns = min((one[1] for one in events if one[0].kind != "F"), default=end_ns)
    forward_ns = max(one[2] for one in events if one[0].kind == "F")
    return [start_ns, steady_ns, max(steady_ns, forward_ns), end_ns]


def overlap_lengths(
    first: Iterable[Interval], second: Iterable[Interval]
) -> tuple[int, int, int, int]:
    """Lengths of the union of the first, of the second, of both at once, and of either."""
    edges = [(t, 0, d) for a, b in first for t, d in ((a, 1), (b, -1))]
    edges += [(t, 1, d) for a, b in second for t, d in ((a, 1), (b, -1))]
    edges.sort()
    lengths, open_, last = [0, 0, 0, 0], [0, 0], 0
    for time, which, change in edges:
        if open_[0] > 0 or open_[1] > 0:
            lengths[0] += (time - last) * (open_[0] > 0)
            lengths[1] += (time - last) * (open_[1] > 0)
            lengths[2] += (time - last) * (open_[0] > 0 and open_[1] > 0)
            lengths[3] += time - last
        open_[which] += change
        last = time
    return lengths[0], lengths[1], lengths[2], lengths[3]


def _interval(item: Kernel | CommOp) -> Interval:
    return item.start_ns, item.start_ns + item.dur_ns


def _rank(c: Capture) -> dict[str, object]:
    computing = [kernel for kernel in c.kernels if kernel.work.is_compute]
    everywhere = [_interval(kernel) for kernel in computing]
    steps: dict[str, object] = {}
    parts = passes(c)
    crossing = 0
    for step in c.steps:
        kernels = [k for k in computing if _starts_in(k, step.device_start_ns, step.device_end_ns)]
        ops = [o for o in c.comm_ops if _starts_in(o, step.device_start_ns, step.device_end_ns)]
        mine: list[Kernel | CommOp] = [*kernels, *ops]
        if step is not c.steps[-1]:
            crossing += sum(_interval(item)[1] > step.device_end_ns for item in mine)
        figures = _figures(kernels, ops, everywhere)
        start_ns, end_ns = figures["start_ns"], figures["end_ns"]
        bubble_ns = figures["profiler_bubble_ns"]
        assert start_ns is not None and end_ns is not None and bubble_ns is not None
        steps[str(step.step)] = {
            **figures,
            "window_start_ns": step.window_start_ns,
            "window_end_ns": step.window_end_ns,
            "device_start_ns": step.device_start_ns,
            "device_end_ns": step.device_end_ns,
            "stage_ns": end_ns - start_ns - bubble_ns,
            "preparing_ns": start_ns - step.window_start_ns,
            "masking_ratio": _ratio(figures["overlapped_ns"], figures["communication_ns"]),
            "passes": [[*one[0], *one[1:]] for one in parts[step.step]],
            "phases_ns": phases(parts[step.step]),
            "kernels": _by_type(kernels),
            "communication": _by_kind(ops, everywhere),
        }
    return {
        "device_id": c.device_id,
        "host_name": c.host_name,
        "coordinates": c.place,
        "groups": {g.name: {"kind": g.kind, "ranks": list(g.ranks)} for g in c.groups},
        "group_hashes": {g.name: str(group_hash(g.name)) for g in c.groups},
        "frequency_mhz": c.frequency_mhz,
        "kernel_rows": len(c.kernels),
        "compute_kernels": len(computing),
        "comm_ops": len(c.comm_ops),
        "comm_tasks": sum(len(op.tasks) for op in c.comm_ops),
        "crossing_operations": crossing,
        "whole": _figures(computing, c.comm_ops, everywhere),
        "steps": steps,
    }


def _starts_in(item: Kernel | CommOp, start_ns: int, end_ns: int) -> bool:
    return start_ns <= item.start_ns < end_ns


def _figures(
    kernels: list[Kernel], ops: list[CommOp], everywhere: list[Interval]
) -> dict[str, int | None]:
    mine = [_interval(kernel) for kernel in kernels]
    talk = [_interval(op) for op in ops]
    receives = [_interval(op) for op in ops if op.op_type == "receive"]
    computing_ns, communication_ns, _, busy_ns = overlap_lengths(mine, talk)
    overlapped_ns = overlap_lengths(talk, everywhere)[2]
    receive_ns, _, hidden_ns, _ = overlap_lengths(receives, everywhere)
    start_ns = min(start for start, _ in mine + talk)
    end_ns = max(end for _, end in mine + talk)
    return {
        "start_ns": start_ns,
        "end_ns": end_ns,
        "computing_ns": computing_ns,
        "communication_ns": communication_ns,
        "overlapped_ns": overlapped_ns,
        "exposed_communication_ns": communication_ns - overlapped_ns,
        "free_ns": end_ns - start_ns - busy_ns,
        "bubble_ns": receive_ns - hidden_ns,
        "profiler_bubble_ns": sum(end - start for start, end in receives),
    }


def _by_type(kernels: list[Kernel]) -> dict[str, dict[str, object]]:
    by_type: dict[str, list[Kernel]] = {}
    for kernel in kernels:
        by_type.setdefault(kernel.work.type, []).append(kernel)
    return {
        type_: {
            "core": rows[0].work.core,
            "count": len(rows),
            "total_ns": sum(row.dur_ns for row in rows),
            "max_ns": max(row.dur_ns for row in rows),
        }
        for type_, rows in sorted(by_type.items())
    }


def _by_kind(ops: list[CommOp], everywhere: list[Interval]) -> dict[str, dict[str, object]]:
    kinds: dict[str, dict[str, object]] = {}
    for kind in sorted({op.group.kind for op in ops}):
        mine = [op for op in ops if op.group.kind == kind]
        communication_ns, _, masked_ns, _ = overlap_lengths(
            [_interval(op) for op in mine], everywhere
        )
        kinds[kind] = {
            "operations": len(mine),
            "communication_ns": communication_ns,
            "masked_ns": masked_ns,
            "masking_ratio": _ratio(masked_ns, communication_ns),
            "size_bytes": sum(op.size_bytes for op in mine),
        }
    return kinds


def _ratio(part: int | None, whole: int | None) -> float | None:
    return None if part is None or not whole else part / whole
