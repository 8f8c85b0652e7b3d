"""What an engine is: a way to look at a path, and one `map(function, tasks)` over ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..discover.search import Discovery
from ..ingest.read_rank import RankOutcome, RankTask
from ..readers.trust import Advance

# Small ranks of one capture together.
Read = Callable[[Sequence[RankTask], Advance], Sequence[RankOutcome]]
GoOn = Callable[[], bool]


class Map(Protocol):
    """Runs `function` on all tasks, in batches, wherever the engine likes, and yields outcomes as
    they come.

    A process or machine that dies costs at most its own tasks, whose outcomes say so: those of a
    batch are tried one by one before. `go_on` is
    asked before a task starts; tasks that were never started have no outcome. `advance` is told
    bytes read, in the calling process.
    """

    def __call__(
        self, function: Read, tasks: Sequence[RankTask], advance: Advance, go_on: GoOn
    ) -> Iterator[RankOutcome]: ...


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine that is ready to work.

    `look`: what a path holds and the job's name where its files tell one. `reach`: raises
    StoreError where a store is not seen by every machine that would write to it. `map`: see `Map`.
    `sharing`: of so many ranks, how many are read at once on one machine and share its memory.
    `sees_all`: whether ranks it does not find are gone, so that the store may drop them.
    """

    look: Callable[[Path], tuple[Discovery, str | None]]
    reach: Callable[[Path], None]
    map: Map
    sharing: Callable[[int], int]
    sees_all: bool


def lost_rank(task: RankTask, reason: str) -> RankOutcome:
    """The outcome of a task whose reader did not come back."""
    return RankOutcome(task.run, task.capture, task.source.rank, task.source.root, error=reason)
