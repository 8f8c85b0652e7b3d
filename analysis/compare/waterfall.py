"""Where the difference between two runs comes from: each part's change of a mean rank and step.

Rows add up to the step of the job of either side, to the nanosecond. Kernels are paired by type,
shape and core; what types of one side alone did of an operator, by the framework's operator.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from npuscope.errors import UsageError

from .operator_names import same_work
from .side import GPU, OTHER_RANKS, Side

# Parts in the order in which a step is told; what computing consists of comes in their place.
ORDER = (
    "computing", "transfer", "peer_wait", "absent_wait", "pipeline_wait", "unknown_communication",
    "host", "idle", "free", "between_steps", "latest_rank",
)  # fmt: skip
_OTHER_WORK_RATIO = 0.1  # of computing: another micro-batch of ten


# metric: compare
# Where does the difference between two runs come from?
#
# Rows follow the mean rank's step and add up to the mean step of the job on either side, and to the
# difference: whole ns, the last row takes the rest. Computing is taken apart by kernel type (by
# name where a side was recorded without types), by the framework's operator where other types do
# its work (under whatever name: A's / B's).
#
# title: Difference of two runs
# meaning: The change of each part of a step from run A to run B; the changes add up.
# command: compare
# table: compare
# figure: compare
#
#   part      varchar  computing, a part of step_parts, between_steps (from a rank's step to its
#     next), latest_rank (what the job's step takes beyond the mean rank's)
#   name      varchar  kernel type, the framework's operator where change is kernels, or parallel
#     kind of the communication; NULL: the part has none
#   change    varchar  of computing: count (kernels ran more or less often), duration (each took
#     longer or shorter), shape (shapes that one side alone has), core (alike, but on other cores),
#     kernels (other types do the work of the operator: a fusion, say), new or gone (types that one
#     side alone has), at_once (time that kernels beside each other count
#     twice), other_ranks (ranks without kernels: what they compute beyond those with kernels, which
#     stand for them); NULL where a side has no kernels to tell
#   a_ns      bigint   of A; of count 0, as A's time stands with duration
#   b_ns      bigint   of B, likewise
#   delta_ns  bigint   b - a: positive where B is slower
#   a_ns_per_token  double  a_ns of all ranks for each token of the step; NULL: tokens not known
#   b_ns_per_token  double  likewise of B
def waterfall(a: Side, b: Side) -> pl.DataFrame:
    """Rows of the metric `compare`, in the order of a step, the largest change of a part first."""
    rows = _kernel_rows(*_alike(a, b))
    told, others = (
        {
            key: side.parts.filter(pl.col("part") == "computing", is_of)["ns"].sum()
            for side, key in ((a, "a"), (b, "b"))
        }
        for is_of in (pl.col("name").is_null(), pl.col("name") == OTHER_RANKS)
    )
    at_once = {key: ns - sum(row[key] for row in rows) for key, ns in told.items()}
    has_kernels = rows and a.kernels.height and b.kernels.height
    rows += [
        {"part": "computing", "name": None, "change": change if has_kernels else None, **ns}
        for change, ns in (("at_once", at_once), (OTHER_RANKS, others))
    ]
    parts = a.parts.join(b.parts, on=("part", "name"), how="full", coalesce=True, nulls_equal=True)
    rows += [
        {"part": part, "name": name, "a": a_ns, "b": b_ns}
        for part, name, a_ns, b_ns in parts.iter_rows()
        if part != "computing"
    ]
    bars = (
        pl.DataFrame(
            rows,
            {"part": pl.String, "name": pl.String, "change": pl.String, "a": pl.Float64,
             "b": pl.Float64},
        )
        .group_by("part", "name", "change", maintain_order=True)
        .agg(pl.col("a", "b").sum().round().cast(pl.Int64).name.suffix("_ns"))
    )  # fmt: skip
    rest = {
        "part": ["latest_rank"], "name": [None], "change": [None],
        "a_ns": [a.step_ns - bars["a_ns"].sum()], "b_ns": [b.step_ns - bars["b_ns"].sum()],
    }  # fmt: skip
    order = {part: place for place, part in enumerate(ORDER)}
    return (
        pl.concat([bars, pl.DataFrame(rest, bars.schema)])
        .with_columns(delta_ns=pl.col("b_ns") - pl.col("a_ns"))
        .filter((pl.col("a_ns") != 0) | (pl.col("b_ns") != 0) | (pl.col("part") == "latest_rank"))
        .sort(
            pl.col("part").replace_strict(order), -pl.col("delta_ns").abs(), "name", "change",
            nulls_last=True, maintain_order=True,
        )
    )  # fmt: skip


def by_part(rows: pl.DataFrame) -> pl.DataFrame:
    """Sums of rows of the metric `compare` for each part, in their order: part, a_ns, b_ns,
    delta_ns."""
    sums = pl.col("a_ns", "b_ns", "delta_ns").sum()
    return rows.group_by("part", maintain_order=True).agg(sums)


# metric: compare_stage
# Where does the difference between two runs come from in each pipeline stage?
#
# As the metric compare, of the mean rank of the stage: the rows of each stage add up to the step of
# the job. Only stages that both sides have.
#
# title: Difference of two runs by pipeline stage
# meaning: The change of each part of a step from run A to run B in each pipeline stage.
# by: stage
# command: compare --by stage
# table: compare_stage
#
#   part      varchar  computing, a part of step_parts, between_steps (from a rank's step to its
#     next), latest_rank (what the job's step takes beyond this pipeline stage's)
#   name      varchar  kernel type, the framework's operator where change is kernels, or parallel
#     kind of the communication; NULL: the part has none
#   change    varchar  of computing: count (kernels ran more or less often), duration (each took
#     longer or shorter), shape (shapes that one side alone has), core (alike, but on other cores),
#     kernels (other types do the work of the operator: a fusion, say), new or gone (types that one
#     side alone has), at_once (time that kernels beside each other count
#     twice), other_ranks (ranks without kernels: what they compute beyond those with kernels, which
#     stand for them); NULL where a side has no kernels to tell
#   a_ns      bigint   of A; of count 0, as A's time stands with duration
#   b_ns      bigint   of B, likewise
#   delta_ns  bigint   b - a: positive where B is slower
#   a_ns_per_token  double  a_ns of all ranks for each token of the step; NULL: tokens not known
#   b_ns_per_token  double  likewise of B


# metric: compare_rank
# Where does the difference between two runs come from in each rank?
#
# As the metric compare, of the mean step of the rank: the rows of each rank add up to the step of
# the job. Only ranks that both sides have.
#
# title: Difference of two runs by rank
# meaning: The change of each part of a step from run A to run B in each rank.
# by: rank
# command: compare --by rank
# table: compare_rank
#
#   part      varchar  computing, a part of step_parts, between_steps (from a rank's step to its
#     next), latest_rank (what the job's step takes beyond this rank's)
#   name      varchar  kernel type, the framework's operator where change is kernels, or parallel
#     kind of the communication; NULL: the part has none
#   change    varchar  of computing: count (kernels ran more or less often), duration (each took
#     longer or shorter), shape (shapes that one side alone has), core (alike, but on other cores),
#     kernels (other types do the work of the operator: a fusion, say), new or gone (types that one
#     side alone has), at_once (time that kernels beside each other count
#     twice), other_ranks (ranks without kernels: what they compute beyond those with kernels, which
#     stand for them); NULL where a side has no kernels to tell
#   a_ns      bigint   of A; of count 0, as A's time stands with duration
#   b_ns      bigint   of B, likewise
#   delta_ns  bigint   b - a: positive where B is slower
#   a_ns_per_token  double  a_ns of all ranks for each token of the step; NULL: tokens not known
#   b_ns_per_token  double  likewise of B
def at_each(a: Side, b: Side, by: str) -> pl.DataFrame:
    """Rows of `waterfall` for each stage or rank of both sides. Raises UsageError without any."""
    waterfalls = [
        waterfall(a.at[place], b.at[place]).select(pl.lit(place, pl.Int32).alias(by), pl.all())
        for place in sorted(a.at.keys() & b.at.keys())
    ]
    if not waterfalls:
        raise UsageError(f"--by {by}: both sides know no common {by}: leave it out")
    return pl.concat(waterfalls)


def needs_all(a: Side, b: Side) -> bool:
    """Whether sides have to be measured in full: by name, where one side alone knows types; by the
    framework's operators, where a type is of one side alone, or a GPU's and an NPU's are matched.
    """
    if is_gpu(a) != is_gpu(b):
        return True
    types = [set(side.kernels["type"].drop_nulls()) for side in (a, b)]
    return types[0] != types[1] and all(side.kernels.height for side in (a, b))


def is_gpu(side: Side) -> bool:
    """Whether a GPU was recorded, whose types of kernels are the framework's operators."""
    return side.facts.get("framework") == frozenset({GPU})


