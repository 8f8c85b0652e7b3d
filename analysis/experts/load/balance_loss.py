"""What the router's balance loss would be at each scope it can be taken over."""

from __future__ import annotations

from typing import get_args

import polars as pl

from .imbalance import PLACE
from .load import ExpertTables
from .load_rows import by_layer
from .scopes import Scope


def balance_losses(tables: ExpertTables) -> pl.DataFrame:
    """PLACE, scope, parts_count, balance_loss (mean over the scope's parts), balance_loss_worst.

    See `metrics.balance_loss`, and `scopes` for what the scopes are; those that are not told have
    no rows. n sum of f_i^2 is convex, so that narrower scopes never have a smaller mean if their
    parts route equally many tokens.
    """
    found = [by_layer(tables, scope) for scope in get_args(Scope)]
    return (
        pl.concat(found)
        .filter(pl.col("balance_loss").is_not_null())
        .group_by(*PLACE, "scope")
        .agg(
            pl.len().cast(pl.Int64).alias("parts_count"),
            pl.col("balance_loss").mean(),
            pl.col("balance_loss").max().alias("balance_loss_worst"),
        )
        .sort(*PLACE, "scope", nulls_last=True)
    )
