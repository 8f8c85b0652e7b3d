"""What operators could give back: against the roofline, their like, and what was learnt before."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import polars as pl

from npuscope.messages import Message

from ..catalog import column_names
from ..flops.chips import peaks
from ..memo import memoize
from ..replay.captures import MOST_OPERATIONS, job_within_limit
from ..replay.critical_path import types_on_path
from ..scope import ALL, JOB, Scope
from ..views import frame
from ..wording import number, percent
from .classes import mean_operators

# Kernels are alike that do the same on as much data, within a factor of 4: of matrices the same
# class and about as many FLOPs per byte, else the same type.
LIKE = ["kind", "dtype", "size_bin", "intensity_bin"]
_LEARNT_KEYS = ["chip", *LIKE]
_OVER_PEAK = 1.05  # clocks may be a little above the nominal one
REFERENCE: dict[str, pl.DataType | type[pl.DataType]] = {
    "chip": pl.String, "run": pl.String, "capture": pl.String, "kind": pl.String,
    "dtype": pl.String, "size_bin": pl.Int64, "intensity_bin": pl.Int64, "rate": pl.Float64,
    "kernels": pl.Int64,
}  # fmt: skip


def like(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of `mean_operators` with the columns of LIKE and `rate`: FLOPs, else bytes, per ns."""
    work = pl.coalesce(pl.col("flops"), pl.col("moved_bytes")).cast(pl.Float64)
    per_byte = pl.col("flops") / pl.col("moved_bytes")
    return rows.with_columns(
        kind=pl.when(pl.col("flops").is_not_null()).then("class").otherwise("type"),
        size_bin=pl.when(work > 0).then(work.log(4).floor().cast(pl.Int64)),
        intensity_bin=pl.when(per_byte > 0).then(per_byte.log(4).floor().cast(pl.Int64)),
        rate=pl.when((work > 0) & (pl.col("mean_ns") > 0)).then(work / pl.col("mean_ns")),
    )


def _with_limits(con: duckdb.DuckDBPyConnection, scope: Scope) -> pl.DataFrame:
    """`like` of the mean operators with the limits of their chips. A rate beyond the peak is none:
    a duration or shapes were recorded wrongly, and nothing can be held against it."""
    rows = like(mean_operators(con, scope))
    dtypes = rows["dtype"].unique().to_list()
    rows = rows.join(_limits(con, dtypes), on=[*JOB, "dtype"], how="left", nulls_equal=True)
    at_peak = pl.col("peak_flops_per_s") / 1e9 * _OVER_PEAK
    is_more = (pl.col("flops").is_not_null() & (pl.col("rate") > at_peak)).fill_null(value=False)
    return rows.with_columns(pl.when(~is_more).then("rate"))


