"""Jobs of any schedule, drawn by number, and whether what is recognised of them is true."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

import duckdb
import polars as pl

from npuscope.analysis.memo import remember
from npuscope.analysis.pipeline.passes import Pipeline, pipeline
from npuscope.analysis.pipeline.phases import phase_bounds
from npuscope.analysis.ranks.rank_views import open_across
from npuscope.sample_traces.capture import captures
from npuscope.sample_traces.generate import Job, canonical_frames
from npuscope.sample_traces.truth import passes, phases
from tests.analysis.tables import connect, keep_summaries, put

TABLES = ("ranks", "groups", "steps", "kernels", "comm_ops", "launches", "host_ops")
SCHEDULES = (
    "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipev", "fb-overlap", "dualpipe",
)  # fmt: skip
_NEAR_NS = 2_000  # fitted clocks are not exact


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was said of a job, and whether it is so: the name with micro-batches; these with the
    phases of every stage (`is_right`); every pass with its number and times."""

    name: str
    confidence: str
    is_named: bool
    is_right: bool
    is_exact: bool


def random_job(number: int) -> Job:
    """A job with noise of 3 %; equal numbers give equal jobs."""
    chance = random.Random(f"pipeline/{number}")
    name = SCHEDULES[number % len(SCHEDULES)]
    pp = chance.choice((2, 4))
    chunks = chance.choice((2, 3)) if name == "interleaved" else 1
    if name == "fb-overlap":
        chunks = chance.choice((1, 2))
    places = pp * (2 if name in ("zb-v", "dualpipev") else chunks)
    layers = [chance.choice((1, 1, 2)) for _ in range(places)]
    if chance.random() < 0.5:
        layers = [layers[0]] * places
    dp = chance.choice((1, 2)) if places < 8 else 1
    return Job(
        name=f"{name}-{number}",
        schedule=name,
        chunks=chunks,
        pp=pp,
        dp=dp,
        ep=dp,
        layers=sum(layers),
        layers_by_stage=tuple(layers),
        micro_batches=pp * chance.choice((2, 3)),
        experts=chance.choice((0, 4)),
        recompute=chance.choice(("none", "none", "full", "selective")),
        mtp=chance.choice((0, 0, 1)),
        paired_transfers=chance.random() < 0.4,
        steps=1,
        noise=0.03,
        crossing=chance.random() < 0.5,
        seed=number,
    )


def open_job(job: Job) -> duckdb.DuckDBPyConnection:
    """The job in canonical tables, its ranks compared."""
    return opened_frames(canonical_frames(job, tables=TABLES, pipes=False))


def opened_frames(frames: Mapping[str, pl.DataFrame]) -> duckdb.DuckDBPyConnection:
    """Canonical tables, their ranks compared."""
    con = connect()
    put(con, frames)
    keep_summaries(con)
    open_across(None, con)
    remember(con)  # as a command does
    return con


def verdict_on(job: Job, found: Pipeline) -> Verdict:
    """What was recognised, beside the planted passes."""
    named = found.schedule
    is_named = (named.name, named.micro_batches) == (job.schedule, job.micro_batches)
    rows, edges = [], []
    for seen in captures(job):
        for step, parts in passes(seen).items():
            rows += [(seen.rank, step, *part, start, end) for part, start, end in parts]
            edges.append((seen.rank, step, *phases(parts)))
    names = ["rank", "step", "kind", "chunk", "micro_batch", "true_start_ns", "true_end_ns"]
    truth = pl.DataFrame(rows, schema=names, orient="row")
    keys = names[:5]
    both = truth.join(found.passes.cast({"rank": pl.Int64, "chunk": pl.Int64,
                                         "micro_batch": pl.Int64}), on=keys)  # fmt: skip
    off = pl.max_horizontal(
        (pl.col("start_ns") - pl.col("true_start_ns")).abs(),
        (pl.col("end_ns") - pl.col("true_end_ns")).abs(),
    )
    near = both.filter(off <= _NEAR_NS).height
    is_exact = near == truth.height == found.passes.height
    zero_ns = found.ops.zero_ns
    seen_edges = {
        (rank, step): [*part["start"].to_list(), part["end"].to_list()[-1]]
        for (rank, step), part in phase_bounds(found).group_by(["rank", "step"])
    }
    is_phased = all(
        abs(seen - true + zero_ns) <= _NEAR_NS
        for rank, step, *times in edges
        for seen, true in zip(seen_edges.get((rank, step), [0] * 4), times, strict=True)
    )
    return Verdict(named.name, named.confidence, is_named, is_named and is_phased, is_exact)


def recognise_job(job: Job) -> Pipeline:
    """What is recognised of a job."""
    return pipeline(open_job(job), job.name, "planted")
