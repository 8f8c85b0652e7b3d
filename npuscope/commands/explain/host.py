"""`npuscope host`: what free time was lost to, and how far the host runs ahead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer

from npuscope.commands.command import Request, TopOrAll, command, largest, notes_of

if TYPE_CHECKING:
    import duckdb
    import polars as pl

    from npuscope.analysis.scope import Scope

_MOST = 20

Key = Literal[
    "stage", "cause", "operator", "thread", "rank", "step", "gain", "call", "episode", "pace",
    "lead", "placement",
]  # fmt: skip
By = Annotated[Key, typer.Option("--by", metavar="KEY", help="|".join(get_args(Key)))]
METRICS = {
    "step": "free_time", "episode": "host_episodes", "pace": "host_pace", "lead": "host_lead",
    "gain": "host_gains", "call": "host_calls", "placement": "host_placement",
}  # fmt: skip
_MEASURES = {"step": "free_ns", "call": "total_ns"}  # of rows in order of ranks and steps


@command("run", "capture", "rank", "step")
def host(request: Request, by: By = "stage", *, top: TopOrAll = None) -> None:
    """Why is the device free? All free time by cause and stage; lead and pace of the host.

    \b
    Examples:
      npuscope host ./profiles                            free time of a mean step by cause
      npuscope host ./profiles --by operator --top 20     which operators are launched late
      npuscope host ./profiles --by episode --rank 3      when it happened, the costliest first
      npuscope host ./profiles --by gain                  what a step gains without each cause
      npuscope host ./profiles --by call                  what keeps the host, at which line
      npuscope host ./profiles --by pace                  what hosts take for a launch
      npuscope host ./profiles --by step --json           adds up to free_ns of `steps`
    """
    from npuscope.analysis.host.free_time import host_notes
    from npuscope.analysis.host.gains import gain_notes
    from npuscope.dashboard.terminal.host_tables import table_of
    from npuscope.profile import compare_ranks

    with request.tables() as (data, scope):
        if by == "gain":
            compare_ranks(data, is_needed=False)
        frame = _rows(data.con, scope, by)
        notes = notes_of(data, scope)
        notes += gain_notes(frame) if by == "gain" else host_notes(data.con, scope)
        most = _MOST if top is None and not request.json else top
        top_rows = largest(frame, most, _MEASURES.get(by))
        request.answer(
            METRICS.get(by, "mean_free_time"), top_rows, notes,
            lambda rows: table_of(by, rows, left_out=frame.height - rows.height),
        )  # fmt: skip


def _rows(con: duckdb.DuckDBPyConnection, scope: Scope, by: Key) -> pl.DataFrame:
    from npuscope.analysis.host import free_time
    from npuscope.analysis.host.blocking import host_calls
    from npuscope.analysis.host.gains import host_gains
    from npuscope.analysis.scope import RANK
    from npuscope.analysis.views import select

    if by == "gain":
        return host_gains(con, scope)
    if by == "call":
        return host_calls(con, scope)
    if by == "placement":
        return select(con, METRICS[by], scope, of=RANK)
    if by == "step":
        return free_time.free_time(con, scope)
    if by == "episode":
        return free_time.host_episodes(con, scope)
    if by == "pace":
        return free_time.host_pace(con, scope)
    if by == "lead":
        return free_time.host_lead(con, scope)
    return free_time.mean_free_time(con, scope, by=by)
