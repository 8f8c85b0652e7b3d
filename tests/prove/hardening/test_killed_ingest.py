"""An ingest killed at any moment and resumed, while others read the store."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import duckdb
import pytest

from npuscope.analysis.summaries import summarise
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.store import store
from npuscope.collector.store.manifest import is_store, manifests
from npuscope.sample_traces.generate import small, write_job
from tests.collector.store.stores_compared import assert_equal_stores
from tests.conftest import REPOSITORY

RANKS = 3
KILLS = 20
# As many kills as this in a row before an ingest may finish.
IN_A_ROW = 4
COUNTED = ("kernels", "comm_ops", "comm_tasks", "host_ops", "memory", "step_summary")


def command(source: Path, target: Path, jobs: int) -> list[str]:
    options = ["--store", str(target), "--run", "job", "--jobs", str(jobs)]
    return [sys.executable, "-m", "npuscope", "ingest", str(source), *options]


def start(source: Path, target: Path, jobs: int = 1) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.Popen(
        command(source, target, jobs), env=environment, cwd=source,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    write_job(
        small(dp=3, ep=1, steps=2), folder, forms={0: ("text",), 1: ("db",), 2: ("db", "text")}
    )
    return folder


@pytest.fixture(scope="module")
def undisturbed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """The store of an ingest that nobody disturbed, and how long it was written, in s."""
    target = tmp_path_factory.mktemp("whole") / "store"
    process = start(source, target)
    while not target.exists() and process.poll() is None:
        time.sleep(0.01)
    began = time.monotonic()
    assert process.wait(timeout=120) == 0
    return target, time.monotonic() - began


Counts = dict[int, tuple[int, ...]]


def counts(target: Path) -> Counts:
    """Rows per rank of some tables, all of one moment; nothing of ranks that are not there."""
    with store.open(target) as con:
        if "step_summary" not in {row[0] for row in con.execute("show tables").fetchall()}:
            return {}
        parts = " union all ".join(
            f"select {place} as place, rank, count(*) as n from {name} group by rank"
            for place, name in enumerate(COUNTED)
        )
        rows = con.execute(
            f"select rank, list(n order by place) from ({parts}) group by rank"
        ).fetchall()
    return {rank: tuple(found) for rank, found in rows}


@contextmanager
def watch(target: Path, whole: Path) -> Iterator[list[int]]:
    """Reads the store all the time; at the end, no rank may ever have been seen in part.

    Yields how many ranks each look saw.
    """
    expected = counts(whole)
    done = threading.Event()
    seen: list[int] = []
    torn: list[object] = []

    def poll() -> None:
        while not done.is_set():
            if is_store(target):
                try:
                    found = counts(target)
                except duckdb.Error as error:
                    torn.append(error)
                    continue
                seen.append(len(found))
                torn.extend(
                    (rank, found[rank], expected[rank])
                    for rank in found
                    if found[rank] != expected[rank]
                )
            time.sleep(0.1)

    reader = threading.Thread(target=poll)
    reader.start()
    try:
        yield seen
    finally:
        done.set()
        reader.join()
    assert torn == []


def kill_somewhere(source: Path, target: Path, writing_s: float, chance: random.Random) -> None:
    """Start an ingest, and kill it some time after it began to write, or before; or just when it
    published a rank.

    writing_s: how long an ingest of everything writes here.
    """
    process = start(source, target, jobs=chance.choice([1, 2]))
    when = chance.random()
    if when < 0.1:
        time.sleep(chance.random())
    elif when < 0.35:
        wait_for_a_change(process, lambda: len(manifests(target)) if is_store(target) else 0)
        time.sleep(chance.random() * 0.02)
    else:
        # Folders that vanish under a walk are none; a glob would raise.
        wait_for_a_change(process, lambda: sum(len(found) for *_, found in os.walk(target)))
        time.sleep(chance.random() * chance.choice([0.05, 1.0]) * writing_s)
    process.send_signal(signal.SIGKILL)
    process.wait()


def wait_for_a_change(process: subprocess.Popen[bytes], look: Callable[[], int]) -> None:
    """Until a look finds something else than before, or the process has ended."""
    before, until = look(), time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None and look() == before:
        time.sleep(0.002)


@pytest.mark.slow
def test_killed_at_any_moment_and_resumed(
    source: Path, undisturbed: tuple[Path, float], tmp_path: Path
) -> None:
    whole, writing_s = undisturbed
    chance = random.Random(11)
    published: list[int] = []
    for turn in range(KILLS // IN_A_ROW):
        target = tmp_path / f"store{turn}"
        with watch(target, whole) as seen:
            for _ in range(IN_A_ROW):
                kill_somewhere(source, target, writing_s, chance)
                published.append(len(manifests(target)))
            resumed = ingest(source, target, run="job", summarise=summarise, jobs=1)
            assert resumed.is_complete
        assert assert_equal_stores(whole, target) > 1000
        assert seen
    assert any(0 < n < RANKS for n in published), published


@pytest.mark.slow
def test_two_ingests_and_three_readers(
    source: Path, undisturbed: tuple[Path, float], tmp_path: Path
) -> None:
    whole, _ = undisturbed
    target = tmp_path / "store"
    with ExitStack() as readers:
        looks = [readers.enter_context(watch(target, whole)) for _ in range(3)]
        both = [start(source, target) for _ in range(2)]
        assert [process.wait(timeout=240) for process in both] == [0, 0]
    assert all(len(seen) > 3 and max(seen) == RANKS for seen in looks)
    assert_equal_stores(whole, target)
    generations = [m.generation for m in manifests(target)]
    assert not ingest(source, target, run="job", summarise=summarise, jobs=1).publications
    assert [m.generation for m in manifests(target)] == generations
