"""Stores of a planted job of many kernels: what an ingest of it leaves, without any reading.

One step of the job is simulated. In SQL it is repeated: `repeats` times in each of the store's
steps, each time later by the time it takes, with operations, connections and tasks of its own, so
that what all ranks do together is together in every repetition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import duckdb
import polars as pl

from bench.inputs.new_store import in_two_processes, publish_rank, store_once
from npuscope.analysis.ranks.derive import compare_capture
from npuscope.collector.store.manifest import rank_folder, write_index
from npuscope.sample_traces.frames import canonical_frames
from npuscope.sample_traces.job import Job

STEPS = 10
JOB = Job(
    name="dashboard", layers=8, tp=2, pp=2, dp=16, ep=8, experts=64, steps=1, micro_batches=4,
    noise=0.03, slow_clock=37, crossing=False,
)  # fmt: skip
KERNELS = 500  # of a rank in one repetition, about
_CAPTURE = "made"
_APART_NS = 20_000
# Of every rank once, of every step once, of every repetition.
_ONCE = frozenset({"ranks", "groups", "expert_placement"})
_OF_STEPS = frozenset({"expert_load", "comm_tasks", "memory", "operator_memory"})
_TABLES = (
    *sorted(_ONCE), *sorted(_OF_STEPS), "steps", "kernels", "comm_ops", "launches", "counters",
)  # fmt: skip
# A rank is recorded to the end of its last repetition.
_RECORDED = "window_end_ns + {more_ns}"
# What tells one row from another of its repetition.
_NUMBERED = {
    "op_id": "op_id + 100000 * n",
    "task_id": "task_id + 100000 * n",
    "connection_id": "cast(cast(connection_id as bigint) + 100000 * n as varchar)",
}
_INSTANTS = ("start_ns", "end_ns", "timestamp_ns", "_at_ns")


@dataclass(frozen=True, slots=True)
class Repeated:
    """How often a job's step stands in a store, and how long it takes."""

    repeats: int
    period_ns: int


def store_it(repeats: int, *, job: Job = JOB) -> Path:
    """The store of 64 ranks x 10 steps x (500 x `repeats`) kernels; kept for the next time."""

    def write(path: Path) -> None:
        in_two_processes(partial(_publish_half, job, path, repeats), range(2))
        write_index(rank_folder(path, job.name, _CAPTURE, 0).parent)
        compare_capture(path, job.name, _CAPTURE)

    name = "job" if job is JOB else job.name
    recipe = [asdict(job), _NUMBERED, _RECORDED]
    return store_once(f"{name}_{job.world_size}x{STEPS}x{repeats}", write, recipe)


def _publish_half(job: Job, path: Path, repeats: int, half: int) -> None:
    """Every second rank, from `half` on."""
    frames = canonical_frames(job, tables=_TABLES, capture=_CAPTURE)
    timed = [frames[name] for name in ("kernels", "comm_ops")]
    first = min(min(one["start_ns"].to_list()) for one in timed)
    last = max(max((one["start_ns"] + one["dur_ns"]).to_list()) for one in timed)
    how = Repeated(repeats, last - first + _APART_NS)
    for rank in range(half, job.world_size, 2):
        mine = {
            name: rows.filter(pl.col("rank") == rank).drop("run", "capture", "rank", "pmu",
                                                           strict=False)
            for name, rows in frames.items()
        }  # fmt: skip
        publish_rank(path, (job.name, _CAPTURE, rank), partial(_fill, tables=mine, how=how))


def _fill(
    con: duckdb.DuckDBPyConnection, tables: Mapping[str, pl.DataFrame], how: Repeated
) -> None:
    """One rank's tables, repeated."""
    for name, rows in tables.items():
        if not rows.is_empty():
            _insert(con, name, rows, how)


def _insert(con: duckdb.DuckDBPyConnection, table: str, rows: pl.DataFrame, how: Repeated) -> None:
    con.register("_rows", rows.to_arrow())
    if table in _ONCE:
        told = "*"
        if table == "ranks":
            more_ns = (STEPS * how.repeats - 1) * how.period_ns
            told = f"* replace ({_RECORDED.format(more_ns=more_ns)} as window_end_ns)"
        con.execute(f'insert into "{table}" by name select {told} from _rows')
    elif table == "steps":
        con.execute(f"insert into steps by name {_steps(rows, how)}")
    else:
        every = how.repeats if table in _OF_STEPS else 1
        moved = [one for name in rows.columns if (one := _move(table, name, how))]
        con.execute(
            f'insert into "{table}" by name select _rows.* replace ({", ".join(moved)})'
            f" from range(0, {STEPS * how.repeats}, {every}) as t(n) cross join _rows"
        )
    con.unregister("_rows")


def _move(table: str, name: str, how: Repeated) -> str:
    """What a column is in the n-th repetition; nothing where it is the same."""
    known = _NUMBERED.get(name)
    if (table, name) in (("comm_ops", "name"), ("comm_tasks", "op_name")):
        known = f"regexp_replace({name}, '_([0-9]+)_1$', '_' || n || '0000\\1_1')"
    elif name == "step":
        known = f"step + n // {how.repeats}"
    elif name.endswith(_INSTANTS):
        known = f"{name} + n * {how.period_ns}"
    return f"{known} as {name}" if known else ""


def _steps(rows: pl.DataFrame, how: Repeated) -> str:
    """A row per step: from the start of its first repetition to the end of its last."""
    moved = ", ".join(
        f"{name} + (n * {how.repeats} + {how.repeats - 1 if 'end' in name else 0})"
        f" * {how.period_ns} as {name}"
        for name in rows.columns
        if name.endswith("_ns")
    )
    return (
        f"select _rows.* replace (step + n as step, {moved})"
        f" from range({STEPS}) as t(n) cross join _rows"
    )
