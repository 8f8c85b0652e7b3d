"""What cannot be said about memory, and which ranks there are to ask about."""

from __future__ import annotations

from collections.abc import Iterable

import duckdb
import polars as pl

from npuscope.messages import Message

from ..views import frame, open_views, where
from ..wording import numbers, ranks_named


def memory_notes(
    con: duckdb.DuckDBPyConnection,
    *,
    run: str | None = None,
    capture: str | None = None,
    rank: int | None = None,
) -> list[str]:
    """What cannot be said about the memory of the chosen ranks, and how to learn it: sentences."""
    open_views(con)
    clause, values = where({"run": run, "capture": capture, "rank": rank})
    found = frame(
        con,
        "select rank, bool_or(list_contains(left_out_tables, 'memory')) as curve_left_out,"
        " bool_or(list_contains(left_out_tables, 'operator_memory')) as blocks_left_out,"
        " bool_or((run, capture, rank) in (select (run, capture, rank) from memory_summary))"
        " as has_curve,"
        " bool_or((run, capture, rank) in (select (run, capture, rank) from memory_holders))"
        f" as has_blocks from ranks {clause} group by run, capture, rank order by rank",
        values,
    )
    return [*_without_curve(found), *_without_blocks(found)]


def no_such_rank(
    con: duckdb.DuckDBPyConnection,
    *,
    run: str | None = None,
    capture: str | None = None,
    rank: int | None = None,
) -> str | None:
    """Why no rank is chosen: names what there is instead; None where one is."""
    present = frame(con, "select run, capture, rank from ranks")
    chosen = present
    for name, value in (("run", run), ("capture", capture), ("rank", rank)):
        if value is None:
            continue
        chosen = chosen.filter(pl.col(name) == value)
        if chosen.is_empty():
            there = present[name].unique().sort().to_list()
            if value in there:
                break
            listed = numbers(there) if name == "rank" else ", ".join(there)
            there_is = "no {kind} {value} here: there is {listed}"
            return Message(there_is, kind=Message(name), value=value, listed=listed or "none")
    if not chosen.is_empty():
        return None
    asked = (("run", run), ("capture", capture), ("rank", rank))
    named = ", ".join(f"{name} {value}" for name, value in asked if value is not None)
    return Message("no data matches {named}", named=named) if named else Message("no rank here")


def _without_curve(ranks: pl.DataFrame) -> Iterable[str]:
    missing = ranks.filter(~pl.col("has_curve"))
    for left_out, reason in (
        (True, Message("memory was not selected")),
        (False, Message("no memory was recorded")),
    ):
        without = missing.filter(pl.col("curve_left_out").fill_null(False) == left_out)
        if not without.is_empty():
            remedy = "profile_memory=True"
            if left_out:
                remedy = f"`npuscope ingest PATH --ranks {numbers(without['rank'].head(1))}`"
            yield Message(
                "{ranks}: {missing}. To know it: {remedy}",
                ranks=ranks_named(without["rank"]),
                missing=reason,
                remedy=remedy,
            )


def _without_blocks(ranks: pl.DataFrame) -> Iterable[str]:
    without = ranks.filter(pl.col("has_curve") & ~pl.col("has_blocks"))
    if not without.is_empty():
        left_out = without["blocks_left_out"].fill_null(False).all()
        why = (
            "{ranks}: memory blocks were not selected, so the holders of memory are unknown."
            if left_out
            else "{ranks}: memory blocks were not recorded, so the holders of memory are unknown."
        )
        yield Message(why, ranks=ranks_named(without["rank"]))
