"""Files that many ranks share are taken apart once, before these are read one by one."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ..readers.cluster.cluster_parts import take_apart
from ..staging import PROCESS_BYTES, database_bytes
from ..store.manifest import make_staging, rank_folder
from .read_rank import RankTask


@contextlib.contextmanager
def taken_apart(tasks: Sequence[RankTask]) -> Iterator[Sequence[RankTask]]:
    """The tasks with the parts of the files they share; these are gone afterwards.

    They lie in the store, where every machine that reads ranks finds them, and are swept like any
    staging folder if this process dies. Where files are not seen from here, their ranks' readings
    take them apart themselves.
    """
    made: dict[tuple[str, str], Path] = {}
    ready: list[RankTask] = []
    try:
        for task in tasks:
            source = task.source
            shared = source.path("cluster_output")
            if shared is not None and source.shared_by > 1 and Path(shared).exists():
                key = (task.capture, source.root)
                if key not in made:
                    made[key] = _take_apart(
                        task, [t for t in tasks if t.source.root == source.root]
                    )
                source = replace(source, parts=str(made[key]))
            ready.append(replace(task, source=source))
        yield ready
    finally:
        for folder in made.values():
            shutil.rmtree(folder, ignore_errors=True)


def _take_apart(task: RankTask, sharing: Sequence[RankTask]) -> Path:
    capture = rank_folder(Path(task.store), task.run, task.capture, 0).parent
    folder = make_staging(capture)
    ranks = frozenset(one.source.rank for one in sharing)
    # A selection of ranks makes no strangers of the others.
    is_whole = len(ranks) == task.source.shared_by
    take_apart(
        task.source.files["cluster_output"],
        ranks if is_whole else None,
        folder,
        database_bytes(task.memory_bytes or PROCESS_BYTES),
    )
    return folder
