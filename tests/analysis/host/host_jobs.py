"""Jobs with one thing wrong with their host, and what `host` makes of them.

What the fault costs is the mean step of the job less that of the same job without it: of the steps
that `host` takes the mean over, so without one that it holds for warm-up, as the fault may make the
first one look.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from npuscope.analysis.host.gains import host_gains
from npuscope.analysis.means import job_steps
from npuscope.sample_traces.frames import canonical_frames
from npuscope.sample_traces.job import Job
from tests.analysis.pipeline.random_jobs import opened_frames

FAULTS = ("item", "gc", "data", "unbound")
CAUSE = {
    "item": ("synchronisation", "aten::item"), "gc": ("garbage_collection", None),
    "data": ("data_loading", None), "unbound": ("far_node", None),
}  # fmt: skip
TABLES = (
    "ranks", "groups", "steps", "kernels", "comm_ops", "launches", "host_ops", "device_tasks",
    "counters",
)  # fmt: skip
_HEALTHY: Mapping[str, Any] = {
    "item_in_layers": False, "gc_every": 0, "data_wait_ns": 0, "far_factor": 1.0,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdict:
    """Is the fault first, what does `host` say it costs, and what does it."""

    is_first: bool
    gain_ns: int
    true_ns: float
    step_ns: float
    shares: dict[str, float]  # of the step: the gains of all planted causes

    @property
    def error(self) -> float:
        """Of the gain, as a share of the true one."""
        return abs(self.gain_ns - self.true_ns) / self.true_ns


def host_job(fault: str, seed: int) -> Job:
    """A random small job; `clean`: with nothing wrong."""
    chance = random.Random(f"host/{fault}/{seed}")
    dp = chance.choice((2, 4))
    job = Job(
        name="host", layers=chance.choice((4, 6)), pp=1, dp=dp, ep=2, experts=4,
        micro_batches=2, steps=4, first_step=18, hidden=chance.choice((768, 1024)),
        host_op_ns=chance.randrange(12_000, 25_000), noise=0.02, seed=seed, comm_tasks=False,
        memory=False, far_share=chance.uniform(0.3, 0.6), far_factor=1.0,
    )  # fmt: skip
    return replace(job, **_fault(fault, chance, job))


def _fault(fault: str, chance: random.Random, job: Job) -> dict[str, Any]:
    if fault == "item":
        return {"item_in_layers": True}
    if fault == "gc":
        return {"gc_every": 20, "gc_ns": chance.randrange(8_000_000, 20_000_000)}
    if fault == "data":
        return {"data_wait_ns": chance.randrange(3_000_000, 8_000_000)}
    if fault == "unbound":
        return {"far_factor": chance.uniform(2.0, 4.0), "host_op_ns": 2 * job.host_op_ns}
    return {}


def verdict(fault: str, seed: int) -> Verdict:
    """A job with the fault, by `host_gains`, beside itself without the fault."""
    job = host_job(fault, seed)
    frames = canonical_frames(job, tables=TABLES, pipes=False)
    with opened_frames(frames) as con:
        rows = host_gains(con).filter(~pl.col("cause").is_in(["between_steps"]))
        steps = job_steps(con).filter(~pl.col("is_warm_up"))["step"].to_list()
    step_ns = mean_step_ns(frames, steps)
    gains = {(cause, operator): gain or 0 for cause, operator, gain in
             rows.select("cause", "operator", "gain_ns").iter_rows()}  # fmt: skip
    shares = {name: gains.get(CAUSE[name], 0) / step_ns for name in FAULTS}
    if fault == "clean":
        return Verdict(False, 0, 0.0, step_ns, shares)
    well = canonical_frames(replace(job, **_HEALTHY), tables=("kernels", "comm_ops"), pipes=False)
    true_ns = step_ns - mean_step_ns(well, steps)
    first = rows.select("cause", "operator").row(0) == CAUSE[fault]
    return Verdict(first, gains.get(CAUSE[fault], 0), true_ns, step_ns, shares)


def mean_step_ns(frames: Mapping[str, pl.DataFrame], steps: Collection[int]) -> float:
    """Of these steps, one after the other: from the latest start over ranks to that of the next
    step; of the last one to the end."""
    every = pl.concat([
        frames["kernels"].filter("is_compute").select("rank", "step", "start_ns", "dur_ns"),
        frames["comm_ops"].select("rank", "step", "start_ns", "dur_ns"),
    ])  # fmt: skip
    spans = (
        every.filter(pl.col("step").is_in(list(steps)))
        .group_by("rank", "step")
        .agg(pl.col("start_ns").min(), (pl.col("start_ns") + pl.col("dur_ns")).max().alias("end"))
        .group_by("step").agg(pl.col("start_ns").max(), pl.col("end").max()).sort("step")
    )  # fmt: skip
    return float(spans["end"][-1] - spans["start_ns"][0]) / spans.height
