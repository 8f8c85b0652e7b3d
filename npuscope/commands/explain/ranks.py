"""`npuscope ranks`: who is slow, what it costs the others, and why."""

from __future__ import annotations

from typing import Annotated

import typer

from npuscope.commands.inputs import chosen_rows, leave, notes_of, source_of
from npuscope.commands.options import (
    Capture,
    Folder,
    Jobs,
    Json,
    Memory,
    Profile,
    Rank,
    Run,
    Step,
    Store,
    TopOrAll,
)
from npuscope.console import print_json, say, show
from npuscope.errors import UsageError

_SHOWN = 16


def ranks(
    path: Profile = None,
    folder: Folder = None,
    explain: Annotated[
        int | None, typer.Option("--explain", metavar="RANK", min=0, help="Evidence of one rank.")
    ] = None,
    store: Store = None,
    run: Run = None,
    capture: Capture = None,
    rank: Rank = None,
    step: Step = None,
    top: TopOrAll = None,
    json: Json = False,
    jobs: Jobs = None,
    memory: Memory = None,
) -> None:
    """Who makes the others wait, and why: slow host, kernels, clock, tokens or link.

    \b
    Examples:
      npuscope ranks ./profiles
      npuscope ranks ./profiles --explain 5
      npuscope ranks ./store --step 13 --json
    """
    from npuscope.analysis.parts import PLACE, exposed_parts, step_parts
    from npuscope.analysis.ranks.stragglers import blame
    from npuscope.dashboard.terminal.straggler_tables import explained_table, ranks_table
    from npuscope.profile import compare_ranks, opened

    if explain is not None and rank is not None and explain != rank:
        raise UsageError("--explain and --rank name two ranks: give one")
    only = explain if explain is not None else rank
    with opened(source_of(path, folder, store, run, jobs, memory)) as data:
        chosen = chosen_rows(data, run, capture, only, step)
        compare_ranks(data)
        found = blame.rank_blame(data.con, **chosen)
        place = {"run": chosen["run"], "capture": capture}
        notes = notes_of(data, chosen)
        if not found.is_empty():
            notes = blame.blame_notes(data.con, **place) + notes
        if json:
            kept = found
            if top is not None:
                best = blame.by_rank(found).head(top)
                kept = found.join(best, on=["run", "capture", "rank"], how="semi")
            waits = exposed_parts(step_parts(data.con, **chosen)).drop("exposed_ns", "share_ratio")
            kept = kept.join(waits, on=PLACE, how="left", nulls_equal=True, maintain_order="left")
            print_json("ranks", blame.blame_rows(kept), notes)
        else:
            if found.is_empty():
                say("no communication was recorded: no rank waits for another")
            elif explain is not None:
                for _, one in found.group_by("run", "capture", maintain_order=True):
                    show(explained_table(one))
            else:
                own = exposed_parts(step_parts(data.con, **chosen), ("run", "capture", "rank"))
                show(ranks_table(found, top=top or _SHOWN, waits=own))
            for note in notes:
                say(f"note: {note}")
    leave(data)
