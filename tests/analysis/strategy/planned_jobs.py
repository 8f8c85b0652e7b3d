"""Jobs that are planned from their captures, and then generated with what the plan says."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import duckdb

from npuscope.analysis.pipeline.passes import pipeline
from npuscope.analysis.ranks.rank_views import open_across
from npuscope.analysis.strategy import measured_plan
from npuscope.analysis.strategy.constants import default_constants
from npuscope.analysis.strategy.measured_plan import Plannable
from npuscope.analysis.views import open_views
from npuscope.sample_traces.generate import Job, canonical_frames
from npuscope.sample_traces.job import HALVES
from tests.analysis.tables import connect, keep_summaries, put

TABLES = ("ranks", "groups", "steps", "kernels", "comm_ops", "comm_tasks", "launches", "host_ops",
          "memory", "operator_memory")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Replayed:
    """A plan against the job that was generated with it: steps in ns, peaks in bytes by stage."""

    measured_ns: float
    predicted_ns: float
    low_ns: float
    high_ns: float
    truth_ns: float
    measured_peaks: tuple[float, ...]
    predicted_peaks: tuple[float, ...]
    true_peaks: tuple[float, ...]
    recomputed: tuple[tuple[int, int], ...]

    @property
    def step_error(self) -> float:
        return self.predicted_ns / self.truth_ns - 1

    @property
    def unchanged_error(self) -> float:
        return self.measured_ns / self.truth_ns - 1

    @property
    def saved_error(self) -> float:
        """Of what all stages save."""
        saved = sum(self.measured_peaks) - sum(self.true_peaks)
        return (sum(self.measured_peaks) - sum(self.predicted_peaks)) / saved - 1


def tables(job: Job) -> duckdb.DuckDBPyConnection:
    con = connect()
    put(con, canonical_frames(job, tables=TABLES, pipes=False))
    keep_summaries(con)
    open_across(None, con)
    open_views(con, ("job_steps",))
    return con


def plannable_of(job: Job) -> Plannable:
    con = tables(job)
    ((run, capture),) = con.execute("select distinct run, capture from ranks").fetchall()
    return measured_plan.plannable(con, pipeline(con, run, capture))


def peaks(con: duckdb.DuckDBPyConnection, stages: int) -> tuple[float, ...]:
    rows = con.execute(
        "select pp_rank, max(allocated_bytes) from memory join ranks using (run, capture, rank)"
        " where component = 'PTA' group by 1"
    ).fetchall()
    found = dict(rows)
    return tuple(float(found[stage]) for stage in range(stages))


def random_job(seed: int) -> Job:
    """Dense or with experts, of 1 to 4 stages, of one or more chunks; without recompute."""
    chance = random.Random(seed)
    pp = chance.choice((1, 2, 4))
    is_moe = chance.random() < 0.5
    kind = chance.choice(("1f1b", "1f1b", "gpipe", "interleaved", "zb-h1")) if pp > 1 else "1f1b"
    if is_moe and kind == "zb-h1":
        kind = "1f1b"  # products of experts are not cut there
    chunks = 2 if kind == "interleaved" else 1
    tp = chance.choice((1, 1, 2))
    return Job(
        name=f"planned{seed}", pp=pp, dp=2 if is_moe else 1, ep=2 if is_moe else 1, tp=tp,
        experts=4 if is_moe else 0, layers=pp * chunks * chance.choice((2, 3)), chunks=chunks,
        schedule=kind, micro_batches=pp * chance.choice((2, 3)), steps=2, seed=seed,
        hidden=chance.choice((1024, 2048)), ffn=chance.choice((2816, 4096)),
        sequence=chance.choice((2048, 4096)), noise=chance.choice((0.0, 0.02)), comm_tasks=False,
        frequency=False, recompute="parts",
    )  # fmt: skip


def replay(job: Job, share: float) -> Replayed:
    """The plan for a budget between the peak and what is left with everything run again (`share`
    of the way down), and the job generated with it."""
    own = plannable_of(job)
    constants = default_constants()
    found = own.job.measured
    everything = [
        measured_plan.Decision(half.place, half.name, "recompute", half.layers)
        for half in own.halves
    ]
    most = max(own.peaks)
    least = max(measured_plan.peak_bytes(own, at, everything) for at in range(found.devices))
    budget = most - share * (most - least)
    rows = measured_plan.measured_plan(own, budget, constants, swaps=False)
    plans = measured_plan.cheapest_decisions(own, budget, constants, swaps=False)
    counts = [[0, 0] for _ in range(found.places)]
    for plan in plans:
        assert plan is not None
        for one in plan:
            counts[one.place][HALVES.index(one.half)] = one.layers
    parts = tuple((one[0], one[1]) for one in counts)
    con = tables(replace(job, recompute_parts=parts))
    ((truth,),) = con.execute("select avg(step_ns) from job_steps").fetchall()
    first = rows.row(0, named=True)
    predicted = rows.unique("stage").sort("stage")["peak_bytes"].to_list()
    return Replayed(
        first["measured_step_ns"], first["predicted_step_ns"], first["predicted_low_ns"],
        first["predicted_high_ns"], float(truth), own.peaks, tuple(map(float, predicted)),
        peaks(con, job.pp), parts,
    )  # fmt: skip
