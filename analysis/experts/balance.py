"""What the router's balance loss would be at each scope it can be taken over."""

from __future__ import annotations

import polars as pl

from .metrics import PLACE, balance_loss, expert_loads, unevenness


def balance_losses(rows: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    """PLACE, scope, groups_count, balance_loss (mean over the scope's groups); see `balance_loss`.

    `rows` are of `expert_load`, `ranks` of `load.ExpertTables`. Scopes: `ep_group` (tokens of the
    ranks of one expert-parallel group; only where every rank that tells parts of the layer has a
    group) and `global` (all tokens of the step). n sum of f_i^2 is convex, so that narrower scopes
    never have a smaller mean if their groups route equally many tokens. Micro-batches are not told
    apart in the tables.
    """
    whole = unevenness(expert_loads(rows), PLACE, "expert").select(
        *PLACE,
        scope=pl.lit("global"),
        groups_count=pl.lit(1, pl.Int64),
        balance_loss="balance_loss",
    )
    rank = ["run", "capture", "rank"]
    parts = rows.filter(pl.col("ep_rank").is_not_null() & pl.col("tokens").is_not_null()).join(
        ranks.select(*rank, "ep_group"), on=rank, how="left"
    )
    clear = parts.filter(pl.col("ep_group").is_not_null().all().over(*PLACE))
    each = (
        clear.filter(pl.col("expert").is_not_null())
        .group_by(*PLACE, "ep_group", "expert")
        .agg(pl.col("tokens").sum())
    )
    of_groups = (
        unevenness(each, [*PLACE, "ep_group"], "expert")
        .with_columns(balance_loss=balance_loss(pl.col("cv")))
        .group_by(PLACE)
        .agg(pl.len().cast(pl.Int64).alias("groups_count"), pl.col("balance_loss").mean())
        .select(*PLACE, pl.lit("ep_group").alias("scope"), "groups_count", "balance_loss")
    )
    return pl.concat([of_groups, whole]).sort(*PLACE, "scope", nulls_last=True)
