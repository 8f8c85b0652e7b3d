"""Answers over all ranks as frames, on a connection that `open_across` prepared."""

from __future__ import annotations

import duckdb
import msgspec
import polars as pl

from npuscope.messages import Message, StoredText, join, restore_text

from ..communication.communication import comm
from ..means import without_warm_up
from ..scope import ALL, JOB, Scope
from ..views import select
from ..wording import ranks_named

_ESTIMATES = (
    ("shortest duration", "wait_min_duration_ns", "transfer_min_duration_ns"),
    ("last arrival", "wait_last_arrival_ns", "transfer_last_arrival_ns"),
    ("HCCL's own", "hccl_wait_ns", "transit_ns"),
)


def clocks(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> pl.DataFrame:
    """Offset and drift of each clock, in order of its ranks: columns of the metric `clocks`."""
    return select(con, "clocks", scope, "ranks", of=JOB)


def clock_notes(rows: pl.DataFrame) -> list[str]:
    """What to know beside the figures of `clocks`, a sentence per remark with whom it concerns."""
    concerned: dict[tuple[tuple[str, str] | None, str], tuple[list[str], list[int]]] = {}
    several = rows.select("run", "capture").n_unique() > 1
    for row in rows.to_dicts():
        place = (row["run"], row["capture"]) if several else None
        for message in msgspec.json.decode(row["remarks"], type=list[StoredText]):
            hosts, ranks = concerned.setdefault((place, restore_text(message)), ([], []))
            hosts += [row["host"]] if row["host"] else []
            ranks += [] if row["host"] else row["ranks"]
    notes: list[str] = []
    for (place, remark), (hosts, ranks) in concerned.items():
        note = Message("{place}: {note}", place=_names_of(hosts, ranks), note=remark)
        if place:
            run, capture = place
            note = Message("{run}, {capture}: {note}", run=run, capture=capture, note=note)
        notes.append(note)
    return notes


def comm_waits(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> pl.DataFrame:
    """Waiting and transfer by rank, step and parallel kind: columns of the metric `comm_waits`."""
    return select(con, "comm_waits", scope, "kind")


# metric: mean_waits
# Do ranks wait, or do they transfer?
#
# The two estimates (see comm_waits) are of operations that all members recorded, HCCL's of all.
# Sums over ranks and steps by all pairs of them that matched an operation, without warm-up. What a
# way does not tell is left out.
#
# title: Waiting or transferring in a mean step
# meaning: Waiting and transfer of a rank's mean step by parallel kind and way of telling them.
# table: communication_waits
# figure: waiting
#
#   kind         varchar  parallel kind: tp, pp, dp, ep, ...
#   estimate     varchar  shortest duration, last arrival or HCCL's own
#   wait_ns      double   waiting for other ranks
#   transfer_ns  double   moving data
def mean_waits(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> pl.DataFrame:
    """Rows of the metric, the kind with most time first."""
    waits = comm_waits(con, scope)
    waits = without_warm_up(con, waits)
    over = max(waits.select("rank", "step").n_unique(), 1)
    place = ["run", "capture", "rank", "step", "kind"]
    moved = comm(con, scope, by="kind")
    both = waits.join(moved.select(*place, "transit_ns"), on=place, how="left", nulls_equal=True)
    means = [
        both.group_by("kind")
        .agg(
            (pl.when(pl.col(name).count() > 0).then(pl.col(name).sum()) / over).alias(column)
            for name, column in ((wait, "wait_ns"), (transfer, "transfer_ns"))
        )
        .with_columns(estimate=pl.lit(estimate))
        for estimate, wait, transfer in _ESTIMATES
    ]
    rows = pl.concat(means).drop_nulls(["wait_ns", "transfer_ns"])
    total = (pl.col("wait_ns") + pl.col("transfer_ns")).max().over("kind")
    order = pl.col("estimate").replace_strict({one[0]: at for at, one in enumerate(_ESTIMATES)})
    return rows.sort(-total, "kind", order).select("kind", "estimate", "wait_ns", "transfer_ns")


def slow_pairs(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> pl.DataFrame:
    """Rates between each two ranks, the slowest first: columns of the metric `slow_pairs`."""
    order = "slow_ratio desc nulls last, link, low_rank, high_rank"
    return select(con, "slow_pairs", scope, order, of=JOB)


def _names_of(hosts: list[str], ranks: list[int]) -> str:
    names = list(dict.fromkeys(hosts))
    more = [Message("{count} more hosts", count=len(names) - 4)] if len(names) > 4 else []
    return join([*names[:4], *more, *([ranks_named(ranks)] if ranks else [])])
