"""One side of a comparison: the times of its job steps, and what a mean rank's step consists of.

job_steps --> time of each step of the job
steps, mfu, memory, experts --> measures of each of these steps
step_parts, kernels of the same ranks and steps --> parts of a mean rank and step
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import duckdb
import polars as pl

from npuscope.errors import UsageError
from npuscope.messages import Message

from ..experts.load.mean_layers import mean_layers
from ..flops.job_mfu import gather_figures
from ..flops.log_figures import trainer_log
from ..flops.mfu import mfu
from ..means import job_steps, without_warm_up
from ..memory.memory import main_components, memory, memory_steps
from ..parts import COMMUNICATION, step_parts
from ..scope import JOB, PLACE, RANK, Scope
from ..views import frame

# What else of each step of the job is compared: over its ranks.
_OF_RANKS = {
    "computing_ns": pl.col("computing_ns").mean(),
    "exposed_communication_ns": pl.col("exposed_communication_ns").mean(),
    "free_ns": pl.col("free_ns").mean(),
    # A step without communication has nothing to mask: unknown, not 0/0.
    "masking_ratio": pl.when(pl.col("communication_ns").sum() > 0).then(
        pl.col("overlapped_ns").sum() / pl.col("communication_ns").sum()
    ),
}
# Likewise: FLOPs of kernels over the peak, the fullest rank's memory, and the fullest expert over
# the mean (of layers).
MEASURES = (*_OF_RANKS, "kernel_mfu_causal_ratio", "peak_memory_bytes", "expert_max_over_mean")
# Time of the job's ranks together for each token, where tokens are known.
PER_TOKEN = "rank_ns_per_token"
# Of each step: whether it was measured to its own end, and how long that took.
ENDS = ("to_end_ns", "is_last")
_STEP = ("run", "capture", "step")
# What a capture knows of itself; of settings a JSON object, each of which is a fact of its own.
SETTINGS = ("environment", "model_config")
_OF_RANKS_TABLE = (
    "framework", "framework_version", "cann_version", "chip_name", "profiler_level", "aic_metrics",
    "world_size", "tp_size", "pp_size", "dp_size", "cp_size", "ep_size", *SETTINGS,
)  # fmt: skip
MEMORY_CURVE = "memory_curve"
FACTS = (*_OF_RANKS_TABLE, MEMORY_CURVE)
# From the end of a rank's step to its next one, where that was recorded too.
_PAUSES = """
select * exclude (next_ns, end_ns), coalesce(greatest(next_ns - end_ns, 0), 0) as ns
from (
    select run, capture, rank, step, end_ns,
        case when lead(step) over _later = step + 1 then lead(start_ns) over _later end as next_ns
    from step_summary
    window _later as (partition by run, capture, rank order by step nulls last)
)"""
_KERNELS = """
select p.run, p.capture, p.place, p.stage, type, name, null::varchar as operator,
    input_shapes as shape, core, cast(sum(count) as bigint) as count,
    cast(sum(total_ns) as bigint) as total_ns
from kernel_kinds as k join compared_pairs as p on p.run = k.run and p.capture = k.capture
    and p.rank = k.rank and p.step is not distinct from k.step
group by all"""
# The same with names, and with what the framework was doing when it launched a kernel: one call
# launches for one operator.
_KERNELS_IN_FULL = """
select p.run, p.capture, p.place, p.stage, k.type, k.name, l.operator_name as operator,
    k.input_shapes as shape, k.core, count(*) as count, cast(sum(dur_ns) as bigint) as total_ns
from kernels as k join compared_pairs as p on p.run = k.run and p.capture = k.capture
    and p.rank = k.rank and p.step is not distinct from k.step
left join (
    select run, capture, rank, connection_id, any_value(operator_name) as operator_name
    from launches where connection_id is not null group by all
) as l on l.run = k.run and l.capture = k.capture and l.rank = k.rank
    and l.connection_id = k.connection_id
