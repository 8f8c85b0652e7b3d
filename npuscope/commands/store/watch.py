"""`npuscope watch`: profiles are ingested as they land."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Iterator
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from npuscope.commands.command import ExpertLoad, Jobs, Memory
from npuscope.console import say
from npuscope.console.printable import one_line

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ENDS_WITHIN_S = 15.0


def watch(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Folders that the profiler writes to.")
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
            help="A profile without an end mark is complete after this long without changes.",
        ),
    ] = 60,
    poll: Annotated[
        float, typer.Option("--poll", metavar="SECONDS", min=0.05, help="Polling interval.")
    ] = 10,
    keep_captures: Annotated[
        int | None,
        typer.Option(
            "--keep-captures", metavar="N", min=1, help=("Drop the oldest captures above this.")
        ),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            "--run", metavar="NAME", help="The run's name.  [default: job name, or folder name]"
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Poll once, then exit.")] = False,
    jobs: Jobs = None,
    memory: Memory = None,
    train_log: Annotated[
        Path | None,
        typer.Option("--train-log", metavar="FILE", help="Training log, followed as it grows."),
    ] = None,
    expert_load: ExpertLoad = None,
) -> None:
    """Ingest profiles as they land, until stopped; one line on stderr for each event.

    A profile is read when its READY.json or analyse.done says that it is finished, or when it is
    quiet. What cannot be read is left where it is, told, and tried again when its files change.
    A rank has 60 s and a second for each MB (NPUSCOPE_RANK_SECONDS=N: N seconds), then it is set
    aside as one that cannot be read. Ctrl-C, SIGTERM and SIGHUP end the watcher within seconds;
    what they interrupt is read when it is started again.

    \b
    Examples:
      npuscope watch /data/profiles --store /data/npuscope --keep-captures 200
      npuscope watch ./profiles --store ./store --train-log ./train_rank7.log
      npuscope watch ./profiles --store ./store --once
    """
    from npuscope.analysis.ranks.derive import compare_capture
    from npuscope.analysis.summaries import summarise
    from npuscope.collector.buckets import require_writable
    from npuscope.collector.store.mirror import local
    from npuscope.collector.watch.options import Hooks, Options
    from npuscope.collector.watch.watch import watch as watch_folders
    from npuscope.profile import parse_size

    require_writable(store)
    options = Options(
        roots=tuple(folders),
        store=local(store),
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
        state = watch_folders(options, Hooks(summarise, compare_capture, _tell), stop)
    if once and state.quarantined:
        raise typer.Exit(4)


@contextlib.contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """An event that Ctrl-C, SIGTERM or SIGHUP sets; the second one ends the process at once, and
    so does the first where nothing ends for long: what hangs in a file system hears no signal."""
    stop = threading.Event()
    reader, hears = socket.socketpair()
    hears.setblocking(False)
    former_fd = signal.set_wakeup_fd(hears.fileno(), warn_on_full_buffer=False)
    threading.Thread(target=_end_in_time, args=(reader,), daemon=True).start()
    former = {number: signal.getsignal(number) for number in _ENDING}
    if former[signal.SIGHUP] is signal.SIG_IGN:
        del former[signal.SIGHUP]  # started by nohup, to outlive its terminal

    def end(number: int, frame: object) -> None:
        for one in former:
            signal.signal(one, _leave)
        stop.set()
        _tell("stopping: current reads get a few seconds; press Ctrl-C again to exit now")

    for number in former:
        signal.signal(number, end)
    try:
        yield stop
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(former_fd)
        hears.close()  # which ends the thread


def _end_in_time(reader: socket.socket) -> None:
    """Wait for a signal, then for the end of the process: not for ever."""
    from npuscope.collector.engines.processes import end_all

    with reader:
        number = next((n for n in iter(partial(reader.recv, 1), b"") if n[0] in _ENDING), b"")
        if not number:
            return
        reader.settimeout(_ENDS_WITHIN_S)
        try:
            while reader.recv(1):
                pass
        except TimeoutError:
            end_all()
            os._exit(128 + number[0])


def _leave(number: int, frame: object) -> NoReturn:
    """End now. An exception would wait for every rank that is being read; reading processes leave
    with us, and what they publish, they publish whole."""
    os._exit(128 + number)


def _tell(message: str) -> None:
    """One line, whatever names of runs and files have in them."""
    say(f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ} {one_line(message)}")
