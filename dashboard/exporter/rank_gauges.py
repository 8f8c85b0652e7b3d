"""Gauges of ranks: where each runs, how slow it seems and for how many captures already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import duckdb
import polars as pl

from npuscope.analysis import query
from npuscope.analysis.ranks.stragglers.blame import by_rank, rank_blame
from npuscope.analysis.views import frame

from .step_gauges import Frames

_RANK = ["run", "capture", "rank"]
_INFO = """
select run, capture, rank, any_value(coalesce(host_name, host_uid)) as node,
    any_value(device_id) as device_id, any_value(chip_name) as chip, any_value(tp_rank) as tp,
    any_value(pp_rank) as pp, any_value(dp_rank) as dp, any_value(cp_rank) as cp,
    any_value(ep_rank) as ep, 1.0 as value
from ranks group by run, capture, rank order by run, capture, rank
"""
_LOG = """
select run, capture, arg_max(struct_pack(step, loss, grad_norm, elapsed_s, tokens_per_s, mfu_ratio),
    struct_pack(step, rank)) as last
from train_log where step is not null group by run, capture order by run, capture
"""
# Metrics of a trainer's log by column.
LOGGED = {
    "npuscope_train_step": "step",
    "npuscope_train_loss": "loss",
    "npuscope_train_grad_norm": "grad_norm",
    "npuscope_train_step_seconds": "elapsed_s",
    "npuscope_train_tokens_per_second": "tokens_per_s",
    "npuscope_train_mfu_ratio": "mfu_ratio",
}


def place_gauges(con: duckdb.DuckDBPyConnection) -> Frames:
    """Where ranks run; how many ranks and steps each capture has."""
    ranks = frame(con, _INFO)
    capture = ["run", "capture"]
    facts = query.capture_facts(con)
    return {
        "npuscope_rank_info": ranks,
        "npuscope_capture_info": ranks.select(capture).unique(maintain_order=True).with_columns(
            value=1.0
        ),
        "npuscope_capture_ranks": facts.select(*capture, pl.col("rank_count").alias("value")),
        "npuscope_capture_steps": facts.select(
            *capture, pl.col("step_count").alias("value")
        ).filter(pl.col("value") > 0),
    }  # fmt: skip


def log_gauges(con: duckdb.DuckDBPyConnection) -> Frames:
    """What the trainer logged last."""
    last = frame(con, _LOG).unnest("last")
    return {
        name: last.select("run", "capture", pl.col(column).cast(pl.Float64).alias("value"))
        for name, column in LOGGED.items()
    }


def blame_gauges(
    con: duckdb.DuckDBPyConnection, newest_first: Mapping[str, Sequence[str]]
) -> Frames:
    """Slow ranks of each run's newest capture; `newest_first` are its captures, which `con` has.

    `con` has what all ranks tell (`open_across`).
    """
    every = by_rank(rank_blame(con))
    newest = pl.DataFrame(
        [(run, captures[0]) for run, captures in newest_first.items()],
        schema={"run": pl.String, "capture": pl.String},
        orient="row",
    )
    found = every.join(newest, on=["run", "capture"], how="semi")
    suspects = found.filter(pl.col("verdict").is_not_null())
    return {
        "npuscope_rank_slow_score": found.select(*_RANK, pl.col("score").alias("value")).drop_nulls(
            "value"
        ),
        "npuscope_rank_caused_wait_seconds": found.select(
            *_RANK, (pl.col("caused_wait_ns") / pl.col("step_count") / 1e9).alias("value")
        ).drop_nulls("value"),
        "npuscope_rank_suspect_info": suspects.select(
            *_RANK, "verdict", pl.lit(1.0).alias("value")
        ),
        "npuscope_rank_suspect_captures": found.select(*_RANK).join(
            _steady(every, newest_first), on=["run", "rank"], how="left"
        ).with_columns(pl.col("value").fill_null(0)),
    }  # fmt: skip


def _steady(every: pl.DataFrame, newest_first: Mapping[str, Sequence[str]]) -> pl.DataFrame:
    """Captures, from the newest back without a gap, in which a rank has a verdict."""
    suspected = every.filter(pl.col("verdict").is_not_null())
    places = pl.DataFrame(
        [(run, one, at) for run, all_ in newest_first.items() for at, one in enumerate(all_)],
        schema={"run": pl.String, "capture": pl.String, "age": pl.Int64},
        orient="row",
    )
    nth = pl.int_range(pl.len()).over("run", "rank")
    return (
        suspected.join(places, on=["run", "capture"])
        .sort("run", "rank", "age")
        .filter(pl.col("age") == nth)
        .unique(["run", "rank"], keep="last", maintain_order=True)
        .select("run", "rank", (pl.col("age") + 1).alias("value"))
    )
