"""`npuscope dashboard`: pages to look at, served to this machine's browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from npuscope.commands.command import Folder, Jobs, Memory, Store
from npuscope.console import say
from npuscope.errors import UsageError

if TYPE_CHECKING:
    from npuscope.profile import Source

Places = Annotated[
    list[Path] | None,
    typer.Argument(metavar="PATH", help="Profile folders, stores, or .duckdb exports."),
]
Port = Annotated[
    int | None,
    typer.Option(
        "--port",
        metavar="PORT",
        min=1,
        max=65535,
        help="Listen here.  [default: first free from 8501]",
    ),
]
Host = Annotated[
    str,
    typer.Option(
        "--host", metavar="ADDR", help=("Address to listen on; other machines may connect.")
    ),
]
Public = Annotated[
    str | None,
    typer.Option("--public-url", metavar="URL", help="Public URL behind a reverse proxy."),
]
First = Annotated[
    str | None,
    typer.Option("--run", metavar="NAME", help="Run to show first; its name when ingesting."),
]
Strategies = Annotated[
    Path | None,
    typer.Option(
        "--strategies", metavar="FILE", help="Of `npuscope search -o`, for the page Strategy."
    ),
]
Language = Annotated[str, typer.Option("--lang", metavar="LANG", help="Initial language: en|zh")]


def dashboard(
    paths: Places = None,
    folder: Folder = None,
    port: Port = None,
    host: Host = "127.0.0.1",
    public_url: Public = None,
    store: Store = None,
    run: First = None,
    strategies: Strategies = None,
    lang: Language = "en",
    jobs: Jobs = None,
    memory: Memory = None,
) -> None:
    """Look at profiles in a browser: findings, timeline, communication, experts, and more.

    \b
    Examples:
      npuscope dashboard ./profiles
      npuscope dashboard ./yesterday ./today --port 8600
      npuscope dashboard ./store --lang zh
      npuscope dashboard ./store --strategies strategies.parquet
    """
    from npuscope.analysis.strategy.results import read_found
    from npuscope.dashboard.app import launch
    from npuscope.dashboard.app.served_stores import environment_of, ready
    from npuscope.dashboard.locale.language import language_of

    language_of(lang)  # refuses what it does not know
    sources = _sources([*(paths or []), *([folder] if folder else [])], store, run, jobs, memory)
    launch.check_installed()
    if strategies is not None:
        read_found(strategies)  # refuses what is none, before anybody looks
    options = launch.options(host, launch.chosen_port(host, port), public_url)
    served = ready(sources, say=say, lang=lang, strategies=strategies)
    # Reading took its time: somebody else may listen there by now.
    free = launch.chosen_port(host, port)
    options["server.port"] = free
    if not launch.is_loopback(host):
        say(
            f"warning: anyone who can reach {host}, port {free}, can see these profiles: there is"
            " no login; docs/dashboard.md shows a reverse proxy with one"
        )
    say(f"dashboard: {public_url or launch.url_of(host, free)}  (Ctrl-C ends it)")
    launch.serve(options, environment_of(served))


def _sources(
    paths: list[Path],
    store: Path | None,
    run: str | None,
    jobs: int | None,
    memory: str | None,
) -> list[Source]:
    from npuscope.profile import Source, is_ingested, parse_size, read_from

    if not paths:
        raise UsageError(
            "no profile given: give PATH, the folder the profiler wrote to, or a store"
        )
    paths = list(map(read_from, paths))
    folders = [path for path in paths if not is_ingested(path)]
    if store is not None and len(folders) > 1:
        raise UsageError(
            f"--store {store} takes one profile folder, not {len(folders)}: `npuscope ingest` puts"
            " several runs into one store"
        )
    memory_bytes = parse_size(memory) if memory else None
    return [Source(path, store, run, jobs, memory_bytes) for path in dict.fromkeys(paths)]
