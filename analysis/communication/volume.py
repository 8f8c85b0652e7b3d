"""What communication moves: over which link, between whom, how fast, and what a hierarchy saves.

link_summary, pair_summary, comm_summary (of each rank) --> links, matrix, bandwidth, hierarchy
"""

from __future__ import annotations

from collections.abc import Mapping
from math import comb
from typing import Any

import duckdb
import polars as pl

from npuscope.errors import UsageError
from npuscope.messages import Message

from ..catalog import metric
from ..means import without_warm_up
from ..memo import memoize
from ..scope import ALL, JOB, PLACE, Scope
from ..views import frame, open_views, select

_PAIR = (
    *JOB, "kind", "src_rank", "dst_rank", "link", "is_between_hosts", "src_group_rank",
    "dst_group_rank",
)  # fmt: skip
_STEP = (*JOB, "step")


def links(
    con: duckdb.DuckDBPyConnection, scope: Scope = ALL, *, top: int | None = None
) -> pl.DataFrame:
    """Traffic by parallel kind, operation type and link: rows of the metric `link_traffic`.

    `top` keeps that many rows of each rank and step, most bytes first.
    """
    return _rows(con, "link_traffic", "size_bytes", scope, top)


def bandwidth(
    con: duckdb.DuckDBPyConnection, scope: Scope = ALL, *, top: int | None = None
) -> pl.DataFrame:
    """How fast operations are while they transfer: rows of the metric `bandwidth`, as `links`."""
    return _rows(con, "bandwidth", "transit_ns", scope, top)


def contention(
    con: duckdb.DuckDBPyConnection, scope: Scope = ALL, *, top: int | None = None
) -> pl.DataFrame:
    """Bandwidth of links beside compute and without it: rows of the metric `contention`, the
    greatest slowdown first."""
    return _rows(con, "contention", "slowdown_ratio", scope, top)


def matrix(
    con: duckdb.DuckDBPyConnection, scope: Scope = ALL, *, top: int | None = None
) -> pl.DataFrame:
    """Bytes from rank to rank: rows of the metric `rank_matrix`, as `links`; `rank` keeps pairs
    with it at either end."""
    rank = scope.rank
    rows = _rows(con, "rank_matrix", "size_bytes", scope, None if rank is not None else top)
    if rank is None:
        return rows
    rows = rows.filter((pl.col("src_rank") == rank) | (pl.col("dst_rank") == rank))
    return (
        rows
        if top is None
        else rows.group_by("run", "capture", "step", maintain_order=True).head(top)
    )


