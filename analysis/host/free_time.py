"""Free time of steps by cause: what is known of it, and the rest as unknown, so that all adds up.

step_summary.free_ns --> free_causes (host, device) --> the rest: unknown
"""

from __future__ import annotations

from typing import Literal

import duckdb
import polars as pl

from npuscope.messages import Message

from ..means import without_warm_up
from ..memo import memoize
from ..notes import of_each_capture
from ..scope import ALL, JOB, PLACE, RANK, Scope
from ..views import frame, select
from ..wording import percent

FreeKey = Literal["cause", "stage", "operator", "thread", "rank"]
_KEYS: dict[FreeKey, tuple[str, ...]] = {
    "cause": ("cause",),
    "stage": ("cause", "stage"),
    "operator": ("cause", "stage", "operator"),
    "thread": ("cause", "stage", "rank", "thread_id"),
    "rank": ("rank", "cause"),
}
CAUSE_WORDS = {
    "dispatch": Message("the host launches late"),
    "synchronisation": Message("the host waits for the device"),
    "garbage_collection": Message("garbage collection"),
    "data_loading": Message("data loading"),
    "checkpoint": Message("checkpoint"),
    "logging": Message("logging"),
    "profiler": Message("the profiler"),
    "device": Message("launched, not begun"),
    "unknown": Message("unknown"),
}
_NAMES = ("cause", "stage", "operator", "thread_id")
_LENGTH = "computing_ns + exposed_communication_ns + free_ns"


