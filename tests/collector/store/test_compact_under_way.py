"""Compaction beside readers, beside an ingest, and killed."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from npuscope.analysis.summaries import summarise
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.store import store
from npuscope.collector.store.compact import compact
from npuscope.collector.store.manifest import manifests
from npuscope.collector.store.sweep import sweep

WriteProfile = Callable[..., Path]
RANKS = 12
COUNTS = "select rank, count(*), count(distinct start_ns) from kernels group by rank order by rank"
EXPECTED = [(rank, 20, 20) for rank in range(RANKS)]
STEPS = "select count(*), count(distinct rank) from step_summary"


@pytest.fixture(scope="module")
def once(
    tmp_path_factory: pytest.TempPathFactory, write_profile: WriteProfile, ranks_alone: None
) -> Path:
    folder = tmp_path_factory.mktemp("under_way")
    for rank in range(RANKS):
        write_profile(folder / "source" / f"r{rank}_ascend_pt", rank)
    ingest(folder / "source", folder / "store", run="job", summarise=summarise, jobs=1)
    return folder


@pytest.fixture
def target(once: Path, tmp_path: Path) -> Path:
    return shutil.copytree(once / "store", tmp_path / "store")


def assert_whole(target: Path) -> None:
    assert store.query(target, COUNTS).rows() == EXPECTED
    assert store.query(target, STEPS).rows() == [(RANKS, RANKS)]


def _compact_for_ever(path: Path) -> None:
    """Small targets, so that there is always something to merge."""
    chance = random.Random(os.getpid())
    while True:
        compact(path, target_bytes=chance.choice([20_000, 60_000, 1 << 20, 1 << 28]))


def _ingest_for_ever(source: Path, path: Path) -> None:
    while True:
        ingest(source, path, run="job", summarise=summarise, jobs=1, force=True)


def _in_processes(
    *calls: tuple[Callable[..., None], tuple[Path, ...]],
) -> list[multiprocessing.process.BaseProcess]:
    context = multiprocessing.get_context("spawn")
    started = [context.Process(target=work, args=paths, daemon=True) for work, paths in calls]
    for process in started:
        process.start()
    return list(started)


def _kill(process: multiprocessing.process.BaseProcess) -> None:
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()


@pytest.mark.slow
def test_readers_never_miss_a_row_nor_see_one_twice(once: Path, target: Path) -> None:
    """Two compactions and an ingest that replaces rank after rank, all at once."""
    busy = _in_processes(
        (_compact_for_ever, (target,)),
        (_compact_for_ever, (target,)),
        (_ingest_for_ever, (once / "source", target)),
    )
    generations = {m.generation for m in manifests(target)}
    lists: set[bytes] = set()
    looks, until = 0, time.monotonic() + 60
    try:
        # Until every kind of change was seen often enough.
        while time.monotonic() < until and (len(lists) < 8 or looks < 40):
            assert_whole(target)
            looks += 1
            generations |= {m.generation for m in manifests(target)}
            lists |= {p.read_bytes() for p in target.glob("run=*/capture=*/compacted.json")}
        assert all(process.is_alive() for process in busy)
    finally:
        for process in busy:
            _kill(process)

    assert len(lists) >= 3, "compactions happened"
    assert len(generations) > RANKS, "ranks were replaced"
    compact(target)
    sweep(target, grace_s=-1)
    assert_whole(target)


@pytest.mark.slow
def test_killed_at_any_moment_nothing_is_lost(target: Path, tmp_path: Path) -> None:
    chance = random.Random(7)
    for turn in range(25):
        (process,) = _in_processes((_compact_for_ever, (target,)))
        time.sleep(0.4 + chance.random())
        _kill(process)
        assert_whole(target)
        if turn % 4 == 3:  # what was left behind goes, what is needed stays
            sweep(target, grace_s=-1)
            assert_whole(target)
            assert not list(target.rglob(".tmp-*"))
    compact(target)
    assert_whole(target)


@pytest.mark.slow
def test_killed_before_publishing_leaves_only_what_is_swept(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from npuscope.collector.store import compact as module

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(module, "exchange_compacted", die)
        with pytest.raises(KeyboardInterrupt):
            compact(target)
    assert list(target.rglob("compact-*"))
    assert_whole(target)

    sweep(target)
    assert list(target.rglob("compact-*")), "it may be about to be published"
    sweep(target, grace_s=-1)
    assert not list(target.rglob("compact-*"))
    assert_whole(target)
