"""How long other schedules of a pipeline take: 1,000 ranks x 64 micro-batches.

    .venv/bin/python -m bench.analysis.pipeline_bench [--full] [--runs N]

Passes of a 1F1B job with noise of 3 %, from frame to rows of predictions: 8 stages side by side on
1,000 ranks, and one pipeline of 1,000 stages (with --full). The prediction of the order that ran
is held against it first. Limit: 5 s of CPU.
"""

from __future__ import annotations

import sys
import time
from statistics import median

import numpy as np
import polars as pl

from bench.measure import arguments, commit, report, table, verdict
from npuscope.analysis.pipeline.execution import precedence
from npuscope.analysis.pipeline.measurement import measure_passes
from npuscope.analysis.pipeline.orders.other_orders import Facts, held_micro_batches, run
from npuscope.analysis.pipeline.schedules import schedule

LIMIT_S = 5.0
MICRO_BATCHES, SEED = 64, 7_001
WEIGHTS, PAIR = 0.4, 0.9  # of a backward; of both passes


def passes(stages: int, replicas: int) -> pl.DataFrame:
    """A frame as `passes.passes` makes it, of one step."""
    made = precedence(schedule("1f1b", stages, MICRO_BATCHES))
    chance = np.random.default_rng(SEED)
    kinds = [entry[0].kind for _, entry in made.entries]
    usual = np.where(np.array(kinds) == "F", 3e6, 6e6)[:, None]
    times = usual * chance.lognormal(0.0, 0.03, (len(kinds), replicas))
    lags = np.full((len(made.links), 1), 2e5)
    starts = made.starts(times, np.full((len(kinds), 1), 1e4), lags)
    devices = np.array([device for device, _ in made.entries])
    numbers = np.array([entry[0].micro_batch for _, entry in made.entries])
    ranks = devices[:, None] * replicas + np.arange(replicas)
    each = {"stage": devices, "micro_batch": numbers}
    columns = {name: np.repeat(one, replicas).astype(np.int32) for name, one in each.items()}
    return pl.DataFrame({
        "rank": ranks.ravel().astype(np.int32), **columns,
        "kind": np.repeat(np.array(kinds), replicas).tolist(),
        "start_ns": starts.ravel().round().astype(np.int64),
        "end_ns": (starts + times).ravel().round().astype(np.int64),
        "compute_ns": times.ravel().round().astype(np.int64),
    }).with_columns(
        step=pl.lit(1, pl.Int64), chunk=pl.lit(0, pl.Int32), before_ns=pl.lit(None, pl.Int64)
    )  # fmt: skip


def tried_s(frame: pl.DataFrame, stages: int, names: tuple[str, ...]) -> float:
    """CPU seconds from passes to predictions and held activations of these schedules."""
    began = time.process_time()
    order = schedule("1f1b", stages, MICRO_BATCHES)
    found = measure_passes(frame, order)
    facts = Facts(weight_share=(WEIGHTS,) * stages, pair_ratio=PAIR)
    for name in names:
        held_micro_batches(found, facts, run(found, facts, schedule(name, stages, MICRO_BATCHES)))
    return time.process_time() - began


def error(frame: pl.DataFrame, stages: int) -> float:
    """How far the order that ran lies from what it took, executed."""
    order = schedule("1f1b", stages, MICRO_BATCHES)
    found = measure_passes(frame, order)
    lengths = found.ends_ns.max(axis=0) - found.starts_ns.min(axis=0)
    return float(abs(run(found, Facts(), order).lengths_ns / lengths - 1).max())


def main() -> int:
    """Times schedules, prints the table; 1 where the limit or the figures are missed."""
    chosen = arguments(__doc__)
    cases: dict[str, tuple[int, int, tuple[str, ...]]] = {
        "8 stages x 125": (8, 125, ("gpipe", "vpp", "dualpipev")),
    }
    if chosen.full:
        cases["1,000 stages"] = (1_000, 1, ("gpipe",))
    rows, longest, is_right = [], 0.0, True
    for name, (stages, replicas, names) in cases.items():
        frame = passes(stages, replicas)
        off = error(frame, stages)
        is_right &= off < 0.005
        cpu_s = median(tried_s(frame, stages, names) for _ in range(chosen.runs))
        longest = max(longest, cpu_s)
        rows.append((name, f"{frame.height:,}", ", ".join(names), f"{off:.2%}", f"{cpu_s:.2f}"))
    said = table(("pipelines", "passes", "tried", "order that ran off", "CPU s"), rows)
    said += f"\n\nseed {SEED}, commit {commit()}"
    said += f"\n\nlongest: {verdict(longest, LIMIT_S, at_least=False)}"
    report("Other schedules of 1,000 ranks x 64 micro-batches", said)
    return 0 if is_right and longest <= LIMIT_S else 1


if __name__ == "__main__":
    sys.exit(main())
