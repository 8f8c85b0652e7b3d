"""What a watcher says of itself: one small file in the store, replaced whole at every poll.

    <store>/watch-state.json

Whoever wants to know whether profiles still arrive (`npuscope exporter`) reads it here. Nothing
that is published depends on it: a store without it, or with a damaged one, is as good a store.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import msgspec

from ..small_files import read_own
from ..store.folder_handles import is_running, process_space
from ..store.manifest import write_atomically

WATCH_STATE = "watch-state.json"
# A watcher says something at every poll and while it reads; a file system may hold it up for long.
_SILENT_POLLS = 10
_SILENT_S = 900.0


class QuarantinedProfile(msgspec.Struct, frozen=True):
    """A profile that cannot be read, why, and since when (Unix time, ns).

    It is left where it lies, and tried again when `fingerprint`, of its files' names, sizes and
    times, changes.
    """

    path: str
    reason: str
    fingerprint: str = ""
    since_ns: int = 0


class Waiting(msgspec.Struct, frozen=True):
    """A profile that is not ingested yet: still being written, or not analysed; `reason` says
    what to do where something is to be done."""

    path: str
    reason: str


class WatchState(msgspec.Struct, frozen=True):
    """Counters since the store was first watched; times in ns since the Unix epoch.

    `captures_ingested_total` counts captures begun, `ranks_ingested_total` ranks published (one
    that is read again counts again), `read_bytes_total` sizes of the files they were read from,
    `captures_dropped_total` captures that went because only so many are kept. `errors_total`
    counts ranks that could not be read, captures that could not be compared, and polls that failed.
    `quarantined` and `waiting` are those of now. `last_poll_ns` is None before the first poll has
    ended, `last_ingest_ns` before any rank was published. `is_running` is False where the watcher
    ended by itself; of one that was killed see `is_watching`. `is_disk_full`: the store's disk
    takes nothing at the moment. `space` is where `pid` means something.
    """

    captures_ingested_total: int = 0
    ranks_ingested_total: int = 0
    read_bytes_total: int = 0
    captures_dropped_total: int = 0
    errors_total: int = 0
    polls_total: int = 0
    quarantined: tuple[QuarantinedProfile, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    last_poll_ns: int | None = None
    last_ingest_ns: int | None = None
    poll_s: float | None = None
    is_running: bool = True
    is_disk_full: bool = False
    pid: int = 0
    host: str = ""
    space: str = ""


def read_watch_state(store: Path) -> WatchState | None:
    """What the store's last watcher said; None where there was none or its file is damaged.

    Fields that this version does not know are passed over; those that are missing are 0 or None.
    """
    try:
        return read_own(store / WATCH_STATE, WatchState)
    except (OSError, msgspec.MsgspecError):
        return None


def write_watch_state(store: Path, state: WatchState) -> None:
    """Replace the file. Raises OSError where the store cannot be written."""
    write_atomically(store / WATCH_STATE, msgspec.json.encode(state))


def new_state(store: Path, *, poll_s: float) -> WatchState:
    """The state of a watcher that begins: it goes on counting where the last one ended."""
    former = read_watch_state(store) or WatchState()
    return msgspec.structs.replace(
        former,
        waiting=(),
        poll_s=poll_s,
        is_running=True,
        is_disk_full=False,
        pid=os.getpid(),
        host=socket.gethostname(),
        space=process_space(),
    )


def is_watching(state: WatchState) -> bool:
    """Whether the watcher that said this still works. Its process is looked for where it is one of
    ours; one that said nothing for many polls and a quarter of an hour counts as gone too."""
    if not state.is_running:
        return False
    if state.space == process_space() and not is_running(state.pid):
        return False
    silent_s = max(_SILENT_POLLS * (state.poll_s or 0.0), _SILENT_S)
    return state.last_poll_ns is None or time.time() - state.last_poll_ns / 1e9 <= silent_s
