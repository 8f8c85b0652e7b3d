"""What the rules look at: a capture's steps and their parts, kernels and memory.

All of it comes from summaries, so that no event is read again, but for grouped matmuls where they
alone tell the load of experts.
"""

from __future__ import annotations

from dataclasses import dataclass

import duckdb
import polars as pl

from ..experts.load.load_overview import Overview, overview
from ..means import mean_kernels, without_warm_up
from ..memory.memory import MemoryFacts, memory_facts
from ..parts import is_told, step_parts
from ..scope import RANK, Scope
from ..views import frame


@dataclass(frozen=True, slots=True)
class Material:
    """One capture, or the ranks and steps chosen from it.

    steps: rows of the metric `steps` without warm-up, with `length_ns` (computing, exposed
    communication and free time together), the rank's `pp_rank` and its pipeline `stage`, which
    groups tell, too. kernels: rows of the metric `mean_kernels` by type, of a rank's mean step.
    outside: ranks with events outside of every step. parts: rows of the metric `step_parts`
    without warm-up. uncaptured: kind, ranks (members of such groups that were not captured).
    is_gpu: no NPU is among the ranks. experts:
    their load over all ranks, None where it is not known or single ranks were chosen.
    """

    run: str
    capture: str
    steps: pl.DataFrame
    kernels: pl.DataFrame
    outside: frozenset[int]
    memory: MemoryFacts
    parts: pl.DataFrame
    uncaptured: pl.DataFrame
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
    left join ranks as r on r.run = s.run and r.capture = s.capture and r.rank = s.rank
    left join job_steps as j
        on j.run = s.run and j.capture = s.capture and j.step is not distinct from s.step
    qualify not coalesce(is_warm_up, false) or bool_and(is_warm_up) over ()
    order by s.rank, s.step nulls last"""
# Members of groups that are not among the ranks.
_UNCAPTURED = """
    select kind, list(distinct member order by member) as ranks
    from (
        select kind, unnest(global_ranks) as member
        from capture_groups where run = ? and capture = ?
    )
    where member not in (select rank from ranks where run = ? and capture = ?)
    group by kind order by kind"""
_PLACES = """
    select member as rank, cast(min(place) as integer) as place
    from (
        select unnest(list_sort(global_ranks)) as member,
            unnest(range(len(global_ranks))) as place
        from capture_groups
        where run = ? and capture = ? and kind = 'pp' and len(global_ranks) > 1
    )
    group by member having min(place) = max(place)"""


def material(
    con: duckdb.DuckDBPyConnection,
    scope: Scope,
    *,
    experts: Overview | None = None,
) -> Material:
    """Gather what is known of one capture; `experts` where it is known already."""
    run, capture = scope.run or "", scope.capture or ""
    clause, values = scope.where()
    steps = frame(con, _STEPS.format(where=clause), values)
    if experts is None and scope.rank is None:
        experts = overview(con, run=run, capture=capture, step=scope.step)
    outside, ranks = scope.where(RANK)
    beyond = frame(con, f"select rank from outside_steps {outside}", ranks).rows()
    return Material(
        run=run,
        capture=capture,
        steps=_staged(con, steps, run, capture),
        kernels=mean_kernels(con, scope, by="type"),
        outside=frozenset(number for (number,) in beyond),
        parts=without_warm_up(con, step_parts(con, scope)),
        uncaptured=_uncaptured(con, run, capture),
        memory=memory_facts(con, scope),
        is_gpu=con.execute(_FRAMEWORKS.format(where=outside), ranks).fetchall() == [("kineto",)],
        experts=experts,
    )


def _uncaptured(con: duckdb.DuckDBPyConnection, run: str, capture: str) -> pl.DataFrame:
    if not is_told(con):
        return pl.DataFrame(schema={"kind": pl.String, "ranks": pl.List(pl.Int32)})
    return frame(con, _UNCAPTURED, [run, capture, run, capture])


def _staged(
    con: duckdb.DuckDBPyConnection, steps: pl.DataFrame, run: str, capture: str
) -> pl.DataFrame:
    """The steps with the rank's stage: its own coordinate, else its place in a pipeline's group."""
    if not is_told(con):
        return steps.with_columns(pl.col("pp_rank").alias("stage"))
    places = frame(con, _PLACES, [run, capture])
    return steps.join(places, on="rank", how="left").with_columns(
        pl.coalesce("pp_rank", "place").alias("stage")
    )
