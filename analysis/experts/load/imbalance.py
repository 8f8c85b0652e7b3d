"""How unevenly tokens fall on experts: frames over rows of the table `expert_load`.

Rows are those of the store: run, capture, rank, step, phase, layer, expert, ep_rank, tokens. Where
`ep_rank` is told, each row is a part and parts add up; where it is NULL, every rank that tells the
count tells the global one, and they do not add up. All figures are of the experts that the rows
show, and raw: what looks like padding is noted (`load_notes`), not taken out.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

PLACE = ("run", "capture", "step", "phase", "layer")
# Experts with less than this share of the mean load are cold.
COLD_BELOW_RATIO = 0.1
FIGURES = (
    "experts_count", "tokens", "max_over_mean", "max_vio", "cv", "gini", "entropy_ratio",
    "cold_count", "dead_count", "hottest_expert", "balance_loss",
)  # fmt: skip


def expert_loads(rows: pl.DataFrame) -> pl.DataFrame:
    """Tokens of each logical expert: PLACE, expert, tokens (Int64), sorted.

    Parts that ranks tell (ep_rank is known) are added up, replicas of an expert with them. Global
    counts (ep_rank is NULL) are taken from the rank that tells most, and win over parts of the same
    layer: they miss nobody. Rows without layer, expert or tokens are unknown and left out.
    """
    key = [*PLACE, "expert"]
    rows_with_layers = rows.filter(
        pl.col("layer").is_not_null(),
        pl.col("expert").is_not_null(),
        pl.col("tokens").is_not_null(),
    )
    loads = rows_with_layers.group_by(*key, "rank", is_global=pl.col("ep_rank").is_null()).agg(
        pl.col("tokens").cast(pl.Int64).sum()
    )
    counted = loads.filter("is_global").group_by(key).agg(pl.col("tokens").max())
    parts = loads.filter(~pl.col("is_global")).group_by(key).agg(pl.col("tokens").sum())
    parts = parts.join(counted.select(PLACE).unique(), on=PLACE, how="anti", nulls_equal=True)
    return pl.concat([counted, parts]).sort(key, nulls_last=True)


def expert_metrics(loads: pl.DataFrame) -> pl.DataFrame:
    """Figures of each step, phase and layer: PLACE and FIGURES, sorted by PLACE.

    `loads` is from `expert_loads`. With the loads L_1 <= ... <= L_n and their mean m:

    * max_over_mean: L_n / m; max_vio: L_n / m - 1 (MaxVio of loss-free balancing, arXiv 2408.15664)
    * cv: population standard deviation / m, which MindSpeed's placement is triggered by
    * gini: sum of (2 i - n - 1) L_i / (n sum L); 0 is even, (n - 1) / n is all on one
    * entropy_ratio: -sum of p_i ln p_i / ln n with p_i = L_i / sum L; 1 is even; NULL for a
      single expert
    * cold_count: experts with L_i < COLD_BELOW_RATIO * m, or with nothing; dead_count: L_i = 0
    * hottest_expert: the first of those with most tokens
    * balance_loss: see `balance_loss`

    All ratios, and the hottest expert, are NULL where no expert got a token.
    """
    return (
        unevenness(loads, PLACE, "expert")
        .rename({"count": "experts_count", "hottest": "hottest_expert"})
        .select(*PLACE, *FIGURES)
    )


def balance_loss(cv: pl.Expr) -> pl.Expr:
    """What Switch's balance loss would be, without its factor alpha: n sum of f_i^2 = 1 + cv^2.

    The loss is alpha n sum of f_i P_i (arXiv 2101.03961, equation 4) with f_i the share of tokens
    and P_i the router's mean probability of expert i. No source tells P, so that it stands at f: 1
    is even, n is all on one expert. With top-k routing f_i is the share of the routed copies.
    """
    return 1 + cv**2


def unevenness(loads: pl.DataFrame, keys: Sequence[str], item: str) -> pl.DataFrame:
    """The figures of `expert_metrics` over the `tokens` of any `item`, a row for each of `keys`.

    Columns: keys, count, tokens, then as in FIGURES, but for `hottest`, a value of `item`.
    """
    tokens, share = pl.col("tokens"), pl.col("tokens") / pl.col("tokens").sum()
    place = pl.int_range(1, pl.len() + 1) * 2 - pl.len() - 1
    some = pl.col("tokens") > 0
    mean = pl.col("tokens") / pl.col("count")
    return (
        loads.group_by(list(keys))
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            tokens.sum().alias("tokens"),
            tokens.max().alias("most"),
            tokens.std(ddof=0).alias("deviation"),
            (place * tokens.sort().cast(pl.Float64)).sum().alias("weighted"),
            -(share * share.log()).filter(tokens > 0).sum().alias("entropy"),
            ((tokens < COLD_BELOW_RATIO * tokens.mean()) | (tokens == 0))
            .sum()
            .cast(pl.Int64)
            .alias("cold_count"),
            (tokens == 0).sum().cast(pl.Int64).alias("dead_count"),
            pl.col(item).filter(tokens == tokens.max()).min().alias("hottest"),
        )
        .with_columns(
            max_over_mean=pl.when(some).then(pl.col("most") / mean),
            cv=pl.when(some).then(pl.col("deviation") / mean),
            gini=pl.when(some).then(
                pl.col("weighted") / (pl.col("count").cast(pl.Float64) * pl.col("tokens"))
            ),
            entropy_ratio=pl.when(some & (pl.col("count") > 1)).then(
                pl.col("entropy") / pl.col("count").cast(pl.Float64).log()
            ),
            hottest=pl.when(some).then("hottest"),
        )
        .with_columns(max_vio=pl.col("max_over_mean") - 1, balance_loss=balance_loss(pl.col("cv")))
        .drop("most", "deviation", "weighted", "entropy")
        .sort(list(keys), nulls_last=True)
    )
