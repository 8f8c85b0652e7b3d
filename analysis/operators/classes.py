"""Operators by class, with the FLOPs and bytes of one kernel of each shape.

operator_summary (kept beside each rank) --> one row per distinct shape: FLOPs, bytes, class
    --> classes of each step, which add up to its computing time; of a mean step
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import duckdb
import polars as pl

from ..flops.kernels.count import SHAPE
from ..flops.kernels.kernel_flops import flops_of
from ..flops.kernels.shapes import Tensor, tensors_of
from ..means import without_warm_up
from ..memo import memoize
from ..scope import ALL, PLACE, Scope
from ..views import select

_FUSION = re.compile(
    r"(all_?gather|all_?to_?all).*(matmul|mm)|(matmul|mm|finalize).*(reduce_?scatter|all_?reduce|"
    r"all_?to_?all|routing)|moe_?distribute",
    re.I,
)
_GROUP = re.compile("grouped", re.I)
_BATCH = re.compile("batch", re.I)
_BACKWARD = re.compile("grad|backward|backprop", re.I)
_SETTING = re.compile(r"(Zeros|Ones)Like|Fills?(V\d)?D?$|MemSet|Zero$")
_INDEXING = re.compile(r"Gather|Index(V\d)?D?$|(Strided)?Slice")
_CLASSES = {
    "class": pl.String, "flops": pl.Int64, "moved_bytes": pl.Int64, "dtype": pl.String,
}  # fmt: skip


def class_of(type_: str | None, core: str | None, family: str | None) -> str:
    """Class of an operator; `family` as `flops_of` gives it."""
    if core == "AI_CPU":
        return "ai_cpu"
    if core == "DSA_SQE":
        return "dsa"
    name = type_ or ""
    if _FUSION.search(name):
        return "communication_fused"
    if family == "matmul":
        if _GROUP.search(name):
            return "matmul_grouped"
        return "matmul_batched" if _BATCH.search(name) else "matmul"
    if family == "attention":
        return "attention_backward" if _BACKWARD.search(name) else "attention_forward"
    if family == "convolution":
        return "convolution"
    return "vector" if core in ("AI_VECTOR_CORE", "MIX_AIV") else "other"


@memoize
def operators_of(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> pl.DataFrame:
    """Rows of `operator_summary`, with class, flops and moved_bytes of one kernel (attention
    causal; NULL: unknown) and the dtype of its first tensor that multiplies."""
    rows = select(con, "operator_summary", scope)
    keys = [*SHAPE, "core"]
    shapes = rows.select(keys).unique(maintain_order=True)
    cells = [_cells(row) for row in shapes.iter_rows(named=True)]
    operators = shapes.hstack(pl.DataFrame(cells, schema=_CLASSES, orient="row"))
    return rows.join(operators, on=keys, how="left", nulls_equal=True, maintain_order="left")


def _cells(row: dict[str, Any]) -> tuple[object, ...]:
    flops = flops_of(*(row[name] for name in SHAPE))
    if flops is not None:
        own = class_of(row["type"], row["core"], flops.family)
        return own, flops.causal, flops.moved_bytes, flops.dtype
    own = class_of(row["type"], row["core"], None)
    try:
        inputs, outputs = tensors_of(row)
    except ValueError:
        return own, None, None, None
    moved = moved_bytes(row["type"], inputs, outputs)
    dtype = next((one.dtype for one in (*inputs, *outputs) if one is not None), None)
    return own, None, moved, dtype


_Tensors = Sequence[Tensor | None]


def moved_bytes(type_: str | None, inputs: _Tensors, outputs: _Tensors) -> int | None:
    """Bytes of all tensors, each once; of what only sets memory those it makes, and of what picks
    from its first tensor no more of that than it makes. None: unknown."""
    name = type_ or ""
    if _SETTING.match(name):
        inputs = ()
    sizes = [one.size_bytes for one in (*inputs, *outputs) if one is not None]
    if not sizes or None in sizes:
        return None
    sizes_of = [size or 0 for size in sizes]
    if _INDEXING.match(name) and inputs and inputs[0] is not None and any(outputs):
        results = sum(one.size_bytes or 0 for one in outputs if one is not None)
        sizes_of[0] = min(sizes_of[0], results)
    return sum(sizes_of)


# metric: operator_steps
# What classes of operators does the computing time of each step go to?
#
# Rows of a rank and step add up to its computing_ns (steps): of kernels that run at the same time
# each counts what it adds to the union, in order of starts. total_ns are sums of durations.
# Classes: matmul, matmul_batched, matmul_grouped, attention_forward, attention_backward,
# convolution, communication_fused (MC2: matrix products that communicate, and dispatch and combine
# of experts in one kernel), vector, ai_cpu, dsa, other (kernels of unknown type or core).
#
# title: Classes of operators by step
# meaning: Computing time of each rank and step by class of operators; adds up exactly.
# by: run, capture, rank, step
# command: operators --by step
# table: operator_steps
#
#   class         varchar  class of operators
#   count         bigint   kernels
#   total_ns      bigint   sum of their durations
#   computing_ns  bigint   what they add to the union of all kernels
@memoize
def operator_steps(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> pl.DataFrame:
    """Rows of the metric, the longest of each rank and step first."""
    return (
        operators_of(con, scope)
        .group_by(*PLACE, "class")
        .agg(pl.col("count", "total_ns", "computing_ns").sum())
        .sort(*PLACE, -pl.col("total_ns"), "class", nulls_last=True)
    )


# metric: operator_classes
# What classes of operators does the computing time of a mean step go to?
#
# The metric operator_steps over ranks and steps, without warm-up where others remain. Both shares
# add up to 1; they differ where kernels run at the same time.
#
# title: Classes of operators
# meaning: Computing time of a mean rank and step by class of operators; shares add up.
# by: run, capture
# command: operators --by class
# table: operator_classes
# figure: operator_classes
# gauge: npuscope_operator_class_seconds{class} = computing_ns: Computing time of a mean rank and
#     step by class of operators (matmul, attention_forward, vector, ...); classes add up.
#
#   class               varchar  class of operators, as in operator_steps
#   count               double   kernels of a mean rank and step
#   total_ns            double   sum of their durations
#   total_share_ratio   double   of the sum of all durations
#   computing_ns        double   what they add to the union of all kernels
#   share_ratio         double   of the union
@memoize
def operator_classes(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> pl.DataFrame:
    """Rows of the metric, the longest first."""
    rows = without_warm_up(con, operator_steps(con, scope))
    over = rows.select(PLACE).unique().group_by("run", "capture").len()
    classes = rows.group_by("run", "capture", "class").agg(
        pl.col("count", "total_ns", "computing_ns").sum()
    )
    job = ["run", "capture"]
    return (
        classes.join(over, on=job)
        .select(
            *job, "class", pl.col("count") / pl.col("len"), pl.col("total_ns") / pl.col("len"),
            _share("total_ns", job).alias("total_share_ratio"),
            pl.col("computing_ns") / pl.col("len"),
            _share("computing_ns", job).alias("share_ratio"),
        )
        .sort(*job, -pl.col("total_ns"), "class")
    )  # fmt: skip


def _share(column: str, over: list[str]) -> pl.Expr:
    whole = pl.col(column).sum().over(over)
    return pl.when(whole > 0).then(pl.col(column) / whole)


@memoize
def mean_operators(
    con: duckdb.DuckDBPyConnection, scope: Scope = ALL, *, known: pl.DataFrame | None = None
) -> pl.DataFrame:
    """Operators of a mean rank and step by class, type, core and tensors: columns of
    `operators_of` without rank and step, counts and times as means (Float64), and kernels: how
    many there were; least_ns and most_blocks_count of all; usual_ns: the median over places of
    what one takes; error_ns: the standard error of total_ns by how these differ (0: only one).
    `known`: rows of `operators_of` without warm-up, where they were read."""
    rows = without_warm_up(con, operators_of(con, scope)) if known is None else known
    over = rows.select(PLACE).unique().group_by("run", "capture").len()
    keys = ["run", "capture", "class", *SHAPE, "core", "dtype", "flops", "moved_bytes"]
    one = pl.col("total_ns") / pl.col("count")
    timed = ["cube_timed_ns", "mac_ns", "vector_timed_ns", "vec_ns"]
    return (
        rows.group_by(keys)
        .agg(
            pl.col("count").sum().alias("kernels"),
            pl.col("total_ns", "computing_ns").sum(),
            pl.col("least_ns").min(), pl.col("most_blocks_count").max(),
            *(pl.when(pl.col(name).count() > 0).then(pl.col(name).sum()) for name in
              (*timed, "dynamic_count")),
            usual_ns=one.median(), places=pl.len(), error_ns=one.std() / pl.len().sqrt(),
        )
        .join(over, on=["run", "capture"])
        .with_columns(
            pl.col("total_ns", "computing_ns") / pl.col("len"),
            count=pl.col("kernels") / pl.col("len"),
            error_ns=pl.col("error_ns").fill_null(0.0) * pl.col("kernels") / pl.col("len"),
            mean_ns=pl.col("total_ns") / pl.col("kernels"),
        )
        .drop("len")
    )  # fmt: skip
