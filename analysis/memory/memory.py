"""Memory: peaks, who holds what, growth over steps, and curves, as frames.

Functions take a connection with a table or view per canonical table, as those of `query` do.

What cannot be said about memory, and which ranks there are to ask about.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

import duckdb
import polars as pl

from npuscope.errors import UsageError
from npuscope.messages import Message

from ..memo import memoize
from ..metric import sql_text
from ..notes import of_each_capture
from ..scope import ALL, JOB, RANK, Scope
from ..views import frame, select
from ..wording import numbers, ranks_named

MemoryKey = Literal["component", "holder", "block", "step", "growth", "curve", "spread"]
CURVE_BINS = 240


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """What is known about memory: rows of the metrics memory, memory_holders, memory_growth and
    memory_spread."""

    components: pl.DataFrame
    holders: pl.DataFrame
    growth: pl.DataFrame
    spread: pl.DataFrame

    @property
    def main(self) -> pl.DataFrame:
        """Of `components` the main ones."""
        return main_components(self.components)

    @property
    def fullest(self) -> tuple[str, str, int] | None:
        """The first of `main`: run, capture and rank; None without a curve."""
        places = self.main.select("run", "capture", "rank").head(1).rows()
        return places[0] if places else None

    @property
    def steady(self) -> pl.DataFrame:
        """Rows of `growth` that grow steadily, the fastest first."""
        return self.growth.filter(pl.col("is_steady")).sort(
            "growth_per_step_bytes", descending=True, maintain_order=True
        )


def main_components(components: pl.DataFrame) -> pl.DataFrame:
    """Of rows of `memory` the main one of each rank and device, the fullest first.

    That is the framework's curve that rose highest; where there is none, the highest of all.
    """
    place = ["run", "capture", "rank", "device_id"]
    framework = pl.col("peak_allocated_bytes").is_not_null() & (pl.col("source") == "record")
    by_size = components.filter(pl.col("peak_bytes").is_not_null() | framework).sort(
        framework, "peak_allocated_bytes", "peak_bytes", "component",
        descending=True, nulls_last=True,
    )  # fmt: skip
    return by_size.unique(place, keep="first", maintain_order=True).sort(
        "peak_bytes", "peak_allocated_bytes", *place,
        descending=[True, True, False, False, False, False], nulls_last=True,
    )  # fmt: skip


@memoize
def memory_facts(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> MemoryFacts:
    """Everything that is small: peaks, holders, growth and spread of the chosen ranks."""
    return MemoryFacts(
        components=memory(con, scope),
        holders=memory_holders(con, scope),
        growth=memory_growth(con, scope),
        spread=memory_spread(con, scope),
    )


def memory(
    con: duckdb.DuckDBPyConnection, scope: Scope = ALL, *, top: int | None = None
) -> pl.DataFrame:
    """Peaks by component: columns of the metric `memory`; `top` keeps that many per rank."""
    order = (
        "source desc, device_id nulls last,"
        " coalesce(peak_bytes, peak_allocated_bytes) desc nulls last, component"
    )
    return _of_ranks(con, "memory_summary", order, scope, top)


def memory_holders(
    con: duckdb.DuckDBPyConnection, scope: Scope = ALL, *, top: int | None = None
) -> pl.DataFrame:
    """Who holds the memory at the peak: columns of the metric `memory_holders`.

    What stays unexplained comes first, then the operators, those that hold most first; `top` keeps
    that many rows per rank.
    """
    order = (
        "device_id nulls last, holder <> 'unexplained', held_bytes desc, holder, name nulls last"
    )
    return _of_ranks(con, "memory_holders", order, scope, top)


def memory_blocks(
    con: duckdb.DuckDBPyConnection, scope: Scope = ALL, *, top: int | None = None
) -> pl.DataFrame:
    """Single blocks held at the peak, the largest first: columns of the metric `memory_blocks`."""
    order = (
        "device_id nulls last, size_bytes desc, allocated_at_ns nulls first,"
        " released_at_ns nulls last, name nulls last, stream_ptr nulls last"
    )
    return _of_ranks(con, "memory_blocks", order, scope, top)


def memory_steps(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> pl.DataFrame:
    """Levels at the end of each step and the most inside: columns of the metric `memory_steps`."""
    order = "source desc, device_id nulls last, component, step"
    return _of_ranks(con, "memory_steps", order, scope)


def memory_growth(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> pl.DataFrame:
    """Growth over the recorded steps: columns of the metric `memory_growth`."""
    order = "source desc, device_id nulls last, component"
    return _of_ranks(con, "memory_growth", order, scope)


def memory_spread(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> pl.DataFrame:
    """How far ranks lie apart, a row per component and measure: the metric `memory_spread`."""
    order = (
        "source desc, component,"
        " list_position(['peak', 'peak_allocated', 'fragmentation'], measure)"
    )
    return select(con, "memory_spread", scope, order, of=JOB)


def _of_ranks(
    con: duckdb.DuckDBPyConnection, view: str, order: str, scope: Scope, top: int | None = None
) -> pl.DataFrame:
    """Rows of the ranks of a scope, each rank's in `order`; the first `top` of each, if given."""
    return select(con, view, scope, order, of=RANK, top=top)


