"""The commands that sum up: the report in the terminal, on a page or as Markdown, and findings."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from npuscope.commands.command import Out, Request, command, notes_of, say_notes
from npuscope.console import print_json, print_text, say, show
from npuscope.errors import UsageError

if TYPE_CHECKING:
    from npuscope.dashboard.report.blocks import Block

_NO_FINDING = (
    "no finding costs 1 % of a step or more: `npuscope doctor` lists what this profile cannot show"
)
Top = Annotated[int, typer.Option("--top", metavar="N", min=1, help="Rows of each ranking.")]
Html = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Self-contained HTML page with figures."),
]
Markdown = Annotated[bool, typer.Option("--markdown", help="Markdown, on stdout or to -o.")]
Language = Annotated[
    str, typer.Option("--lang", metavar="LANG", help="Of the page or Markdown: en|zh")
]


@command("run", "capture", "rank", "step")
def report(
    request: Request,
    *,
    top: Top = 10,
    html: Html = None,
    markdown: Markdown = False,
    out: Out = None,
    lang: Language = "en",
) -> None:
    """Where does the step go, and what to change first? The main report.

    \b
    Examples:
      npuscope report ./profiles
      npuscope report ./profiles --rank 0 --step 13 --top 20
      npuscope report ./profiles --html report.html --lang zh
      npuscope report ./profiles --markdown -o report.md
    """
    from npuscope.profile import compare_ranks, place_of

    check_outputs(html, markdown, out, lang, request.json)
    place = place_of(request.source.path)
    with request.tables() as (data, scope):
        compare_ranks(data, is_needed=False)
        if request.json:
            from npuscope.analysis.report_rows import report_rows

            rows = report_rows(data.con, scope, top=top, path=place)
            print_json("report", rows, [*data.left_out, *notes_of(data, scope)])
        else:
            from npuscope.dashboard.report.report import report as blocks_of

            blocks = blocks_of(
                data.con, scope, top=top, path=place, warnings=[*data.left_out, *data.warnings],
                charts=html is not None,
            )  # fmt: skip
            if html is not None or markdown:
                document(blocks, html, out, lang)
            else:
                from npuscope.dashboard.report.report_terminal import renderables

                for part in chain.from_iterable(map(renderables, blocks)):
                    show(part)


def check_outputs(
    html: Path | None, markdown: bool, out: Path | None, lang: str, json: bool
) -> None:
    """Before anything is read. Raises UsageError where options contradict each other, or there is
    no such language."""
    from npuscope.dashboard.locale.language import language_of

    language_of(lang)
    if (html is not None) + markdown + json > 1:
        raise UsageError("one of --html, --markdown, --json")
    if lang != "en" and html is None and not markdown:
        raise UsageError("--lang goes with --html or --markdown: terminals are shown English")
    if out is not None and not markdown:
        raise UsageError("-o goes with --markdown: --html takes the file name itself")


def document(blocks: Iterable[Block], html: Path | None, out: Path | None, lang: str) -> None:
    """A page into the file `html`, else Markdown to `out` or stdout."""
    if html is not None:
        from npuscope.dashboard.report.html_page import page

        write(page(blocks, language=lang), html)
        return
    from npuscope.dashboard.report.markdown import markdown as text_of

    text = text_of(blocks, language=lang)
    print_text(text) if out is None else write(text, out)


def write(text: str, out: Path) -> None:
    """Write a file, and say so."""
    from npuscope.dashboard.whole_files import write_text

    write_text(text, out)
    say(f"written: {out}")


@command("run", "capture", "rank", "step")
def findings(request: Request) -> None:
    """What is worth changing first: ms per step at stake, evidence, how sure, what to try.

    \b
    Examples:
      npuscope findings ./profiles
      npuscope findings ./profiles --json
    """
    from npuscope.analysis.findings.findings import finding_rows
    from npuscope.analysis.findings.findings import findings as found_in
    from npuscope.dashboard.report.report_terminal import findings_in_full
    from npuscope.profile import compare_ranks, place_of

    with request.tables() as (data, scope):
        compare_ranks(data, is_needed=False)
        findings_here = found_in(data.con, scope, path=place_of(request.source.path))
        notes = notes_of(data, scope)
        if request.json:
            print_json(
                "findings",
                finding_rows(findings_here),
                notes if findings_here else [_NO_FINDING, *notes],
            )
            return
        for part in findings_in_full(findings_here):
            show(part)
        if not findings_here:
            say(_NO_FINDING)
        say_notes(notes)
