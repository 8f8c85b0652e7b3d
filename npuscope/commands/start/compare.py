"""`npuscope compare`: whether two runs differ, and where the difference comes from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from npuscope.analysis.scope import Scope
from npuscope.commands.command import Asked, Jobs, Json, Memory, say_notes, source_of
from npuscope.commands.command import notes_of as told
from npuscope.console import print_json, show
from npuscope.errors import UsageError

if TYPE_CHECKING:
    from npuscope.analysis.compare.side import Side

_WHAT = "Profile folder, store, .duckdb export, or PATH@RUN or PATH@RUN/CAPTURE of one."
Baseline = Annotated[str, typer.Argument(metavar="A", help=f"The baseline. {_WHAT}")]
Candidate = Annotated[str, typer.Argument(metavar="B", help="What is compared with it, likewise.")]
AlsoA = Annotated[
    list[str] | None,
    typer.Option("--also-a", metavar="PATH", help="Another capture like A: tells the noise."),
]
AlsoB = Annotated[
    list[str] | None, typer.Option("--also-b", metavar="PATH", help="Another capture like B.")
]


def compare(
    a: Baseline,
    b: Candidate,
    also_a: AlsoA = None,
    also_b: AlsoB = None,
    json: Json = False,
    jobs: Jobs = None,
    memory: Memory = None,
) -> None:
    """Did it help? Whether run B differs from run A, and where every ms of it comes from.

    \b
    Examples:
      npuscope compare ./before ./after
      npuscope compare ./store@baseline ./store@candidate --json
      npuscope compare ./monday ./tuesday --also-a ./sunday
    """
    from npuscope.analysis.compare.difference import compare as difference
    from npuscope.analysis.compare.difference import figures_of, remarks
    from npuscope.analysis.compare.side import together

    notes: list[str] = []
    sides = [
        together([_measured(path, jobs, memory, notes) for path in paths])
        for paths in ([a, *(also_a or [])], [b, *(also_b or [])])
    ]
    found = difference(*sides)
    notes = [*remarks(found), *dict.fromkeys(notes)]
    if json:
        print_json("compare", found.rows.to_dicts(), notes, **figures_of(found))
        return
    from npuscope.dashboard.terminal.change_tables import compare_tables

    for table in compare_tables(found):
        show(table)
    say_notes(notes)


def _measured(text: str, jobs: int | None, memory: str | None, notes: list[str]) -> Side:
    """What one PATH tells; says what reading did, and keeps what to know beside its figures."""
    from npuscope.analysis.compare.side import measure
    from npuscope.messages import Message
    from npuscope.profile import compare_ranks, opened

    place, scope = _place(text)
    source = source_of(place, None, None, scope.run, jobs, memory)
    with opened(source) as data:
        asked = Asked(source, scope)
        chosen = asked.scope_of(data)
        asked.require_steps(data, chosen)
        compare_ranks(data, is_needed=False)
        notes += [Message("{place}: {note}", place=text, note=note) for note in told(data, chosen)]
        return measure(data.con, chosen)


def _place(text: str) -> tuple[Path, Scope]:
    """PATH, PATH@RUN or PATH@RUN/CAPTURE; a path that exists is one, whatever its name holds."""
    place, _, chosen = text.rpartition("@")
    if not place or Path(text).exists():
        return Path(text), Scope()
    run, _, capture = chosen.partition("/")
    if not run:
        raise UsageError(f"{text}: give a run after @, as in PATH@RUN or PATH@RUN/CAPTURE")
    return Path(place), Scope(run, capture or None)