where is_compute and dur_ns > 0 and start_ns is not null
group by all"""
_PLACES = """
select run, capture, rank, any_value(pp_rank) as stage, {place} as place from ranks
group by run, capture, rank"""
_PLACE_OF = {"stage": "any_value(pp_rank)", "rank": "rank", None: "cast(null as integer)"}
_HAS_KERNELS = "select run, capture, rank, step, basis = 'events' as has_kernels from step_summary"
# Computing of ranks without kernels, beyond what those that stand for them compute.
OTHER_RANKS = "other_ranks"
# Of the ranks of either side, how many both must have for their mean ranks to do the same work.
_SHARED_RANKS_RATIO = 0.98
KERNEL = ["type", "name", "operator", "shape", "core"]
GPU = "kineto"
Key = Literal["stage", "rank"]


@dataclass(frozen=True)
class Side:
    """What one or several captures tell.

    `steps`: run, capture, step, step_ns and the measures, without warm-up; to_end_ns and is_last as
    in job_steps, where known. `parts`: part, name, ns of a mean rank and step. `kernels`: type,
    name (where there is no type), operator (of the framework; both where asked for in full), shape,
    core, count and total_ns of the same; ranks whose kernels are not there (read lightly, say) have
    those of the others of their stage, and `parts` what they compute beyond (OTHER_RANKS). `facts`:
    what each rank knows of itself, a set of values each. `at`: the same of each stage or rank
    alone, where that was asked for. `tokens`: of a step of the job, where known. `ranks`: those
    that a mean rank is of; none: not known. `between_ns`: what passes between a rank's steps,
    without last ones, which none follows; None: not known.
    """

    steps: pl.DataFrame
    parts: pl.DataFrame
    kernels: pl.DataFrame
    facts: dict[str, frozenset[str]]
    at: dict[int, Side] = field(default_factory=dict)
    tokens: int | None = None
    ranks: frozenset[int] = frozenset()
    between_ns: float | None = None

    @property
    def step_ns(self) -> int:
        """Time of a mean step of the job: of captures alike, each the mean of its steps."""
        return round(float(self.captures.select(pl.col("step_ns").mean()).item() or 0))

    @property
    def ranks_per_token(self) -> float | None:
        """Ranks of the job over tokens of a step: what a mean rank's ns are times per token."""
        sizes = [*self.facts.get("world_size", ())]
        return int(sizes[0]) / self.tokens if len(sizes) == 1 and self.tokens else None

    def with_kernels(self, kernels_of_steps: Mapping[int | None, pl.DataFrame]) -> Side:
        """The same with what `kernels_in_full` tells."""
        at = {
            place: replace(one, kernels=kernels_of_steps[place]) for place, one in self.at.items()
        }
        return replace(self, kernels=kernels_of_steps[None], at=at)

    @cached_property
    def captures(self) -> pl.DataFrame:
        """The mean step of each capture; each measure that is compared asks for it."""
        values = [n for n in ("step_ns", *MEASURES, PER_TOKEN) if n in self.steps.columns]
        return self.steps.group_by("run", "capture", maintain_order=True).agg(pl.col(values).mean())


def measure(
    con: duckdb.DuckDBPyConnection,
    scope: Scope,
    by: Key | None = None,
    *,
    target: str | None = None,
) -> Side:
    """A side from the captures of `scope`. `target` is the store or exported file behind `con`,
    whose training log tells tokens per step.

    Raises UsageError where these are of several runs, or have no step with figures.
    """
    steps = _job_steps(con, scope)
    if steps["run"].n_unique() > 1:
        names = ", ".join(steps["run"].unique().sort())
        raise UsageError(
            Message("several runs here ({names}): give one as PATH@RUN or PATH@RUN/CAPTURE",
                    names=names)
        )  # fmt: skip
    parts, pairs = _parts_to_compare(con, scope, by)
    kernels = _kernels(con, pairs, _KERNELS)
    pauses = frame(con, _PAUSES).join(pairs, on=PLACE, how="semi", nulls_equal=True)
    places = pairs.select(*RANK, "place").unique()
    followed = pairs.join(steps.filter("is_last"), on=_STEP, how="anti", nulls_equal=True)
    parts = pl.concat(
        [
            parts.select(
                *PLACE, "part",
                pl.when(pl.col("part").is_in(COMMUNICATION))
                .then(pl.col("kind").fill_null("unknown")).alias("name"), "ns",
            ),
            pauses.select(
                *PLACE, pl.lit("between_steps").alias("part"),
                pl.lit(None, pl.String).alias("name"), "ns",
            ),
        ]
    ).join(places, on=RANK, how="left")  # fmt: skip

    def side(place: int | None) -> Side:
        means = _mean_parts(parts.filter(_at(place)), pairs.filter(_at(place)))
        passed = pauses.join(followed.filter(_at(place)), on=PLACE, how="semi", nulls_equal=True)
        of_captures = passed.group_by(JOB).agg(pl.col("ns").mean())
        return Side(
            steps, means, kernels[place], facts, ranks=frozenset(pairs["rank"]),
            between_ns=of_captures.select(pl.col("ns").mean()).item(),
        )  # fmt: skip

    facts = _facts(con, scope)
    log = trainer_log(con, Path(target), None, scope) if target is not None else None
    return replace(
        side(None),
        at={at: side(at) for at in kernels if at is not None},
        tokens=log.facts.tokens_per_step if log else None,
    )


