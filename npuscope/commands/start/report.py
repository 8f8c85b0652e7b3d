"""The commands that sum up: the report in the terminal, on a page or as Markdown, and findings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from npuscope.commands.inputs import chosen_rows, leave, notes_of, source_of
from npuscope.commands.options import (
    Capture,
    Folder,
    Jobs,
    Json,
    Memory,
    Out,
    Profile,
    Rank,
    Run,
    Step,
    Store,
    Top,
)
from npuscope.console import print_json, print_text, say, show
from npuscope.errors import UsageError


def report(
    path: Profile = None,
    folder: Folder = None,
    store: Store = None,
    run: Run = None,
    capture: Capture = None,
    rank: Rank = None,
    step: Step = None,
    top: Top = 10,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Self-contained HTML page with figures."),
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Markdown, on stdout or to -o.")
    ] = False,
    out: Out = None,
    lang: Annotated[
        str, typer.Option("--lang", metavar="LANG", help="For --html and --markdown: en|zh")
    ] = "en",
    json: Json = False,
    jobs: Jobs = None,
    memory: Memory = None,
) -> None:
    """Where does the step go, and what to change first? The main report.

    \b
    Examples:
      npuscope report ./profiles
      npuscope report ./profiles --rank 0 --step 13 --top 20
      npuscope report ./profiles --html report.html --lang zh
      npuscope report ./profiles --markdown -o report.md
    """
    from npuscope.dashboard.locale.language import language_of
    from npuscope.dashboard.report.report import report as blocks_of
    from npuscope.dashboard.report.report import report_rows
    from npuscope.profile import compare_ranks, opened

    language_of(lang)  # refuses what it does not know, before anything is read
    if (html is not None) + markdown + json > 1:
        raise UsageError("one of --html, --markdown, --json")
    if out is not None and not markdown:
        raise UsageError("-o goes with --markdown: --html takes the file name itself")
    source = source_of(path, folder, store, run, jobs, memory)
    place = str(source.path)
    with opened(source) as data:
        chosen = chosen_rows(data, run, capture, rank, step)
        compare_ranks(data, is_needed=False)
        if json:
            rows = report_rows(data.con, chosen, top=top, path=place)
            print_json("report", rows, notes_of(data, chosen))
        else:
            blocks = blocks_of(
                data.con, chosen, top=top, path=place, warnings=data.warnings,
                charts=html is not None,
            )  # fmt: skip
            if html is not None:
                from npuscope.dashboard.report.html_page import page
                from npuscope.dashboard.whole_files import write_text

                write_text(page(blocks, language=lang), html)
                say(f"written: {html}")
            elif markdown:
                from npuscope.dashboard.report.markdown import markdown as text_of

                text = text_of(blocks, language=lang)
                if out is None:
                    print_text(text)
                else:
                    from npuscope.dashboard.whole_files import write_text

                    write_text(text, out)
                    say(f"written: {out}")
            else:
                from npuscope.dashboard.report.report_terminal import drawn

                for block in blocks:
                    for part in drawn(block):
                        show(part)
    leave(data)


def findings(
    path: Profile = None,
    folder: Folder = None,
    store: Store = None,
    run: Run = None,
    capture: Capture = None,
    rank: Rank = None,
    step: Step = None,
    json: Json = False,
    jobs: Jobs = None,
    memory: Memory = None,
) -> None:
    """What is worth changing first: ms per step at stake, evidence, how sure, what to try.

    \b
    Examples:
      npuscope findings ./profiles
      npuscope findings ./profiles --json
    """
    from npuscope.analysis.findings.list_findings import finding_rows
    from npuscope.analysis.findings.list_findings import findings as found_in
    from npuscope.dashboard.report.report_terminal import findings_in_full
    from npuscope.profile import compare_ranks, opened

    source = source_of(path, folder, store, run, jobs, memory)
    with opened(source) as data:
        chosen = chosen_rows(data, run, capture, rank, step)
        compare_ranks(data, is_needed=False)
        found = found_in(data.con, path=str(source.path), **chosen)
        if json:
            print_json("findings", finding_rows(found), notes_of(data, chosen))
        else:
            for part in findings_in_full(found):
                show(part)
            if not found:
                say("no finding costs 1 % of a step or more: `npuscope doctor` lists what this"
                    " profile cannot show")  # fmt: skip
            for note in notes_of(data, chosen):
                say(f"note: {note}")
    leave(data)
