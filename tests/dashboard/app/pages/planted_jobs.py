"""Twelve jobs with one thing wrong in each, and what a page must name of it.

What is named is compared with what was planted: `truth` is taken from the job itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from npuscope.sample_traces.job import Job
from tests.dashboard.app.published_jobs import publish_job

TABLES = (
    "ranks", "groups", "steps", "kernels", "comm_ops", "comm_tasks", "launches", "host_ops",
    "device_tasks", "counters", "expert_load", "expert_placement",
)  # fmt: skip
DAY_NS = 86_400 * 10**9
BEFORE, NOW = "20251127T123437.000Z", "20251128T123437.000Z"
WELL = Job(
    layers=4, pp=1, dp=2, ep=2, experts=4, micro_batches=1, steps=3, noise=0.02, memory=False,
    comm_tasks=False, overlap=0.9, expert_skew=0.0, crossing=False, seed=7,
)  # fmt: skip
_DENSE: Mapping[str, Any] = {"experts": 0, "ep": 1}


@dataclass(frozen=True, slots=True)
class Planted:
    """One job: `planted` in words, `changes` of the healthy job, the `page` one click away.

    `names` is a pattern of the sentence that names the cause; its groups are the culprit, `truth`
    what they must be. `is_first`: the overview's first card says it, without a click. A job that
    was well `before` has a healthy capture of the day before.
    """

    name: str
    planted: str
    changes: Mapping[str, Any]
    page: str
    names: str
    truth: tuple[str, ...]
    is_first: bool = True
    before: bool = False

    @property
    def job(self) -> Job:
        return replace(WELL, name=self.name, **self.changes)


def _shape(columns: int) -> str:
    """N of the attention's projection, made odd."""
    return str(replace(WELL, **_DENSE, odd_columns=columns).projected_columns)


PLANTED = (
    Planted(
        "slow_rank", "The AI cores of rank 2 run at 1385 MHz in place of 1800.",
        {"dp": 4, "slow_clock": 2, "slow_clock_factor": 1.3}, "ranks",
        r"^rank ([\d, -]+): chip runs at a lower clock\. ", ("2",), is_first=False,
    ),
    Planted(
        "slow_link", "The HCCS link between ranks 1 and 2 is five times as slow.",
        {"dp": 4, "ep": 4, "comm_tasks": True, "slow_link": (1, 2), "slow_link_factor": 5.0},
        "communication", r"The (\w+) link between ranks (\d+) and (\d+) moves",
        ("HCCS", "1", "2"),
    ),
    Planted(
        "slow_host", "The second host (node01, ranks 2 and 3) takes 20 times as long to launch.",
        {"dp": 4, "ranks_per_host": 2, "slow_host": 1, "slow_host_factor": 20.0}, "ranks",
        r"launches come late on host ([\w, ]+)\.", ("node01",),
    ),
    Planted(
        "item", "A value is read from the device in each layer's forward: .item().",
        {"micro_batches": 2, "host_op_ns": 25_000, "hidden": 768, "item_in_layers": True}, "host",
        r"the host waited for it: ([\w:]+), ([\d.]+) times per step", ("aten::item", "8.0"),
    ),
    Planted(
        "hot_expert", "One of four experts gets six times the tokens of each other.",
        {"layers": 2, "dp": 4, "ep": 4, "comm_tasks": True,
         "expert_weights": (6.0, 1.0, 1.0, 1.0)}, "experts",
        r"^Expert load .* whose most loaded device has ([\d.]+) times the mean\.$",
        (f"{6 / (9 / 4):.2f}",),
    ),
    Planted(
        "heavy_stage", "Kernels of stage 1 take 1.6 times as long as those of stage 0.",
        {"pp": 2, "micro_batches": 2, "compute_by_stage": (1.0, 1.6)}, "pipeline",
        r"^Pipeline stages compute unequally: stage (\d+) [\d.]+ ms per step, stage (\d+)",
        ("1", "0"),
    ),
    Planted(
        "no_overlap", "No communication has compute issued beside it.",
        {"dp": 4, "hidden": 512, "overlap": 0.0}, "communication",
        r"not known to wait \(masked: ([\d.]+) %\)\. Most of it: (\w+) of (\w+) groups",
        ("0.0", "allToAllV", "ep"),
    ),
    Planted(
        "odd_size", "The projection of attention is 77 columns wider than it should be.",
        {**_DENSE, "odd_columns": 77, "odd_factor": 2.0}, "operators",
        r"^odd sizes: .* Most of it: (\w+) \(N = (\d+),", ("MatMulV3", _shape(77)),
    ),
    Planted(
        "ai_cpu", "Rotary embeddings run on the AI CPU, 12 times as long.",
        {**_DENSE, "ai_cpu_kernel": "RotaryPositionEmbedding"}, "operators",
        r"^on the AI CPU: .* Most of it: (\w+) ", ("RotaryPositionEmbedding",),
    ),
    Planted(
        "garbage", "Python collects garbage for 15 ms in step 20.",
        {"micro_batches": 2, "steps": 4, "first_step": 18, "host_op_ns": 15_000, "gc_every": 20,
         "gc_ns": 15_000_000}, "host",
        r"the host is kept from launching: ([a-z ]+) ([\d.]+) ms\.$",
        ("garbage collection", f"{15 / 4:.3f}"),
    ),
    Planted(
        "data", "The first stage waits 6 ms for each micro-batch.",
        {"host_op_ns": 15_000, "data_wait_ns": 6_000_000}, "host",
        r"the host is kept from launching: ([a-z ]+) ([\d.]+) ms\.$", ("data loading", "6.000"),
    ),
    Planted(
        "regression", "Since the day before, matrix products take 1.3 times as long.",
        {**_DENSE, "steps": 6, "slow_kernel": "MatMulV3", "slow_kernel_factor": 1.3}, "compare",
        r"Most of it: computing (\w+) \(each took longer or shorter\), \+", ("MatMulV3",),
        is_first=False, before=True,
    ),
)  # fmt: skip


def publish(path: Path, planted: Planted) -> Path:
    """The store of a planted job."""
    job = replace(planted.job, start_ns=planted.job.start_ns + DAY_NS)
    if planted.before:
        well = replace(WELL, **_DENSE, name=planted.name, steps=job.steps)
        publish_job(path, well, BEFORE, published_s=1, tables=TABLES)
    publish_job(path, job, NOW, published_s=2, tables=TABLES)
    return path
