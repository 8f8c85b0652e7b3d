"""Generated jobs whose kernels slow down beside transfers, each with what changes one of its causes
and the job where that is so."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from npuscope.sample_traces.generate import Job

Pair = tuple[Job, Job, str]  # as it was, as it would be, the change
SLOW_LINK: dict[str, Any] = {"slow_link": (0, 1), "slow_link_factor": 4.0}
KINDS = 6


def pair(number: int) -> Pair:
    """One of many: all kinds of changes in turn, each with another seed and stretch."""
    seed = 9_001 + number
    chance = random.Random(seed)
    job = Job(
        tp=1, pp=2, dp=2, ep=2, layers=2, micro_batches=2, steps=2, seed=seed, memory=False,
        noise=0.02, contention=chance.uniform(1.1, 1.5), overlap=chance.uniform(0.4, 1.2),
    )  # fmt: skip
    kind = number % KINDS
    if kind == 0:
        return replace(job, slow_rank=3, slow_factor=1.6), job, "rank:3=median"
    if kind == 1:
        return replace(job, **SLOW_LINK), job, "link:0-1=0.25"
    if kind == 2:
        slow = replace(job, slow_kernel="MatMulV3", slow_kernel_factor=1.5)
        return job, slow, "kernel:MatMulV3=1.5"
    if kind == 3:
        return replace(job, host_op_ns=150_000), replace(job, host_op_ns=73_571), "host=0.5"
    if kind == 4:
        job = replace(job, overlap=1.3)  # long enough to hide them
        return replace(job, serial_experts=True), job, "hide:ep"
    return replace(job, expert_skew=1.2), replace(job, expert_skew=0.0), "experts:balanced"
