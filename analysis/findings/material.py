"""What the rules look at: a capture's steps and their parts, kernels and memory.

All of it comes from summaries, so that no event is read again, but for grouped matmuls where they
alone tell the load of experts.
"""

from __future__ import annotations

from dataclasses import dataclass

import duckdb
import polars as pl

from ..experts.cost.load_overview import Overview
from ..experts.cost.overview import overview
from ..flops.kernels.count import counted_kernels
from ..host.blocking import blocking_calls
from ..host.free_time import mean_free_time
from ..means import mean_kernels, without_warm_up
from ..memory.memory import MemoryFacts, memory_facts
from ..operators.causes import causes_of
from ..parts import is_told, step_parts
from ..ranks.answers import slow_pairs
from ..ranks.stages import rank_stages, ranks_apart
from ..ranks.stragglers.blame import by_rank, rank_blame
from ..ranks.stragglers.straggler_tests import pair_rates, slow_ends
from ..scope import RANK, Scope
from ..views import frame, select


@dataclass(frozen=True, slots=True)
class Material:
    """One capture, or the ranks and steps chosen from it.

    steps: rows of the metric `steps` without warm-up, with `length_ns` (computing, exposed
    communication and free time together), the rank's `pp_rank` and its pipeline `stage`, which
    groups tell, too, and whether it `is_apart`, of another program than the others. kernels: rows
    of the metric `mean_kernels` by type, of a rank's mean step. outside: ranks with events outside
    of every step. parts: rows of the metric `step_parts` without warm-up. gaps: kind, ranks
    (members of such groups that were not captured).
    suspects: rows of `rank_suspects` with a verdict, without warm-up, and hosts: host, ranks,
    launch_interval_ns and launch_peers_ns (other hosts) of those whose ranks launch late; pairs:
    rows of `slow_ends`, with what they lose of a mean step (excess_per_step_ns), and whether the
    rank whose end is slow has links of that type only (is_only_link). All three are empty where
    single ranks were chosen. free: rows of
    `mean_free_time` by cause, calls: those of `blocking_calls`, far: rows of `host_placement` of
    ranks that launch more slowly on far cores. matmuls: type, total_ns (of a mean rank and step)
    and flops_per_s of kernels that multiply matrices, the highest rate first. causes, cause_rows:
    rows of `operator_causes` and `operator_cause_rows`. is_gpu: no NPU is among the ranks. experts:
    their load over all ranks, None where it is not known or single ranks were chosen.
    """

    run: str
    capture: str
    steps: pl.DataFrame
    kernels: pl.DataFrame
    outside: frozenset[int]
    memory: MemoryFacts
    parts: pl.DataFrame
    gaps: pl.DataFrame
    suspects: pl.DataFrame
    hosts: pl.DataFrame
    pairs: pl.DataFrame
    free: pl.DataFrame
    calls: pl.DataFrame
    far: pl.DataFrame
    matmuls: pl.DataFrame
    causes: pl.DataFrame
    cause_rows: pl.DataFrame
    is_gpu: bool = False
    experts: Overview | None = None

    @property
    def length_ns(self) -> float | None:
        """Mean length of a step on a rank."""
        lengths = self.steps["length_ns"].drop_nulls()
        return float(lengths.sum()) / len(lengths) if len(lengths) else None


_PAIR = ("link", "low_rank", "high_rank")
_PAIRS: dict[str, pl.DataType | type[pl.DataType]] = {
    "link": pl.String, "low_rank": pl.Int32, "high_rank": pl.Int32,
    "bandwidth_bytes_per_s": pl.Float64, "usual_bytes_per_s": pl.Float64,
    "slow_ratio": pl.Float64, "excess_per_step_ns": pl.Float64, "size_bytes": pl.Int64,
    "end_rank": pl.Int32, "pair_count": pl.Int64, "is_only_link": pl.Boolean,
}  # fmt: skip
_FRAMEWORKS = "select distinct framework from ranks {where}"
_STEPS = """
    select s.*, r.pp_rank,
        s.computing_ns + s.exposed_communication_ns + s.free_ns as length_ns
    from (select * from step_summary {where}) as s
    left join ranks as r on r.run = s.run and r.capture = s.capture and r.rank = s.rank
    left join job_steps as j
        on j.run = s.run and j.capture = s.capture and j.step is not distinct from s.step
    qualify (not coalesce(is_warm_up, false) or bool_and(is_warm_up) over ())
        and (s.step is not null or not bool_or(s.step is not null) over ())
    order by s.rank, s.step nulls last"""
# Members of groups that are not among the ranks.
_GAPS = """
    select kind, list(distinct member order by member) as ranks
    from (
        select kind, unnest(global_ranks) as member
        from capture_groups where run = ? and capture = ?
    )
    where member not in (select rank from ranks where run = ? and capture = ?)
    group by kind order by kind"""

_PACES = """
    select r.rank, any_value(host_name) as host, median(launch_interval_ns) as launch_interval_ns
    from rank_work as w join ranks as r using (run, capture, rank)
    where run = ? and capture = ? and host_name is not null and launch_interval_ns > 0
    group by r.rank"""
