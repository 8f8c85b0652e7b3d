"""Answers of the metrics as frames: filtered, in a stable order of rows and columns.

Every function takes a connection with a table or view per canonical table, as `store.open` returns
it. Summaries that the store keeps are read; those it lacks are computed from the events.
"""

from __future__ import annotations

import math
from typing import Literal, cast, get_args

import duckdb
import polars as pl

from npuscope.errors import UsageError

from .communication.communication import CommKey, comm, comm_key, compute_stretch
from .doctor.limits import limits
from .memory.memory import (
    MemoryFacts,
    MemoryKey,
    memory,
    memory_blocks,
    memory_by,
    memory_curve,
    memory_facts,
    memory_growth,
    memory_holders,
    memory_key,
    memory_notes,
    memory_spread,
    memory_steps,
    no_such_rank,
)
from .notes import no_kernels, notes
from .views import first_of_each, frame, open_views
from .views import where as _where
from .wording import numbers

__all__ = [
    "CommKey", "MemoryFacts", "MemoryKey", "capture_facts", "comm", "comm_key",
    "compute_stretch", "kernel_key", "kernels", "limits",
    "memory", "memory_blocks", "memory_by", "memory_curve", "memory_facts", "memory_growth",
    "memory_holders", "memory_key", "memory_notes", "memory_spread", "memory_steps", "no_kernels",
    "no_such_rank", "notes", "nothing_matches", "numbers", "open_views", "outside_steps", "rows",
    "spread", "steps",
]  # fmt: skip

KernelKey = Literal["type", "name", "core", "shape"]
_STEPS = """
select s.*, coalesce(is_warm_up, false) as is_warm_up
from (select * from step_summary {where}) as s
left join (select * from job_steps {of_job}) as j
    on j.run = s.run and j.capture = s.capture and j.step is not distinct from s.step
order by s.run, s.capture, s.rank, s.step nulls last"""
Value = str | int | None


def kernel_key(text: str) -> KernelKey:
    """`text` as a key of `kernels`. Raises UsageError."""
    for key in get_args(KernelKey):
        if text == key:
            return cast(KernelKey, key)
    raise UsageError(f"kernels by {text!r}: choose one of {', '.join(get_args(KernelKey))}")


def nothing_matches(
    con: duckdb.DuckDBPyConnection,
    *,
    run: str | None = None,
    capture: str | None = None,
    rank: int | None = None,
    step: int | None = None,
) -> str:
    """Why a choice has no steps: names what there is instead."""
    facts = capture_facts(con)
    everything = steps(con)
    if everything.is_empty():
        return "no rank here has a step with figures: see `npuscope sql PATH 'from ranks'`"
    asked: dict[str, Value] = {"run": run, "capture": capture, "rank": rank, "step": step}
    for name, value in asked.items():
        present = everything[name].drop_nulls().unique().sort().to_list()
        if value is not None and value not in present:
            there = numbers(present) if name in ("rank", "step") else ", ".join(present)
            return f"no {name} {value} here: there is {there or 'none'}"
    named = ", ".join(f"{name} {value}" for name, value in asked.items() if value is not None)
    return f"no data matches {named}: {facts.height} captures, see `npuscope steps`"


def steps(
    con: duckdb.DuckDBPyConnection,
    *,
    run: str | None = None,
    capture: str | None = None,
    rank: int | None = None,
    step: int | None = None,
) -> pl.DataFrame:
    """Breakdown of each step on each rank: columns of the metric `steps`, and `is_warm_up` of
    `job_steps`."""
    where, values = _where({"run": run, "capture": capture, "rank": rank, "step": step})
    of_job, more = _where({"run": run, "capture": capture})
    return frame(con, _STEPS.format(where=where, of_job=of_job), [*values, *more])


def kernels(
    con: duckdb.DuckDBPyConnection,
    *,
    by: KernelKey = "type",
    run: str | None = None,
    capture: str | None = None,
    rank: int | None = None,
    step: int | None = None,
    top: int | None = None,
) -> pl.DataFrame:
    """Compute kernels by `by`, longest total first; `top` keeps that many per rank and step.

    Columns of the metric `kernels`, but the key is called `by`; `core` stands once when it is the
    key. Raises UsageError for another key.
    """
    if by not in get_args(KernelKey):
        raise UsageError(f"kernels by {by!r}: choose one of {', '.join(get_args(KernelKey))}")
    where, values = _where(
        {"by_key": by, "run": run, "capture": capture, "rank": rank, "step": step}
    )
    order = "run, capture, rank, step nulls last, total_ns desc, key nulls last"
    best, kept = first_of_each("run, capture, rank, step", "total_ns desc, key nulls last", top)
    columns = "* exclude (by_key, core)" if by == "core" else "* exclude (by_key)"
    found = frame(
        con,
        f"select {columns} from kernel_summary {where} {best} order by {order}",
        [*values, *kept],
    )
    return found.rename({"key": by})


def outside_steps(
    con: duckdb.DuckDBPyConnection,
    *,
    run: str | None = None,
    capture: str | None = None,
    rank: int | None = None,
) -> pl.DataFrame:
    """What ranks that have steps did outside all of them: columns of the metric `outside_steps`."""
    where, values = _where({"run": run, "capture": capture, "rank": rank})
    order = "order by run, capture, rank"
    return frame(con, f"select * from outside_steps {where} {order}", values)


def spread(
    con: duckdb.DuckDBPyConnection,
    *,
    run: str | None = None,
    capture: str | None = None,
    step: int | None = None,
) -> pl.DataFrame:
    """How far ranks lie apart, a row per step and measure: columns of the metric `spread`."""
    where, values = _where({"run": run, "capture": capture, "step": step})
    order = "order by run, capture, step nulls last, measure"
    return frame(con, f"select * from step_spread {where} {order}", values)


def capture_facts(
    con: duckdb.DuckDBPyConnection, *, run: str | None = None, capture: str | None = None
) -> pl.DataFrame:
    """What each capture holds, a row per capture: columns of the metric `capture_facts`."""
    where, values = _where({"run": run, "capture": capture})
    return frame(con, f"select * from capture_facts {where} order by run, capture", values)


def rows(frame: pl.DataFrame) -> list[dict[str, object]]:
    """Rows as JSON can hold them: NaN and infinities become None, column order stays."""
    return [{name: _plain(value) for name, value in row.items()} for row in frame.to_dicts()]


def _plain(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value