# metric: free_time
# What was the free time of each step lost to?
#
# The metric free_causes, and what no launch tells of as unknown: rows of a rank and step add up to
# its free_ns (steps). Steps whose free time is not known have no row.
#
# title: Free time by cause
# meaning: Free time of each rank and step by cause, stage, operator and thread; adds up exactly.
# by: run, capture, rank, step
# command: host --by step
# table: free_time
#
#   cause       varchar  as in free_causes, or unknown: no launch of what came next was recorded
#   stage       varchar  as in free_causes; NULL: unknown
#   operator    varchar  as in free_causes
#   thread_id   bigint   as in free_causes
#   count       bigint   gaps that it has a part of; NULL: unknown
#   free_ns     bigint   time lost
#   longest_ns  bigint   the most in one gap; NULL: unknown
@memoize
def free_time(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> pl.DataFrame:
    """Rows of the metric, the most of each rank and step first."""
    columns = [*PLACE, *_NAMES, "count", "free_ns", "longest_ns"]
    causes = select(con, "free_causes", scope, by_key="cause").select(columns)
    clause, values = scope.where()
    steps = frame(
        con, f"select run, capture, rank, step, free_ns from step_summary {clause}", values
    ).drop_nulls("free_ns")
    causes = causes.join(steps.select(PLACE), on=PLACE, how="semi", nulls_equal=True)
    sums = causes.group_by(PLACE).agg(pl.col("free_ns").sum().alias("known_ns"))
    rest = (
        steps.join(sums, on=PLACE, how="left", nulls_equal=True)
        .with_columns(pl.col("free_ns") - pl.col("known_ns").fill_null(0), cause=pl.lit("unknown"))
        .filter(pl.col("free_ns") != 0)
        .drop("known_ns")
    )
    return pl.concat([causes, rest], how="diagonal_relaxed").select(columns).sort(
        *PLACE, -pl.col("free_ns"), *_NAMES, nulls_last=True
    )  # fmt: skip


# metric: mean_free_time
# What is the free time of a mean step lost to?
#
# The metric free_time over ranks and steps, without warm-up where others remain.
#
# title: Free time of a mean step
# meaning: Free time of a mean rank and step by cause; adds up to the free time.
# by: run, capture, rank
# command: host, host --by cause, host --by stage, host --by operator, host --by thread, host --by
#     rank
# table: mean_free_time, free_time_by_operator
# figure: free_time
# gauge: npuscope_free_cause_seconds{cause} = free_ns: Free time of a mean rank and step by cause:
#     dispatch (the host launches late), synchronisation (it waits for the device),
#     garbage_collection, data_loading, checkpoint, logging, profiler, device (launched, but not
#     begun) or unknown; causes add up.
#
#   cause        varchar  as in free_time
#   stage        varchar  as in free_time; NULL: of all
#   operator     varchar  as in free_time; NULL: of all, or unknown
#   thread_id    bigint   as in free_time; NULL: of all, or unknown
#   count        double   stretches of gaps, one per stage and operator, of a mean rank and step
#   free_ns      double   time lost in a mean rank and step
#   share_ratio  double   of the free time
#   step_share_ratio double of the step
#   longest_ns   bigint   the most in one gap
def mean_free_time(
    con: duckdb.DuckDBPyConnection, scope: Scope = ALL, *, by: FreeKey = "stage"
) -> pl.DataFrame:
    """Rows of the metric, the most first; `rank` is there where rows are by it."""
    keys = ["run", "capture", *_KEYS[by]]
    over = ["run", "capture", *(["rank"] if "rank" in keys else [])]
    rows = without_warm_up(con, free_time(con, scope))
    clause, values = scope.where()
    steps = frame(con, f"select run, capture, rank, step, free_ns, {_LENGTH} as length_ns"
                  f" from step_summary {clause}", values).drop_nulls("free_ns")  # fmt: skip
    steps = without_warm_up(con, steps)
    counts = steps.group_by(over).agg(
        pl.len().alias("steps"), pl.col("free_ns").sum().alias("every_ns"),
        pl.col("length_ns").sum(),
    )  # fmt: skip
    means = (
        rows.group_by(keys)
        .agg(
            pl.col("count").sum().cast(pl.Float64), pl.col("free_ns").sum(),
            pl.col("longest_ns").max(),
        )
        .join(counts, on=over, how="left")
    )  # fmt: skip
    missing = [name for name in ("stage", "operator", "thread_id") if name not in keys]
    kinds = {"stage": pl.String, "operator": pl.String, "thread_id": pl.Int64}
    return means.select(
        *keys, *(pl.lit(None, kinds[name]).alias(name) for name in missing),
        pl.when(pl.col("cause") != "unknown").then(pl.col("count") / pl.col("steps")),
        (pl.col("free_ns") / pl.col("steps")).alias("free_ns"),
        (pl.col("free_ns") / pl.col("every_ns")).alias("share_ratio"),
        pl.when(pl.col("length_ns") > 0)
        .then(pl.col("free_ns") / pl.col("length_ns"))
        .alias("step_share_ratio"),
        "longest_ns",
    ).sort("run", "capture", -pl.col("free_ns"), *_KEYS[by], nulls_last=True)  # fmt: skip


def freest_ranks(rows: pl.DataFrame) -> pl.Series:
    """Ranks of one capture by the free time that rows of `mean_free_time` tell, the most first."""
    by_rank = rows.group_by("rank").agg(pl.col("free_ns").sum())
    return by_rank.sort(-pl.col("free_ns"), "rank")["rank"]


# metric: host_episodes
# When was the device free because of the host, and what for?
#
# Episodes of the metric free_causes: gaps of host time that follow each other with less work than
# free time between them. The costliest 20 of each rank and step.
#
# title: Episodes of host time
# meaning: The costliest stretches in which the device waited for the host, and their causes.
# by: run, capture, rank, step
# command: host --by episode
# table: host_episodes
#
#   cause       varchar  what most of it was lost to, as in free_causes
#   stage       varchar  where most of it was lost
#   operator    varchar  at which operator most of it was lost
#   thread_id   bigint   on which thread most of it was lost
#   start_ns    bigint   begin of the first gap
#   end_ns      bigint   end of the last gap's host part
#   count       bigint   gaps
#   free_ns     bigint   time lost
#   longest_ns  bigint   the most in one gap
def host_episodes(
    con: duckdb.DuckDBPyConnection, scope: Scope = ALL, *, top: int | None = None
) -> pl.DataFrame:
    """Rows of the metric, the costliest first."""
    episodes = select(con, "free_causes", scope, by_key="episode").drop("by_key", "part")
    episodes = episodes.sort("free_ns", *PLACE, "start_ns", descending=[True, *[False] * 5])
    return episodes if top is None else episodes.head(top)


def host_pace(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> pl.DataFrame:
    """How far the host of each rank runs ahead: columns of the metric `host_pace`."""
    return select(con, "host_pace", scope)


_LEAD_BINS = 240
_LEAD = """
with
_launches as (
    select run, capture, rank, min(device_start_ns) as device_start_ns, api_start_ns
    from launches {where} and api_start_ns is not null and device_start_ns is not null
        and target in ('kernel', 'communication')
    group by all
),
_choice as (
    select *, min(api_start_ns) over () as first_ns,
        greatest(max(api_start_ns) over () - min(api_start_ns) over (), 1) as span_ns
    from _launches
)
select run, capture, rank,
    first_ns + cast((api_start_ns - first_ns) * {bins} // (span_ns + 1) * (span_ns + 1)
        // {bins} as bigint) as at_ns,
    count(*) as launch_count, min(device_start_ns - api_start_ns) as least_ns,
    cast(median(device_start_ns - api_start_ns) as double) as lead_ns
from _choice group by all order by at_ns"""


# metric: host_lead
# How far does the host of one rank run ahead, over time?
#
# Launches of kernels and operations in even stretches of the time of launches, each with the
# median and the least time from a launch to the start of what it launched.
#
# title: Lead of the host
# meaning: How far one rank's host runs ahead of its device, over the capture.
# by: run, capture, rank
# command: host --by lead
# table: host_lead
# figure: host_lead
#
#   at_ns         bigint  begin of a stretch of time
#   launch_count  bigint  launches in it
#   least_ns      bigint  the least lead; below 0: clocks differ by that
#   lead_ns       double  median lead
def host_lead(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> pl.DataFrame:
    """Rows of the metric, of the first of the ranks chosen that has launches."""
    clause, values = scope.where(RANK)
    ranks = f"select run, capture, rank from host_pace {clause} order by all limit 1"
    first = frame(con, ranks, values)
    if first.height:
        scope = Scope(*first.row(0))
    clause, values = scope.where(RANK)
    return frame(con, _LEAD.format(where=clause or "where true", bins=_LEAD_BINS), values)


def host_notes(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> list[str]:
    """What of free time is not told, why, and how fast this host is."""
    means = mean_free_time(con, scope, by="cause")
    paces = host_pace(con, scope).drop_nulls(["pace_ns", "step"])
    none = [Message("no step here has free time, or it is not known")] if means.is_empty() else []
    told = of_each_capture(
        con, scope,
        lambda here: _notes_of(means.filter(**here.values(JOB)), paces.filter(**here.values(JOB))),
    )  # fmt: skip
    return [*none, *told]


def _notes_of(rows: pl.DataFrame, pace: pl.DataFrame) -> list[str]:
    notes: list[str] = []
    every = float(rows["free_ns"].sum())
    unknown = float(rows.filter(cause="unknown")["free_ns"].sum())
    if every and unknown:
        notes.append(
            Message(
                "{share} of the free time is unknown: no launch of what ended it was recorded"
                " (kernels within a graph have none); without CPU activities, record them, too"
                " (`npuscope doctor`)",
                share=percent(unknown / every),
            )
        )
    if pace.height:
        slowest = pace.sort("pace_ns", "rank", "step", descending=[True, False, False])
        row = slowest.row(0, named=True)
        notes.append(
            Message(
                "the host of rank {rank} takes {pace} us for a launch in step {step}: where what a"
                " launch starts takes less on average, the device is free",
                rank=row["rank"], step=row["step"], pace=f"{row['pace_ns'] / 1e3:,.1f}",
            )
        )  # fmt: skip
    return notes
