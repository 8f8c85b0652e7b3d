"""Tokens that experts refused, step by step: whether routing is dropless over a training.

counts of a hook + tokens of a step (told, or the log's) + top-k (told, or the profile's)
--> what each layer was not given (`dropped_tokens`) --> a row for each step
"""

from __future__ import annotations

from pathlib import Path

import duckdb
import polars as pl

from npuscope.collector.discover.train_logs import logged_facts
from npuscope.collector.store.store import readings

from ..catalog import column_names
from ..experts.load.counted_ranks import sent_tokens
from ..experts.load.dropped_tokens import sum_notes, with_dropped
from ..experts.load.imbalance import PLACE, expert_loads
from ..experts.load.load import expert_rows
from ..scope import ALL, Scope


# metric: health_dropped
# Which share of the tokens do experts refuse, over a training?
#
# Of steps whose tokens a hook counted: routed are tokens of the step x top-k of every layer,
# dropped those that no expert was given, by the rules of experts_layer. Tokens of a step are
# --tokens-per-step, else batch x sequence length of the training's log; top-k is --top-k, else what
# the job told its profiler. A step that several captures hold counts as in the last one.
#
# title: Dropped tokens
# meaning: The share of tokens that experts refused in each counted step: 0 of dropless routing.
# figure: health_dropped
# gauge: npuscope_health_dropped_tokens_ratio = dropped_ratio: Tokens that experts refused in the
#     last counted step, of all routed.
#
#   step             bigint   step of the training
#   layers_count     bigint   expert layers that were counted
#   routed_tokens    bigint   tokens x top-k of all layers; NULL where a layer's are unknown
#   dropped_tokens   bigint   those that no expert was given; NULL likewise
#   dropped_ratio    double   of routed; NULL likewise
#   worst_layer      bigint   the layer that refused the greatest share
#   worst_ratio      double   that share
def health_dropped(
    con: duckdb.DuckDBPyConnection,
    scope: Scope = ALL,
    *,
    target: Path | None = None,
    tokens_per_step: int | None = None,
    top_k: int | None = None,
) -> tuple[pl.DataFrame, list[str]]:
    """The rows of the metric, and why what is unknown is; of a scope only the run is heeded, the
    first of several where it names none. `target`: the place of the tables."""
    tables = expert_rows(con, Scope(scope.run))
    loads = expert_loads(tables.load).filter(pl.col("phase") == "train").drop_nulls("step")
    loads = loads.filter(pl.col("run") == pl.col("run").min())
    if loads.is_empty():
        return pl.DataFrame(schema=_ROWS), []
    tokens = tokens_per_step or _logged_tokens(con, target, loads["run"][0])
    held = None if target is None else (con, target)
    tokens_of_layers = sent_tokens(held, tables, top_k=top_k, tokens_per_step=tokens)
    layers = with_dropped(loads.group_by(PLACE).agg(pl.col("tokens").sum()), tokens_of_layers)
    layers = layers.filter(pl.col("capture") == pl.col("capture").max().over("step"))
    is_known = pl.col("dropped_tokens").is_not_null().all()
    worst = pl.col("dropped_ratio").arg_max()
    rows = layers.sort("step", "layer").group_by("step", maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias("layers_count"),
        pl.when(is_known).then((pl.col("tokens") + pl.col("dropped_tokens")).sum())
        .cast(pl.Int64).alias("routed_tokens"),
        pl.when(is_known).then(pl.col("dropped_tokens").sum()).cast(pl.Int64),
        pl.col("layer").get(worst, null_on_oob=True).cast(pl.Int64).alias("worst_layer"),
        pl.col("dropped_ratio").max().alias("worst_ratio"),
    )  # fmt: skip
    rows = rows.with_columns(
        (pl.col("dropped_tokens") / pl.col("routed_tokens")).alias("dropped_ratio")
    )
    return rows.select(column_names("health_dropped")), sum_notes(loads, tokens_of_layers)


def _logged_tokens(con: duckdb.DuckDBPyConnection, target: Path | None, run: str) -> int | None:
    """Tokens of a step as the log that was read with the run tells them."""
    read = [one for one in readings(con, target) if one.run == run]
    counts = {logged_facts(one.rules).tokens_per_step for one in read} - {None}
    return counts.pop() if len(counts) == 1 else None


_ROWS = {
    "step": pl.Int64, "layers_count": pl.Int64, "routed_tokens": pl.Int64,
    "dropped_tokens": pl.Int64, "dropped_ratio": pl.Float64, "worst_layer": pl.Int64,
    "worst_ratio": pl.Float64,
}  # fmt: skip
