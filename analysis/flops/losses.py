"""The loss waterfall of a store or export: its inputs gathered, its terms put together.

step_summary, step_parts + figures and kernels of `mfu` --> waterfall --> per rank, stage, job

Where the peak goes: from all of it to what is achieved, in terms that add up to the whole.

A step of `step_ns` could do step_ns x peak FLOPs. What its kernels did takes FLOPs / peak of it;
every other ns is lost to one of the terms:

    computing   cube kernels: frequency below nominal, then what is left of their time
                (inefficiency, by type); kernels whose FLOPs are unknown; all others
    transfer    exposed communication that moves bytes, each kind its share
    waits       exposed communication that waits: for captured ranks (peer), for ranks that were not
                captured (absent), for another stage (pipeline); and what is unknown of it
    free        neither kernel nor operation of the step between its first and last work (another
                step's may run): the host had not launched what came next, idle though it had,
                or nothing tells which
    tail        the rest of the step: after the last of that work, before the next step's first

Where kernels of several types overlap, their union is shared out by their durations.
"""

from __future__ import annotations

from typing import Literal

import duckdb
import polars as pl

from npuscope.messages import Message

from ..means import without_warm_up
from ..parts import COMMUNICATION, FREE, step_parts
from ..scope import ALL, PLACE, Scope
from ..views import frame

_STEPS = """
select run, capture, rank, step, computing_ns, exposed_communication_ns, free_ns
from step_summary {where}"""
_STAGES = "select distinct run, capture, rank, pp_rank as stage from ranks"


# metric: mfu_waterfall
# Which loss of MFU is the biggest?
#
# A step could do its length x peak FLOPs. What its kernels did takes FLOPs / peak of it; every
# other ns is lost to one of the terms. The ns of a step add up to its length, the points to 1.
#
# title: Loss waterfall
# meaning: Where the peak goes in each step: from all of it to what is achieved.
# by: run, capture, rank, step
# command: mfu --waterfall
#
#   term        varchar  achieved, recompute, frequency, cube_inefficiency, unresolved_kernels,
#     other_compute, parts of exposed communication and of free time as in step_parts, tail
#     (after the last work, before the next step's first)
#   part        varchar  type of kernels or parallel kind; NULL: none
#   ns          bigint   time lost; of recompute negative where kernels do less than the model
#     needs
#   mfu_points  double   ns over the length of the step
def losses(
    con: duckdb.DuckDBPyConnection, figures: pl.DataFrame, kernels: pl.DataFrame, scope: Scope = ALL
) -> pl.DataFrame:
    """Rows of `waterfall` for the steps of `figures`; `kernels` as it takes them.

    What exposed communication is made of is told where `con` has what all ranks together tell
    (`ranks.rank_views.open_across`).
    """
    clause, values = scope.where()
    return waterfall(
        figures,
        kernels,
        frame(con, _STEPS.format(where=clause), values),
        step_parts(con, scope),
    )


def loss_notes(figures: pl.DataFrame, rows: pl.DataFrame) -> list[str]:
    """What to know beside the waterfall of `figures`, a sentence each."""
    notes: list[str] = []
    missing = figures.join(rows.select(PLACE).unique(), on=PLACE, how="anti", nulls_equal=True)
    if missing.height:
        notes.append(
            Message(
                "waterfall: left out {count} of {every} steps, whose length, peak or device time "
                "is unknown",
                count=missing.height,
                every=figures.height,
            )
        )
    if (rows.filter(pl.col("term") == "tail")["ns"] < 0).any():
        notes.append(
            "waterfall: device work of some steps extends into the next step, so the time after"
            " it is negative there"
        )
    if (rows.filter(pl.col("term") == "recompute")["ns"] < 0).any():
        notes.append(
            "waterfall: kernels with known FLOPs execute less than the model needs: check the"
            " model description and the tokens per step"
        )
    if rows.filter(pl.col("term") == "unknown_communication").height:
        notes.append(
            "waterfall: for some communication, transfer and waiting cannot be separated: its"
            " groups or the times of all their ranks are unknown"
        )
    return notes


