"""Tasks and readers without work, for tests of engines: spawned processes import them."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from npuscope.collector.ingest.read_rank import RankOutcome, RankTask
from npuscope.collector.model import RankSource, Role, SourceFile
from npuscope.collector.readers.trust import Advance
from npuscope.collector.staging import connect
from npuscope.collector.store import store


def task(rank: int, size_bytes: int = 0, nodes: tuple[str, ...] = ()) -> RankTask:
    """A rank whose files take `size_bytes` on `nodes`."""
    files: dict[Role, tuple[SourceFile, ...]] = {
        "trace": (SourceFile(f"{rank}.json", size_bytes, 0),)
    }
    source = RankSource(f"folder {rank}", "pytorch", rank, "test", files, nodes=nodes)
    return RankTask("store", "job", "capture", source, 0)


def reads(batch: Sequence[RankTask], advance: Advance) -> list[RankOutcome]:
    """Reads nothing, at once; warns of how the process allocates, and of what the engine draws."""
    drawn = "select current_setting('enable_progress_bar')"
    with closing(store.over(Path(), ())) as con:
        ((is_drawn,),) = con.execute(drawn).fetchall()
    with tempfile.TemporaryDirectory() as folder, closing(connect(Path(folder))) as con:
        ((is_drawn_too,),) = con.execute(drawn).fetchall()
    told = (os.environ.get("GLIBC_TUNABLES", "as it comes"), f"{is_drawn} {is_drawn_too}")
    return [
        RankOutcome(one.run, one.capture, one.source.rank, one.source.root, warnings=told)
        for one in batch
    ]


def dies_on_two(batch: Sequence[RankTask], advance: Advance) -> list[RankOutcome]:
    """Rank 2's reader is killed, as by a lack of memory."""
    if any(one.source.rank == 2 for one in batch):
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.05)
    advance(10 * len(batch))
    return reads(batch, advance)


def asks_until_it_fails(batch: Sequence[RankTask], advance: Advance) -> list[RankOutcome]:
    """The engine, one question after the other; whatever it fails of is the rank's."""
    with closing(store.over(Path(), ())) as con:
        try:
            while True:
                con.execute("select sum(i) from range(30_000_000) _(i)").fetchall()
                advance(1)
        except Exception:
            return reads(batch, advance)