# metric: operator_headroom
# Which operators, with which tensors, could give back how much time of a step?
#
# Of a mean rank and step, without warm-up. Headroom is what they take beyond: the roofline, max of
# FLOPs over peak and bytes over bandwidth (a bound: none attains it; each tensor counts once); the
# best in this capture of the like (matrices: the same class and dtype, else the same type; FLOPs or
# bytes and FLOPs per byte within a factor of 4); the best of the like in a reference table that
# `npuscope operators learn` made. A rate beyond the peak is an error, and nobody's best. High is
# the most of these, low the least of the like, 0 where there are none. What of it a step can gain
# is the share of the type's time that lies on the critical path: what runs beneath communication or
# another kernel gains nothing. That is NULL where ranks were not compared, single ranks are chosen,
# or a capture has more than 200,000 operations.
#
# title: Headroom of operators
# meaning: Operators by type and tensors: FLOPs, bytes, utilisation, and ms per step to gain.
# by: run, capture
# command: operators, operators --by shape
# table: operator_headroom
# figure: operator_headroom
#
#   class               varchar  class of operators, as in operator_steps
#   type                varchar  operator type
#   core                varchar  core the kernels ran on
#   input_shapes        varchar  tensors by ';', dimensions by ','
#   output_shapes       varchar  likewise of the results
#   dtype               varchar  element type of its first tensor
#   input_formats       varchar  layouts of its inputs by ';'
#   count               double   kernels of a mean rank and step
#   total_ns            double   sum of their durations
#   mean_ns             double   of one
#   flops               bigint   FLOPs of one, attention causal; NULL: unknown, or no matrices
#   moved_bytes         bigint   bytes of its inputs and outputs, each once; NULL: unknown
#   intensity_flops_per_byte double FLOPs over bytes
#   flops_ratio         double   FLOPs over time, of the peak in this dtype
#   aic_mac_ratio       double   time in which cube cores multiplied, of the duration, by the PMU
#   aiv_vec_ratio       double   time in which vector cores computed, of the duration, by the PMU
#   roofline_ns         double   what one takes at the least by the limits known; NULL: by none
#   headroom_low_ns     double   low end of what a step's kernels take too long; NULL: nothing tells
#   headroom_high_ns    double   high end
#   basis               varchar  what tells it: capture, reference, roofline
#   on_path_ratio       double   share of the type's time on the critical path
#   gain_low_ns         double   low end of what a step can gain
#   gain_high_ns        double   high end
def operator_headroom(
    con: duckdb.DuckDBPyConnection, scope: Scope = ALL, *, reference: pl.DataFrame | None = None
) -> pl.DataFrame:
    """Rows of the metric, the most headroom first; `reference` is a table of `learnt`."""
    rows = _with_limits(con, scope)
    by_memory = pl.col("moved_bytes") / pl.col("hbm_bytes_per_s") * 1e9
    by_cube = pl.col("flops") / pl.col("peak_flops_per_s") * 1e9
    is_matrix = ~pl.col("class").is_in(["vector", "ai_cpu", "dsa", "other"])
    roofline = (
        pl.when(is_matrix & pl.col("flops").is_not_null())
        .then(pl.max_horizontal(by_cube, by_memory))
        .when(~is_matrix)
        .then(by_memory)
    )
    best = pl.col("rate").max().over([*JOB, *LIKE])
    has_like = pl.col("rate").count().over([*JOB, *LIKE]) > 1
    is_known = pl.col("rate").is_not_null()
    rows = rows.with_columns(
        roofline_ns=roofline, best=pl.when(has_like & is_known).then(best)
    ).join(_chips(con), on=JOB, how="left")  # fmt: skip
    if reference is None:
        rows = rows.with_columns(learnt=pl.lit(None, pl.Float64))
    else:
        rates = reference.group_by(_LEARNT_KEYS).agg(pl.col("rate").max().alias("learnt"))
        rows = rows.join(rates, on=_LEARNT_KEYS, how="left", nulls_equal=True)

    def beyond(rate: str) -> pl.Expr:
        """What a step's kernels take beyond those that reach that rate."""
        lost = pl.col("total_ns") * (1 - pl.col("rate") / pl.col(rate))
        return pl.when(pl.col(rate).is_not_null() & is_known).then(lost.clip(0))

    above = (pl.col("total_ns") - pl.col("count") * pl.col("roofline_ns")).clip(0)
    estimates = {"capture": beyond("best"), "reference": beyond("learnt"), "roofline": above}
    rows = rows.with_columns(**{f"_{name}": one for name, one in estimates.items()})
    high = pl.max_horizontal(*(f"_{name}" for name in estimates))
    of_like = pl.min_horizontal("_capture", "_reference")
    names = [pl.when(pl.col(f"_{name}").is_not_null()).then(pl.lit(name)) for name in estimates]
    rows = rows.with_columns(
        headroom_low_ns=pl.when(high.is_not_null()).then(
            pl.min_horizontal(of_like.fill_null(0.0), high)
        ),
        headroom_high_ns=high,
        basis=pl.when(high.is_not_null()).then(
            pl.concat_str(names, separator=", ", ignore_nulls=True)
        ),
    )
    rows = rows.join(_paths(con, scope), on=[*JOB, "type"], how="left", nulls_equal=True)
    of_type = pl.col("total_ns").sum().over([*JOB, "type"])
    on_path = pl.when(of_type > 0).then((pl.col("path_ns") / of_type).clip(0, 1))
    rows = rows.with_columns(
        on_path_ratio=on_path,
        intensity_flops_per_byte=pl.when(pl.col("moved_bytes") > 0).then(
            pl.col("flops") / pl.col("moved_bytes")
        ),
        flops_ratio=pl.when(pl.col("mean_ns") > 0).then(
            pl.col("flops") * 1e9 / pl.col("mean_ns") / pl.col("peak_flops_per_s")
        ),
        aic_mac_ratio=pl.col("mac_ns") / pl.col("cube_timed_ns"),
        aiv_vec_ratio=pl.col("vec_ns") / pl.col("vector_timed_ns"),
    ).with_columns(
        gain_low_ns=pl.col("headroom_low_ns") * pl.col("on_path_ratio"),
        gain_high_ns=pl.col("headroom_high_ns") * pl.col("on_path_ratio"),
    )
    order = [*JOB, -pl.col("headroom_high_ns"), -pl.col("total_ns"), "type", "input_shapes",
             "output_shapes", "input_formats"]  # fmt: skip
    return rows.sort(order, nulls_last=True).select(column_names("operator_headroom"))


