"""Means over ranks and steps, each computed here alone: what outlets show of a mean step.

step_summary, kernel_summary, comm_summary, link_traffic
    --> those chosen --> mean_steps, mean_kernels, mean_comm, mean_links
step_parts --> mean_parts
job_steps --> warm-up, which these leave out
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import duckdb
import polars as pl

from npuscope.messages import Message, join

from .catalog import metric
from .memo import memoize
from .metric import part_sql
from .parts import mean_of, step_parts
from .scope import ALL, JOB, Scope
from .views import frame, open_views

KernelKey = Literal["type", "name", "core", "shape"]
StepKey = Literal["capture", "rank", "step", "rank_step", "stage", "stage_step"]
PartKey = Literal["capture", "rank", "step"]
CommMeanKey = Literal["kind", "type", "op", "group"]
# What the choice of ranks and steps cuts, and the order of rows.
_CHOSEN_FROM = {
    "mean_steps": (("step_summary",), "run, capture, rank, step nulls last, stage"),
    "mean_kernels": (
        ("step_summary", "kernel_summary"), "run, capture, total_ns desc, key nulls last"
    ),
    "mean_comm": (
        ("step_summary", "comm_summary"),
        "run, capture, step nulls first, exposed_attributed_ns desc nulls last,"
        " total_ns desc nulls last, kind nulls last, op_type nulls last, group_hash nulls last",
    ),
    "mean_links": (
        ("step_summary", "link_traffic"),
        "run, capture, sum(size_bytes) over (partition by run, capture, link) desc, link,"
        " size_bytes desc, kind, op_type",
    ),
}  # fmt: skip


_OF_JOB = ("job_steps", "step_lengths")


def mean_steps(
    con: duckdb.DuckDBPyConnection, scope: Scope = ALL, *, by: StepKey = "capture"
) -> pl.DataFrame:
    """A mean step of the ranks and steps chosen, by `by`: columns of the metric `mean_steps`."""
    return _means(con, "mean_steps", scope).filter(pl.col("by_key") == by).drop("by_key")


# metric: mean_parts
# Where does a mean step go?
#
# The metric step_parts over the steps of which all parts are known, without warm-up where others
# remain. Rank or step is there where rows are by it.
#
# title: Parts of a mean step
# meaning: The parts of a mean rank and step: computing, moving bytes, waiting, host, idle.
# by: run, capture, rank, step
# table: mean_parts, mean_parts_by_rank
# gauge: npuscope_exposed_part_seconds{part} = case when part in ('transfer', 'peer_wait',
#     'absent_wait', 'pipeline_wait', 'unknown_communication') then ns end: Exposed communication,
#     mean over ranks and steps: transfer (moves bytes), peer_wait, absent_wait (for ranks that
#     were not captured), pipeline_wait, or unknown_communication (moves bytes or waits); parts
#     add up.
# gauge: npuscope_free_part_seconds{part} = case when part in ('host', 'idle', 'free') then ns
#     end: Free time, mean of ranks and steps: host (it had not launched what came next), idle (it
#     had), or free (launches do not tell which); parts add up.
# figure: parts, rank_parts
#
#   part         varchar  as in step_parts
#   ns           double   of a mean rank and step
#   share_ratio  double   of the step
def mean_parts(
    con: duckdb.DuckDBPyConnection, scope: Scope = ALL, *, by: PartKey = "capture"
) -> pl.DataFrame:
    """Parts of such a step: rows of the metric `mean_parts`."""
    parts = step_parts(con, scope)
    parts = within_steps(parts) if by == "step" else without_warm_up(con, parts)
    return mean_of(parts, ["run", "capture", *([by] if by != "capture" else [])])


def mean_step_bars(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> pl.DataFrame:
    """A mean step of each rank, or each step where there is one rank and several steps: rows of
    `mean_steps` with a column `rank` or `step`, those with all parts of a step."""
    ranks = mean_steps(con, scope, by="rank")
    bars, other = ranks.drop_nulls("length_ns"), "step"
    if bars["rank"].n_unique() < 2:
        steps = mean_steps(con, scope, by="step")
        steps = steps.drop_nulls("length_ns")
        if steps.height > 1:
            bars, other = steps, "rank"
    return bars.drop(other, "stage")


def deviations(
    frame: pl.DataFrame, measure: str, stages: pl.DataFrame | None = None
) -> pl.DataFrame:
    """Rows of `steps` with a value: rank, step, the measure and deviation_ns from the median over
    the step's ranks of the same pipeline stage (`stages`: rank, pp_rank), whose work is alike.

    Where a rank's stage is not known, all are compared with each other.
    """
    values = frame.drop_nulls(measure)
    if values.height and values["step"].null_count() < values.height:
        values = values.drop_nulls("step")
    middle = pl.col(measure).median().over("step")
    if stages is not None and are_known(stages):
        values = values.join(stages.unique("rank"), on="rank", how="left", maintain_order="left")
        middle = pl.col(measure).median().over("step", "pp_rank")
    return values.select("rank", "step", measure, (pl.col(measure) - middle).alias("deviation_ns"))


def are_known(stages: pl.DataFrame | None) -> bool:
    """Whether every rank's pipeline stage is known: ranks are then compared within stages."""
    return stages is not None and not stages["pp_rank"].null_count()