def kernels_in_full(
    con: duckdb.DuckDBPyConnection, scope: Scope, by: Key | None = None
) -> dict[int | None, pl.DataFrame]:
    """Kernels as `measure` has them, from a look at each of them and at every launch: with names of
    those that have types, and the framework's operators. Of the mean rank (None), and of each stage
    or rank."""
    return _kernels(con, _parts_to_compare(con, scope, by)[1], _KERNELS_IN_FULL)


def _parts_to_compare(
    con: duckdb.DuckDBPyConnection, scope: Scope, by: Key | None
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Parts of the compared ranks and steps, and these: run, capture, rank, step, place."""
    parts = without_warm_up(con, step_parts(con, scope))
    parts = parts.filter(pl.col("ns").null_count().over(PLACE) == 0)
    places = frame(con, _PLACES.format(place=_PLACE_OF[by]))
    pairs = parts.select(PLACE).unique().join(places, on=RANK, how="left")
    return parts, pairs.join(frame(con, _HAS_KERNELS), on=PLACE, how="left", nulls_equal=True)


def _kernels(
    con: duckdb.DuckDBPyConnection, pairs: pl.DataFrame, query: str
) -> dict[int | None, pl.DataFrame]:
    con.register("compared_pairs", pairs.to_arrow())
    try:
        kernels = frame(con, query)
    finally:
        con.unregister("compared_pairs")
    places = pairs["place"].unique().drop_nulls().sort()
    values = ["count", "total_ns"]
    means = {}
    for place in (None, *places):
        here = pairs.filter(_at(place))
        weighed = _for_others(kernels.filter(_at(place)), here, values)
        means[place] = _mean(weighed, here, KERNEL, values)
    return means


def _mean_parts(parts: pl.DataFrame, pairs: pl.DataFrame) -> pl.DataFrame:
    """Means of parts; of computing, what ranks without kernels have beyond the others' apart."""
    computing = parts.filter(pl.col("part") == "computing")
    known = computing.join(
        pairs.filter("has_kernels").select(*PLACE, "stage"), on=PLACE, nulls_equal=True
    )
    if known.is_empty():
        return _mean(parts, pairs, ["part", "name"], ["ns"])
    known = _for_others(known, pairs, ["ns"])
    name = pl.lit(OTHER_RANKS).alias("name")
    others = pl.concat(
        [
            computing.select(*JOB, "part", name, pl.col("ns").cast(pl.Float64)),
            known.select(*JOB, "part", name, -pl.col("ns")),
        ]
    )
    rest = parts.filter(pl.col("part") != "computing").select(*JOB, "part", "name", "ns")
    rows = pl.concat([rest, known.select(rest.columns), others], how="vertical_relaxed")
    return _mean(rows, pairs, ["part", "name"], ["ns"])


def _for_others(rows: pl.DataFrame, pairs: pl.DataFrame, values: list[str]) -> pl.DataFrame:
    """Rows of ranks with kernels, each weighed by how many ranks and steps of its stage it stands
    for."""
    by = [*JOB, "stage"]
    weights = pairs.group_by(by).agg(weight=pl.len() / pl.col("has_kernels").sum())
    return rows.join(weights, on=by, nulls_equal=True).with_columns(
        pl.col(values) * pl.col("weight")
    )


def _at(place: int | None) -> pl.Expr:
    """Rows of a stage or rank; None: all."""
    return pl.lit(True) if place is None else pl.col("place") == place


def share_most(ours: frozenset[int], theirs: frozenset[int]) -> bool:
    """Whether a mean rank of either does about the same work."""
    return len(ours & theirs) >= _SHARED_RANKS_RATIO * len(ours | theirs)


def together(sides: list[Side]) -> Side:
    """Captures alike as one side: each capture counts as much as another. Raises UsageError where
    one is there twice: between it and itself nothing varies, so any difference would be real."""
    if len(sides) == 1:
        return sides[0]
    figures = [side.steps.drop("run", "capture") for side in sides]
    if any(one.equals(other) for place, one in enumerate(figures) for other in figures[:place]):
        raise UsageError(
            "one side has the same capture twice, to the ns: give others of the same job"
        )
    counts = [side.captures.height for side in sides]

    def mean(frames: list[pl.DataFrame], by: list[str], values: list[str]) -> pl.DataFrame:
        weighed = [
            frame.with_columns(pl.col(values) * (count / sum(counts)))
            for frame, count in zip(frames, counts, strict=True)
        ]
        return pl.concat(weighed).group_by(by).agg(pl.col(values).sum()).sort(by, nulls_last=True)

    # Of two folders, runs and captures may be called alike.
    steps = [
        side.steps.with_columns(run=pl.lit(f"{place} ") + pl.col("run"))
        for place, side in enumerate(sides)
    ]
    places = set(sides[0].at).intersection(*(side.at for side in sides))
    tokens = {side.tokens for side in sides}
    is_last = pl.col("is_last").fill_null(False)
    between = [
        (side.between_ns, side.steps.filter(~is_last)["capture"].n_unique())
        for side in sides
        if side.between_ns is not None
    ]
    return Side(
        pl.concat(steps),
        mean([side.parts for side in sides], ["part", "name"], ["ns"]),
        mean([side.kernels for side in sides], KERNEL, ["count", "total_ns"]),
        {name: frozenset().union(*(side.facts[name] for side in sides)) for name in sides[0].facts},
        {at: together([side.at[at] for side in sides]) for at in sorted(places)},
        tokens.pop() if len(tokens) == 1 else None,
        frozenset().union(*(side.ranks for side in sides)),
        sum(ns * n for ns, n in between) / sum(n for _, n in between) if between else None,
    )


def _job_steps(con: duckdb.DuckDBPyConnection, scope: Scope) -> pl.DataFrame:
    times = without_warm_up(con, job_steps(con, scope)).drop_nulls("step_ns")
    if times.is_empty():
        raise UsageError(Message("no step with figures to compare: see `npuscope steps`"))
    clause, values = scope.where()
    ranks = frame(con, f"select * from step_summary {clause}", values)
    measures = ranks.group_by(_STEP).agg(
        # Of a step of which a rank's figure is unknown, so is the job's.
        pl.when(pl.col(_basis(name)).null_count() == 0).then(how).alias(name)
        for name, how in _OF_RANKS.items()
    )
    steps = times.select(*_STEP, "step_ns", *ENDS)
    for more in (
        measures,
        gather_figures(con, mfu(con, scope).rows, "job").select(*_STEP, "kernel_mfu_causal_ratio"),
        _peak_memory(con, scope, ranks.select(PLACE)),
        mean_layers(con, _STEP)[0].group_by(_STEP).agg(
            pl.col("max_over_mean").mean().alias("expert_max_over_mean")
        ),
    ):  # fmt: skip
        steps = steps.join(more, on=_STEP, how="left", nulls_equal=True, maintain_order="left")
    return steps


def _peak_memory(con: duckdb.DuckDBPyConnection, scope: Scope, ranks: pl.DataFrame) -> pl.DataFrame:
    """The fullest rank's peak in each step, by each rank's main curve; unknown where that of a rank
    of the step is. Of captures without steps the peak of the capture."""
    main = main_components(memory(con, scope))
    by = ["run", "capture", "rank", "component", "source", "device_id"]
    inside = memory_steps(con, scope).join(main.select(by), on=by, how="semi", nulls_equal=True)
    whole = main.with_columns(
        step=pl.lit(None, pl.Int64), peak_bytes=pl.coalesce("peak_allocated_bytes", "peak_bytes")
    )
    peaks = pl.concat([rows.select(*PLACE, "peak_bytes") for rows in (inside, whole)])
    peak = pl.col("peak_bytes")
    return (
        ranks.unique()
        .join(peaks, on=PLACE, how="left", nulls_equal=True)
        .group_by(_STEP)
        .agg(peak_memory_bytes=pl.when(peak.null_count() == 0).then(peak.max()).cast(pl.Float64))
    )


def _basis(measure: str) -> str:
    return measure if measure.endswith("_ns") else "overlapped_ns"


def _mean(
    rows: pl.DataFrame, pairs: pl.DataFrame, by: list[str], values: list[str]
) -> pl.DataFrame:
    """Means over the pairs of rank and step of each capture, and of the captures in turn."""
    job = list(JOB)
    count = max(pairs.select(job).n_unique(), 1)
    return (
        rows.group_by(*job, *by)
        .agg(pl.col(values).sum())
        .join(pairs.group_by(job).len(), on=job)
        .group_by(by)
        .agg((pl.col(values) / pl.col("len")).sum() / count)
        .sort(by, nulls_last=True)
    )


def _facts(con: duckdb.DuckDBPyConnection, scope: Scope) -> dict[str, frozenset[str]]:
    clause, values = scope.where()
    ranks = frame(con, f"select {', '.join(_OF_RANKS_TABLE)} from ranks {clause}", values)
    facts = {name: frozenset(map(str, ranks[name].drop_nulls())) for name in _OF_RANKS_TABLE}
    main = main_components(memory(con, scope))
    is_allocated = pl.col("peak_allocated_bytes").is_not_null()
    curve = pl.when(is_allocated).then(pl.lit("allocated")).otherwise("component")
    return {**facts, MEMORY_CURVE: frozenset(main.select(curve.alias("curve"))["curve"])}
