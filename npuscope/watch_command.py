"""`npuscope watch`: profiles are ingested as they land."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from npuscope.console import say
from npuscope.dashboard.printable import one_line
from npuscope.options import ExpertLoad, Jobs, Memory


def watch(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Folders that profilers write into.")
    ],
    store: Annotated[
        Path, typer.Option("--store", metavar="DIR", help="The store to fill; made if needed.")
    ],
    quiet_after: Annotated[
        float,
        typer.Option(
            "--quiet-after",
            metavar="SECONDS",
            min=0,
            help="A profile without an end mark is finished when nothing changed for so long.",
        ),
    ] = 60,
    poll: Annotated[
        float, typer.Option("--poll", metavar="SECONDS", min=0.05, help="Between two looks.")
    ] = 10,
    keep_captures: Annotated[
        int | None,
        typer.Option("--keep-captures", metavar="N", min=1, help="Drop the oldest beyond these."),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option("--run", help="The run's name.  [default: as the job or the folder tells]"),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Look once, then leave.")] = False,
    jobs: Jobs = None,
    memory: Memory = None,
    train_log: Annotated[
        Path | None,
        typer.Option(
            "--train-log", metavar="FILE", help="What the trainer prints: followed as it grows."
        ),
    ] = None,
    expert_load: ExpertLoad = None,
) -> None:
    """Ingest profiles as they land, until stopped; one line on stderr for each event.

    A profile is read when its READY.json or analyse.done says that it is finished, or when it is
    quiet. What cannot be read is left where it is, told, and tried again when its files change.
    Ctrl-C and SIGTERM end it after the ranks that are being read; after any end, start it again.

    \b
    Examples:
      npuscope watch /data/profiles --store /data/npuscope --keep-captures 200
      npuscope watch ./profiles --store ./store --train-log ./train_rank7.log
      npuscope watch ./profiles --store ./store --once
    """
    from npuscope.analysis.across.keeping import compare_capture
    from npuscope.analysis.summaries import summarise
    from npuscope.collector.watch.options import Handed, Options
    from npuscope.collector.watch.watching import watch as watch_folders
    from npuscope.dashboard.opening import parse_size

    options = Options(
        roots=tuple(folders),
        store=store,
        quiet_s=quiet_after,
        poll_s=poll,
        keep_captures=keep_captures,
        run=run,
        jobs=jobs,
        memory_bytes=parse_size(memory) if memory else None,
        train_log=train_log,
        expert_load=expert_load,
        once=once,
    )
    with _stopped_by_signals() as stop:
        state = watch_folders(options, Handed(summarise, compare_capture, _tell), stop)
    if once and state.quarantined:
        raise typer.Exit(4)


@contextlib.contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """An event that Ctrl-C or SIGTERM sets; the second one ends the process at once."""
    stop = threading.Event()
    former = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def end(number: int, frame: object) -> None:
        for one in former:
            signal.signal(one, _leave)
        stop.set()
        _tell("stopping after the ranks that are being read; once more to leave at once")

    for number in former:
        signal.signal(number, end)
    try:
        yield stop
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _leave(number: int, frame: object) -> NoReturn:
    """End now. An exception would wait for every rank that is being read; reading processes leave
    with us, and what they publish, they publish whole."""
    os._exit(128 + number)


def _tell(message: str) -> None:
    """One line, whatever names of runs and files have in them."""
    say(f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ} {one_line(message)}")
