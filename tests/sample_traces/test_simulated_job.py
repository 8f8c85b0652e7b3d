"""The simulated job against physics and against its own truth."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from npuscope.sample_traces.calls import CommCall, KernelCall
from npuscope.sample_traces.capture import captures
from npuscope.sample_traces.generate import Job, canonical_frames, small
from npuscope.sample_traces.simulate import run
from npuscope.sample_traces.truth import overlap_lengths, truth

JOB = small(
    name="four", layers=2, pp=2, micro_batches=2, slow_rank=3, ranks_per_host=2,
    clock_offsets_ns=(0, 0, 1_000_000, -77), seed=7,
)  # fmt: skip
ADDITIVE = (
    "computing_ns", "communication_ns", "overlapped_ns", "exposed_communication_ns", "free_ns",
    "bubble_ns", "profiler_bubble_ns",
)  # fmt: skip

JOBS = {
    "four": JOB,
    "small": small(),
    "deep": small(layers=4, pp=4, micro_batches=5, overlap=0.0, steps=3),
    "tensor": small(tp=2, dp=2, layers=2, overlap=1.0),
    "dense": small(experts=0, ep=1, dp=2),
    "alone": small(experts=0, ep=1, dp=1),
    "apart": small(crossing=False, steps=3),
}


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS.keys())
def test_steps_add_up_to_the_whole(job: Job) -> None:
    facts: dict[str, Any] = truth(job, captures(job))
    for rank in facts["ranks"].values():
        steps = list(rank["steps"].values())
        assert len(steps) == job.steps
        for name in ADDITIVE:
            assert sum(step[name] for step in steps) == rank["whole"][name], name
        for step in steps:
            assert step["exposed_communication_ns"] >= 0 and step["free_ns"] >= 0
            kinds = step["communication"].values()
            assert sum(k["communication_ns"] for k in kinds) >= step["communication_ns"]
        edges = job.steps - 1 if job.crossing and job.world_size > 1 else 0
        assert rank["crossing_operations"] == edges
        kernels = sum(k["count"] for step in steps for k in step["kernels"].values())
        assert kernels == rank["compute_kernels"]


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS.keys())
def test_physics(job: Job) -> None:
    ends: dict[str, set[int]] = {}
    for c in captures(job):
        offset = job.offset_ns(c.rank)
        streams: dict[int, int] = {}
        for kernel in c.kernels:
            assert kernel.start_ns >= streams.get(kernel.stream_id, 0)
            assert kernel.start_ns > kernel.launch.times.launch_start_ns
            streams[kernel.stream_id] = kernel.start_ns + kernel.dur_ns
        talks: dict[str, int] = {}
        for op in c.comm_ops:
            end_ns = op.start_ns + op.dur_ns
            assert op.start_ns >= talks.get(op.group.name, 0)
            talks[op.group.name] = end_ns
            if op.op_type not in ("send", "receive"):
                ends.setdefault(f"{op.group.name} {op.name}", set()).add(end_ns - offset)
            planes: dict[int, int] = {}
            for task in sorted(op.tasks, key=lambda task: (task.plane_id, task.start_ns)):
                assert task.start_ns >= planes.get(task.plane_id, op.start_ns)
                planes[task.plane_id] = task.start_ns + task.dur_ns
                assert task.dur_ns >= 0 and planes[task.plane_id] <= end_ns
        for step, following in zip(c.steps, c.steps[1:], strict=False):
            assert step.window_end_ns < following.window_start_ns
            assert step.device_end_ns <= following.device_start_ns
        for item in (*((k.start_ns, k.step) for k in c.kernels),
                     *((o.start_ns, o.step) for o in c.comm_ops)):  # fmt: skip
            mine = [s.step for s in c.steps if s.device_start_ns <= item[0] < s.device_end_ns]
            assert mine == [item[1]]
    assert all(len(times) == 1 for times in ends.values()), "collectives end together"


def test_receives_wait_for_the_stage_before() -> None:
    sends = {
        (op.group.name, op.start_ns + op.dur_ns - JOB.offset_ns(c.rank))
        for c in captures(JOB) for op in c.comm_ops if op.op_type == "send"
    }  # fmt: skip
    receives = [
        (op.group.name, op.start_ns + op.dur_ns - JOB.offset_ns(c.rank))
        for c in captures(JOB) for op in c.comm_ops if op.op_type == "receive"
    ]  # fmt: skip
    assert receives and set(receives) == sends


def test_knobs() -> None:
    def computing(job: Job, rank: int) -> int:
        facts: dict[str, Any] = truth(job, captures(job))
        total: int = facts["ranks"][str(rank)]["whole"]["computing_ns"]
        return total

    def load(job: Job) -> list[int]:
        total = [0] * job.experts
        facts: Any = truth(job, captures(job))["expert_load"]
        for _, _, expert, tokens in facts:
            total[expert] += tokens
        assert sum(total) == (
            job.sequence // job.tp * job.top_k * job.micro_batches * job.dp * job.tp * job.layers
            * job.steps
        )  # fmt: skip
        return total

    assert computing(small(slow_rank=1, slow_factor=1.5), 1) > 1.2 * computing(small(), 1)
    even, skewed = load(small(expert_skew=0.0)), load(small(expert_skew=1.5))
    assert max(even) < 1.1 * min(even) and max(skewed) > 3 * min(skewed)
    weights = (1.0, 1.0, 6.0, 0.0)
    chosen = load(small(expert_weights=weights, tp=2))
    assert chosen[3] == 0 and chosen[2] > 5 * chosen[0]
    plain, late = captures(small()), captures(small(clock_offsets_ns=(0, 5_000)))
    assert plain[0].kernels == late[0].kernels
    assert {b.start_ns - a.start_ns for a, b in zip(plain[1].kernels, late[1].kernels, strict=True)
            } == {5_000}  # fmt: skip

    def masked(overlap: float) -> float:
        job = small(overlap=overlap, micro_batches=2)
        facts: Any = truth(job, captures(job))["ranks"]
        ratio: float = facts["0"]["steps"]["12"]["communication"]["ep"]["masking_ratio"]
        return ratio

    assert masked(0.0) < 0.05 < 0.4 < masked(0.6) < masked(1.0) <= 1.0


def test_a_norm_takes_in_the_sum_before_it() -> None:
    def kernels(job: Job) -> list[tuple[str, str, str]]:
        rows = (one.work for one in captures(job)[0].kernels)
        return [(one.type, one.input_shapes, one.output_shapes) for one in rows]

    plain, fused = kernels(small()), kernels(small(fused_norms=True))
    sums = [one for one in plain if one[0] == "Add"]
    both = [one for one in fused if one[0] == "AddRmsNorm"]
    assert len(both) == len(sums) and not [one for one in fused if one[0] == "Add"]
    assert {*both} == {("AddRmsNorm", "2048,1024;2048,1024;1024", "2048,1024;2048,1;2048,1024")}
    assert len(fused) == len(plain) - len(sums)


@pytest.mark.parametrize(
    "change", [{"unfused_kernel": "SwiGlu"}, {"converted_kernel": "MatMulV3"},
               {"split_kernel": "RmsNorm"}]
)  # fmt: skip
def test_what_is_planted_leaves_other_kernels_as_they_are(change: dict[str, Any]) -> None:
    planted = ("TransData", "SwiGlu", "Sigmoid", "Mul", "RmsNorm")

    def others(job: Job) -> list[int]:
        kernels = captures(job)[0].kernels
        return sorted(one.dur_ns for one in kernels if one.work.type not in planted)

    assert others(small(**change)) == others(small())


@pytest.mark.parametrize(
    "change", [{"layers": 3, "pp": 2}, {"dp": 3, "ep": 2}, {"slow_rank": 9}, {"experts": 3},
               {"expert_weights": (1.0,)}]
)  # fmt: skip
def test_impossible_jobs_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"divide|slow_rank|expert_weights"):
        small(**change)


def test_sweep_counts_like_a_grid() -> None:
    first, second = [(0, 5), (3, 9), (9, 9), (20, 22)], [(4, 6), (8, 21)]
    a = {t for x, y in first for t in range(x, y)}
    b = {t for x, y in second for t in range(x, y)}
    assert overlap_lengths(first, second) == (len(a), len(b), len(a & b), len(a | b))


def test_grouped_matmul_shapes_carry_the_expert_load() -> None:
    frames = canonical_frames(JOB)
    for c in captures(JOB):
        work = [k.work for k in c.kernels if k.work.type == "GroupedMatmul"]
        rows = sum(int(w.input_shapes.split(",")[0]) for w in work)
        held = frames["expert_load"].filter(pl.col("rank") == c.rank)["tokens"].sum()
        assert rows == 4 * held  # two matmuls forward, two backward


def test_kernels_beside_transfers_take_longer_by_the_stated_factor() -> None:
    job = small(experts=4, overlap=1.0, contention=1.5, seed=7)
    plain, crowded = run(replace(job, contention=1.0)), run(job)
    for rank, (events, _, _) in crowded.items():
        moves = [(e.ready_ns, e.end_ns) for e in events if isinstance(e.call, CommCall)]
        longer = 0
        for now, was in zip(events, plain[rank][0], strict=True):
            if not isinstance(now.call, KernelCall):
                continue
            extra = (now.end_ns - now.start_ns) - (was.end_ns - was.start_ns)
            mine = [(now.start_ns, now.end_ns)]
            beside = overlap_lengths(mine, moves)[2]
            assert extra == pytest.approx(beside / 3, rel=0.02, abs=600)  # 1 - 1 / 1.5 of it
            longer += extra
        assert longer > 10_000