def _alike(a: Side, b: Side) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The kernels of both; of a GPU beside an NPU by operator and name, without shapes."""
    if is_gpu(a) == is_gpu(b):
        return a.kernels, b.kernels
    nothing = pl.lit(None, pl.String)
    ours, theirs = (
        side.kernels.with_columns(operator="type", type="name", shape=nothing)
        if is_gpu(side)
        else side.kernels.with_columns(shape=nothing)
        for side in (a, b)
    )
    return ours, theirs


def _kernel_rows(a: pl.DataFrame, b: pl.DataFrame) -> list[dict[str, Any]]:
    """By kernel type; by name where either side was recorded without types; by operator where
    other types do its work."""
    sides = (a, b)
    has_types = all(side["type"].null_count() < side.height for side in sides)
    what = pl.coalesce("type", "name") if has_types else pl.col("name")
    if not has_types and any(side.height and not side["name"].count() for side in sides):
        return []  # one side knows types alone, the other names alone
    rows: list[dict[str, Any]] = []
    if has_types:
        rows, sides = _by_operator(*(side.with_columns(type=what) for side in sides))
    # Of a side without shapes nothing is known of them: they tell no kernels apart. Nor do cores.
    has_shapes = all(side["shape"].null_count() < side.height for side in sides)
    has_cores = has_types and has_shapes and all(side["core"].count() for side in sides)
    key = [
        pl.col(name) if is_told else pl.lit(None, pl.String).alias(name)
        for name, is_told in (("shape", has_shapes), ("core", has_cores))
    ]
    ours, theirs = (
        side.group_by(what.alias("what"), *key).agg(pl.col("count", "total_ns").sum())
        for side in sides
    )
    on = ("what", "shape", "core")
    both = ours.join(theirs, on=on, how="full", coalesce=True, nulls_equal=True, suffix="_b")
    n_a, n_b, ns_a, ns_b = (pl.col(n) for n in ("count", "count_b", "total_ns", "total_ns_b"))
    is_paired = ns_a.is_not_null() & ns_b.is_not_null()
    has_a, has_b = (side.is_not_null().any() for side in (ns_a, ns_b))
    # What A's kernels would take in B's number, each as long as A's: between are the two changes.
    as_often = (ns_a / n_a * n_b).filter(is_paired).sum()
    types = both.group_by("what").agg(
        as_often=as_often,
        paired_a=ns_a.filter(is_paired).sum(),
        paired_b=ns_b.filter(is_paired).sum(),
        count_a=n_a.sum(),
        count_b=n_b.sum(),
        all_a=ns_a.sum(),
        alone_a=ns_a.filter(ns_b.is_null()).sum(),
        alone_b=ns_b.filter(ns_a.is_null()).sum(),
        shapes_a=pl.col("shape").filter(ns_b.is_null()).unique().sort(),
        shapes_b=pl.col("shape").filter(ns_a.is_null()).unique().sort(),
        change=pl.when(has_a & has_b).then(pl.lit("shape"))
        .when(has_a).then(pl.lit("gone")).otherwise(pl.lit("new")),
    )  # fmt: skip
    for row in types.iter_rows(named=True):
        duration, count = row["paired_b"] - row["as_often"], row["as_often"] - row["paired_a"]
        alone = row["alone_b"] - row["alone_a"]
        if row["change"] == "shape":
            # Some may only have changed their shape: those of the type together tell how many ran.
            more = (row["count_b"] - row["count_a"]) * row["all_a"] / row["count_a"]
            count, alone = more, alone + count - more
            if has_cores and row["shapes_a"] == row["shapes_b"]:
                row["change"] = "core"
        record = {"part": "computing", "name": row["what"]}
        rows += [
            {**record, "change": "duration", "a": row["paired_a"], "b": row["paired_a"] + duration},
            {**record, "change": "count", "a": 0.0, "b": count},
            {**record, "change": row["change"], "a": row["alone_a"], "b": row["alone_a"] + alone},
        ]
    return rows


def _by_operator(
    a: pl.DataFrame, b: pl.DataFrame
) -> tuple[list[dict[str, Any]], tuple[pl.DataFrame, pl.DataFrame]]:
    """Operators that both sides call, by whatever name, where either has types of its own at their
    work: a row each; and the other kernels."""
    a, b = (
        side.with_columns(work=pl.col("operator").replace_strict(names, return_dtype=pl.String))
        for side in (a, b)
        for names in ({one: same_work(one) for one in side["operator"].drop_nulls().unique()},)
    )
    ours, theirs = (
        side.drop_nulls("work").group_by("work", "type").agg(
            pl.col("total_ns").sum(), pl.col("operator").unique()
        )
        for side in (a, b)
    )  # fmt: skip
    by = ["work", "type"]
    only = [ours.join(theirs, on=by, how="anti"), theirs.join(ours, on=by, how="anti")]
    sums = [
        one.group_by("work").agg(
            pl.col("total_ns").sum(), pl.col("operator").explode().unique().sort().str.join(", ")
        )
        for one in only
    ]
    both = sums[0].join(sums[1], on="work", suffix="_b").sort("work")
    rows = [
        {"part": "computing", "name": " / ".join(dict.fromkeys((name, name_b))),
         "change": "kernels", "a": ns_a, "b": ns_b}
        for _, ns_a, name, ns_b, name_b in both.iter_rows()
    ]  # fmt: skip
    rest = [
        side.join(one.join(both, on="work", how="semi"), on=by, how="anti", nulls_equal=True)
        for side, one in zip((a, b), only, strict=True)
    ]
    return rows, (rest[0], rest[1])


def is_other_work(rows: pl.DataFrame) -> bool:
    """Whether kernels ran more often, or with larger inputs, for much of what A computes."""
    computing = rows.filter(part="computing")
    other = computing.filter(pl.col("change").is_in(["count", "shape"]))
    return abs(int(other["delta_ns"].sum())) > _OTHER_WORK_RATIO * int(computing["a_ns"].sum())
