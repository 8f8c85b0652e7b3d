"""Memory: peaks, who holds what, growth over steps, and curves, as frames.

Functions take a connection with a table or view per canonical table, as those of `query` do.

What cannot be said about memory, and which ranks there are to ask about.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, cast, get_args

import duckdb
import polars as pl

from npuscope.errors import UsageError
from npuscope.messages import Message

from ..metric import sql_text
from ..views import frame, where
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
        """Of `components` the main one of each rank and device, the fullest first.

        That is the framework's curve that rose highest; where there is none, the highest of all.
        """
        place = ["run", "capture", "rank", "device_id"]
        framework = pl.col("peak_allocated_bytes").is_not_null() & (pl.col("source") == "record")
        by_size = self.components.filter(pl.col("peak_bytes").is_not_null() | framework).sort(
            framework, "peak_allocated_bytes", "peak_bytes", "component",
            descending=True, nulls_last=True,
        )  # fmt: skip
        return by_size.unique(place, keep="first", maintain_order=True).sort(
            "peak_bytes", "peak_allocated_bytes", *place,
            descending=[True, True, False, False, False, False], nulls_last=True,
        )  # fmt: skip

    @property
    def fullest(self) -> tuple[str, str, int] | None:
        """The first of `main`: run, capture and rank; None without a curve."""
        places = self.main.select("run", "capture", "rank").head(1).rows()
        return places[0] if places else None

    @property
    def growing(self) -> pl.DataFrame:
        """Rows of `growth` that grow steadily, the fastest first."""
        return self.growth.filter(pl.col("is_steady")).sort(
            "growth_per_step_bytes", descending=True, maintain_order=True
        )


def memory_key(text: str) -> MemoryKey:
    """`text` as one of the answers about memory. Raises UsageError."""
    for key in get_args(MemoryKey):
        if text == key:
            return cast(MemoryKey, key)
    raise UsageError(f"memory by {text!r}: choose one of {', '.join(get_args(MemoryKey))}")


def memory_facts(
    con: duckdb.DuckDBPyConnection,
    *,
    run: str | None = None,
    capture: str | None = None,
    rank: int | None = None,
) -> MemoryFacts:
    """Everything that is small: peaks, holders, growth and spread of the chosen ranks."""
    return MemoryFacts(
        components=memory(con, run=run, capture=capture, rank=rank),
        holders=memory_holders(con, run=run, capture=capture, rank=rank),
        growth=memory_growth(con, run=run, capture=capture, rank=rank),
        spread=memory_spread(con, run=run, capture=capture),
    )


def memory(
    con: duckdb.DuckDBPyConnection,
    *,
    run: str | None = None,
    capture: str | None = None,
    rank: int | None = None,
    top: int | None = None,
) -> pl.DataFrame:
    """Peaks by component: columns of the metric `memory`; `top` keeps that many per rank."""
    order = (
        "source desc, device_id nulls last,"
        " coalesce(peak_bytes, peak_allocated_bytes) desc nulls last, component"
    )
    return _ordered(
        con, "memory_summary", order, {"run": run, "capture": capture, "rank": rank}, top
    )


def memory_holders(
    con: duckdb.DuckDBPyConnection,
    *,
    run: str | None = None,
    capture: str | None = None,
    rank: int | None = None,
    top: int | None = None,
) -> pl.DataFrame:
    """Who holds the memory at the peak: columns of the metric `memory_holders`.

    What stays unexplained comes first, then the operators, those that hold most first; `top` keeps
    that many rows per rank.
    """
    order = (
        "device_id nulls last, holder <> 'unexplained', held_bytes desc, holder, name nulls last"
    )
    return _ordered(
        con, "memory_holders", order, {"run": run, "capture": capture, "rank": rank}, top
    )


def memory_blocks(
    con: duckdb.DuckDBPyConnection,
    *,
    run: str | None = None,
    capture: str | None = None,
    rank: int | None = None,
    top: int | None = None,
) -> pl.DataFrame:
    """Single blocks held at the peak, the largest first: columns of the metric `memory_blocks`."""
    order = (
        "device_id nulls last, size_bytes desc, allocated_at_ns nulls first,"
        " released_at_ns nulls last, name nulls last, stream_ptr nulls last"
    )
    return _ordered(
        con, "memory_blocks", order, {"run": run, "capture": capture, "rank": rank}, top
    )


def memory_steps(
    con: duckdb.DuckDBPyConnection,
    *,
    run: str | None = None,
    capture: str | None = None,
    rank: int | None = None,
) -> pl.DataFrame:
    """Levels at the end of each step and the most inside: columns of the metric `memory_steps`."""
    order = "source desc, device_id nulls last, component, step"
    return _ordered(con, "memory_steps", order, {"run": run, "capture": capture, "rank": rank})


def memory_growth(
    con: duckdb.DuckDBPyConnection,
    *,
    run: str | None = None,
    capture: str | None = None,
    rank: int | None = None,
) -> pl.DataFrame:
    """Growth over the recorded steps: columns of the metric `memory_growth`."""
    order = "source desc, device_id nulls last, component"
    return _ordered(con, "memory_growth", order, {"run": run, "capture": capture, "rank": rank})


def memory_spread(
    con: duckdb.DuckDBPyConnection, *, run: str | None = None, capture: str | None = None
) -> pl.DataFrame:
    """How far ranks lie apart, a row per component and measure: the metric `memory_spread`."""
    clause, values = where({"run": run, "capture": capture})
    order = (
        "run, capture, source desc, component,"
        " list_position(['peak', 'peak_allocated', 'fragmentation'], measure)"
    )
    return frame(con, f"select * from memory_spread {clause} order by {order}", values)


def _ordered(
    con: duckdb.DuckDBPyConnection,
    view: str,
    order: str,
    place: Mapping[str, str | int | None],
    top: int | None = None,
) -> pl.DataFrame:
    """Rows of the ranks at `place`, each rank's in `order`; the first `top` of each, if given."""
    clause, values = where(place)
    best = ""
    if top is not None:
        best = f"qualify row_number() over (partition by run, capture, rank order by {order}) <= ?"
        values.append(top)
    query = f"select * from {view} {clause} {best} order by run, capture, rank, {order}"
    return frame(con, query, values)


