"""Answers of the metrics as frames: filtered, in a stable order of rows and columns.

Every function takes a connection with a table or view per canonical table, as `store.open` returns
it. Summaries that the store keeps are read; those it lacks are computed from the events.
"""

from __future__ import annotations

from typing import get_args

import duckdb
import polars as pl

from npuscope.errors import UsageError

from .communication.communication import CommKey, comm, compute_stretch
from .doctor.limits import limits
from .means import KernelKey
from .memo import memoize
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
    memory_notes,
    memory_spread,
    memory_steps,
    no_such_rank,
)
from .metric import sql_text
from .notes import no_kernels, notes, only_time_of_communication
from .scope import ALL, JOB, Scope
from .views import frame, open_views, select
from .wording import numbers

__all__ = [
    "CommKey",
    "KernelKey",
    "MemoryFacts",
    "MemoryKey",
    "capture_facts",
    "comm",
    "compute_stretch",
    "core_use",
    "kernels",
    "limits",
    "memory",
    "memory_blocks",
    "memory_by",
    "memory_curve",
    "memory_facts",
    "memory_growth",
    "memory_holders",
    "memory_notes",
    "memory_spread",
    "memory_steps",
    "no_kernels",
    "no_such_rank",
    "notes",
    "nothing_matches",
    "numbers",
    "only_time_of_communication",
    "open_views",
    "rows",
    "spread",
    "steps",
]  # fmt: skip

_STEPS = """
select s.*, coalesce(is_warm_up, false) as is_warm_up
from (select * from step_summary {where}) as s
left join (select * from job_steps {of_job}) as j
    on j.run = s.run and j.capture = s.capture and j.step is not distinct from s.step
order by s.run, s.capture, s.rank, s.step nulls last"""


def nothing_matches(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> str:
    """Why a choice has no steps: names what there is instead."""
    everything = steps(con)
    if everything.is_empty():
        return "no rank here has a step with figures: `npuscope doctor PATH` tells why"
    for name, value in scope.values().items():
        present = everything[name].drop_nulls().unique().sort().to_list()
        if value not in present:
            there = numbers(present) if name in ("rank", "step") else ", ".join(present)
            return f"no {name} {value} here: there is {there or 'none'}"
    captures = capture_facts(con).height
    return f"no data matches {scope}: {captures} captures, see `npuscope steps`"


@memoize
def steps(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> pl.DataFrame:
    """Breakdown of each step on each rank: columns of the metric `steps`, and `is_warm_up` of
    `job_steps`."""
    where, values = scope.where()
    of_job, more = scope.where(JOB)
    return frame(con, _STEPS.format(where=where, of_job=of_job), [*values, *more])


def kernels(
    con: duckdb.DuckDBPyConnection,
    scope: Scope = ALL,
    *,
    by: KernelKey = "type",
    top: int | None = None,
) -> pl.DataFrame:
    """Compute kernels by `by`, longest total first; `top` keeps that many per rank and step.

    Columns of the metric `kernels`, but the key is called `by`; `core` stands once when it is the
    key. Raises UsageError for another key.
    """
    if by not in get_args(KernelKey):
        raise UsageError(f"kernels by {by!r}: choose one of {', '.join(get_args(KernelKey))}")
    columns = "* exclude (by_key, core)" if by == "core" else "* exclude (by_key)"
    rows = select(
        con, "kernel_summary", scope, "total_ns desc, key nulls last",
        top=top, columns=columns, by_key=by,
    )  # fmt: skip
    return rows.rename({"key": by})


def spread(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> pl.DataFrame:
    """How far ranks lie apart, a row per step and measure: columns of the metric `spread`."""
    return select(con, "step_spread", scope, "measure", of=("run", "capture", "step"))


def capture_facts(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> pl.DataFrame:
    """What each capture holds, a row per capture: columns of the metric `capture_facts`."""
    return select(con, "capture_facts", scope, of=JOB)


def rows(frame: pl.DataFrame) -> list[dict[str, object]]:
    """Rows as JSON can hold them: NaN and infinities become None, column order stays."""
    finite = [
        pl.when(pl.col(name).is_finite()).then(pl.col(name))
        for name, kind in frame.schema.items()
        if kind.is_float()
    ]
    return frame.with_columns(finite).to_dicts()


def core_use(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> pl.DataFrame:
    """Rows by type, the longest first: columns as at the head of core_use.sql.

    It reads the events: choose one rank of a large job.
    """
    clause, values = scope.where()
    query = sql_text("core_use.sql").partition("\nwith\n")[2]
    return frame(con, f"with _chosen as (select * from kernels {clause}),\n{query}", values)
