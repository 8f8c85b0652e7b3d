"""What the rules look at: a capture's steps, kernels, communication and memory, summed.

All of it comes from summaries, so that no event is read again, but for grouped matmuls where they
alone tell the load of experts.
"""

from __future__ import annotations

from dataclasses import dataclass

import duckdb
import polars as pl

from ..experts.overview import Overview, overview
from ..memory import MemoryFacts, memory_facts
from ..views import frame, open_views, where


@dataclass(frozen=True, slots=True)
class Material:
    """One capture, or the ranks and steps chosen from it.

    steps: rows of the metric `steps`, with `length_ns` (computing, exposed communication and free
    time together) and the rank's `pp_rank`. kernels: type, core, count, total_ns, over
    `kernel_steps` pairs of rank and step. communication: kind, op_type, op_count, exposed_ns,
    union_ns and exposed_attributed_ns (which adds up to the steps' exposed time), over
    `communication_steps` such pairs. outside: ranks with events outside
    of every step. is_gpu: no NPU is among the ranks. experts: their load over all ranks, None where
    it is not known or single ranks were chosen.
    """

    run: str
    capture: str
    steps: pl.DataFrame
    kernels: pl.DataFrame
    kernel_steps: int
    communication: pl.DataFrame
    communication_steps: int
    outside: frozenset[int]
    memory: MemoryFacts
    is_gpu: bool = False
    experts: Overview | None = None

    @property
    def length_ns(self) -> float | None:
        """Mean length of a step on a rank."""
        known = self.steps["length_ns"].drop_nulls()
        return float(known.sum()) / len(known) if len(known) else None


_FRAMEWORKS = "select distinct framework from ranks {where}"
_STEPS = """
    select s.*, r.pp_rank,
        s.computing_ns + s.exposed_communication_ns + s.free_ns as length_ns
    from (select * from step_summary {where}) as s
    left join ranks as r using (run, capture, rank)
    order by rank, step nulls last"""
# Where there are steps, what is outside of them is no part of any.
_KERNELS = """
    with chosen as (
        select * from kernel_summary {where} {also} by_key = 'type' {in_steps}
    )
    select key as type, core, cast(sum(count) as bigint) as count,
        cast(sum(total_ns) as bigint) as total_ns,
        (select count(distinct (rank, coalesce(step, -1))) from chosen) as over
    from chosen group by all order by total_ns desc, type"""
_COMMUNICATION = """
    with chosen as (
        select * from comm_summary
        {where} {also} by_key = 'op' and exposed_ns is not null {in_steps}
    )
    select kind, op_type, cast(sum(op_count) as bigint) as op_count,
        cast(sum(exposed_ns) as bigint) as exposed_ns, cast(sum(union_ns) as bigint) as union_ns,
        cast(sum(exposed_attributed_ns) as bigint) as exposed_attributed_ns,
        (select count(distinct (rank, coalesce(step, -1))) from chosen) as over
    from chosen group by all order by exposed_attributed_ns desc, kind, op_type"""


def material(
    con: duckdb.DuckDBPyConnection,
    *,
    run: str,
    capture: str,
    rank: int | None = None,
    step: int | None = None,
    experts: Overview | None = None,
) -> Material:
    """Gather what is known of one capture; `experts` where it is known already."""
    open_views(con)
    clause, values = where({"run": run, "capture": capture, "rank": rank, "step": step})
    steps = frame(con, _STEPS.format(where=clause), values)
    parts = {
        "where": clause,
        "also": "and",
        "in_steps": "and step is not null" if steps["step"].null_count() < steps.height else "",
    }
    kernels = frame(con, _KERNELS.format(**parts), values)
    communication = frame(con, _COMMUNICATION.format(**parts), values)
    place = {"run": run, "capture": capture, "rank": rank}
    if experts is None and rank is None:
        experts = overview(con, run=run, capture=capture, step=step)
    outside, ranks = where(place)
    beyond = con.execute(f"select rank from outside_steps {outside}", ranks).fetchall()
    return Material(
        run=run,
        capture=capture,
        steps=steps,
        kernels=kernels.drop("over"),
        kernel_steps=_first(kernels, "over"),
        communication=communication.drop("over"),
        communication_steps=_first(communication, "over"),
        outside=frozenset(number for (number,) in beyond),
        memory=memory_facts(con, run=run, capture=capture, rank=rank),
        is_gpu=con.execute(_FRAMEWORKS.format(where=outside), ranks).fetchall() == [("kineto",)],
        experts=experts,
    )


def _first(rows: pl.DataFrame, column: str) -> int:
    return int(rows[column][0]) if rows.height else 0
