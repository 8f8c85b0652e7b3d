"""Trainers' logs and expert loads of the newest capture, brought up to date at every round.

What that costs is bounded: what took a second is not done again for ten.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from ..engines.processes import Lost
from ..model import SourceFile
from .capture_spans import Held, Key, places_of
from .loads import LoadTask, files_of, load_folders, loads_of
from .options import Options
from .rounds import Watch, disk_is_full
from .tail_log import Tail, join, read_on, seed
from .work import Done, why_lost

# The share of time that following may take.
_SHARE = 0.1


@dataclass(slots=True)
class Followed:
    """A log and folders of expert loads, when each may be read again (monotonic seconds), what of
    folders was joined to which capture, and where the newest captures' ranks were read from."""

    tail: Tail | None = None
    next_s: dict[str, float] = field(default_factory=dict)
    loaded: dict[str, tuple[Key, tuple[SourceFile, ...]]] = field(default_factory=dict)
    places: dict[Key, tuple[Held, tuple[str, ...]]] = field(default_factory=dict)
    told: dict[str, str] = field(default_factory=dict)
    is_seeded: bool = False

    @classmethod
    def of(cls, options: Options) -> Followed:
        return cls(Tail(options.train_log) if options.train_log else None)


def follow(watch: Watch, followed: Followed) -> None:
    """Bring what the newest capture holds of logs and loads up to date."""
    if time.monotonic() < watch.try_again_s or not watch.go_on():
        return
    run, captures = watch.options.run, watch.known.captures()
    newest_first = [key for key in reversed(captures) if run in (None, key[0])]
    if followed.tail is not None:
        _follow_log(watch, followed, followed.tail, next(iter(newest_first), None))
    of_run: dict[str, Key] = {}
    for key in newest_first:
        of_run.setdefault(key[0], key)
    for key, folders in _loads(watch, followed, [*of_run.values()]).items():
        _follow_loads(watch, followed, folders, key)


def _follow_log(watch: Watch, followed: Followed, tail: Tail, newest: Key | None) -> None:
    name, began_s = str(tail.path), time.monotonic()
    if began_s < followed.next_s.get(name, 0.0):
        return
    if newest is not None and not followed.is_seeded:
        seed(tail, watch.options.store, newest)
        followed.is_seeded = True
    try:
        while read_on(tail) and watch.go_on() and watch.options.once:
            pass
    except OSError as error:
        _tell(watch, followed, name, f"cannot read the log {name}: {error.strerror}")
        return
    followed.told.pop(name, None)
    if newest is not None:
        join(tail, watch.options.store, newest)
    ended_s = time.monotonic()
    followed.next_s[name] = ended_s + (ended_s - began_s) * (1 / _SHARE - 1)


def _loads(watch: Watch, followed: Followed, newest: list[Key]) -> dict[Key, tuple[Path, ...]]:
    """Folders of expert loads by the capture that they belong to."""
    options = watch.options
    if options.expert_load is not None:
        return dict.fromkeys(newest[:1], (options.expert_load,))
    found = load_folders(options.roots, watch.folders.loads)
    if not found:
        return {}
    known = watch.known.captures()
    former, followed.places = followed.places, {}
    for key in newest:
        held, places = former.get(key, (None, ()))
        if held != known[key]:
            places = places_of(options.store, key)
        followed.places[key] = known[key], places
    places_by_key = {key: places for key, (_, places) in followed.places.items()}
    return loads_of(newest, places_by_key, found)


def _follow_loads(watch: Watch, followed: Followed, folders: tuple[Path, ...], newest: Key) -> None:
    name, began_s = ", ".join(map(str, folders)), time.monotonic()
    files = files_of(folders)
    if not files and len(folders) > 1:
        _tell(watch, followed, name, f"{name} are no parts of one job's loads: give --expert-load")
    if not files or followed.loaded.get(name) == (newest, files):
        return
    if began_s < followed.next_s.get(name, 0.0):
        return
    task = LoadTask(str(watch.options.store), *newest, tuple(map(str, folders)))
    took_s = 0.0
    for _, done in watch.processes.map([task], watch.go_on, watch.ends):
        error = why_lost(done) if isinstance(done, Lost) else None
        if isinstance(done, Done):
            error, took_s = done.error, done.seconds  # without the start of a process
            if done.out_of_space:
                disk_is_full(watch)
                return
        if error is not None:
            _tell(watch, followed, name, f"cannot read the expert loads in {name}: {error}")
        else:
            followed.told.pop(name, None)
        followed.loaded[name] = (newest, files)
    watch.busy_s = time.monotonic()
    followed.next_s[name] = watch.busy_s + took_s * (1 / _SHARE - 1)


def _tell(watch: Watch, followed: Followed, name: str, message: str) -> None:
    """Say what is wrong once, as long as it stays so."""
    if followed.told.get(name) != message:
        watch.say(errors_total=watch.state.errors_total + 1)
        watch.handed.tell(message)
    followed.told[name] = message