def memory_curve(
    con: duckdb.DuckDBPyConnection,
    scope: Scope = ALL,
    *,
    bins: int = CURVE_BINS,
    source: str | None = None,
    component: str | None = None,
) -> pl.DataFrame:
    """Curves in at most `bins` points each: columns as at the head of memory_curve.sql.

    The bins of a rank are the same for all curves that one call returns, and keep least and most.
    It reads the events: choose one rank of a large job. Raises UsageError where `bins` is not
    positive.
    """
    if bins < 1:
        raise UsageError(f"a curve of {bins} points: give at least one")
    clause, values = scope.where(RANK, source=source, component=component)
    query = sql_text("memory_curve.sql").partition("\nwith\n")[2]
    return frame(con, f"with _chosen as (select * from memory {clause}),\n{query}", [*values, bins])


def memory_by(
    con: duckdb.DuckDBPyConnection,
    key: MemoryKey,
    scope: Scope = ALL,
    *,
    top: int | None = None,
    bins: int = CURVE_BINS,
) -> tuple[str, pl.DataFrame]:
    """Name of one answer and its rows; `top` is for those that rank, `bins` for the curve.

    Raises UsageError for another key.
    """
    if key not in get_args(MemoryKey):
        raise UsageError(f"memory by {key!r}: choose one of {', '.join(get_args(MemoryKey))}")
    if key == "spread":
        return "memory_spread", memory_spread(con, scope)
    if key == "curve":
        return "memory_curve", memory_curve(con, scope, bins=bins)
    if key == "step":
        return "memory_steps", memory_steps(con, scope)
    if key == "growth":
        return "memory_growth", memory_growth(con, scope)
    if key == "holder":
        holders = memory_holders(con, scope, top=top)
        return "memory_holders", holders
    if key == "block":
        return "memory_blocks", memory_blocks(con, scope, top=top)
    return "memory", memory(con, scope, top=top)


def memory_notes(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> list[str]:
    """What cannot be said about the memory of the chosen ranks, and how to learn it: sentences."""
    clause, values = scope.where(RANK)
    rows = frame(
        con,
        "select run, capture, rank,"
        " bool_or(list_contains(left_out_tables, 'memory')) as curve_left_out,"
        " bool_or(list_contains(left_out_tables, 'operator_memory')) as blocks_left_out,"
        " bool_or((run, capture, rank) in (select (run, capture, rank) from memory_summary))"
        " as has_curve,"
        " bool_or((run, capture, rank) in (select (run, capture, rank) from memory_holders))"
        f" as has_blocks from ranks {clause} group by run, capture, rank order by rank",
        values,
    )

    def sentences(here: Scope) -> list[str]:
        ranks = rows.filter(**here.values(JOB))
        return [*_without_curve(ranks), *_without_blocks(ranks)]

    return of_each_capture(con, scope, sentences)


def no_such_rank(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> str | None:
    """Why no rank is chosen: names what there is instead; None where one is."""
    present = frame(con, "select run, capture, rank from ranks")
    rows = present
    for name, value in scope.values(RANK).items():
        rows = rows.filter(pl.col(name) == value)
        if rows.is_empty():
            there = present[name].unique().sort().to_list()
            if value in there:
                break
            names = numbers(there) if name == "rank" else ", ".join(there)
            there_is = "no {kind} {value} here: there is {listed}"
            return Message(there_is, kind=Message(name), value=value, listed=names or "none")
    if not rows.is_empty():
        return None
    named = str(scope)
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
