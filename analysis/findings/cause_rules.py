"""Findings about what is slower than its like, as `ranks` and `comm` judge it: a host, a link, and
matrix kernels far below the rate of others.

Each has a change that makes it as its like are.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from npuscope.messages import Message, joined

from ..ranks.stragglers.blame import verdicts_told
from ..wording import ms, percent, ranks_named
from .finding import Finding
from .material import Material
from .weigh import is_worth, share, stated

_MOST_NAMED = 4  # of what one finding names
_SLOW_RATE = 0.75  # of the rate of other kernels
_MATTERS = 0.05  # of the time of all kernels that multiply


def slow_hosts(seen: Material) -> Iterator[Finding]:
    """Hosts that launch late, by the verdict on their ranks (`npuscope ranks`)."""
    rows = seen.hosts.head(_MOST_NAMED)
    if rows.is_empty():
        return
    ranks = rows["ranks"].explode()
    stake_ns = _caused_ns(seen)
    first = rows.row(0, named=True)
    yield stated(
        seen,
        "slow_hosts",
        Message(
            "Launches come late on host {hosts} ({ranks}): {own} us from launch to launch, {peers}"
            " us on other hosts.",
            hosts=joined(rows["host"]),
            ranks=ranks_named(ranks),
            own=f"{first['launch_interval_ns'] / 1e3:,.1f}",
            peers=f"{first['launch_peers_ns'] / 1e3:,.1f}",
        ),
        stake_ns,
        "estimated",
        "Waiting of the other ranks that goes back to the ranks of these hosts, as a mean of ranks"
        " and steps.",
        "See what else runs on the host: other jobs, memory swapping, a power-saving CPU governor,"
        " processes that are not bound to cores.",
        rows.drop("ranks"),
        "npuscope ranks PATH",
        changes=[
            f"host:{row['host']}={row['launch_peers_ns'] / row['launch_interval_ns']:.4f}"
            for row in rows.iter_rows(named=True)
        ],
    )


def slow_links(seen: Material) -> Iterator[Finding]:
    """Links between two ranks whose transfers take longer than usual ones (`npuscope comm`)."""
    rows = seen.pairs.sort("excess_ns", descending=True, nulls_last=True, maintain_order=True)
    rows = rows.head(_MOST_NAMED)
    if rows.is_empty():
        return
    over = max(seen.steps["step"].n_unique(), 1)
    stake_ns = float(rows["excess_ns"].sum()) / over
    if not is_worth(stake_ns, seen):
        return
    first = rows.row(0, named=True)
    yield stated(
        seen,
        "slow_links",
        Message(
            "The {link} link between ranks {low} and {high} moves {own} GB/s, usual are {usual}"
            " GB/s: its transfers take {stake} ms per step longer.",
            link=first["link"],
            low=first["low_rank"],
            high=first["high_rank"],
            own=f"{first['bandwidth_bytes_per_s'] / 1e9:,.1f}",
            usual=f"{first['usual_bytes_per_s'] / 1e9:,.1f}",
            stake=ms(stake_ns),
        ),
        stake_ns,
        "estimated",
        "Time of the transfers of slow pairs above what they take at the usual rate; compute may"
        " hide a part of it, and others may wait for it.",
        "Test the link without the job (hccn_tool), look for errors and retransmissions, a port at"
        " a lower speed, traffic of another job.",
        rows.drop("run", "capture"),
        "npuscope comm PATH --by link",
        changes=[_of_pair(row) for row in rows.iter_rows(named=True)],
    )


def slow_kernels(seen: Material) -> Iterator[Finding]:
    """Types of matrix kernels at a much lower rate of FLOPs than the others of the job."""
    rates = seen.matmuls
    if rates.height < 2:
        return
    total_ns = float(rates["total_ns"].sum())
    large = rates.filter(pl.col("total_ns") >= _MATTERS * total_ns)
    best = large.row(0, named=True)  # the highest rate first
    slow = large.filter(pl.col("flops_per_s") < _SLOW_RATE * best["flops_per_s"])
    slow = slow.with_columns(
        excess_ns=pl.col("total_ns") * (1 - pl.col("flops_per_s") / best["flops_per_s"])
    ).sort("excess_ns", descending=True, maintain_order=True)
    stake_ns = float(slow["excess_ns"].sum())
    if slow.is_empty() or not is_worth(stake_ns, seen):
        return
    first = slow.row(0, named=True)
    yield stated(
        seen,
        "slow_kernels",
        Message(
            "{type} kernels compute at {own} TFLOP/s, {other} kernels of this job at {best}: at"
            " that rate {stake} ms per step ({share}) would be saved.",
            type=first["type"],
            own=f"{first['flops_per_s'] / 1e12:,.1f}",
            other=best["type"],
            best=f"{best['flops_per_s'] / 1e12:,.1f}",
            stake=ms(stake_ns),
            share=percent(share(stake_ns, seen)),
        ),
        stake_ns,
        "estimated",
        "Durations above those at the highest rate of a type of matrix kernel. Small, thin or"
        " uneven matrices cannot reach the rate of large ones.",
        "Compare its shapes under the roofline: dimensions that are no multiples of 16, few tokens"
        " per expert, a layout that is converted on the way; then the operator's version.",
        slow,
        "npuscope mfu PATH --by kernel",
        changes=[
            f"kernel:{row['type']}={row['flops_per_s'] / best['flops_per_s']:.4f}"
            for row in slow.iter_rows(named=True)
        ],
    )


def suspects_named(seen: Material) -> str:
    """Who is suspected of making others wait, and why, as `ranks` says it; empty: nobody."""
    hosts = seen.hosts.select(rank="ranks", host_name="host").explode("rank")
    named = verdicts_told(seen.suspects, hosts)
    return Message("Suspected: {suspects}.", suspects=named) if named else ""


def suspect_changes(seen: Material) -> list[str]:
    """What would make the suspected ranks as their peers, by their verdicts."""
    verdicts = {row["rank"]: row["verdict"] for row in seen.suspects.iter_rows(named=True)}
    found = [
        f"rank:{rank}=median"
        for rank, verdict in verdicts.items()
        if verdict in ("compute", "frequency", "unknown")
    ]
    found += [one for finding in slow_hosts(seen) for one in finding.changes]
    linked = {rank for rank, verdict in verdicts.items() if verdict == "link"}
    for row in seen.pairs.iter_rows(named=True):
        if {row["low_rank"], row["high_rank"]} <= linked:
            found.append(_of_pair(row))
    return found[: 2 * _MOST_NAMED]


def _of_pair(row: dict[str, object]) -> str:
    return f"link:{row['low_rank']}-{row['high_rank']}={1 / float(str(row['slow_ratio'])):.4f}"


def _caused_ns(seen: Material) -> float | None:
    """Waiting of others that goes back to ranks with a slow host, of a mean rank and step."""
    mine = seen.suspects.filter(verdict="host")
    caused = mine["caused_wait_ns"].drop_nulls()
    over = max(len(seen.steps), 1)
    return float(caused.sum()) / over if len(caused) else None
