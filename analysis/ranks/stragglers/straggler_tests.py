"""Is a rank the slowest more often than chance would have it?

A trial is a piece of work that n ranks did alike; its outcome is who took longest (of five ranks
and more also: which few of them, so that several culprits do not hide each other). If all are
equal, each of them is it with probability 1/n, whatever the law of the durations (exchangeability).
Over m trials, being it at least k times has the binomial tail P(X >= k), X ~ B(m, 1/n): the exact
sign test (for n = 2 the classical one; Conover, Practical Nonparametric Statistics, 3.4). It needs
no spread to be estimated, so it works with two or three ranks. As every rank is tested, the
p-values are corrected by Holm's step-down method (Scandinavian Journal of Statistics 6, 1979),
which holds whatever the dependence between ranks.

What ranks took themselves between communication operations, compared with their peers.

Own time (metric `comm_progress`) stands still while a rank communicates with no kernel beside, so a
rank that is late because it waited for another has no more of it than its peers. Peers are ranks
of one pipeline stage: they do the same work, so the n-th operation of a kind is the same place in
the program of each.

    rank 0  |== own ==|  wait  |= own =|        own time to the place of each operation
    rank 1  |== own =======|   |= own =|        excess: rank 1 took longer before the first one
                           ^ first operation

Which links are slow: transfers of one link type and size between each two ranks, compared.

A pair is slow where its rate lies far below that of the other pairs in the same step and class of
link, task type and message size: by a quarter at least, and by five times the spread of the faster
half of the pairs.
One rank is to blame where nearly all of its pairs are slow, else the pair. Ranks wait for nobody at
the start of such operations; they end later for all.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

# What figures per step are over: what is outside of every step (-1) is none, where a rank has any.
WITHIN_STEPS = (pl.col("step") >= 0) | (pl.col("step").max().over("rank") < 0)
SURE = 0.001  # chance of naming an innocent rank anywhere in a capture, after correction


def binomial_tail(trials: int, hits: int, chance: float) -> float:
    """P(X >= hits) for X ~ B(trials, chance)."""
    if hits <= 0:
        return 1.0
    if chance >= 1.0:
        return 1.0
    first = (
        math.lgamma(trials + 1) - math.lgamma(hits + 1) - math.lgamma(trials - hits + 1)
        + hits * math.log(chance) + (trials - hits) * math.log1p(-chance)
    )  # fmt: skip
    # Terms fall geometrically beyond the mean, so the sum ends early.
    term, total, k = 1.0, 1.0, hits
    while k < trials and term > 1e-17 * total:
        term *= (trials - k) / (k + 1) * chance / (1.0 - chance)
        total += term
        k += 1
    return min(1.0, math.exp(first + math.log(total)))


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values corrected for being so many."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected, worst = [1.0] * len(p_values), 0.0
    for place, index in enumerate(order):
        worst = max(worst, min(1.0, (len(p_values) - place) * p_values[index]))
        corrected[index] = worst
    return corrected


def slowest_more_often(trials: pl.DataFrame) -> pl.DataFrame:
    """The test for every rank.

    trials: trial, rank, value; of each trial the ranks with a value are compared. Returns rank,
    trial_count, slowest_count, p_value (corrected). Ties have no slowest, ranks alone no trial.

    What is slow in a part of its work only would drown among the other trials. So the test is done
    over all trials and over the quarter of them in which the slowest stands out most; and for being
    the slowest, in the slowest eighth, and among the slowest, fewer than half, as several slow
    ranks of one host take turns at being it. The best one is taken, times their number. The choice
    looks at sorted values only, not at whose they are, so each rank still has its 1/n.
    """
    n = pl.len().over("trial")
    # The worse place of those that tie.
    place = pl.col("value").rank("max", descending=True).over("trial")
    compared = (
        trials.drop_nulls("value")
        .with_columns(
            n.alias("n"),
            place.alias("place"),
            (pl.col("value").max() - pl.col("value").median()).over("trial").alias("stands_out"),
        )
        .filter(pl.col("n") > 1)
        .with_columns(
            # Ranks have the trials of their own set of peers, so the quarter is taken for each.
            (pl.col("stands_out").rank("ordinal", descending=True).over("rank") * 4
             <= pl.len().over("rank")).alias("is_chosen"),
        )
    )  # fmt: skip
    size, flag = pl.col("n"), pl.col("is_chosen")
    among = [pl.max_horizontal(most, 1) for most in (pl.lit(1), size // 8, (size - 1) // 2)]
    is_among = [pl.col("place") <= most for most in among]
    counted = compared.group_by("rank").agg(
        pl.len().cast(pl.Int64).alias("trial_count"),
        is_among[0].sum().cast(pl.Int64).alias("slowest_count"),
        flag.sum().alias("chosen"),
        # Where trials have different numbers of ranks, the likeliest outcome makes the test hard.
        pl.concat_list((most / size).max() for most in among).alias("chances"),
        pl.concat_list(hit.sum() for hit in is_among).alias("hits"),
        pl.concat_list((hit & flag).sum() for hit in is_among).alias("chosen_hits"),
    ).sort("rank")  # fmt: skip
    corrected = pl.Series("p_value", holm([_best(row) for row in counted.to_dicts()]), pl.Float64)
    return counted.select("rank", "trial_count", "slowest_count").with_columns(corrected)


def _best(row: dict[str, Any]) -> float:
    """Of tests that differ: with few ranks, the slowest alone are fewer than half."""
    tests = zip(row["chances"], row["hits"], row["chosen_hits"], strict=True)
    tails = [
        binomial_tail(trials, hits, chance)
        for chance, every, chosen in {*tests}
        for trials, hits in ((row["trial_count"], every), (row["chosen"], chosen))
    ]
    return min(1.0, len(tails) * min(tails))


def corrected_min(*tests: pl.DataFrame) -> pl.DataFrame:
    """rank, p_value: the best of several tests of each rank, times their number."""
    every = pl.concat([test.select("rank", "p_value") for test in tests])
    return every.group_by("rank").agg(
        (pl.col("p_value").min() * len(tests)).clip(upper_bound=1.0).alias("p_value")
    )


def peers_value(value: str, *over: str) -> pl.Expr:
    """What the others of a set have: with two or three the mean of the others, else the median."""
    # As DOUBLE: sums of integers may come as decimals, whose division by zero is an error.
    column = pl.col(value).cast(pl.Float64)
    others = (column.sum().over(*over) - column) / (column.count().over(*over) - 1)
    few = column.count().over(*over) <= 3
    return pl.when(few).then(others).otherwise(column.median().over(*over))


# A step is cut in so many pieces of work, each a trial: fine enough to tell within a few steps,
# coarse enough that each holds many kernels.
_PIECES = 8


def with_places(progress: pl.DataFrame, stages: pl.DataFrame) -> pl.DataFrame:
    """Operations with their place in the program and the rank's excess up to there.

    progress: rank, step, kind, op_type, group_hash, instance, start_ns, own_ns, exposed_ns,
    ready_ns (its last member came; NULL: unknown), ... stages: rank, stage. Adds stage, place (own
    time of the peers' median), excess_ns (more own time than peers since the rank's first
    operation), delay_ns (ready so much later than the first of the stage) and is_common (all the
    stage's ranks have it).
    """
    in_order = progress.join(stages, on="rank", how="inner").sort("rank", "start_ns", "name")
    first_of_group = pl.col("start_ns").min().over("rank", "kind", "op_type", "group_hash")
    keyed = (
        in_order.with_columns(
            (pl.col("own_ns") - pl.col("own_ns").first().over("rank")).alias("since_first_ns"),
            first_of_group.alias("first_ns"),
        )
        .with_columns(
            pl.col("first_ns").rank("dense").over("rank", "kind", "op_type").alias("slot")
        )
        .with_columns(
            pl.int_range(pl.len()).over("rank", "step", "kind", "op_type", "slot").alias("nth")
        )
    )
    key = ["stage", "step", "kind", "op_type", "slot", "nth"]
    stage_size = pl.col("rank").n_unique().over("stage")
    return keyed.with_columns(
        pl.col("since_first_ns").median().over(key).alias("place"),
        (pl.col("since_first_ns") - peers_value("since_first_ns", *key)).alias("excess_ns"),
        (pl.col("ready_ns") - pl.col("ready_ns").min().over(key)).alias("delay_ns"),
        ((pl.len().over(key) == stage_size) & (stage_size > 1)).alias("is_common"),
    ).drop("first_ns", "since_first_ns")


def pieces(ops: pl.DataFrame) -> pl.DataFrame:
    """Pieces of work of each rank: what it took from one place of the program to another.

    ops: as `with_places` gives them. Returns rank, stage, step, trial, value (own ns), peers_ns.
    """
    key = ["stage", "step", "kind", "op_type", "slot", "nth"]
    low, high = (getattr(pl.col("place"), f)().over("stage", "step") for f in ("min", "max"))
    cut = (
        ((pl.col("place") - low) / pl.max_horizontal(high - low, 1.0) * _PIECES)
        .floor()
        .clip(0, _PIECES - 1)
        .alias("piece")
    )
    common = ops.filter("is_common")
    ends = (
        common.select(*key, "place")
        .unique()
        .with_columns(cut)
        .sort("stage", "step", "place", *key[2:])
        .group_by("stage", "step", "piece", maintain_order=True)
        .last()
        .with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("trial"))
    )
    # The own time itself from its differences: `own_ns` of neighbours on one rank.
    return (
        common.join(ends.select(*key, "piece", "trial"), on=key, how="inner", nulls_equal=True)
        .sort("rank", "place", "trial")
        .with_columns((pl.col("own_ns") - pl.col("own_ns").shift(1).over("rank")).alias("value"))
        .drop_nulls("value")
        .with_columns(peers_value("value", "trial").alias("peers_ns"))
        .select("rank", "stage", "step", "trial", "value", "peers_ns")
    )


def load_trials(ops: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Trials of who has most bytes in an all-to-all: among its members, and, by the ratio to the
    other members, among all ranks of the capture (which of n-th all-to-alls of a step are alike).

    ops: rank, step, op_type, instance, start_ns, size_bytes. Returns two frames: trial, rank,
    value.
    """
    mine = (
        ops.filter(pl.col("op_type").is_in(["allToAll", "allToAllV"]), pl.col("size_bytes") > 0)
        .sort("rank", "start_ns")
        .with_columns(pl.int_range(pl.len()).over("rank", "step").alias("nth"))
        .with_columns((pl.col("size_bytes") / peers_value("size_bytes", "instance")).alias("ratio"))
    )
    inside = mine.select(
        pl.col("instance").alias("trial"), "rank", pl.col("size_bytes").alias("value")
    )
    across = mine.filter(pl.col("ratio").is_finite()).select(
        pl.struct("step", "nth").rank("dense").alias("trial"),
        "rank",
        pl.col("ratio").alias("value"),
    )
    return inside, across


def excess_by_rank(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of `pieces` by rank: rank, own_ns and peers_ns per step (medians), excess_ratio (median
    over the steps), late_steps_ratio (share of the steps with an excess)."""
    by_step = (
        rows.filter(WITHIN_STEPS)
        .group_by("rank", "step")
        .agg(pl.col("value").sum(), pl.col("peers_ns").sum())
        .with_columns((pl.col("value") / pl.col("peers_ns") - 1).alias("ratio"))
    )
    return by_step.group_by("rank").agg(
        pl.col("value").median().alias("own_ns"),
        pl.col("peers_ns").median(),
        pl.col("ratio").median().alias("excess_ratio"),
        (pl.col("ratio") > 0).mean().alias("late_steps_ratio"),
    )


_SLOW_RATIO = 1.25
_SPREADS = 5.0
_PAIRS_AT_LEAST = 3
_MOST_OF_ITS_PAIRS = 0.75
_CLASS = ("step", "link", "task_type", "size_class")


def pair_rates(transfers: pl.DataFrame) -> pl.DataFrame:
    """Rows of `link_transfers` by link and two ranks (low_rank < high_rank): bandwidth, that of the
    other pairs, slow_ratio (how many times longer a transfer takes), is_slow, excess_ns (time over
    what the others' rate would have taken), size_bytes, transfer_count, class_count,
    slowest_count (classes in which no pair is slower). What is outside of every step is left out
    where there are steps: sums are over these."""
    pair = ["low_rank", "high_rank"]
    step = pl.col("step")
    both = transfers.filter(step.is_not_null() | (step.count() == 0)).with_columns(
        pl.min_horizontal("src_rank", "dst_rank").alias("low_rank"),
        pl.max_horizontal("src_rank", "dst_rank").alias("high_rank"),
        (pl.col("p50_bandwidth_bytes_per_s") * pl.col("count")).alias("weighted"),
    )
    by_class = (
        both.group_by(*_CLASS, *pair)
        .agg(pl.col("count", "size_bytes", "total_ns", "weighted").sum())
        .with_columns((pl.col("weighted") / pl.col("count")).alias("rate"))
        .with_columns(
            pl.len().over(_CLASS).alias("pairs"),
            pl.col("rate").rank("ordinal").over(_CLASS).alias("place"),
            (pl.col("rate") == pl.col("rate").min().over(_CLASS)).alias("is_slowest"),
        )
        .pipe(_with_slowest_end)
        .with_columns(
            pl.when(pl.col("place") > pl.col("apart"))
            .then("rate")
            .median()
            .over(_CLASS)
            .alias("usual")
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
    # Of the faster half: half of the links may be slow.
    distance = pl.col("slow_ratio").log()
    is_fast = distance <= distance.median().over("link")
    spread = pl.when(is_fast).then(distance.abs()).median().over("link") * 1.4826
    return rates.with_columns(
        ((pl.col("slow_ratio") >= _SLOW_RATIO) & (distance >= _SPREADS * spread)).alias("is_slow")
    ).sort("link", *pair)


def _with_slowest_end(classes: pl.DataFrame) -> pl.DataFrame:
    """With `apart`: how many pairs of each class the rank has whose pairs are all slower than every
    other one, as those of a rank whose own end is slow are: half of all between four ranks, so that
    the others alone tell what is usual. 0: there is no such rank, or no two others."""
    ends = pl.concat(
        classes.select(*_CLASS, "pairs", "place", rank=end) for end in ("low_rank", "high_rank")
    )
    slowest = (
        ends.group_by(*_CLASS, "rank")
        .agg(pl.len().alias("apart"), pl.col("place").max(), pl.col("pairs").first())
        .filter(pl.col("apart") > 1, pl.col("apart") == pl.col("place"))
        .filter(pl.col("pairs") - pl.col("apart") > 1)
        .select(*_CLASS, "apart")
    )
    return classes.join(slowest, on=_CLASS, how="left", nulls_equal=True).with_columns(
        pl.col("apart").fill_null(0)
    )


def blame_ends(rates: pl.DataFrame) -> pl.DataFrame:
    """Who is to blame for the slow pairs of `pair_rates`, a row per link type and rank.

    Columns: rank, link, other (NULL: the rank's own end is slow), slow_ratio, bandwidth and usual
    bandwidth, excess_ns, transfer_count, pair_count (of the rank), slow_pair_count, p_value (of
    being among the slowest so often; not corrected).
    """
    rows: list[dict[str, Any]] = []
    for (link,), mine in rates.group_by("link", maintain_order=True):
        counts = _pair_counts(mine)
        for rank, named in _slow_ends(mine, counts):
            chance = (1 if rank is None else counts[rank]) / mine.height
            blame = {"link": link, **_sum_ends(named, chance)}
            if rank is not None:
                rows.append({**blame, "rank": rank, "pair_count": counts[rank]})
            else:
                low, high = _ends(named[0])
                rows.append({**blame, "rank": low, "other": high, "pair_count": counts[low]})
                rows.append({**blame, "rank": high, "other": low, "pair_count": counts[high]})
    return pl.DataFrame(rows, schema=_BLAMES)


def slow_ends(rates: pl.DataFrame) -> pl.DataFrame:
    """Slow pairs of `pair_rates` or of the metric `slow_pairs` with end_rank, the rank whose own
    end of them is slow (NULL: the link between the two is), and pair_count, how many pairs that
    rank has over such links."""
    end_rows: list[dict[str, Any]] = []
    for _, mine in rates.group_by("link", maintain_order=True):
        counts = _pair_counts(mine)
        for rank, named in _slow_ends(mine, counts):
            ends = {"end_rank": rank, "pair_count": None if rank is None else counts[rank]}
            end_rows += [{**row, **ends} for row in named]
    return pl.DataFrame(
        end_rows, schema={**rates.schema, "end_rank": pl.Int32, "pair_count": pl.Int64}
    )


def _pair_counts(mine: pl.DataFrame) -> dict[int, int]:
    """Pairs of each rank over links of one type."""
    return dict(pl.concat([mine["low_rank"], mine["high_rank"]]).value_counts().iter_rows())


def _slow_ends(
    mine: pl.DataFrame, counts: Mapping[int, int]
) -> Iterator[tuple[int | None, list[dict[str, Any]]]]:
    """Slow pairs of one link type by the rank whose own end is slow; None: the link of one pair."""
    left = mine.filter("is_slow").to_dicts()
    while left:
        touched = Counter(rank for row in left for rank in _ends(row))
        rank, hits = min(touched.items(), key=lambda item: (-item[1], item[0]))
        is_end = hits >= 2 and hits >= _MOST_OF_ITS_PAIRS * counts[rank]
        named = [row for row in left if rank in _ends(row)] if is_end else left[:1]
        left = [row for row in left if row not in named]
        yield rank if is_end else None, named


def _ends(row: dict[str, Any]) -> tuple[int, int]:
    return row["low_rank"], row["high_rank"]


def _sum_ends(named: list[dict[str, Any]], chance: float) -> dict[str, Any]:
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


_BLAMES = {
    "rank": pl.Int32, "link": pl.String, "other": pl.Int32, "slow_ratio": pl.Float64,
    "bandwidth_bytes_per_s": pl.Float64, "usual_bytes_per_s": pl.Float64, "excess_ns": pl.Float64,
    "transfer_count": pl.Int64, "pair_count": pl.Int64, "slow_pair_count": pl.Int64,
    "p_value": pl.Float64,
}  # fmt: skip