def memory_curve(
    con: duckdb.DuckDBPyConnection,
    *,
    bins: int = CURVE_BINS,
    run: str | None = None,
    capture: str | None = None,
    rank: int | None = None,
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
    clause, values = where(
        {"run": run, "capture": capture, "rank": rank, "source": source, "component": component}
    )
    query = sql_text("memory_curve.sql").partition("\nwith\n")[2]
    return frame(con, f"with _chosen as (select * from memory {clause}),\n{query}", [*values, bins])


def memory_by(
    con: duckdb.DuckDBPyConnection,
    key: MemoryKey,
    *,
    run: str | None = None,
    capture: str | None = None,
    rank: int | None = None,
    top: int | None = None,
    bins: int = CURVE_BINS,
) -> tuple[str, pl.DataFrame]:
    """Name of one answer and its rows; `top` is for those that rank, `bins` for the curve."""
    if key == "spread":
        return "memory_spread", memory_spread(con, run=run, capture=capture)
    if key == "curve":
        return "memory_curve", memory_curve(con, bins=bins, run=run, capture=capture, rank=rank)
    if key == "step":
        return "memory_steps", memory_steps(con, run=run, capture=capture, rank=rank)
    if key == "growth":
        return "memory_growth", memory_growth(con, run=run, capture=capture, rank=rank)
    if key == "holder":
        found = memory_holders(con, run=run, capture=capture, rank=rank, top=top)
        return "memory_holders", found
    if key == "block":
        return "memory_blocks", memory_blocks(con, run=run, capture=capture, rank=rank, top=top)
    return "memory", memory(con, run=run, capture=capture, rank=rank, top=top)


def memory_notes(
    con: duckdb.DuckDBPyConnection,
    *,
    run: str | None = None,
    capture: str | None = None,
    rank: int | None = None,
) -> list[str]:
    """What cannot be said about the memory of the chosen ranks, and how to learn it: sentences."""
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
