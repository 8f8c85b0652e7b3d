"""Which ranks read the same clock: those of one host, unless what they read says otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import duckdb
import polars as pl

from npuscope.analysis.catalog import metric
from npuscope.collector.store import store

# Ranks of one host whose middle residuals lie further apart than this, and than six times what a
# reading scatters, do not share a clock.
APART_NS = 20_000.0


@dataclass(slots=True)
class Clock:
    """A clock: whose it is, and what was found out; None: unknown."""

    host: str | None
    ranks: list[int]
    offset_ns: int | None = None
    drift_ppm: float | None = None
    drift_error_ppm: float | None = None
    fitted_ppm: float | None = None  # told or not
    residual_ns: float | None = None
    error_ns: int | None = None
    lower_ns: int | None = None
    upper_ns: int | None = None
    instance_count: int = 0
    basis: str = "none"
    remarks: list[str] = field(default_factory=list)


def clocks_of(con: duckdb.DuckDBPyConnection) -> list[Clock]:
    """A clock per host of a capture, in order of its first rank; of unknown hosts, and of devices
    that count from their own zero, one per rank."""
    hosts = f"select rank, host as host_key, host_name as host from ({metric('rank_hosts').sql})"
    device = "select rank, bool_or(clock = 'device') as is_device from ranks group by rank"
    ranks = store.frame(
        con.sql(f"select * from ({hosts}) left join ({device}) using (rank) order by rank")
    ).to_dicts()
    by_host: dict[str, Clock] = {}
    names: dict[str, set[str]] = {}
    for one in ranks:
        names.setdefault(one["host"] or "", set()).add(one["host_key"] or "")
    for one in ranks:
        key, host = one["host_key"], one["host"]
        if key is None:
            by_host[f"rank {one['rank']}"] = Clock(None, [one["rank"]], remarks=["host unknown"])
            continue
        # Machines may share a name.
        shown = f"{host} ({key})" if len(names[host]) > 1 else host
        if one["is_device"]:
            clock = Clock(shown, [one["rank"]], remarks=["its device clock has its own zero"])
            by_host[f"rank {one['rank']}"] = clock
            continue
        by_host.setdefault(f"host {key}", Clock(shown, [])).ranks.append(one["rank"])
    return list(by_host.values())


def hosts_apart(found: pl.DataFrame) -> set[int]:
    """Clocks whose ranks read different times at what ended for all of them at once.

    `found` has the columns of `sql/clock_readings.sql`.
    """
    middles = (
        found.filter("is_barrier")
        .with_columns(
            off_ns=pl.col("end_ns") - pl.col("end_ns").median().over("instance", "clock"),
            members=pl.len().over("instance", "clock"),
        )
        .filter(pl.col("members") > 1)
        .group_by("clock", "rank")
        .agg(
            middle_ns=pl.col("off_ns").median(),
            scatter_ns=(pl.col("off_ns") - pl.col("off_ns").median()).abs().median() * 1.4826,
        )
        .group_by("clock")
        .agg(
            range_ns=pl.col("middle_ns").max() - pl.col("middle_ns").min(),
            scatter_ns=pl.col("scatter_ns").median(),
        )
        .filter(pl.col("range_ns") > pl.max_horizontal(APART_NS, 6 * pl.col("scatter_ns")))
    )
    return set(middles["clock"])


def split_hosts(clocks: Sequence[Clock], apart: set[int]) -> list[Clock]:
    """The same, with a clock of its own for each rank of the hosts named."""
    remark = "ranks of this host do not share a clock"
    split: list[Clock] = []
    for number, clock in enumerate(clocks):
        if number in apart:
            split += [Clock(clock.host, [rank], remarks=[remark]) for rank in clock.ranks]
        else:
            split.append(clock)
    return split
