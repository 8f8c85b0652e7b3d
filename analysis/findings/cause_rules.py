"""Findings about what is slower than its like, as `ranks` and `comm` judge it: a host, a link, and
matrix kernels far below the rate of others.

Each has a change that makes it as its like are.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from npuscope.messages import Message, join

from ..ranks.stragglers.blame import suspect_reasons
from ..wording import ms, percent, ranks_named
from .finding import Finding
from .material import Material
from .weigh import is_worth, share, state

_MOST_NAMED = 4  # of what one finding names
_SLOW_RATE = 0.75  # of the rate of other kernels
_MATTERS = 0.05  # of the time of all kernels that multiply


def slow_hosts(material: Material) -> Iterator[Finding]:
    """Hosts that launch late, by the verdict on their ranks (`npuscope ranks`)."""
    rows = material.hosts.head(_MOST_NAMED)
    if rows.is_empty():
        return
    ranks = rows["ranks"].explode()
    stake_ns = _caused_ns(material)
    first = rows.row(0, named=True)
    yield state(
        material,
        "slow_hosts",
        Message(
            "Launches come late on host {hosts} ({ranks}): {own} us from launch to launch, {peers}"
            " us on other hosts.",
            hosts=join(rows["host"]),
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


def slow_links(material: Material) -> Iterator[Finding]:
    """Links between two ranks whose transfers take longer than usual ones (`npuscope comm`)."""
    culprits = _culprits(material)[:_MOST_NAMED]
    if not culprits:
        return
    rows = pl.concat(culprits)
    excess_ns = float(rows["excess_per_step_ns"].sum())
    if not is_worth(excess_ns, material):
        return
    statements = [_slow(culprits[0])]
    if len(culprits) > 1:
        all_of = "With {count} more slow links or ends: {all} ms."
        statements.append(Message(all_of, count=len(culprits) - 1, all=ms(excess_ns)))
    yield state(
        material,
        "slow_links",
        join(statements, " "),
        # Transfers of several ranks run at a time: their sum can exceed a step.
        excess_ns / len({*rows["low_rank"], *rows["high_rank"]}),
        "estimated",
        "Time of the transfers of slow pairs above what they take at the usual rate, as a mean of"
        " steps and of the ranks at their ends; compute may hide a part of it, and others may wait"
        " for it.",
        "Test the link without the job (hccn_tool), look for errors and retransmissions, a port at"
        " a lower speed, traffic of another job.",
        rows.drop("size_bytes", "end_rank", "pair_count", "is_only_link"),
        "npuscope comm PATH --by matrix",
        changes=[word for one in culprits for word in _repairs(one)],
    )


def _culprits(material: Material) -> list[pl.DataFrame]:
    """Slow pairs, those with a slow end of one rank together, by what they lose, the most first."""
    apart = pl.when(pl.col("end_rank").is_null()).then(pl.struct("low_rank", "high_rank"))
    of = material.pairs.sort("excess_per_step_ns", descending=True, nulls_last=True)
    by_end = of.group_by("link", "end_rank", apart.alias("pair"), maintain_order=True)
    culprits = [rows for _, rows in by_end]
    return sorted(culprits, key=lambda rows: -float(rows["excess_per_step_ns"].sum()))


def _slow(rows: pl.DataFrame) -> str:
    """What is slow, and what it loses."""
    first = rows.row(0, named=True)
    size = rows["size_bytes"]
    own, usual = (
        f"{float(size.sum()) / float((size / rows[name]).sum()) / 1e9:,.1f}"
        for name in ("bandwidth_bytes_per_s", "usual_bytes_per_s")
    )
    lost = ms(float(rows["excess_per_step_ns"].sum()))
    if first["end_rank"] is not None:
        return Message(
            "{count} of {all} {link} links of rank {rank} move {own} GB/s, usual are {usual} GB/s:"
            " their transfers take {stake} ms per step longer.",
            count=rows.height, all=first["pair_count"], link=first["link"],
            rank=first["end_rank"], own=own, usual=usual, stake=lost,
        )  # fmt: skip
    return Message(
        "The {link} link between ranks {low} and {high} moves {own} GB/s, usual are {usual} GB/s:"
        " its transfers take {stake} ms per step longer.",
        link=first["link"], low=first["low_rank"], high=first["high_rank"], own=own, usual=usual,
        stake=lost,
    )  # fmt: skip


def slow_kernels(material: Material) -> Iterator[Finding]:
    """Types of matrix kernels at a much lower rate of FLOPs than the others of the job."""
    rates = material.matmuls
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
    if slow.is_empty() or not is_worth(stake_ns, material):
        return
    first = slow.row(0, named=True)
    yield state(
        material,
        "slow_kernels",
        Message(
            "{type} kernels compute at {own} TFLOP/s, {other} kernels of this job at {best}: at"
            " that rate {stake} ms per step ({share}) would be saved.",
            type=first["type"],
            own=f"{first['flops_per_s'] / 1e12:,.1f}",
            other=best["type"],
            best=f"{best['flops_per_s'] / 1e12:,.1f}",
            stake=ms(stake_ns),
            share=percent(share(stake_ns, material)),
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


def suspect_sentence(material: Material) -> str:
    """Who is suspected of making others wait, and why, as `ranks` says it; empty: nobody."""
    hosts = material.hosts.select(rank="ranks", host_name="host").explode("rank")
    late = {rank for rows in _late_links(material) for rank in _ends(rows)}
    is_late = (pl.col("verdict") != "link") | pl.col("rank").is_in(late)
    named = suspect_reasons(material.suspects.filter(is_late), hosts)
    return Message("Suspected: {suspects}.", suspects=named) if named else ""


def suspect_changes(material: Material) -> list[str]:
    """What would make the suspected ranks as their peers, by their verdicts; tokens, which a
    finding of their own tells of, where nothing else is suspected."""
    verdicts = {row["rank"]: row["verdict"] for row in material.suspects.iter_rows(named=True)}
    changes = [
        f"rank:{rank}=median"
        for rank, verdict in verdicts.items()
        if verdict in ("compute", "frequency", "unknown")
    ]
    changes += [one for finding in slow_hosts(material) for one in finding.changes]
    changes += [word for one in _late_links(material) for word in _repairs(one)]
    if not changes and "alltoall_bytes" in verdicts.values():
        return ["experts:balanced"]
    return changes[: 2 * _MOST_NAMED]


def _late_links(material: Material) -> list[pl.DataFrame]:
    """The `_culprits` of suspected ranks that others wait for. All of a group end together, however
    slow a link is: who is late for others afterwards waits less for peers than these do."""
    linked = set(material.suspects.filter(verdict="link")["rank"])
    waits = material.parts.filter(part="peer_wait").group_by("rank").agg(pl.col("ns").sum())
    per_step = pl.col("ns").fill_null(0) / max(material.steps["step"].n_unique(), 1)
    ranks = material.steps.select("rank").unique().join(waits, on="rank", how="left")
    waited = dict(ranks.select("rank", per_step).iter_rows())
    links = []
    for rows in _culprits(material):
        ends = _ends(rows)
        own, others = (
            [ns for rank, ns in waited.items() if (rank in ends) is is_end]
            for is_end in (True, False)
        )
        if ends <= linked and own and others:
            if is_worth(sum(others) / len(others) - sum(own) / len(own), material):
                links.append(rows)
    return links


def _ends(rows: pl.DataFrame) -> set[int]:
    """Whose links these `_culprits` are."""
    end, low, high = rows.select("end_rank", "low_rank", "high_rank").row(0)
    return {low, high} if end is None else {end}


def _repairs(rows: pl.DataFrame) -> list[str]:
    """What brings one of `_culprits` to the usual rate: all links of a rank whose end is slow, or
    each of them where it has others."""
    first = rows.with_columns(middle=pl.col("slow_ratio").median()).row(0, named=True)
    if first["end_rank"] is not None and first["is_only_link"]:
        return [f"link:{first['end_rank']}={1 / float(first['middle']):.4f}"]
    return [
        f"link:{row['low_rank']}-{row['high_rank']}={1 / row['slow_ratio']:.4f}"
        for row in rows.iter_rows(named=True)
    ]


def _caused_ns(material: Material) -> float | None:
    """Waiting of others that goes back to ranks with a slow host, of a mean rank and step: steps of
    which it is not known have as much as others."""
    mine = material.suspects.filter(verdict="host")
    caused = (mine["caused_wait_per_step_ns"] * mine["step_count"]).drop_nulls()
    over = max(len(material.steps), 1)
    return float(caused.sum()) / over if len(caused) else None
