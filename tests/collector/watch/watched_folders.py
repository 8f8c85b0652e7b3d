"""Small finished profiles for watchers, and what became of them in the store."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from npuscope.collector.store import store
from npuscope.collector.store.manifest import is_store, manifests
from npuscope.collector.watch.options import Hooks, Options
from npuscope.collector.watch.watch import watch
from npuscope.collector.watch.watch_state import WatchState
from tests.conftest import KERNEL_HEADER

OUTPUT = "ASCEND_PROFILER_OUTPUT"
START_S = 1736412474
# Captures are so far apart.
EACH_S = 10
N_KERNELS = 20


def write_capture(folder: Path, rank: int, number: int = 0, *, mark: str | None = "done") -> Path:
    """A profile of capture `number`, marked by analyse.done, by READY.json ("ready") or not."""
    output = folder / OUTPUT
    output.mkdir(parents=True, exist_ok=True)
    (output / "kernel_details.csv").write_text(kernel_text(number))
    (folder / f"profiler_info_{rank}.json").write_text(json.dumps({"rank_id": rank}))
    if mark == "done":
        (output / "analyse.done").touch()
    elif mark == "ready":
        write_ready(folder, rank)
    return folder


def kernel_text(number: int, n_kernels: int = N_KERNELS) -> str:
    """kernel_details.csv of a capture."""
    start_s = START_S + number * EACH_S
    lines = [
        f"7,0,aclnnMatmul_MatMulV3,MatMulV3,AI_CORE,{start_s}0000{n:02}.250\t,10.500,"
        '"""4,8;8,16"""\n'
        for n in range(n_kernels)
    ]
    return KERNEL_HEADER + "".join(lines)


def write_ready(folder: Path, rank: int, run: str | None = None) -> None:
    """READY.json over all files that are there."""
    files = [
        {"path": str(file.relative_to(folder)), "size_bytes": file.stat().st_size}
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    ]
    ready = {"schema_version": 1, "run": run, "rank": rank, "first_step": 7, "last_step": 7,
             "written_utc": "2025-01-09T08:47:54Z", "files": files}  # fmt: skip
    (folder / "READY.json").write_text(json.dumps(ready))


def ranks_in(path: Path) -> list[tuple[str, int]]:
    """(capture, rank) of everything in a store."""
    return [(m.capture, m.rank) for m in manifests(path)] if is_store(path) else []


def kernels(path: Path) -> dict[tuple[str, int], int]:
    """Kernels by capture and rank."""
    rows = store.query(
        path, "select capture, rank, count(*) as n from kernels group by all order by all"
    )
    return {(capture, rank): n for capture, rank, n in rows.iter_rows()}


def generations(path: Path) -> int:
    """How often any rank was read, as long as nothing was swept."""
    return sum(1 for p in path.glob("run=*/capture=*/rank=*/2*") if p.is_dir())


@dataclass
class Running:
    """A watcher in a thread: what it told, and its end."""

    told: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    states: list[WatchState] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)

    def wait_for(self, what: Callable[[], object], timeout_s: float = 60) -> None:
        end_s = time.monotonic() + timeout_s
        while not what():
            assert not self.errors, self.errors
            assert time.monotonic() < end_s, self.told
            time.sleep(0.1)

    def has_told(self, text: str) -> bool:
        return any(text in message for message in self.told)


@contextmanager
def run_watch(options: Options, handed: Hooks | None = None) -> Iterator[Running]:
    """A watcher until the end of the block."""
    one = Running()
    given = handed or Hooks()

    def run() -> None:
        try:
            one.states.append(
                watch(options, Hooks(given.summarise, given.compare, one.told.append), one.stop)
            )
        except BaseException as error:
            one.errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield one
    finally:
        one.stop.set()
        thread.join()
    assert not one.errors, one.errors
