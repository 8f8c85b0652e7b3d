"""`npuscope memory`: peaks, holders, growth and curves of device memory."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from npuscope.commands.inputs import answer, leave, notes_of, source_of
from npuscope.commands.options import (
    Capture,
    Folder,
    Jobs,
    Json,
    Memory,
    Profile,
    Rank,
    Run,
    Store,
    TopOrAll,
)
from npuscope.console import say, show
from npuscope.errors import UsageError

if TYPE_CHECKING:
    import duckdb
    import polars as pl
    from rich.console import RenderableType

    from npuscope.analysis.query import MemoryKey

_SHOWN = 10

By = Annotated[
    str | None,
    typer.Option(
        "--by",
        metavar="KEY",
        help="component|holder|block|step|growth|curve|spread  [default: the summary]",
    ),
]
Bins = Annotated[
    int, typer.Option("--bins", min=1, help="--by curve --json: points of a curve, at most.")
]


def memory(
    path: Profile = None,
    folder: Folder = None,
    by: By = None,
    bins: Bins = 240,
    store: Store = None,
    run: Run = None,
    capture: Capture = None,
    rank: Rank = None,
    top: TopOrAll = None,
    json: Json = False,
    jobs: Jobs = None,
    memory: Memory = None,
) -> None:
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
    from npuscope.profile import opened

    key = query.memory_key(by) if by is not None else None
    with opened(source_of(path, folder, store, run, jobs, memory)) as data:
        for message in data.messages:
            say(message)
        place: dict[str, Any] = {
            "run": data.result.run if data.result else run,
            "capture": capture,
            "rank": rank,
        }
        reason = query.no_such_rank(data.con, **place)
        if reason is not None:
            raise UsageError(reason)
        notes = notes_of(data, place) + query.memory_notes(data.con, **place)
        if not json and key in (None, "curve"):
            _draw(data.con, key, place, top or _SHOWN)
            _tell(notes)
        else:
            asked = key or "component"
            # A table of holders says how many more there are, one of blocks never shows all.
            most = top if json else {"holder": None, "block": top or _SHOWN}.get(asked, top)
            metric, frame = query.memory_by(data.con, asked, bins=bins, top=most, **place)
            answer(metric, frame, notes, json=json, table=partial(_table, asked, top or _SHOWN))
    leave(data)


def _draw(
    con: duckdb.DuckDBPyConnection, key: MemoryKey | None, place: dict[str, Any], top: int
) -> None:
    from npuscope.analysis import query
    from npuscope.dashboard.terminal.memory import memory_overview

    facts = query.memory_facts(con, **place)
    drawn = memory_overview.overview if key is None else memory_overview.fullest_charts
    show(drawn(con, facts, top=top))


def _tell(notes: list[str]) -> None:
    for note in notes:
        say(f"note: {note}")


def _table(key: MemoryKey, top: int, frame: pl.DataFrame) -> RenderableType:
    from npuscope.dashboard.terminal.memory.memory_tables import table_of

    return table_of(key, frame, top=top)
