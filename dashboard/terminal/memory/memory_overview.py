"""The whole answer about memory: which ranks are full, and what fills the fullest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import duckdb
import polars as pl
from rich.console import Group, RenderableType
from rich.text import Text

from npuscope.analysis import query
from npuscope.analysis.query import MemoryFacts
from npuscope.analysis.wording import mebibytes

from .memory_chart import MemoryChart
from .memory_tables import (
    change,
    components_table,
    first_records,
    holders_table,
    named,
    spread_table,
)

Place = tuple[str, str, int]  # run, capture, rank
_GROWING = 10


def overview(con: duckdb.DuckDBPyConnection, facts: MemoryFacts, *, top: int) -> RenderableType:
    """The whole answer: ranks (the fullest first), the fullest rank's curve and holders, growth."""
    main = facts.main
    if main.is_empty():
        return Text("no memory was recorded")
    parts: list[RenderableType] = []
    zero_ns = first_records(facts.components)
    fullest: Place = main.select("run", "capture", "rank").row(0)
    title = "Memory by component"
    if len(zero_ns) > 1:
        several = "Ranks, the fullest first" if len(zero_ns) <= top else f"The {top} fullest ranks"
        telling = pl.col("component").is_in(main["component"].unique().implode())
        spread = facts.spread.filter(
            (pl.col("source") == "record") & (telling | (pl.col("measure") == "peak"))
        )
        parts += [components_table(main.head(top), title=several, zero_ns=zero_ns), Text()]
        parts += [spread_table(spread), Text()]
        title = f"Rank {fullest[2]} by component"
    own = _at(facts.components, fullest)
    parts += [components_table(own, title=title, zero_ns=zero_ns), Text()]
    for chart in charts(con, [fullest], facts):
        parts += [chart, Text()]
    holders = _at(facts.holders, fullest)
    if not holders.is_empty():
        parts += [holders_table(holders, top=top), Text()]
    parts += [Text(line) for line in growth_lines(facts)]
    return Group(*parts)


def fullest_charts(
    con: duckdb.DuckDBPyConnection, facts: MemoryFacts, *, top: int
) -> RenderableType:
    """The curves of the `top` fullest ranks."""
    ranks = facts.main.select("run", "capture", "rank").unique(maintain_order=True)
    places: list[Place] = ranks.head(top).rows()
    parts = [part for chart in charts(con, places, facts) for part in (chart, Text())]
    return Group(*parts) if parts else Text("no memory was recorded")


def charts(
    con: duckdb.DuckDBPyConnection, places: Sequence[Place], facts: MemoryFacts
) -> Iterator[MemoryChart]:
    """The curve of each rank's main component, on each of its devices."""
    zero_ns = first_records(facts.components)
    for place in places:
        run, capture, rank = place
        steps = query.memory_steps(con, run=run, capture=capture, rank=rank)
        for main in _at(facts.main, place).to_dicts():
            curve = query.memory_curve(
                con,
                run=run,
                capture=capture,
                rank=rank,
                source=main["source"],
                component=main["component"],
            )
            device = pl.col("device_id").eq_missing(pl.lit(main["device_id"], pl.Int32))
            title = f"Rank {rank}, {named(main)}"
            yield MemoryChart(title, curve.filter(device), zero_ns[place], steps)


def growth_lines(facts: MemoryFacts) -> Iterator[str]:
    """What is to be said about growth, in sentences."""
    for row in facts.growing.head(_GROWING).to_dicts():
        yield (
            f"rank {row['rank']}, {named(row)}: grows steadily,"
            f" {change(row['growth_per_step_bytes'])} MiB per step over steps"
            f" {row['first_step']}-{row['last_step']},"
            f" {mebibytes(row['last_bytes'])} MiB at the end"
        )
    if facts.growing.height > _GROWING:
        yield f"and {facts.growing.height - _GROWING} more: --by growth"
    if facts.growth.is_empty():
        yield "Growth: no steps were recorded with memory"
    elif facts.growth["is_steady"].null_count() == facts.growth.height:
        most = facts.growth.select(pl.col("step_count").max()).item()
        yield f"Growth: a trend needs five steps, recorded: {most}"
    elif facts.growing.is_empty():
        yield "Growth: none that is steady"


def _at(frame: pl.DataFrame, place: Place) -> pl.DataFrame:
    run, capture, rank = place
    return frame.filter(
        (pl.col("run") == run) & (pl.col("capture") == capture) & (pl.col("rank") == rank)
    )
