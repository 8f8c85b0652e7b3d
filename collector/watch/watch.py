"""Watch folders and ingest profiles as they land, until told to stop.

    rounds:  look ─▶ read finished ranks ─▶ publish ─▶ compare ranks ─▶ logs, loads ─▶ drop old ones
                     (processes that stay)             (when a capture is complete)

Killed at any moment, a watcher loses nothing that is published, and the next one finds the rest
where it lies.

One watcher at a time works on a store; another one stands by and takes over.

    <store>/watch.lock        locked as long as the watcher lives, however it ends

Two at once would do no harm, because ranks are published whole and the last publication counts;
they would read everything twice.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from npuscope.errors import StoreError, TraceNotFound

from ..engines.local import cpu_count
from ..engines.processes import Processes
from ..error_line import error_line
from ..store.manifest import create_store
from ..store.mirror import url_behind
from ..store.space import is_out_of_space
from .capture_spans import StoreSpans
from .follow_logs import Progress, follow
from .options import Hooks, Options
from .rounds import (
    Watch,
    begin,
    collect,
    compare_round,
    disk_is_full,
    end_pause,
    ingest_round,
    release_idle,
    show,
)
from .watch_state import WatchState, new_state, read_watch_state
from .work import Result, Task, limit_s, work


def watch(
    options: Options, hooks: Hooks | None = None, stop: threading.Event | None = None
) -> WatchState:
    """Watch until `stop` is set, or look once; returns the last state.

    Ranks that are being read when `stop` is set have some seconds; the next watcher reads what they
    were not enough for.

    Raises StoreError for a store that cannot be made, TraceNotFound where `once` finds none of the
    folders. `once` also raises StoreError where another watcher works on the store.
    """
    hooks, stop = hooks or Hooks(), stop or threading.Event()
    options = replace(
        options,
        store=options.store.absolute(),
        roots=tuple(root.absolute() for root in options.roots),
        train_log=options.train_log.absolute() if options.train_log else None,
        expert_load=options.expert_load.absolute() if options.expert_load else None,
    )
    for root in options.roots:
        if root.is_file():
            raise TraceNotFound(
                f"{root}: is a file, and folders are watched: read it with `npuscope ingest`"
            )
    if options.once and not any(root.is_dir() for root in options.roots):
        raise TraceNotFound(f"{options.roots[0]}: no such folder")
    is_told = False
    while True:
        create_store(options.store)  # which may be deleted while we stand by
        with turn(options.store) as is_ours:
            if is_ours:
                return _watch(options, hooks, stop)
        if options.once:
            raise StoreError(f"{options.store}: {_other(options.store)} watches it already")
        if not is_told:
            hooks.tell(f"standby: {_other(options.store)} watches {options.store} already")
            is_told = True
        if stop.wait(options.poll_s):
            return read_watch_state(options.store) or WatchState()


def _other(store: Path) -> str:
    state = read_watch_state(store)
    return f"process {state.pid} on {state.host}" if state and state.pid else "another watcher"


def _watch(options: Options, hooks: Hooks, stop: threading.Event) -> WatchState:
    state = new_state(options.store, poll_s=options.poll_s)
    function = partial(work, summarise=hooks.summarise, compare=hooks.compare)
    processes: Processes[Task, Result] = Processes(
        function, options.jobs or cpu_count(), limit_s=limit_s
    )
    spans = StoreSpans(options.store, {}, {})
    watch = Watch(options, hooks, lambda: not stop.is_set(), state, spans, processes)
    followed = Progress.of(options)
    with contextlib.closing(processes):
        begin(watch)
        names = ", ".join(map(str, options.roots))
        hooks.tell(
            f"watching {names} for {url_behind(options.store) or options.store},"
            f" {len(spans.captures())} capture(s) in it"
        )
        show(watch)
        while not stop.is_set():
            is_retried = watch.is_kept_waiting and time.monotonic() >= watch.try_again_s
            retried_s = watch.try_again_s if is_retried else None
            with _survive(watch):
                ingest_round(watch)
                with _survive(watch):  # a log's trouble keeps no capture from being compared
                    follow(watch, followed)
                compare_round(watch)
                end_pause(watch, retried_s)
            watch.say(polls_total=watch.state.polls_total + 1)
            show(watch)
            release_idle(watch)
            if options.once:
                break
            stop.wait(options.poll_s)
        collect(watch, None)
        watch.say(is_running=False)
        show(watch)
        hooks.tell("stopped" if not options.once else _summary(watch))
        if options.once and watch.is_kept_waiting:
            raise StoreError(
                f"{url_behind(options.store) or options.store}: could not take all: what is missing"
                " is read when the command is repeated"
            )
    return watch.state


@contextlib.contextmanager
def _survive(watch: Watch) -> Iterator[None]:
    """What goes wrong in one round is told and counted, and the next one tries again."""
    try:
        yield
    except Exception as error:  # one that nobody foresaw must not end the watching
        if is_out_of_space(error):
            disk_is_full(watch)
        else:
            watch.say(errors_total=watch.state.errors_total + 1)
            why = error_line(error, str(watch.options.store))
            watch.hooks.tell(f"this poll failed: {why}; retrying at the next one")


def _summary(watch: Watch) -> str:
    state = watch.state
    return (
        f"{state.ranks_ingested_total} rank(s) ingested so far, {len(state.waiting)} profile(s)"
        f" waiting, {len(state.quarantined)} unusable"
    )


LOCK = "watch.lock"
# What file systems answer that know no locks.
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL})


@contextlib.contextmanager
def turn(store: Path) -> Iterator[bool]:
    """Whether the store is ours to watch, until the end of the block.

    It is, too, where the store's file system knows no locks. Raises OSError where the file cannot
    be made.
    """
    descriptor = os.open(store / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = True
        except BlockingIOError:
            is_ours = False
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            is_ours = True
        yield is_ours
    finally:
        os.close(descriptor)