def mean_kernels(
    con: duckdb.DuckDBPyConnection, scope: Scope = ALL, *, by: KernelKey = "type"
) -> pl.DataFrame:
    """Kernels of such a step, longest total first: columns of the metric `mean_kernels`, the key
    called `by`."""
    means = _means(con, "mean_kernels", scope).filter(pl.col("by_key") == by).drop("by_key")
    return (means.drop("core") if by == "core" else means).rename({"key": by})


def mean_comm(
    con: duckdb.DuckDBPyConnection, scope: Scope = ALL, *, by: CommMeanKey = "kind"
) -> pl.DataFrame:
    """Communication of such a step, most exposed first: columns of the metric `mean_comm`, of the
    keys those that are told apart."""
    means = _means(con, "mean_comm", scope).filter(~pl.col("by_step"), pl.col("by_key") == by)
    keys = {"kind": ("op_type", "group_hash"), "type": ("kind", "group_hash"),
            "op": ("group_hash",), "group": ()}[by]  # fmt: skip
    unused = ["by_key", "by_step", "step", *(["group_count"] if by != "op" else [])]
    return means.drop(*unused, *keys)


def means_of_fewer(rows: pl.DataFrame, headings: Mapping[str, str]) -> str | None:
    """Which figures of `mean_comm` are means of fewer ranks and steps than the others, and of how
    many. `headings` name them: transit, wait, size."""
    if rows.is_empty():
        return None
    every, steps = rows.row(0, named=True)["rank_step_count"], rows["step_count"].max()
    named: dict[tuple[int, int], list[str]] = {}
    for figure, heading in headings.items():
        # Of rows without any the table says that they are unknown.
        counts = sorted(count for count in rows[f"{figure}_rank_step_count"].to_list() if count)
        if counts and counts[0] < every:
            named.setdefault((counts[0], counts[-1]), []).append(heading)
    template = (
        "{figures}: mean of {count} of {every} ranks" if steps == 1 or not steps
        else "{figures}: mean of {count} of the ranks' {every} steps"
    )  # fmt: skip
    sentences = [
        Message(
            template,
            figures=join(ranks),
            count=f"{low:,}" if low == high else f"{low:,}-{high:,}",
            every=f"{every:,}",
        )
        for (low, high), ranks in named.items()
    ]
    return join(sentences, "; ") or None


def mean_links(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> pl.DataFrame:
    """Links of such a step, most bytes first: columns of the metric `mean_links`."""
    return _means(con, "mean_links", scope)


@memoize
def job_steps(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> pl.DataFrame:
    """Steps of the whole job: columns of the metric `job_steps`."""
    open_views(con, ("job_steps",))
    clause, values = scope.where(JOB)
    return frame(con, f"select * from job_steps {clause} order by all nulls last", values)


def without_warm_up(con: duckdb.DuckDBPyConnection, rows: pl.DataFrame) -> pl.DataFrame:
    """The rows `within_steps` that means are over: without warm-up where other steps are among
    them."""
    rows = within_steps(rows)
    warm = job_steps(con).filter("is_warm_up").select("run", "capture", "step")
    rest = rows.join(warm, on=["run", "capture", "step"], how="anti", nulls_equal=True)
    return rest if rest.height else rows


def within_steps(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows (run, capture, step) without what is outside of every step where there are steps."""
    has_steps = pl.col("step").is_not_null().any().over("run", "capture")
    return rows.filter(pl.col("step").is_not_null() | ~has_steps)


@memoize
def forward_steps(con: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Steps that run no gradients, as an evaluation, by capture: columns of `forward_steps.sql`."""
    return frame(con, part_sql("forward_steps.sql"))


def of_training(con: duckdb.DuckDBPyConnection, rows: pl.DataFrame) -> pl.DataFrame:
    """The rows (run, capture, step) of `without_warm_up` whose steps run gradients, where any do:
    who looks at forward and backward passes means those."""
    return without_forward(con, without_warm_up(con, rows))


def without_forward(con: duckdb.DuckDBPyConnection, rows: pl.DataFrame) -> pl.DataFrame:
    """The rows (run, capture, step) whose steps run gradients, where any do."""
    forward = forward_steps(con).explode("steps").select("run", "capture", step="steps")
    rest = rows.join(forward, on=["run", "capture", "step"], how="anti", nulls_equal=True)
    return rest if rest.height else rows


@memoize
def _means(con: duckdb.DuckDBPyConnection, name: str, scope: Scope) -> pl.DataFrame:
    """Rows of a metric of means over the ranks and steps chosen."""
    open_views(con, (name, "step_lengths"))
    views, order = _CHOSEN_FROM[name]
    cut = [(view, scope) for view in views] + [(view, scope.job) for view in _OF_JOB]
    values: list[str | int] = []
    selects: list[str] = []
    for view, part in cut:
        clause, parameters = part.where()
        selects.append(f"{view} as (select * from {view} {clause})")
        values += parameters
    parts = ", ".join(selects)
    query = f"with {parts} select * from (\n{metric(name).sql}\n) order by {order}"
    return frame(con, query, values)