def by_term(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of `together` with the parts of each term added up: ns and mfu_points of each place and
    term, in order."""
    place = [name for name in ("run", "capture", "rank", "stage", "term") if name in rows.columns]
    return rows.group_by(place, maintain_order=True).agg(pl.col("ns", "mfu_points").sum())


# metric: waterfall
# Which loss of MFU is the biggest over all steps?
#
# Sums over ranks and steps without warm-up. Rank or stage is there where asked for; ranks whose
# stage is unknown are one stage, NULL. The points of each add up to 1.
#
# title: Loss waterfall of the job
# meaning: The loss waterfall of a mean step of the job, its stages or ranks.
# by: run, capture, rank, stage
# table: waterfall
# gauge: npuscope_loss_ratio{term} = mfu_points: Share of the steps' time that each term of the
#     loss waterfall takes, achieved work included: they add up to 1.
# figure: waterfall
#
#   term        varchar  as in mfu_waterfall
#   part        varchar  type of kernels or parallel kind; NULL: none
#   ns          double   of a mean rank and step
#   mfu_points  double   share of the time
def together(
    con: duckdb.DuckDBPyConnection,
    rows: pl.DataFrame,
    *,
    by: Literal["job", "stage", "rank"] = "job",
) -> pl.DataFrame:
    """Rows of `losses` of each rank, stage or capture (`by`: rank, stage, job), all steps without
    warm-up together.

    """
    rows = without_warm_up(con, rows)
    keys = {"job": [], "rank": ["rank"], "stage": ["stage"]}[by]
    place = ["run", "capture", *keys]
    stages = frame(con, _STAGES)
    stages_of = rows.join(stages, on=["run", "capture", "rank"], how="left")
    steps = stages_of.group_by(place).agg(
        pl.struct("rank", "step").n_unique().alias("step_count"), pl.col("ns").sum().alias("all_ns")
    )
    order = pl.col("term").replace_strict({term: n for n, term in enumerate(TERMS)})
    return (
        stages_of.group_by(*place, "term", "part")
        .agg(pl.col("ns").sum())
        .join(steps, on=place, nulls_equal=True)
        .with_columns(
            pl.col("ns") / pl.col("step_count"),
            (pl.col("ns") / pl.col("all_ns")).alias("mfu_points"),
        )
        .sort(*place, order, -pl.col("ns"), "part", nulls_last=True)
        .select(*place, "term", "part", "ns", "mfu_points")
    )


TERMS = (
    "achieved", "recompute", "frequency", "cube_inefficiency", "unresolved_kernels",
    "other_compute", *COMMUNICATION, *FREE, "tail",
)  # fmt: skip
_ROWS = {
    "run": pl.String, "capture": pl.String, "rank": pl.Int32, "step": pl.Int64, "term": pl.String,
    "part": pl.String, "ns": pl.Int64, "mfu_points": pl.Float64,
}  # fmt: skip


def waterfall(
    figures: pl.DataFrame, kernels: pl.DataFrame, steps: pl.DataFrame, parts: pl.DataFrame
) -> pl.DataFrame:
    """Terms of each rank and step, a row per term and part (kernel type or parallel kind).

    figures: PLACE, step_ns, peak_flops_per_s, frequency_ratio (measured over the peak's own; NULL:
    taken as the same), model_mfu_ratio (NULL: no model is given). kernels: PLACE, type,
    is_cube, total_ns, flops (NULL: unknown). steps: PLACE, computing_ns, free_ns,
    exposed_communication_ns. parts: rows of the metric `step_parts`. Returns PLACE, term, part
    (NULL: none), ns, mfu_points (ns over step_ns); steps without a length, a peak or figures of
    their device have no rows. The ns of a step add up to its length, the points to 1. `achieved` is
    what kernels did, or, with a model, what it needs, and `recompute` the difference, which is
    negative where kernels with known FLOPs do less than the model needs.
    """
    steps_with_both = figures.join(steps, on=PLACE, how="inner", nulls_equal=True).filter(
        pl.col("step_ns") > 0, pl.col("peak_flops_per_s") > 0,
        pl.col("computing_ns").is_not_null(), pl.col("exposed_communication_ns").is_not_null(),
    )  # fmt: skip
    others = (
        parts.filter(pl.col("part").is_in([*COMMUNICATION, *FREE]))
        .join(steps_with_both.select(PLACE), on=PLACE, how="semi", nulls_equal=True)
        .group_by(*PLACE, pl.col("part").alias("term"), pl.col("kind").alias("part"))
        .agg(pl.col("ns").sum())
    )
    terms = _kernel_terms(steps_with_both, kernels)
    computing = pl.concat([part.select(*PLACE, "term", "part", "ns") for part in terms])
    costs = pl.concat([_whole_ns(computing, steps_with_both), others])
    rest = (
        steps_with_both.select(*PLACE, "step_ns")
        .join(costs.group_by(PLACE).agg(pl.col("ns").sum()), on=PLACE, how="left", nulls_equal=True)
        .select(
            *PLACE, pl.lit("tail").alias("term"), _NO_PART,
            pl.col("step_ns") - pl.col("ns").fill_null(0),
        )
    )  # fmt: skip
    rest = rest.rename({"step_ns": "ns"})
    order = pl.col("term").replace_strict({term: n for n, term in enumerate(TERMS)})
    return (
        pl.concat([costs, rest])
        .join(steps_with_both.select(*PLACE, "step_ns"), on=PLACE, nulls_equal=True)
        .with_columns((pl.col("ns") / pl.col("step_ns")).alias("mfu_points"))
        .sort(*PLACE, order, -pl.col("ns"), "part", nulls_last=True)
        .select(pl.col(name).cast(kind) for name, kind in _ROWS.items())
    )


def _whole_ns(rows: pl.DataFrame, steps_with_both: pl.DataFrame) -> pl.DataFrame:
    """Parts of computing as whole ns that add up to it: rounded, the rest in the last one."""
    order = pl.col("term").replace_strict({term: n for n, term in enumerate(TERMS)})
    whole = (
        rows.join(steps_with_both.select(*PLACE, "computing_ns"), on=PLACE, nulls_equal=True)
        .sort(*PLACE, order, -pl.col("ns"), "part", nulls_last=True)
        .with_columns(pl.col("ns").round().cast(pl.Int64))
    )
    is_last = pl.int_range(pl.len()).over(PLACE) == pl.len().over(PLACE) - 1
    rest_ns = pl.col("computing_ns") - pl.col("ns").sum().over(PLACE)
    return whole.with_columns(pl.col("ns") + pl.when(is_last).then(rest_ns).otherwise(0)).select(
        *PLACE, "term", "part", "ns"
    )


_NO_PART = pl.lit(None, pl.String).alias("part")


def _ns(value: pl.Expr) -> pl.Expr:
    return value.cast(pl.Float64).alias("ns")


def _kernel_terms(steps_with_both: pl.DataFrame, kernels: pl.DataFrame) -> list[pl.DataFrame]:
    """Terms of the time that kernels run."""
    figures = ("step_ns", "peak_flops_per_s", "frequency_ratio", "model_mfu_ratio", "computing_ns")
    mine = (
        kernels.join(steps_with_both.select(*PLACE, *figures), on=PLACE, nulls_equal=True)
        .with_columns(
            # Its part of the union of all kernels.
            (pl.col("total_ns") * pl.col("computing_ns") / pl.col("total_ns").sum().over(PLACE))
            .fill_nan(0.0).alias("own_ns"),
            pl.when(pl.col("is_cube"))
            .then(pl.col("flops") * 1e9 / pl.col("peak_flops_per_s")).alias("ideal_ns"),
        )
        .with_columns(
            pl.col("ideal_ns")
            .mul(1 / pl.col("frequency_ratio").fill_null(1.0).clip(upper_bound=1.0) - 1)
            .alias("slowed_ns")
        )
    )  # fmt: skip
    resolved = mine.drop_nulls("ideal_ns")
    left = (pl.col("own_ns") - pl.col("ideal_ns") - pl.col("slowed_ns")).sum()
    ideal = resolved.group_by(PLACE).agg(
        pl.col("ideal_ns").sum(),
        (pl.col("model_mfu_ratio") * pl.col("step_ns")).first().alias("model_ns"),
    )
    needed = pl.coalesce("model_ns", "ideal_ns")
    unknown = mine.filter("is_cube", pl.col("flops").is_null())
    other = mine.filter(~pl.col("is_cube"))
    counted = mine.group_by(PLACE).agg(pl.col("own_ns").sum())
    silent = steps_with_both.join(counted, on=PLACE, how="left", nulls_equal=True)
    beyond = (pl.col("computing_ns") - pl.col("own_ns").fill_null(0.0)).round(3)
    return [
        ideal.select(*PLACE, pl.lit("achieved").alias("term"), _NO_PART, _ns(needed)),
        ideal.drop_nulls("model_ns").select(
            *PLACE, pl.lit("recompute").alias("term"), _NO_PART, _ns(pl.col("ideal_ns") - needed)
        ),
        _sum_term(
            resolved.filter(pl.col("slowed_ns") > 0), "frequency", None, pl.col("slowed_ns").sum()
        ),
        _sum_term(resolved, "cube_inefficiency", "type", left),
        _sum_term(unknown, "unresolved_kernels", "type", pl.col("own_ns").sum()),
        _sum_term(other, "other_compute", "type", pl.col("own_ns").sum()),
        silent.filter(beyond != 0).select(
            *PLACE, pl.lit("other_compute").alias("term"), _NO_PART, _ns(beyond)
        ),
    ]


def _sum_term(rows: pl.DataFrame, term: str, part: str | None, ns: pl.Expr) -> pl.DataFrame:
    """One term of every step, by the values of a column."""
    keys = [*PLACE, *([part] if part else [])]
    return rows.group_by(keys).agg(_ns(ns)).select(
        *PLACE, pl.lit(term).alias("term"),
        pl.col(part).alias("part") if part else _NO_PART, "ns",
    )  # fmt: skip
