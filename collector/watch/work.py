"""What reading processes do for a watcher: read a rank, compare a capture's ranks, read loads."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from npuscope.errors import TraceNotFound

from ..discover.search import Findings, search
from ..engines.processes import LostWorker
from ..error_line import error_line
from ..ingest.deadline import over_time
from ..ingest.read_rank import RankOutcome, RankTask, limit_of, read_rank
from ..readers.trust import Advance
from ..store.segments import Summarise
from ..store.space import is_out_of_space
from .loads import LoadTask, join_loads

# Bring the results over all ranks of a capture up to date: (store, run, capture).
Compare = Callable[[Path, str, str], None]

_DEATH = "its reading process died (out of memory?)"


@dataclass(frozen=True, slots=True)
class CompareTask:
    """Compare the ranks of a capture."""

    store: str
    run: str
    capture: str
    rank_count: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a task that reads no rank; `error` is None where it went well."""

    error: str | None
    out_of_space: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class ReadTask:
    """Read a rank of a profile that was as `fingerprint` says."""

    rank: RankTask
    fingerprint: str


@dataclass(frozen=True, slots=True)
class LookTask:
    """Find out what a finished profile holds."""

    path: str


@dataclass(frozen=True, slots=True)
class Contents:
    """What a profile holds, or `error`: why nobody knows."""

    findings: Findings | None
    error: str = ""


Task = ReadTask | CompareTask | LoadTask | LookTask
Result = RankOutcome | Outcome | Contents

_LOOK_S = 60.0
_OTHERS_S = 600.0


def limit_s(task: Task) -> float | None:
    """How long a task may take."""
    if isinstance(task, ReadTask):
        return limit_of(task.rank)
    if isinstance(task, CompareTask):
        return _OTHERS_S + task.rank_count
    return _LOOK_S if isinstance(task, LookTask) else _OTHERS_S


def why_lost(lost: LostWorker) -> str:
    """Why nothing came of a task."""
    return over_time(lost.limit_s) if lost.limit_s else _DEATH


def work(
    task: Task, advance: Advance, summarise: Summarise | None, compare: Compare | None
) -> Result:
    """Do a task; what goes wrong is told in the result."""
    if isinstance(task, ReadTask):
        return read_rank(task.rank, summarise, advance)
    if isinstance(task, LookTask):
        return _look(task)
    began = time.monotonic()
    try:
        if isinstance(task, LoadTask):
            join_loads(task)
        elif compare is not None:
            compare(Path(task.store), task.run, task.capture)
    except Exception as error:  # one that nobody foresaw must not end the watching
        why = error_line(error, task.store)
        return Outcome(why, is_out_of_space(error), time.monotonic() - began)
    return Outcome(None, False, time.monotonic() - began)


def _look(task: LookTask) -> Contents:
    try:
        return Contents(search(Path(task.path)))
    except (TraceNotFound, OSError) as error:
        return Contents(None, str(error))
    except Exception as error:  # one that nobody foresaw must not end the watching
        return Contents(None, f"cannot be read: {error_line(error)}")
