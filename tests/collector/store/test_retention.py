"""Old captures go, the oldest first, never the newest; readers of the moment finish."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npuscope.analysis.summaries import summarise
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.store import store
from npuscope.collector.store.compact import compact
from npuscope.collector.store.manifest import DROPPED_FILE, manifests
from npuscope.collector.store.retention import (
    DROPPED_CAPTURES,
    StoredCapture,
    drop_capture,
    read_dropped,
    remember_dropped,
    stored_captures,
    superfluous,
)
from npuscope.collector.store.sweep import sweep
from tests.dashboard.app.published_jobs import publish_rank

WriteProfile = Callable[..., Path]
DAY_NS = 86_400 * 10**9


def captures(*pairs: tuple[int, int]) -> list[StoredCapture]:
    """Captures of (age in days, bytes), in order of age, for a now of 1000 days."""
    return [
        StoredCapture("job", f"{age}", "", (1000 - age) * DAY_NS, 1, size)
        for age, size in sorted(pairs, reverse=True)
    ]


def test_age_and_size_choose_the_oldest() -> None:
    kept = captures((40, 10), (31, 10), (29, 10), (1, 10))
    now = 1000 * DAY_NS

    def dropped(keep_days: float | None = None, keep_bytes: int | None = None) -> list[str]:
        gone = superfluous(kept, now_ns=now, keep_days=keep_days, keep_bytes=keep_bytes)
        return [one.capture for one in gone]

    assert dropped() == []
    assert dropped(keep_days=30) == ["40", "31"]
    assert dropped(keep_bytes=25) == ["40", "31"]
    assert dropped(keep_days=35, keep_bytes=15) == ["40", "31", "29"]
    assert dropped(keep_days=0, keep_bytes=0) == ["40", "31", "29"], "never the newest"


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=6),
    st.none() | st.integers(0, 50),
    st.none() | st.integers(0, 60),
)
def test_what_stays_keeps_to_the_limits(
    pairs: list[tuple[int, int]], keep_days: int | None, keep_bytes: int | None
) -> None:
    every = captures(*pairs)
    gone = superfluous(every, now_ns=1000 * DAY_NS, keep_days=keep_days, keep_bytes=keep_bytes)

    assert gone == every[: len(gone)], "no younger one goes before an older one"
    stays = every[len(gone) :]
    assert bool(stays) == bool(every)
    if len(stays) > 1:
        assert keep_days is None or int(stays[0].capture) <= keep_days
        assert keep_bytes is None or sum(one.size_bytes for one in stays) <= keep_bytes


def test_a_clock_that_is_years_ahead_keeps_nothing_out(tmp_path: Path) -> None:
    now_ns, of_2039_ns = time.time_ns(), 2_180_000_000 * 10**9
    publish_rank(tmp_path, ("job", "ahead", 0), {}, now_ns / 1e9 - 3600, ended_ns=of_2039_ns)
    publish_rank(tmp_path, ("job", "right", 0), {}, now_ns / 1e9, ended_ns=now_ns - 60 * 10**9)
    every = stored_captures(tmp_path)
    assert [one.capture for one in every] == ["ahead", "right"]

    remember_dropped(tmp_path, every[:1])
    dropped = read_dropped(tmp_path)
    assert dropped.has("job", "ahead", of_2039_ns)
    assert not dropped.has("job", "right", now_ns)

    # What an earlier version remembered of such a clock is no time to go by, either.
    remembered = {"until_ns": {"job": of_2039_ns}}
    (tmp_path / DROPPED_CAPTURES).write_bytes(msgspec.json.encode(remembered))
    assert not read_dropped(tmp_path).has("job", "right", now_ns)
    remember_dropped(tmp_path, [dataclasses.replace(every[1], recorded_ns=now_ns + DAY_NS // 2)])
    assert now_ns <= read_dropped(tmp_path).until_ns["job"] <= time.time_ns()


@pytest.fixture
def target(tmp_path: Path, write_profile: WriteProfile) -> Path:
    """Three captures of two ranks, a day apart."""
    for day in range(3):
        start = 1736412474000000 + day * 86_400 * 10**6
        for rank in range(2):
            write_profile(
                tmp_path / "source" / f"d{day}" / f"r{rank}_ascend_pt",
                rank,
                [(7, "k", f"{start + n * 20}.000", "5.000") for n in range(4)],
            )
    ingest(tmp_path / "source", tmp_path / "store", run="job", summarise=summarise)
    return tmp_path / "store"


@pytest.mark.slow
def test_a_dropped_capture_is_gone_for_readers_and_its_files_later(target: Path) -> None:
    every = stored_captures(target)
    assert [one.rank_count for one in every] == [2, 2, 2]
    compact(target)
    reader = store.open(target)
    count = "select count(*) from kernels"

    drop_capture(every[0])

    assert reader.execute(count).fetchall() == [(24,)], "who opened before finishes"
    reader.close()
    assert store.query(target, count).item() == 16
    assert [one.capture for one in stored_captures(target)] == [e.capture for e in every[1:]]
    sweep(target)
    assert list(Path(every[0].folder).rglob("*.parquet"))
    sweep(target, grace_s=-1)
    assert not list(Path(every[0].folder).rglob("*.parquet"))
    assert store.query(target, count).item() == 16


@pytest.mark.slow
def test_a_drop_that_was_killed_is_finished(target: Path) -> None:
    one = stored_captures(target)[0]
    (Path(one.folder) / DROPPED_FILE).touch()

    assert store.query(target, "select count(*) from kernels").item() == 16, "all at once"
    sweep(target)
    assert not (Path(one.folder) / DROPPED_FILE).exists()
    assert len(manifests(target)) == 4


@pytest.mark.slow
def test_a_capture_may_come_again(target: Path, tmp_path: Path) -> None:
    drop_capture(stored_captures(target)[0])
    time.sleep(0.01)

    result = ingest(tmp_path / "source", target, run="job", summarise=summarise)

    assert len(result.publications) == 2
    assert store.query(target, "select count(*) from kernels").item() == 24
