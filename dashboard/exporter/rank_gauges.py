"""Gauges of slow ranks: how slow each seems, and for how many captures already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import duckdb
import polars as pl

from npuscope.analysis.ranks.stragglers.blame import by_rank, rank_blame

from .gauges import Frames, gauges_of


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
    steady = _steady(every, newest_first)
    rows = found.join(steady, on=["run", "rank"], how="left").with_columns(
        pl.col("suspect_captures").fill_null(0)
    )
    return gauges_of("rank_suspects", rows, ("run", "capture"))


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
        .select("run", "rank", (pl.col("age") + 1).alias("suspect_captures"))
    )
