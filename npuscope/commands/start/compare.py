"""`npuscope compare`: whether two runs differ, and where the difference comes from."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer

from npuscope.analysis.scope import ALL, Scope
from npuscope.commands.command import (
    Jobs,
    Json,
    Memory,
    Out,
    Request,
    leave_where_partial,
    say_notes,
    source_of,
)
from npuscope.commands.command import notes_of as told
from npuscope.commands.start.report import Html, Language, Markdown, check_outputs, document
from npuscope.console import print_json, show
from npuscope.errors import UsageError

if TYPE_CHECKING:
    from npuscope.analysis.compare.difference import Comparison
    from npuscope.analysis.compare.side import Side
    from npuscope.profile import OpenTables

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
Key = Literal["stage", "rank"]
By = Annotated[
    Key | None,
    typer.Option(
        "--by", metavar="KEY", help="|".join(get_args(Key)) + "  [default: the mean rank]"
    ),
]
TokensA = Annotated[
    int | None,
    typer.Option(
        "--tokens-a", metavar="N", min=1, help="Tokens per step of A.  [default: as its log says]"
    ),
]
TokensB = Annotated[
    int | None, typer.Option("--tokens-b", metavar="N", min=1, help="Tokens per step of B.")
]


def compare(
    a: Baseline,
    b: Candidate,
    also_a: AlsoA = None,
    also_b: AlsoB = None,
    by: By = None,
    tokens_a: TokensA = None,
    tokens_b: TokensB = None,
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
      npuscope compare ./before ./after --by stage
      npuscope compare ./before ./after --html change.html --lang zh
    """
    from npuscope.analysis.compare.difference import figures_of, remarks

    check_outputs(html, markdown, out, lang, json)
    comparison, beside = compare_sides(
        [a, *(also_a or [])], [b, *(also_b or [])], jobs, memory, by, (tokens_a, tokens_b)
    )
    notes = [*remarks(comparison), *beside.notes]
    if json:
        rows = comparison.rows if comparison.at is None else comparison.at
        name = "compare" if by is None else f"compare_{by}"
        print_json(name, rows.to_dicts(), [*beside.left_out, *notes], **figures_of(comparison))
        leave_where_partial(*beside.places)
        return
    from npuscope.dashboard.report.comparison import comparison_blocks, comparison_tables

    if html is not None or markdown:
        blocks = comparison_blocks(comparison, (a, b), [*beside.left_out, *notes])
        document(blocks, html, out, lang)
        leave_where_partial(*beside.places)
        return
    from npuscope.dashboard.report.report_terminal import renderables

    for part in chain.from_iterable(map(renderables, comparison_tables(comparison))):
        show(part)
    say_notes(notes)
    leave_where_partial(*beside.places)


@dataclass(frozen=True, slots=True)
class Beside:
    """What to know beside a comparison: notes, what was said of captures that are `left_out`, and
    the places that were opened, closed again."""

    notes: list[str]
    left_out: list[str]
    places: list[OpenTables]


def compare_sides(
    a: Sequence[str],
    b: Sequence[str],
    jobs: int | None,
    memory: str | None,
    by: Key | None = None,
    tokens: tuple[int | None, int | None] = (None, None),
) -> tuple[Comparison, Beside]:
    """What the PATHs of two sides tell, and what to know beside it; `tokens` of a step of either
    side, where the user says so."""
    from npuscope.analysis.compare.difference import compare as difference
    from npuscope.analysis.compare.side import together
    from npuscope.analysis.compare.waterfall import needs_all

    with contextlib.ExitStack() as opened_ones:
        sides = [[_open(opened_ones, one, jobs, memory) for one in paths] for paths in (a, b)]
        measured = [[place.side(by) for place in places] for places in sides]
        ours, theirs = map(together, measured)
        if needs_all(ours, theirs):
            ours, theirs = (
                together([place.in_full(side, by) for place, side in zip(*pairs, strict=True)])
                for pairs in zip(sides, measured, strict=True)
            )
        beside = _beside([*sides[0], *sides[1]])
    ours, theirs = (
        side if count is None else replace(side, tokens=count)
        for side, count in zip((ours, theirs), tokens, strict=True)
    )
    return difference(ours, theirs, by), beside


def side_of(paths: Sequence[str], jobs: int | None, memory: str | None) -> tuple[Side, Beside]:
    """One side of a comparison, its PATHs being captures alike, and what to know beside it."""
    from npuscope.analysis.compare.side import together

    with contextlib.ExitStack() as opened_ones:
        places = [_open(opened_ones, one, jobs, memory) for one in paths]
        return together([place.side(None) for place in places]), _beside(places)


@dataclass(frozen=True, slots=True)
class _Place:
    """A PATH of a side: open tables, or `baseline`, the side of a file of `baseline save`."""

    text: str
    scope: Scope = ALL
    data: OpenTables | None = None
    baseline: Side | None = None

    def side(self, by: Key | None) -> Side:
        """What it tells."""
        from npuscope.analysis.compare.side import measure

        if self.baseline is not None:
            return self.baseline
        assert self.data is not None
        target = str(self.data.target)
        return measure(self.data.con, self.scope, by, target=target)

    def in_full(self, side: Side, by: Key | None) -> Side:
        """The same after a look at every kernel; of a file as it is."""
        from npuscope.analysis.compare.side import kernels_in_full

        if self.data is None:
            return side
        return side.with_kernels(kernels_in_full(self.data.con, self.scope, by))

    def notes(self) -> list[str]:
        """What to know beside its figures."""
        return self._prefix(told(self.data, self.scope)) if self.data is not None else []

    def left_out(self) -> list[str]:
        """What was said of captures that are left out of it."""
        return self._prefix(self.data.left_out) if self.data is not None else []

    def _prefix(self, notes: Iterable[str]) -> list[str]:
        from npuscope.messages import Message

        return [Message("{place}: {note}", place=self.text, note=note) for note in notes]


def _beside(places: Sequence[_Place]) -> Beside:
    """What to know of all places, each thing once."""
    return Beside(
        [*dict.fromkeys(note for place in places for note in place.notes())],
        [*dict.fromkeys(one for place in places for one in place.left_out())],
        [place.data for place in places if place.data is not None],
    )


def _open(stack: contextlib.ExitStack, text: str, jobs: int | None, memory: str | None) -> _Place:
    """Open one PATH; says what reading did."""
    from npuscope.analysis.compare.baseline import is_baseline, read_baseline
    from npuscope.profile import compare_ranks, open_tables

    if is_baseline(Path(text)):
        return _Place(text, baseline=read_baseline(Path(text)))
    path, scope = _place(text)
    source = source_of(path, None, None, scope.run, jobs, memory)
    data = stack.enter_context(open_tables(source, scope=scope))
    request = Request(source, scope)
    capture_scope = request.scope_of(data)
    request.require_steps(data, capture_scope)
    compare_ranks(data, is_needed=False)
    return _Place(text, capture_scope, data)


def _place(text: str) -> tuple[Path, Scope]:
    """PATH, PATH@RUN or PATH@RUN/CAPTURE; a path that exists is one, whatever its name holds."""
    place, _, suffix = text.rpartition("@")
    if not place or Path(text).exists():
        return Path(text), Scope()
    run, _, capture = suffix.partition("/")
    if not run:
        raise UsageError(f"{text}: give a run after @, as in PATH@RUN or PATH@RUN/CAPTURE")
    return Path(place), Scope(run, capture or None)
