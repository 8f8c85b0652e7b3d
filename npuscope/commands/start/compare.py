"""`npuscope compare`: whether two runs differ, and where the difference comes from."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from npuscope.analysis.scope import Scope
from npuscope.commands.command import Asked, Jobs, Json, Memory, Out, say_notes, source_of
from npuscope.commands.command import notes_of as told
from npuscope.commands.start.report import Html, Language, Markdown, check_outputs, document
from npuscope.console import print_json, show
from npuscope.errors import UsageError

if TYPE_CHECKING:
    from npuscope.analysis.compare.difference import Comparison
    from npuscope.analysis.compare.side import Side

_WHAT = (
    "Profile folder, store, .duckdb export, PATH@RUN or PATH@RUN/CAPTURE of one, or a file of"
    " `baseline save`."
)
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
    html: Html = None,
    markdown: Markdown = False,
    out: Out = None,
    lang: Language = "en",
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
      npuscope compare ./before ./after --html change.html --lang zh
    """
    from npuscope.analysis.compare.difference import figures_of, remarks

    check_outputs(html, markdown, out, lang, json)
    found, notes = compared([a, *(also_a or [])], [b, *(also_b or [])], jobs, memory)
    notes = [*remarks(found), *notes]
    if json:
        print_json("compare", found.rows.to_dicts(), notes, **figures_of(found))
        return
    from npuscope.dashboard.report.comparison import comparison_blocks, comparison_tables

    if html is not None or markdown:
        document(comparison_blocks(found, (a, b), notes), html, out, lang)
        return
    from npuscope.dashboard.report.report_terminal import drawn

    for part in chain.from_iterable(map(drawn, comparison_tables(found))):
        show(part)
    say_notes(notes)


def compared(
    a: Sequence[str], b: Sequence[str], jobs: int | None, memory: str | None
) -> tuple[Comparison, list[str]]:
    """What the PATHs of two sides tell, and what to know beside it."""
    from npuscope.analysis.compare.difference import compare as difference

    side_a, notes = side_of(a, jobs, memory)
    side_b, more = side_of(b, jobs, memory)
    return difference(side_a, side_b), [*dict.fromkeys([*notes, *more])]


def side_of(paths: Sequence[str], jobs: int | None, memory: str | None) -> tuple[Side, list[str]]:
    """One side of a comparison, its PATHs being captures alike, and what to know beside it."""
    from npuscope.analysis.compare.side import together

    notes: list[str] = []
    return together([_measured(path, jobs, memory, notes) for path in paths]), notes


def _measured(text: str, jobs: int | None, memory: str | None, notes: list[str]) -> Side:
    """What one PATH tells; says what reading did, and keeps what to know beside its figures."""
    from npuscope.analysis.compare.baseline import is_baseline, read_baseline
    from npuscope.analysis.compare.side import measure
    from npuscope.messages import Message
    from npuscope.profile import compare_ranks, opened

    if is_baseline(Path(text)):
        return read_baseline(Path(text))
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
