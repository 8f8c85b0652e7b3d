"""What reading processes do for a watcher: read a rank, compare a capture's ranks, read loads."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..damage import told
from ..read_rank import RankOutcome, RankTask, read_rank
from ..segments import Summarise
from ..space import is_out_of_space
from .loads import LoadTask, join_loads

# Bring the results over all ranks of a capture up to date: (store, run, capture).
Compare = Callable[[Path, str, str], None]


@dataclass(frozen=True, slots=True)
class CompareTask:
    """Compare the ranks of a capture."""

    store: str
    run: str
    capture: str


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a task that reads no rank; `error` is None where it went well."""

    error: str | None
    out_of_space: bool
    seconds: float


Task = RankTask | CompareTask | LoadTask
Result = RankOutcome | Done


def work(task: Task, summarise: Summarise | None, compare: Compare | None) -> Result:
    """Do a task; what goes wrong is told in the result."""
    if isinstance(task, RankTask):
        return read_rank(task, summarise, lambda n_bytes: None)
    began = time.monotonic()
    try:
        if isinstance(task, LoadTask):
            join_loads(task)
        elif compare is not None:
            compare(Path(task.store), task.run, task.capture)
    except Exception as error:  # one that nobody foresaw must not end the watching
        why = told(error, task.store)
        return Done(why, is_out_of_space(error), time.monotonic() - began)
    return Done(None, False, time.monotonic() - began)
