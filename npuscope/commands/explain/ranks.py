"""`npuscope ranks`: who is slow, what that costs the others, and why; `npuscope clocks`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from npuscope.commands.command import Request, TopOrAll, command, notes_of, say_notes
from npuscope.console import print_json, say, show
from npuscope.errors import UsageError

if TYPE_CHECKING:
    from npuscope.analysis.scope import Scope
    from npuscope.profile import OpenTables

_MOST = 16
_NONE = "no communication was recorded: no rank waits for another"
Explain = Annotated[
    int | None, typer.Option("--explain", metavar="RANK", min=0, help="Evidence of one rank.")
]


@command("run", "capture", "rank", "step")
def ranks(request: Request, explain: Explain = None, *, top: TopOrAll = None) -> None:
    """Who makes the others wait, and why: slow host, kernels, clock, tokens or link.

    \b
    Examples:
      npuscope ranks ./profiles
      npuscope ranks ./profiles --explain 5
      npuscope ranks ./store --step 13 --json
    """
    from npuscope.analysis.parts import exposed_parts, step_parts
    from npuscope.analysis.ranks.stragglers import blame
    from npuscope.dashboard.terminal.straggler_tables import explained_table, ranks_table
    from npuscope.profile import compare_ranks

    if explain is not None:
        if request.scope.rank not in (None, explain):
            raise UsageError("--explain and --rank name two ranks: give one")
        request = replace(request, scope=replace(request.scope, rank=explain))
    with request.tables() as (data, scope):
        compare_ranks(data)
        suspects = blame.rank_blame(data.con, scope)
        notes = notes_of(data, scope)
        if not suspects.is_empty():
            notes = blame.blame_notes(data.con, scope) + notes
        none = _none(data, scope) if suspects.is_empty() else None
        if request.json:
            notes = [none, *notes] if none else notes
            answer = blame.rank_answer(data.con, scope, top=top)
            print_json("ranks", blame.blame_rows(answer), notes)
        else:
            later = blame.later_steps(data.con, suspects)
            if none:
                say(none)
            elif explain is not None:
                for _, one in later.group_by("run", "capture", maintain_order=True):
                    show(explained_table(one))
            else:
                parts = blame.later_steps(data.con, step_parts(data.con, scope))
                own = exposed_parts(parts, ("run", "capture", "rank"))
                show(ranks_table(later, top=top or _MOST, waits=own))
            say_notes(notes)


def _none(data: OpenTables, scope: Scope) -> str:
    """Why there is no row: of nobody, or not of this rank."""
    from npuscope.analysis.ranks.stragglers import blame
    from npuscope.analysis.wording import ranks_named

    if scope.rank is None:
        return _NONE
    others = blame.rank_blame(data.con, replace(scope, rank=None))["rank"].to_list()
    if not others:
        return _NONE
    return f"rank {scope.rank}: no communication was recorded; it was of {ranks_named(others)}"


@command("run", "capture")
def clocks(request: Request) -> None:
    """Offset and drift of each host's clock, fitted over all collectives, with their errors.

    \b
    Examples:
      npuscope clocks ./profiles
      npuscope clocks ./store --json
    """
    from npuscope.analysis.ranks import answers
    from npuscope.dashboard.terminal.straggler_tables import clocks_table
    from npuscope.profile import compare_ranks

    with request.tables() as (data, scope):
        compare_ranks(data)
        rows = answers.clocks(data.con, scope)
        notes = answers.clock_notes(rows) + notes_of(data, scope)
        request.answer("clocks", rows.drop("remarks"), notes, clocks_table)  # notes have them
