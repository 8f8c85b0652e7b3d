"""What a watcher is asked to do, and what the rooms above hand it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..store.segments import Summarise
from .work import Compare

QUIET_S = 60.0
POLL_S = 10.0


@dataclass(frozen=True, slots=True)
class Options:
    """What to watch and how.

    `roots` are searched for profiles, which go to `store` under the name `run` (None: as
    READY.json, the job's metadata or the watched folder tell). A profile without an end mark
    counts as finished, and a capture as complete, when nothing changed for `quiet_s`. Looks are
    `poll_s` apart, or there is `once` one. `keep_captures` (None: all) stay in the store. `jobs`
    processes share `memory_bytes`. `train_log` and the folder `expert_load` (None: those in the
    roots) are followed.
    """

    roots: tuple[Path, ...]
    store: Path
    quiet_s: float = QUIET_S
    poll_s: float = POLL_S
    keep_captures: int | None = None
    run: str | None = None
    jobs: int | None = None
    memory_bytes: int | None = None
    train_log: Path | None = None
    expert_load: Path | None = None
    once: bool = False


@dataclass(frozen=True, slots=True)
class Hooks:
    """Functions of the rooms above: a rank's summaries, the comparison of a capture's ranks; and
    `tell`, which gets one line for each event. The first two run in other processes."""

    summarise: Summarise | None = None
    compare: Compare | None = None
    tell: Callable[[str], None] = lambda message: None
