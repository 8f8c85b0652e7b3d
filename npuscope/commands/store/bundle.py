"""`npuscope bundle`: a capture as one page that opens anywhere and that every command reads."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from npuscope.commands.command import Out, Request, command
from npuscope.commands.start.report import Language
from npuscope.console import say
from npuscope.errors import UsageError

Redact = Annotated[
    bool,
    typer.Option(
        "--redact", help="Pseudonyms for hosts, paths, users, groups, runs and addresses."
    ),
]
Size = Annotated[
    str, typer.Option("--most", metavar="SIZE", help="Of all tables; events are left out first.")
]


@command("run", "capture", json=False)
def bundle(
    request: Request,
    *,
    out: Out = None,
    redact: Redact = False,
    most: Size = "16MB",
    lang: Language = "en",
) -> None:
    """One self-contained page with report, figures and tables, for whoever has to look at a case.

    It opens in a browser without a network, and every command reads it: npuscope report
    case.npuscope.html. With --redact the names of hosts, paths, users, communication groups, runs
    and addresses are pseudonyms, the same in all your bundles; the key stays in your cache.

    \b
    Examples:
      npuscope bundle ./profiles -o case.npuscope.html
      npuscope bundle ./store --run monday --redact -o case.npuscope.html
    """
    from npuscope.analysis.scope import ALL
    from npuscope.analysis.views import open_views
    from npuscope.collector.store import bundle as tables
    from npuscope.collector.store.cache import cache_folder
    from npuscope.collector.store.export import export
    from npuscope.collector.store.redaction import own_key
    from npuscope.collector.store.redaction import redact as redacted
    from npuscope.dashboard.locale.language import language_of
    from npuscope.dashboard.report.html_page import page
    from npuscope.dashboard.report.report import report
    from npuscope.dashboard.units import size_text
    from npuscope.dashboard.whole_files import write_whole
    from npuscope.profile import Source, compare_ranks, open_tables, parse_size, summary_versions

    if out is None:
        raise UsageError("no output given: give -o case.npuscope.html")
    language_of(lang)
    most_bytes = parse_size(most, "--most")
    with tempfile.TemporaryDirectory(prefix="npuscope-") as folder:
        database = Path(folder) / "tables.duckdb"
        request = replace(request, source=replace(request.source, writable=Path(folder)))
        with request.tables() as (data, scope):  # to its end: leaving it may set the exit code
            open_views(data.con)
            export(
                data.con, "duckdb", database, summaries=summary_versions(),
                run=scope.run, capture=scope.capture,
            )  # fmt: skip
            warnings = [] if redact else [*data.left_out, *data.warnings]
            if redact:
                changed = redacted(database, own_key(cache_folder()))
                say(f"{changed} texts have pseudonyms")
            packed, left_out = tables.pack(database, most_bytes)
            with open_tables(Source(database)) as database_tables:
                compare_ranks(database_tables, is_needed=False)
                blocks = report(
                    database_tables.con, ALL, top=10, path=out.name, warnings=warnings, charts=True
                )
                html = page(blocks, language=lang)
            whole = tables.with_tables(html, packed)
            with write_whole(out) as file:
                file.write(whole)
            say(f"written: {out} ({size_text(len(whole))})")
            if left_out:
                gone = ", ".join(left_out)
                say(f"note: left out {gone}: --most {most} is less; their summaries are in")
