"""Tasks and readers without work, for tests of engines: spawned processes import them."""

from __future__ import annotations

import os
import signal
import time

from npuscope.collector.ingest.read_rank import RankOutcome, RankTask
from npuscope.collector.model import RankSource, Role, SourceFile
from npuscope.collector.readers.trust import Advance


def task(rank: int, size_bytes: int = 0, nodes: tuple[str, ...] = ()) -> RankTask:
    """A rank whose files take `size_bytes` on `nodes`."""
    files: dict[Role, tuple[SourceFile, ...]] = {
        "trace": (SourceFile(f"{rank}.json", size_bytes, 0),)
    }
    source = RankSource(f"folder {rank}", "pytorch", rank, "test", files, nodes=nodes)
    return RankTask("store", "job", "capture", source, 0)


def reads(todo: RankTask, advance: Advance) -> RankOutcome:
    """Reads nothing, at once."""
    return RankOutcome(todo.run, todo.capture, todo.source.rank, todo.source.root)


def dies_on_two(todo: RankTask, advance: Advance) -> RankOutcome:
    """Rank 2's reader is killed, as by a lack of memory."""
    if todo.source.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.05)
    advance(10)
    return reads(todo, advance)
