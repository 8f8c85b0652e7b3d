"""`npuscope memory`: peaks, holders, growth and curves of device memory."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer

from npuscope.analysis.scope import Scope
from npuscope.commands.command import Request, TopOrAll, command, notes_of, say_notes
from npuscope.console import show
from npuscope.errors import UsageError

if TYPE_CHECKING:
    import duckdb
    import polars as pl
    from rich.console import RenderableType

    from npuscope.analysis.query import MemoryKey

_MOST = 10

Key = Literal["component", "holder", "block", "step", "growth", "curve", "spread"]
By = Annotated[
    Key | None,
    typer.Option(
        "--by",
        metavar="KEY",
        help="|".join(get_args(Key)) + "  [default: the summary]",
    ),
]
Bins = Annotated[
    int,
    typer.Option(
        "--bins", metavar="N", min=1, help="--by curve --json: points of a curve, at most."
    ),
]


@command("run", "capture", "rank")
def memory(request: Request, by: By = None, bins: Bins = 240, *, top: TopOrAll = None) -> None:
    """Device memory: peaks and who holds them, fragmentation, growth over steps, curves.

    \b
    Examples:
      npuscope memory ./profiles                              fullest rank, its curve and holders
      npuscope memory ./profiles --by holder --rank 3 --top 20
      npuscope memory ./profiles --by growth                  does it leak?
      npuscope memory ./profiles --json                       peaks of every component and rank
      npuscope memory ./profiles --by curve --bins 100 --json
    """
    from npuscope.analysis import query

    if top is not None and (by in ("step", "growth", "spread") or (by == "curve" and request.json)):
        raise UsageError("--top is for the summary, its curves, and --by component, holder, block")
    with request.tables(need_steps=False) as (data, scope):
        if (reason := query.no_such_rank(data.con, scope)) is not None:
            raise UsageError(reason)
        notes = notes_of(data, scope) + query.memory_notes(data.con, scope)
        if not request.json and by in (None, "curve"):
            _draw(data.con, by, scope, top or _MOST)
            say_notes(notes)
        else:
            key = by or "component"
            # A table of holders says how many more there are, one of blocks never shows all.
            most = top if request.json else {"holder": None, "block": top or _MOST}.get(key, top)
            metric, frame = query.memory_by(data.con, key, scope, bins=bins, top=most)
            request.answer(metric, frame, notes, partial(_table, key, top or _MOST))


def _draw(con: duckdb.DuckDBPyConnection, key: MemoryKey | None, scope: Scope, top: int) -> None:
    from npuscope.analysis import query
    from npuscope.dashboard.terminal.memory import memory_overview

    facts = query.memory_facts(con, scope)
    chart = memory_overview.overview if key is None else memory_overview.fullest_charts
    show(chart(con, facts, top=top))


def _table(key: MemoryKey, top: int, frame: pl.DataFrame) -> RenderableType:
    from npuscope.dashboard.terminal.memory.memory_tables import table_of

    return table_of(key, frame, top=top)