def _limits(con: duckdb.DuckDBPyConnection, dtypes: Sequence[str | None]) -> pl.DataFrame:
    """Peaks in these dtypes and bandwidth of the chips of each capture, the highest of its
    ranks."""
    by_type: dict[tuple[str, str, str | None], tuple[float | None, float | None]] = {}
    for (run, capture, _), peak in peaks(con).items():
        for dtype in dtypes:
            own = peak.of(dtype), peak.hbm_bytes_per_s
            before = by_type.get((run, capture, dtype), (None, None))
            by_type[run, capture, dtype] = (
                max((one for one in (own[0], before[0]) if one is not None), default=None),
                max((one for one in (own[1], before[1]) if one is not None), default=None),
            )
    return pl.DataFrame(
        [(*key, *limits) for key, limits in by_type.items()],
        schema={"run": pl.String, "capture": pl.String, "dtype": pl.String,
                "peak_flops_per_s": pl.Float64, "hbm_bytes_per_s": pl.Float64},
        orient="row",
    )  # fmt: skip


def _chips(con: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Chip of each capture: its recorded name, else by its known number of cores; NULL: neither."""
    named = frame(con, "select run, capture, max(chip_name) as chip from ranks group by all")
    cores = [(run, capture, f"{peak.cores} cores") for (run, capture, _), peak in peaks(con).items()
             if peak.cores]  # fmt: skip
    schema = {"run": pl.String, "capture": pl.String, "cores": pl.String}
    counted = pl.DataFrame(cores, schema=schema, orient="row").group_by(JOB).max()
    return named.join(counted, on=JOB, how="left").select(*JOB, pl.coalesce("chip", "cores"))


@memoize
def _paths(con: duckdb.DuckDBPyConnection, scope: Scope) -> pl.DataFrame:
    """Time of each type of kernels on the critical path of a mean step: run, capture, type,
    path_ns; 0 where it is never there."""
    schema = {"run": pl.String, "capture": pl.String, "type": pl.String, "path_ns": pl.Float64}
    paths = [pl.DataFrame(schema=schema)]
    if scope.rank is None:
        clause, values = scope.where(("run", "capture"))
        places = frame(con, f"select distinct run, capture from ranks {clause}", values)
        for run, capture in places.iter_rows():
            here = Scope(run, capture)
            job = job_within_limit(con, here)
            if job is None:
                continue
            mine = types_on_path(job, scope.step)
            place = pl.lit(run).alias("run"), pl.lit(capture).alias("capture")
            paths.append(mine.select(*place, "type", "path_ns"))
    return pl.concat(paths)


# metric: operator_pmu
# Do FLOPs over time and the cores' own counters tell the same?
#
# Matrix kernels with FLOPs and PMU times, by type and tensors, of a mean rank and step. Where they
# differ, docs/operators.md says why: counters count padded blocks, recomputed scores and the clock
# that was, FLOPs what the shapes need at the nominal clock.
#
# title: FLOPs beside the counters
# meaning: Utilisation from FLOPs over time beside that by PMU counters, row by row.
# by: run, capture
# command: operators --by pmu
# table: operator_pmu
#
#   class          varchar  class of operators
#   type           varchar  operator type
#   input_shapes   varchar  tensors by ';', dimensions by ','
#   dtype          varchar  element type
#   count          double   kernels of a mean rank and step
#   total_ns       double   sum of their durations
#   flops_ratio    double   FLOPs over time, of the peak
#   aic_mac_ratio  double   time in which cube cores multiplied, of the duration
#   flops_over_mac_ratio double the first over the second; NULL: the peak in this dtype is unknown
#   mac_flops_per_s double  FLOPs over the time in which cube cores multiplied
@memoize
def operator_pmu(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> pl.DataFrame:
    """Rows of the metric, the longest first."""
    rows = operator_headroom(con, scope).filter(
        pl.col("flops").is_not_null(), pl.col("mean_ns") > 0, pl.col("aic_mac_ratio") > 0
    )
    mac_ns = pl.col("mean_ns") * pl.col("aic_mac_ratio")
    return (
        rows.with_columns(
            flops_over_mac_ratio=pl.col("flops_ratio") / pl.col("aic_mac_ratio"),
            mac_flops_per_s=pl.col("flops") * 1e9 / mac_ns,
        )
        .sort(*JOB, -pl.col("total_ns"), "type", "input_shapes", nulls_last=True)
        .select(column_names("operator_pmu"))
    )


def learnt(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> pl.DataFrame:
    """What kernels achieved here, for a reference table: chip, run, capture, LIKE, rate (FLOPs or
    bytes per ns, the best), kernels. Captures of unknown chips are left out."""
    rows = _with_limits(con, scope).join(_chips(con), on=JOB, how="left")
    return (
        rows.drop_nulls(["rate", "chip"])
        .group_by("chip", *JOB, *LIKE)
        .agg(pl.col("rate").max(), pl.col("kernels").sum())
        .sort("chip", *JOB, *LIKE, nulls_last=True)
        .cast(pl.Schema(REFERENCE))
    )


def merge_references(one: pl.DataFrame, other: pl.DataFrame) -> pl.DataFrame:
    """Two reference tables as one, in whatever order and however often they are merged."""
    keys = ["chip", *JOB, *LIKE]
    both = pl.concat([one, other])
    return both.group_by(keys).agg(pl.col("rate", "kernels").max()).sort(keys, nulls_last=True)


def headroom_notes(rows: pl.DataFrame, *, of: str) -> list[str]:
    """How rows of `operator_headroom` (`of` shape) or others are to be read, what is missing."""
    if rows.is_empty():
        return [Message("no compute kernel with such figures was recorded here")]
    notes: list[str] = []
    if of == "cause":
        notes.append(
            Message(
                "causes may meet in one kernel and do not add up; what each rests on:"
                " `npuscope operators PATH --by evidence`"
            )
        )
    if of == "shape":
        total = float(rows["total_ns"].sum())
        total_ns = float(rows.drop_nulls("headroom_high_ns")["total_ns"].sum())
        notes.append(
            Message(
                "headroom is known of {share} of kernel time; what tells it: the best of the like"
                " here (capture), in a table of yours (reference), or the chip's limits (roofline),"
                " which nothing attains",
                share=percent(total_ns / total if total else None),
            )
        )
        if rows["on_path_ratio"].null_count() == rows.height:
            notes.append(
                Message(
                    "what of it a step gains is not known: that needs all ranks, compared, and at"
                    " most {count} operations",
                    count=number(MOST_OPERATIONS),
                )
            )
    return notes
