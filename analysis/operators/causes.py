"""Why operators take longer than they need: eleven causes, each with its test and its evidence.

mean_operators, one step of each stage in launch order, clocks, environment
    --> rows of evidence --> a row for each cause: headroom in ms per step, or why it is not known
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import duckdb
import polars as pl

from npuscope.messages import Message

from ..catalog import column_names
from ..means import without_warm_up
from ..memo import memoize
from ..scope import ALL, JOB, PLACE, Scope
from ..views import frame
from . import shape_causes as shapes
from .classes import mean_operators, operators_of
from .launch_order import EVIDENCE, as_mean, asked_by, compilations, sequences, stages

CAUSE_WORDS = {
    "padding": Message("odd sizes"),
    "blocks": Message("too few cores"),
    "small": Message("small shapes"),
    "layout": Message("changes of layout and type"),
    "ai_cpu": Message("on the AI CPU"),
    "dynamic": Message("compiled again"),
    "clock": Message("low clock"),
    "fusion": Message("chains of element-wise kernels"),
    "replacement": Message("fused operators exist"),
    "recompute": Message("computed again"),
    "mode": Message("determinism and debugging"),
}
_MOST_WORDS = 12  # of a what-if without a cause
_NEARLY_ALL = 0.99  # of a type's time: then all its kernels change
_HEADROOM = ("headroom_ns", "headroom_low_ns", "headroom_high_ns")
_NO_TYPES = Message("the profiler level has no operator types")
_NO_CORES = Message("the cores of kernels were not recorded")
_NO_PACE = Message(
    "too few vector kernels with tensors of different sizes: a kernel's start cannot be told from"
    " its pace"
)
_LENGTHS = """
    select run, capture, rank, step, computing_ns + exposed_communication_ns + free_ns as length_ns
    from step_summary {where}"""


class CauseEvidence(NamedTuple):
    """Evidence of one capture, why causes could not be tested or have no headroom, and words of the
    what-if without each."""

    rows: pl.DataFrame
    reasons: dict[str, str]
    changes: dict[str, list[str]]


def _test_causes(
    con: duckdb.DuckDBPyConnection, scope: Scope, ranked: pl.DataFrame
) -> CauseEvidence:
    """All causes of one capture; `ranked`: its rows of `operators_of`, without warm-up."""
    run, capture = scope.run or "", scope.capture or ""
    rows = shapes.with_tiling(mean_operators(con, scope, known=ranked))
    paces = shapes.paces(rows)
    cores = shapes.core_count(con, run, capture)
    tests = [
        pl.DataFrame(schema=EVIDENCE), shapes.padding(rows, paces),
        shapes.blocks(rows, paces, cores), shapes.layout(rows), shapes.ai_cpu(rows, paces),
        shapes.recompute(rows, ranked),
    ]  # fmt: skip
    reasons: dict[str, str] = {}
    if rows["type"].null_count() == rows.height:
        reasons |= dict.fromkeys(("layout", "recompute"), _NO_TYPES)
    if rows["core"].null_count() == rows.height:
        reasons = dict.fromkeys(("ai_cpu", "layout", "clock"), _NO_CORES) | reasons
    if rows["is_aligned"].null_count() == rows.height:
        reasons["padding"] = Message("no matrix product with shapes was recorded")
    elif not paces.products:
        reasons["padding"] = Message("too few aligned matrix products of one type to compare with")
    if cores is None:
        reasons["blocks"] = Message("how many cores the chip has is not known")
    elif rows["most_blocks_count"].null_count() == rows.height:
        reasons["blocks"] = Message("on how many cores kernels run was not recorded")
    clocks = shapes.clocks(con, run, capture)
    if clocks.is_empty():
        reasons["clock"] = Message("no frequency and no cycles were recorded")
    tests.append(shapes.clock(ranked, clocks))
    modes, why_not = shapes.modes(con, run, capture)
    tests.append(modes)
    if why_not is not None:
        reasons["mode"] = why_not
    orders, why = _in_order(con, scope, rows, paces, tests[3])
    every = pl.concat([*tests[:3], *tests[4:], *orders])
    return CauseEvidence(every, reasons | why, _changes(every, rows))


def _changes(evidence: pl.DataFrame, means: pl.DataFrame) -> dict[str, list[str]]:
    """By cause, words of a what-if without it: kernels of a type, or of a type and shapes, take as
    much less as the headroom is of all of them; ranks become as their like; kernels join the one
    before them. Of many shapes those with the most."""
    of_shape = means.group_by("type", "input_shapes").agg(every_ns=pl.col("total_ns").sum())
    changed = (
        evidence.filter(pl.col("saved").list.len() > 0)
        .select("cause", "saved").explode("saved").unnest("saved").drop_nulls("target")
        .group_by("cause", "target", "input_shapes", maintain_order=True)
        .agg(pl.col("own_ns", "saved_ns").sum())
        .with_columns(type=pl.col("target").str.strip_prefix("kernel:"))
        .join(of_shape, on=["type", "input_shapes"], how="left", nulls_equal=True,
              maintain_order="left")
        .join(means.group_by("type").agg(pl.col("total_ns").sum()), on="type", how="left",
              maintain_order="left")
    )  # fmt: skip
    changes: dict[str, list[str]] = {}
    kernels = changed.filter(pl.col("target").str.starts_with("kernel:"), pl.col("saved_ns") > 0)
    for (cause,), mine in kernels.group_by("cause", maintain_order=True):
        words = list[tuple[float, str]]()
        for (target,), rows in mine.group_by("target", maintain_order=True):
            of_type, saved_ns = float(rows["total_ns"][0]), float(rows["saved_ns"].sum())
            if float(rows["own_ns"].sum()) >= _NEARLY_ALL * of_type:
                words.append((saved_ns, f"{target}={max(1 - saved_ns / of_type, 0):.4f}"))
            else:
                words += [
                    (ns, f"{target}@{shapes}={max(1 - ns / every_ns, 0):.4f}")
                    for shapes, ns, every_ns in rows.select("input_shapes", "saved_ns", "every_ns")
                    .drop_nulls()
                    .iter_rows()
                ]
        words = sorted(words, key=lambda one: -one[0])
        changes[str(cause)] = [word for _, word in words[:_MOST_WORDS]]
    others = changed.filter(~pl.col("target").str.starts_with("kernel:"))
    for cause, target in others.select("cause", "target").unique(maintain_order=True).iter_rows():
        word = f"{target}=median" if target.startswith("rank:") else target
        changes.setdefault(cause, []).append(word)
    return changes


def _in_order(
    con: duckdb.DuckDBPyConnection,
    scope: Scope,
    means: pl.DataFrame,
    paces: shapes.Paces,
    layout: pl.DataFrame,
) -> tuple[list[pl.DataFrame], dict[str, str]]:
    """What single launches tell: sequences, who asked for changes of layout (then in those rows),
    what was compiled."""
    reasons: dict[str, str] = {}
    stages_of = stages(con, scope)
    ordered = ("small", "replacement", "fusion")
    if not stages_of:
        reasons = dict.fromkeys(ordered, Message("no single kernels with types were recorded"))
        if not _has_launches(con, scope):
            return [layout], reasons | {"dynamic": Message("no launches were recorded")}
        # A launch is of no step by itself: the step and the kernels are those it began.
        return [layout], reasons | {"dynamic": _NO_TYPES}
    frames: list[pl.DataFrame] = []
    if paces.vector is None:
        reasons = dict.fromkeys(ordered, _NO_PACE)
    else:
        frames += [sequences(one, paces.vector) for one in as_mean(stages_of, means)]
    data_settings = pl.concat(
        [asked_by(con, one, layout["type"].drop_nulls().unique().to_list()) for one in stages_of]
    ).unique(["type", "input_shapes"], keep="first", maintain_order=True)
    named = pl.format("{} > {}", "evidence", "before")
    layout = (
        layout.drop("asked_by")
        .join(data_settings, on=["type", "input_shapes"], how="left", nulls_equal=True)
        .with_columns(evidence=pl.coalesce(named, "evidence"))
        .select(*EVIDENCE)
    )
    compiled = [(one, compilations(con, one)) for one in stages_of]
    rows: list[tuple[object, ...]] = [
        (one.run, one.capture, "dynamic", row["operator_name"], None, None,
         row["count"] * one.weight, None, None, 0.0, (row["host_ns"] or 0.0) * one.weight,
         "launches", None, row["operator_name"], None, None, None, [])
        for one, frame_ in compiled for row in frame_.to_dicts()
    ]  # fmt: skip
    if rows:
        reasons["dynamic"] = Message(
            "how much of it the device waited for: `npuscope host`; high is the host's whole time"
        )
        frames.append(pl.DataFrame(rows, schema=EVIDENCE, orient="row"))
    elif not _has_launches(con, scope):
        reasons["dynamic"] = Message("no launches were recorded")
    return [layout, *frames], reasons


def _has_launches(con: duckdb.DuckDBPyConnection, scope: Scope) -> bool:
    clause, values = scope.where(JOB)
    return bool(frame(con, f"select 1 from launches {clause} limit 1", values).height)


def _all(con: duckdb.DuckDBPyConnection, scope: Scope) -> dict[tuple[str, str], CauseEvidence]:
    """What was found in the chosen captures, by run and capture."""
    ranked = without_warm_up(con, operators_of(con, scope))
    causes: dict[tuple[str, str], CauseEvidence] = {}
    for (run, capture), mine in ranked.group_by(JOB, maintain_order=True):
        one = _test_causes(con, replace(scope, run=str(run), capture=str(capture)), mine)
        causes[str(run), str(capture)] = one
    return causes


def _rows(causes: Mapping[tuple[str, str], CauseEvidence]) -> pl.DataFrame:
    # Whole ns add up to the same in whatever order.
    every = pl.concat([pl.DataFrame(schema=EVIDENCE), *(one.rows for one in causes.values())])
    return every.with_columns(pl.col("total_ns", *_HEADROOM).round())


# metric: operator_cause_rows
# Which kernels take longer than they need, and why?
#
# The evidence of operator_causes: a row for each type and tensors, sequence, rank or setting that a
# test named. Of a mean rank and step, without warm-up; sequences, who asked and compilations are of
# a middle step of the first rank of each pipeline stage (four stages at most), weighted by ranks.
#
# title: Evidence of causes
# meaning: Kernels, sequences and settings that take longer than needed, by cause, with headroom.
# by: run, capture
# command: operators --by evidence
# table: operator_cause_rows
#
#   cause             varchar  as in operator_causes
#   type              varchar  operator type; of a sequence its first; NULL: no kernel is meant
#   input_shapes      varchar  tensors by ';', dimensions by ','; of a sequence the first's results
#   dtype             varchar  element type of its first tensor
#   count             double   kernels (sequences) of a mean rank and step
#   total_ns          double   sum of their durations
#   headroom_ns       double   what a step's kernels take too long; NULL: not known
#   headroom_low_ns   double   low end
#   headroom_high_ns  double   high end
#   basis             varchar  what it is held against: capture (others here), cores, kernels (their
#     own time), launches
#   evidence          varchar  what shows it: odd sizes, cores given and there, tensors before and
#     after with the next kernel, the sequence and bytes saved, clocks, settings
#   asked_by          varchar  framework's operator that launched most of it
#   replacement       varchar  what is documented to do the same in one kernel
#   condition         varchar  under which conditions
#   source            varchar  where that is documented
def operator_cause_rows(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> pl.DataFrame:
    """Rows of the metric, the most headroom first."""
    return causes_of(con, scope)[1]


def _sort_rows(rows: pl.DataFrame) -> pl.DataFrame:
    order = [*JOB, -pl.col("headroom_ns"), -pl.col("headroom_high_ns"), "cause", "type",
             "input_shapes", "evidence"]  # fmt: skip
    return rows.sort(order, nulls_last=True).select(column_names("operator_cause_rows"))


# metric: operator_causes
# Why do operators take longer than they need, and how much would a step get back?
#
# A row for each cause that was looked for: headroom 0 where nothing was found, NULL where it cannot
# be told, with the reason. Causes may meet in one kernel: they do not add up. It is time of kernels
# (small: and idle time between them): what of it the critical path has is in operator_headroom.
#
# title: Causes
# meaning: Causes of slow operators, with what a mean step's kernels would give back without each.
# by: run, capture
# command: operators --by cause
# table: operator_causes
# figure: operator_causes
#
#   cause             varchar  padding: sizes odd to the cube's tiles or lines of 512 bytes; blocks:
#     too few cores; small: runs of small kernels; layout: changes of layout and type; ai_cpu: on
#     the AI CPU; dynamic: compiled again; clock: low clock; fusion: chains of element-wise kernels;
#     replacement: a fused operator exists; recompute: computed again; mode: determinism, debugging
#   count             double   kernels (sequences) concerned, of a mean rank and step
#   total_ns          double   sum of their durations
#   headroom_ns       double   what a step's kernels would give back; NULL: see reason
#   headroom_low_ns   double   low end
#   headroom_high_ns  double   high end
#   step_share_ratio  double   headroom_ns of the mean length of a step
#   evidence_count    bigint   rows of operator_cause_rows
#   changes           varchar[] words of the what-if without it: kernels of a type shorter by their
#     headroom, ranks as their like, kernels joined to the one before them; empty: none answers
#   reason            varchar  why it is not known
def operator_causes(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> pl.DataFrame:
    """Rows of the metric, the most headroom first."""
    return causes_of(con, scope)[0]


@memoize
def causes_of(
    con: duckdb.DuckDBPyConnection, scope: Scope = ALL
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rows of the metrics operator_causes and operator_cause_rows."""
    causes = _all(con, scope)
    rows = _rows(causes)
    clause, values = scope.where(PLACE)
    lengths = without_warm_up(con, frame(con, _LENGTHS.format(where=clause), values))
    mean = lengths.group_by(JOB).agg(pl.col("length_ns").mean())
    every = pl.DataFrame(
        [
            (*place, name, one.reasons.get(name), one.changes.get(name, []))
            for place, one in causes.items()
            for name in CAUSE_WORDS
        ],
        schema={
            "run": pl.String,
            "capture": pl.String,
            "cause": pl.String,
            "reason": pl.String,
            "changes": pl.List(pl.String),
        },
        orient="row",
    )
    sums = rows.group_by(*JOB, "cause").agg(
        *(pl.when(pl.col(one).count() > 0).then(pl.col(one).sum())
          for one in ("count", "total_ns", *_HEADROOM)),
        evidence_count=pl.len(),
    )  # fmt: skip
    # Tested, and nothing found.
    is_none = pl.col("evidence_count").is_null() & pl.col("reason").is_null()
    sums_of_causes = (
        every.join(sums, on=[*JOB, "cause"], how="left")
        .join(mean, on=JOB, how="left")
        .with_columns(
            *(pl.when(is_none).then(0.0).otherwise(pl.col(one)).alias(one)
              for one in ("count", "total_ns", *_HEADROOM)),
            evidence_count=pl.col("evidence_count").fill_null(0).cast(pl.Int64),
        )
        .with_columns(step_share_ratio=pl.col("headroom_ns") / pl.col("length_ns"))
        .sort(*JOB, -pl.col("headroom_ns"), -pl.col("headroom_high_ns"), "cause", nulls_last=True)
        .select(column_names("operator_causes"))
    )  # fmt: skip
    return sums_of_causes, _sort_rows(rows)
