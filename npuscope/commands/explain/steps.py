"""`npuscope steps` and `npuscope kernels`: what ranks did in each step, and with which kernels."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import typer

from npuscope.commands.command import Request, TopOrAll, command, notes_of

Key = Literal["type", "name", "core", "shape"]
By = Annotated[Key, typer.Option("--by", metavar="KEY", help="|".join(get_args(Key)))]


@command("run", "capture", "rank", "step")
def steps(request: Request) -> None:
    """Each step of each rank: computing, communication, what of it is masked, free time, bubbles.

    \b
    Examples:
      npuscope steps ./profiles
      npuscope steps ./profiles --rank 0 --json
    """
    from npuscope.analysis import query
    from npuscope.dashboard.terminal.tables import steps_table

    with request.tables() as (data, scope):
        request.answer("steps", query.steps(data.con, scope), notes_of(data, scope), steps_table)


@command("run", "capture", "rank", "step")
def kernels(request: Request, by: By = "type", *, top: TopOrAll = None) -> None:
    """Compute kernels by type, name, core or shape: count, total, mean, p50, p99, max, share.

    \b
    Examples:
      npuscope kernels ./profiles --by type --rank 0 --step 13
      npuscope kernels ./profiles --by shape --top 20 --json
    """
    from npuscope.analysis import query
    from npuscope.dashboard.terminal.tables import kernels_table

    with request.tables() as (data, scope):
        frame = query.kernels(data.con, scope, by=by, top=top)
        notes = notes_of(data, scope)
        if frame.is_empty():
            notes.append(query.no_kernels(data.con, scope))
        request.answer("kernels", frame, notes, kernels_table)