_HOST: dict[str, pl.DataType | type[pl.DataType]] = {
    "host": pl.String, "ranks": pl.List(pl.Int32), "launch_interval_ns": pl.Float64,
    "launch_peers_ns": pl.Float64,
}  # fmt: skip


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
    suspects = _suspects(con, scope)
    causes, cause_rows = causes_of(con, scope)
    beyond = frame(con, f"select rank from outside_steps {outside}", ranks).rows()
    return Material(
        run=run,
        capture=capture,
        steps=_with_stages(con, steps, run, capture),
        kernels=mean_kernels(con, scope, by="type"),
        outside=frozenset(number for (number,) in beyond),
        parts=without_warm_up(con, step_parts(con, scope)),
        gaps=_uncaptured_ranks(con, run, capture),
        suspects=suspects,
        hosts=_hosts(con, run, capture, suspects),
        pairs=_pairs(con, scope, steps),
        free=mean_free_time(con, scope, by="cause"),
        calls=blocking_calls(con, scope),
        far=select(con, "host_placement", scope, of=RANK).filter(pl.col("slow_low_ratio") > 1),
        matmuls=_matmuls(con, scope),
        causes=causes,
        cause_rows=cause_rows,
        memory=memory_facts(con, scope),
        is_gpu=con.execute(_FRAMEWORKS.format(where=outside), ranks).fetchall() == [("kineto",)],
        experts=experts,
    )


def _uncaptured_ranks(con: duckdb.DuckDBPyConnection, run: str, capture: str) -> pl.DataFrame:
    if not is_told(con):
        return pl.DataFrame(schema={"kind": pl.String, "ranks": pl.List(pl.Int32)})
    return frame(con, _GAPS, [run, capture, run, capture])


def _suspects(con: duckdb.DuckDBPyConnection, scope: Scope) -> pl.DataFrame:
    if scope.rank is not None or not is_told(con):
        return pl.DataFrame(
            schema={"rank": pl.Int32, "verdict": pl.String, "step_count": pl.Int64,
                    "caused_wait_per_step_ns": pl.Float64}
        )  # fmt: skip
    # Over the steps that a mean is over, as the other figures of a finding.
    suspects = by_rank(without_warm_up(con, rank_blame(con, scope))).drop_nulls("verdict")
    return suspects.select("rank", "verdict", "step_count", "caused_wait_per_step_ns")


def _hosts(
    con: duckdb.DuckDBPyConnection, run: str, capture: str, suspects: pl.DataFrame
) -> pl.DataFrame:
    late = suspects.filter(verdict="host")
    if late.is_empty():
        return pl.DataFrame(schema=_HOST)
    paces = frame(con, _PACES, [run, capture]).with_columns(
        is_late=pl.col("rank").is_in(late["rank"].implode())
    )
    usual = paces.filter(~pl.col("host").is_in(paces.filter("is_late")["host"].implode()))
    mine = paces.filter("is_late").group_by("host").agg(
        pl.col("rank").sort().alias("ranks"), pl.col("launch_interval_ns").median()
    )  # fmt: skip
    peers = pl.lit(usual["launch_interval_ns"].median(), pl.Float64)
    return (
        mine.with_columns(launch_peers_ns=peers)
        .filter(pl.col("launch_interval_ns") > pl.col("launch_peers_ns"))
        .sort("launch_interval_ns", "host", descending=[True, False])
    )


def _pairs(con: duckdb.DuckDBPyConnection, scope: Scope, steps: pl.DataFrame) -> pl.DataFrame:
    if scope.rank is not None or not is_told(con):
        return pl.DataFrame(schema=_PAIRS)
    slow = slow_ends(slow_pairs(con, scope))
    if slow.is_empty():
        return pl.DataFrame(schema=_PAIRS)
    # A verdict is of all steps of a capture, and so is the excess beside it.
    transfers = without_warm_up(con, select(con, "link_transfers", scope))
    lost = pair_rates(transfers).select(
        *_PAIR, excess_per_step_ns=pl.col("excess_ns") / max(steps["step"].n_unique(), 1)
    )
    # What changes all links of a rank changes those of another type, too, where it has any.
    ends = pl.concat(transfers.select("link", rank=end) for end in ("src_rank", "dst_rank"))
    alone = ends.group_by("rank").agg(pl.col("link").n_unique() == 1)
    alone = alone.select(end_rank="rank", is_only_link="link")
    return (
        slow.join(lost, on=_PAIR, how="left", maintain_order="left")
        .join(alone, on="end_rank", how="left", maintain_order="left")
        .select(*_PAIRS)
    )


def _matmuls(con: duckdb.DuckDBPyConnection, scope: Scope) -> pl.DataFrame:
    products = without_warm_up(con, counted_kernels(con, scope)).filter(
        (pl.col("family") == "matmul") & (pl.col("full_flops") > 0) & (pl.col("total_ns") > 0)
    )
    over = max(products.select("rank", "step").n_unique(), 1)
    flops = (pl.col("full_flops").cast(pl.Float64) * pl.col("count")).sum()
    return (
        products.group_by("type")
        .agg(
            (pl.col("total_ns").sum() / over).alias("total_ns"),
            (flops * 1e9 / pl.col("total_ns").sum()).alias("flops_per_s"),
        )
        .sort("flops_per_s", "type", descending=[True, False])
    )


def _with_stages(
    con: duckdb.DuckDBPyConnection, steps: pl.DataFrame, run: str, capture: str
) -> pl.DataFrame:
    """The steps with the rank's stage: its own coordinate, else its place in a pipeline's group."""
    steps = steps.with_columns(is_apart=pl.col("rank").is_in(ranks_apart(con, run, capture)))
    if not is_told(con):
        return steps.with_columns(pl.col("pp_rank").alias("stage"))
    stages_of = rank_stages(con, run, capture)
    stages = pl.DataFrame(
        {"rank": [*stages_of], "stage": [*stages_of.values()]},
        schema={"rank": pl.Int32, "stage": pl.Int32},
    )
    return steps.join(stages, on="rank", how="left")