# metric: mean_pairs
# How much does a mean step send from whom to whom?
#
# The metric rank_matrix over the steps in which the sender's traffic was recorded, without warm-up,
# most bytes first. Pairs that exchanged nothing in such a step count as nothing there. Of a sender
# that was not captured its receivers tell: it counts in every step.
#
# title: Pairs of ranks in a mean step
# meaning: Bytes and time from each rank to each other in a mean step.
# by: run, capture
# figure: matrix
#
#   kind                   varchar  parallel kind: tp, pp, dp, ep, ...
#   src_rank               integer  rank that sends; NULL where unknown
#   dst_rank               integer  rank that receives
#   link                   varchar  HCCS, RDMA, PCIE, SIO
#   is_between_hosts       boolean  whether they run on different hosts; NULL where unknown
#   src_group_rank         integer  place of the sender in its group
#   dst_group_rank         integer  place of the receiver
#   size_bytes             double   bytes
#   time_ns                double   time of moving them; NULL where unknown
#   bandwidth_bytes_per_s  double   bytes over time of what has both
@memoize
def mean_pairs(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> pl.DataFrame:
    """Rows of the metric, of each capture most bytes first."""
    pairs = without_warm_up(con, matrix(con, scope))
    every = pairs.select(_STEP).unique().group_by(JOB).agg(every_count=pl.len())
    counts = _sent_steps(con, scope, pairs)
    steps = pl.coalesce("step_count", "every_count").first()
    size, time = pl.col("size_bytes"), pl.col("time_ns")
    timed_bytes = size.filter(time > 0).sum()
    return (
        pairs.join(every, on=JOB, how="left", maintain_order="left")
        .join(counts, on=[*JOB, "src_rank"], how="left", maintain_order="left")
        .group_by(_PAIR, maintain_order=True)
        .agg(
            size.sum() / steps,
            pl.when(time.count() > 0).then(time.sum() / steps),
            pl.when(time.sum() > 0).then(timed_bytes * 1e9 / time.sum())
            .alias("bandwidth_bytes_per_s"),
        )
        .sort(*JOB, -pl.col("size_bytes"), nulls_last=True, maintain_order=True)
    )  # fmt: skip


def _sent_steps(con: duckdb.DuckDBPyConnection, scope: Scope, pairs: pl.DataFrame) -> pl.DataFrame:
    """Of each captured rank among the senders of `pairs`, as src_rank: in how many steps of its
    capture what it sends is known (step_count). Tasks tell of all its steps. HCCL tells of those
    that have rows, and of those without communication."""
    sender = [*JOB, "src_rank"]
    steps = select(con, "step_summary", scope.all_ranks).rename({"rank": "src_rank"})
    steps = without_warm_up(con, steps).join(
        pairs.group_by(sender).agg((pl.col("basis") == "tasks").any().alias("has_tasks")),
        on=sender,
    )
    rows = pairs.select(*sender, "step").unique()
    countable = steps.filter(pl.col("has_tasks") | (pl.col("communication_ns") == 0))
    rows_of_senders = rows.join(steps, on=[*sender, "step"], how="semi", nulls_equal=True)
    return (
        pl.concat([countable.select(rows_of_senders.columns), rows_of_senders])
        .unique().group_by(sender).agg(pl.len().alias("step_count"))
    )  # fmt: skip


# metric: mean_contention
# Does a link move less while the rank computes?
#
# Medians of the metric contention over the ranks, steps and groups that have both, without
# warm-up.
#
# title: Contention of links
# meaning: Bandwidth of each link with and without overlapping computation, over ranks and steps.
# by: run, capture
# figure: contention
#
#   link                          varchar  HCCS, RDMA, PCIE, SIO
#   op_type                       varchar  allReduce, allToAllV, send, ...
#   beside_bandwidth_bytes_per_s  double   of operations that overlap computing
#   alone_bandwidth_bytes_per_s   double   of operations that do not
@memoize
def mean_contention(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> pl.DataFrame:
    """Rows of the metric, of each capture sorted by link and type."""
    both = ["beside_bandwidth_bytes_per_s", "alone_bandwidth_bytes_per_s"]
    means = without_warm_up(con, contention(con, scope).drop_nulls(both))
    keys = [*JOB, "link", "op_type"]
    return means.group_by(keys).agg(pl.col(both).median()).sort(keys)


def _rows(
    con: duckdb.DuckDBPyConnection, name: str, most: str, scope: Scope, top: int | None
) -> pl.DataFrame:
    entry = metric(name)
    open_views(con, (name,))
    columns = [column.name for column in entry.columns]
    of = [column for column in PLACE if column in columns]
    order = ", ".join([f"{most} desc nulls last", *(c for c in columns if c not in (*of, most))])
    return select(con, entry.view, scope, order, of=of, top=top, columns=", ".join(columns))


def hierarchy(
    con: duckdb.DuckDBPyConnection, scope: Scope = ALL, *, experts: int, top_k: int
) -> pl.DataFrame:
    """What other schemes would move between hosts instead of the flat all-to-alls.

    Rows of the metric `all_to_all` and three columns in bytes: all_gather_bytes (each token to
    every host once, then all-to-all inside), and host_deduplicated_bytes and
    rank_deduplicated_bytes (a token to a host, or to a rank, at most once). They are NULL for one
    host, for groups of which not every rank and host is known, and for hosts of unequal numbers of
    ranks. From what was measured and uniform routing of `top_k` of `experts`: for n hosts of g
    ranks a flat exchange sends k (n-1)/n copies of a token to other hosts, the others n-1,
    (n-1) (1 - C(E-E/n, k) / C(E, k)) and (n-1) g (1 - C(E-E/(n g), k) / C(E, k)).
    Raises UsageError where the experts cannot be shared out so.
    """
    if not 0 < top_k <= experts:
        raise UsageError(
            Message(
                "top-k {top_k} of {experts} experts: choose one from 1 to {experts}",
                top_k=top_k,
                experts=experts,
            )
        )
    open_views(con, ("all_to_all",))
    clause, values = scope.where(JOB)
    exchanges = frame(con, f"select * from all_to_all {clause}", values)
    factors = [
        _factors(row["host_count"], row["group_size"], experts, top_k)
        if is_whole(row)
        else (None, None, None)
        for row in exchanges.iter_rows(named=True)
    ]
    names = ("all_gather_bytes", "host_deduplicated_bytes", "rank_deduplicated_bytes")
    schemes = pl.DataFrame(factors, schema=dict.fromkeys(names, pl.Float64), orient="row")
    return pl.concat([exchanges, schemes], how="horizontal").with_columns(
        pl.col(name) * pl.col("between_hosts_bytes") for name in names
    )


def is_whole(row: Mapping[str, Any]) -> bool:
    """Whether every rank of a row of `all_to_all` was recorded, on as many of each known host."""
    hosts = row["host_count"]
    return row["rank_count"] == row["group_size"] and bool(hosts) and not row["group_size"] % hosts


def _factors(
    hosts: int, ranks: int, experts: int, top_k: int
) -> tuple[float | None, float | None, float | None]:
    """Bytes between hosts of an all-gather, of copies once per host, and once per rank, each as a
    multiple of a flat exchange's."""
    if experts % ranks:
        raise UsageError(
            Message(
                "{experts} experts cannot be split evenly over {ranks} ranks",
                experts=experts,
                ranks=ranks,
            )
        )
    if hosts < 2:
        return None, None, None
    flat = top_k * (hosts - 1) / hosts

    def reached(places: int) -> float:
        """Chance that a token goes to one of `places` equal parts of the experts."""
        return 1 - comb(experts - experts // places, top_k) / comb(experts, top_k)

    return (
        (hosts - 1) / flat,
        (hosts - 1) * reached(hosts) / flat,
        (hosts - 1) * ranks // hosts * reached(ranks) / flat,
    )


def matrix_blocks(
    frame: pl.DataFrame, kind: str | None = None, *, most_cells: int
) -> tuple[pl.DataFrame, int]:
    """Rows of `mean_pairs` added up over links and kinds, or of one kind.

    Columns: src, dst (places in the axis), size_bytes, time_ns, bandwidth_bytes_per_s (of what has
    both). Returned too: how many consecutive ranks a place holds, one unless the cells would be
    more than `most_cells`. Pairs of unknown global ranks are left out.
    """
    complete = frame.drop_nulls(["src_rank", "dst_rank"])
    if kind is not None:
        complete = complete.filter(pl.col("kind") == kind)
    last = complete.select(pl.max_horizontal(pl.col("src_rank", "dst_rank").max())).item()
    ranks = 0 if last is None else int(last) + 1
    block = max(1, -(-ranks // int(most_cells**0.5)))
    rate, time = pl.col("bandwidth_bytes_per_s"), pl.col("time_ns")
    timed = (time > 0) & rate.is_not_null()
    blocks = (
        complete.group_by(
            (pl.col("src_rank") // block).alias("src"), (pl.col("dst_rank") // block).alias("dst")
        )
        .agg(
            pl.col("size_bytes").sum(),
            pl.when(pl.col("time_ns").count() > 0).then(pl.col("time_ns").sum()).alias("time_ns"),
            ((rate * time).filter(timed).sum() / time.filter(timed).sum())
            .alias("bandwidth_bytes_per_s"),
        )
        .with_columns(pl.col("bandwidth_bytes_per_s").fill_nan(None))
        .sort("src", "dst")
    )  # fmt: skip
    return blocks, block
