"""Which links are slow: transfers of one link type and size between each two ranks, compared.

A pair is slow where its rate lies far below that of the other pairs in the same step and class of
link, task type and message size: by a quarter at least, and by five times the spread of the pairs.
One rank is to blame where nearly all of its pairs are slow, else the pair. Ranks wait for nobody at
the start of such operations; they end later for all.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import polars as pl

from .straggler_tests import binomial_tail

SLOW_RATIO = 1.25
_SPREADS = 5.0
_PAIRS_AT_LEAST = 3
_MOST_OF_ITS_PAIRS = 0.75
_CLASS = ("step", "link", "task_type", "size_class")


def pair_rates(transfers: pl.DataFrame) -> pl.DataFrame:
    """Rows of `link_transfers` by link and two ranks (low_rank < high_rank): bandwidth, that of the
    other pairs, slow_ratio (how many times longer a transfer takes), is_slow, excess_ns (time over
    what the others' rate would have taken), size_bytes, transfer_count, class_count,
    slowest_count (classes in which no pair is slower)."""
    pair = ["low_rank", "high_rank"]
    both = transfers.with_columns(
        pl.min_horizontal("src_rank", "dst_rank").alias("low_rank"),
        pl.max_horizontal("src_rank", "dst_rank").alias("high_rank"),
        (pl.col("p50_bandwidth_bytes_per_s") * pl.col("count")).alias("weighted"),
    )
    by_class = (
        both.group_by(*_CLASS, *pair)
        .agg(pl.col("count", "size_bytes", "total_ns", "weighted").sum())
        .with_columns((pl.col("weighted") / pl.col("count")).alias("rate"))
        .with_columns(
            pl.col("rate").median().over(_CLASS).alias("usual"),
            pl.len().over(_CLASS).alias("pairs"),
            (pl.col("rate") == pl.col("rate").min().over(_CLASS)).alias("is_slowest"),
        )
        .filter(pl.col("pairs") >= _PAIRS_AT_LEAST)
        .with_columns(
            (pl.col("usual") / pl.col("rate")).alias("ratio"),
            (pl.col("total_ns") - pl.col("size_bytes") * 1e9 / pl.col("usual")).alias("excess_ns"),
        )
    )
    rates = by_class.group_by("link", *pair).agg(
        (pl.col("rate") * pl.col("size_bytes")).sum().truediv(pl.col("size_bytes").sum())
        .alias("bandwidth_bytes_per_s"),
        (pl.col("usual") * pl.col("size_bytes")).sum().truediv(pl.col("size_bytes").sum())
        .alias("usual_bytes_per_s"),
        pl.col("ratio").sort().get(pl.len() // 2).alias("slow_ratio"),
        pl.col("excess_ns").sum(),
        pl.col("size_bytes").sum(),
        pl.col("count").sum().alias("transfer_count"),
        pl.len().cast(pl.Int64).alias("class_count"),
        pl.col("is_slowest").sum().cast(pl.Int64).alias("slowest_count"),
    )  # fmt: skip
    distance = pl.col("slow_ratio").log()
    spread = (distance - distance.median().over("link")).abs().median().over("link") * 1.4826
    return rates.with_columns(
        (
            (pl.col("slow_ratio") >= SLOW_RATIO)
            & (distance - distance.median().over("link") >= _SPREADS * spread)
        ).alias("is_slow")
    ).sort("link", *pair)


def blamed(rates: pl.DataFrame) -> pl.DataFrame:
    """Who is to blame for the slow pairs of `pair_rates`, a row per link type and rank.

    Columns: rank, link, other (NULL: the rank's own end is slow), slow_ratio, bandwidth and usual
    bandwidth, excess_ns, transfer_count, pair_count (of the rank), slow_pair_count, p_value (of
    being among the slowest so often; not corrected).
    """
    rows: list[dict[str, Any]] = []
    for (link,), mine in rates.group_by("link", maintain_order=True):
        left = mine.filter("is_slow").to_dicts()
        if not left:
            continue
        ends = pl.concat([mine["low_rank"], mine["high_rank"]])
        pair_counts = dict(ends.value_counts().iter_rows())
        while left:
            touched = Counter(rank for row in left for rank in (row["low_rank"], row["high_rank"]))
            rank, hits = min(touched.items(), key=lambda item: (-item[1], item[0]))
            is_end = hits >= 2 and hits >= _MOST_OF_ITS_PAIRS * pair_counts[rank]
            named = [row for row in left if rank in _ends(row)] if is_end else left[:1]
            left = [row for row in left if row not in named]
            chance = (pair_counts[rank] if is_end else 1) / mine.height
            blame = {"link": link, **_summed(named, chance)}
            if is_end:
                rows.append({**blame, "rank": rank, "pair_count": pair_counts[rank]})
            else:
                low, high = _ends(named[0])
                rows.append({**blame, "rank": low, "other": high, "pair_count": pair_counts[low]})
                rows.append({**blame, "rank": high, "other": low, "pair_count": pair_counts[high]})
    return pl.DataFrame(rows, schema=_BLAMED)


def _ends(row: dict[str, Any]) -> tuple[int, int]:
    return row["low_rank"], row["high_rank"]


def _summed(named: list[dict[str, Any]], chance: float) -> dict[str, Any]:
    size_bytes = sum(row["size_bytes"] for row in named)
    weighted = {
        name: sum(row[name] * row["size_bytes"] for row in named) / size_bytes
        for name in ("slow_ratio", "bandwidth_bytes_per_s", "usual_bytes_per_s")
    }
    trials = max(row["class_count"] for row in named)
    hits = min(trials, sum(row["slowest_count"] for row in named))
    return {
        **weighted,
        "excess_ns": sum(row["excess_ns"] for row in named),
        "transfer_count": sum(row["transfer_count"] for row in named),
        "slow_pair_count": len(named),
        "p_value": binomial_tail(trials, hits, min(chance, 1.0)),
    }


_BLAMED = {
    "rank": pl.Int32, "link": pl.String, "other": pl.Int32, "slow_ratio": pl.Float64,
    "bandwidth_bytes_per_s": pl.Float64, "usual_bytes_per_s": pl.Float64, "excess_ns": pl.Float64,
    "transfer_count": pl.Int64, "pair_count": pl.Int64, "slow_pair_count": pl.Int64,
    "p_value": pl.Float64,
}  # fmt: skip
