"""From folders to a store: published whole, read meanwhile, never read twice for nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest

from npuscope.analysis.summaries import summarise
from npuscope.collector import manifest, store
from npuscope.collector.ingest import IngestResult, ingest
from npuscope.errors import StoreError, TraceNotFound

WriteProfile = Callable[..., Path]


def read(source: Path, into: Path, **options: Any) -> IngestResult:
    return ingest(source, into, run="job", summarise=summarise, **options)


@pytest.fixture
def source(tmp_path: Path, write_profile: WriteProfile) -> Path:
    for rank in range(3):
        write_profile(tmp_path / "source" / f"host_{rank}_ascend_pt", rank)
    return tmp_path / "source"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "store"


def kernels_by_rank(path: Path) -> dict[int, int]:
    rows = store.query(path, "select rank, count(*) as n from kernels group by rank order by rank")
    return dict(rows.iter_rows())


def test_every_rank_is_published_with_its_keys(source: Path, target: Path) -> None:
    result = read(source, target)

    assert result.is_complete
    assert kernels_by_rank(target) == {0: 20, 1: 20, 2: 20}
    rows = store.query(target, "select distinct run, capture, rank from kernels order by rank")
    assert rows.rows() == [("job", "20250109T084754.000Z", rank) for rank in range(3)]


def test_views_are_typed_where_no_rank_has_rows(source: Path, target: Path) -> None:
    read(source, target)

    with store.open(target) as con:
        described = con.execute("describe comm_links").fetchall()
        assert con.execute("select count(*) from comm_links").fetchall() == [(0,)]
    types = {row[0]: row[1] for row in described}
    assert types["rank"] == "INTEGER"
    assert types["packets"] == "STRUCT(size_bytes DOUBLE, packet_count BIGINT, time_ns DOUBLE)[]"


def test_an_unchanged_source_is_not_read_again(source: Path, target: Path) -> None:
    read(source, target)
    before = store.version(target)

    again = read(source, target)

    assert not again.published
    assert len(again.unchanged) == 3
    assert store.version(target) == before


def test_touched_files_with_the_same_content_are_not_read_again(source: Path, target: Path) -> None:
    read(source, target)
    touched = next(source.rglob("kernel_details.csv"))
    os.utime(touched, ns=(1, 1))

    assert not read(source, target).published

    recorded = {s.path: s.mtime_ns for m in manifest.manifests(target) for s in m.sources}
    assert recorded[str(touched)] == 1


def test_a_change_replaces_its_rank_while_a_reader_works(
    source: Path, target: Path, write_profile: WriteProfile
) -> None:
    read(source, target)
    reader = store.open(target)
    folder = source / "host_1_ascend_pt"
    write_profile(folder, 1, [(7, "new", "1736412474000001.000", "5.000")])

    result = read(source, target)

    assert [outcome.rank for outcome in result.published] == [1]
    assert kernels_by_rank(target) == {0: 20, 1: 1, 2: 20}
    old = reader.execute("select count(*) from kernels where rank = 1").fetchall()
    assert old == [(20,)], "who opened before keeps what was there"
    reader.close()


def test_a_rank_that_vanished_from_the_source_is_dropped(source: Path, target: Path) -> None:
    read(source, target)
    moved = source / "host_2_ascend_pt"
    moved.rename(source.parent / "elsewhere")

    result = read(source, target)

    assert [m.rank for m in result.dropped] == [2]
    assert kernels_by_rank(target) == {0: 20, 1: 20}


def test_two_runs_share_a_store(source: Path, target: Path) -> None:
    read(source, target)

    ingest(source, target, run="other job/ü", summarise=summarise)

    rows = store.query(target, "select run, count(*) from kernels group by run order by run").rows()
    assert rows == [("job", 60), ("other job/ü", 60)]


def test_a_rank_that_cannot_be_read_spoils_nothing_else(source: Path, target: Path) -> None:
    for broken in (source / "host_1_ascend_pt").rglob("kernel_details.csv"):
        broken.write_bytes(b"\x00\x01garbage")

    result = read(source, target)

    assert [outcome.rank for outcome in result.failed] == [1]
    assert "kernel_details.csv" in (result.failed[0].error or "")
    assert kernels_by_rank(target) == {0: 20, 2: 20}
    assert not list(target.rglob(".tmp-*")), "nothing half-written is left"


def test_nothing_readable_says_what_was_tried(tmp_path: Path, write_profile: WriteProfile) -> None:
    folder = write_profile(tmp_path / "a_ascend_pt", 0)
    next(folder.rglob("kernel_details.csv")).write_bytes(b"")

    with pytest.raises(TraceNotFound, match="a_ascend_pt"):
        read(tmp_path, tmp_path.parent / f"{tmp_path.name}-store")


def test_processes_give_the_same_store_as_one(source: Path, tmp_path: Path) -> None:
    seen: list[int] = []
    read(source, tmp_path / "alone", jobs=1)

    result = read(source, tmp_path / "together", jobs=2)

    assert len(result.published) == 3
    question = "select * exclude (run) from kernels order by rank, start_ns"
    alone = store.query(tmp_path / "alone", question)
    assert alone.equals(store.query(tmp_path / "together", question)), seen


def test_a_reader_sees_each_rank_whole_or_not_at_all(
    tmp_path: Path, target: Path, write_profile: WriteProfile
) -> None:
    for rank in range(16):
        write_profile(tmp_path / "source" / f"h_{rank}_ascend_pt", rank)
    manifest.create_store(target)
    done = threading.Event()
    torn: list[object] = []
    seen: list[int] = []

    def poll() -> None:
        question = """
            select k.rank, k.n, s.computing_ns from
                (select rank, count(*) as n from kernels group by rank) k
                full join step_summary s using (rank)
        """
        while not done.is_set():
            try:
                with store.open(target) as con:
                    rows = con.execute(question).fetchall()
            except duckdb.CatalogException:
                continue  # no rank yet, so no summary
            seen.append(len(rows))
            torn.extend(row for row in rows if row[1:] != (20, 20 * 10_500))

    reader = threading.Thread(target=poll)
    reader.start()
    try:
        # The kernels overlap: 10.5 us each, one starting every 1 us.
        for rank in range(16):
            rows = [(7, "k", f"1736412474{n:06}.250", "10.500") for n in range(0, 2000, 100)]
            write_profile(tmp_path / "source" / f"h_{rank}_ascend_pt", rank, rows)
        read(tmp_path / "source", target)
    finally:
        done.set()
        reader.join()

    assert not torn
    assert kernels_by_rank(target) == dict.fromkeys(range(16), 20)
    assert len(set(seen)) > 2, f"the reader met the ingest under way: {seen}"


_INGEST = """
import sys
from pathlib import Path
from npuscope.collector.ingest import ingest

if __name__ == "__main__":
    ingest(Path(sys.argv[1]), Path(sys.argv[2]), run="job", jobs=int(sys.argv[3]))
"""


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_kill_loses_nothing_published_and_the_next_ingest_goes_on(
    tmp_path: Path, target: Path, write_profile: WriteProfile, jobs: int
) -> None:
    rows = [(7, "k", f"1736412474{n:06}.250", "10.500") for n in range(0, 200_000, 40)]
    for rank in range(12):
        write_profile(tmp_path / "source" / f"h_{rank}_ascend_pt", rank, rows)
    script = tmp_path / "run.py"
    script.write_text(_INGEST)
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "source"), str(target), str(jobs)]
    )
    deadline = time.monotonic() + 60
    while not list(target.rglob("manifest.json")) and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()

    published = {m.rank for m in manifest.manifests(target)}
    assert published
    assert set(kernels_by_rank(target)) == published
    _wait_for_workers_to_leave(target)

    result = read(tmp_path / "source", target)

    assert {o.rank for o in result.published} == set(range(12)) - {m.rank for m in result.unchanged}
    assert {m.rank for m in result.unchanged} >= published
    assert kernels_by_rank(target) == dict.fromkeys(range(12), 5000)
    assert not list(target.rglob(".tmp-*")), "the dead process's folders are swept"


def _wait_for_workers_to_leave(target: Path) -> None:
    """Workers of a killed parent end by themselves."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        owners = {int(p.name.split("-")[-2]) for p in target.rglob(".tmp-*") if p.is_dir()}
        if not any(Path(f"/proc/{pid}").exists() for pid in owners):
            return
        time.sleep(0.05)
    raise AssertionError("a worker outlived its killed parent by 30 s")


def test_superseded_generations_stay_for_a_grace_period(source: Path, target: Path) -> None:
    read(source, target)
    read(source, target, force=True)
    generations = list(target.rglob("kernels.parquet"))
    assert len(generations) == 6

    store.sweep(target)
    assert len(list(target.rglob("kernels.parquet"))) == 6

    store.sweep(target, grace_s=-1)
    assert len(list(target.rglob("kernels.parquet"))) == 3
    assert kernels_by_rank(target) == {0: 20, 1: 20, 2: 20}


def test_grace_counts_from_being_superseded(source: Path, target: Path) -> None:
    read(source, target)
    for path in target.rglob("*"):
        os.utime(path, (0, 0))  # published long ago

    read(source, target, force=True)
    store.sweep(target)

    assert len(list(target.rglob("kernels.parquet"))) == 6


def test_a_query_survives_a_generation_swept_under_its_feet(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read(source, target)
    original = store.open
    calls: list[Path] = []

    def open_then_sweep(path: Path) -> duckdb.DuckDBPyConnection:
        con = original(path)
        if not calls:
            read(source, target, force=True)
            store.sweep(target, grace_s=-1)
        calls.append(path)
        return con

    monkeypatch.setattr(store, "open", open_then_sweep)

    assert kernels_by_rank(target) == {0: 20, 1: 20, 2: 20}
    assert len(calls) == 2


def test_the_index_is_a_cache_only(source: Path, target: Path) -> None:
    read(source, target)
    (index,) = target.rglob("index.json")
    version = msgspec.json.decode(index.read_bytes())["version"]

    index.write_bytes(b"{ damaged")
    assert kernels_by_rank(target) == {0: 20, 1: 20, 2: 20}

    index.unlink()
    read(source, target, force=True)
    assert kernels_by_rank(target) == {0: 20, 1: 20, 2: 20}
    assert version >= 1


def test_a_stale_index_entry_is_not_believed(
    source: Path, target: Path, write_profile: WriteProfile
) -> None:
    read(source, target)
    (index,) = target.rglob("index.json")
    old = index.read_bytes()
    write_profile(source / "host_0_ascend_pt", 0, [(7, "k", "1736412474000001.000", "5.000")])
    read(source, target)
    index.write_bytes(old)

    assert kernels_by_rank(target)[0] == 1


def test_a_folder_with_other_things_is_no_store(source: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("")

    with pytest.raises(StoreError, match="not empty"):
        read(source, tmp_path / "mine")
    with pytest.raises(StoreError, match="ingest"):
        store.open(tmp_path / "mine")


def test_the_source_is_left_as_it_was(source: Path, target: Path) -> None:
    def state() -> dict[str, tuple[int, int]]:
        return {str(p): (p.stat().st_mtime_ns, p.stat().st_size) for p in source.rglob("*")}

    before = state()

    read(source, target)

    assert state() == before


def test_the_same_rank_at_two_times_is_two_captures(
    tmp_path: Path, target: Path, write_profile: WriteProfile
) -> None:
    for hour in (0, 1):
        start = 1736412474000000 + hour * 3_600_000_000
        write_profile(
            tmp_path / "source" / f"{hour}_ascend_pt", 0, [(hour, "k", f"{start}.000", "5.000")]
        )

    read(tmp_path / "source", target)

    rows = store.query(target, "select distinct capture, rank from kernels order by capture").rows()
    assert [rank for _, rank in rows] == [0, 0]
    assert len({capture for capture, _ in rows}) == 2


class _Rule:
    """A summary rule that changes."""

    def __init__(self, version: str) -> None:
        self.name, self.version = "counted", version
        self.query = (
            f"select run, capture, rank, count(*) as n, '{version}' as rule "
            "from kernels group by all"
        )


def test_a_changed_rule_rebuilds_summaries_without_reading_sources(
    source: Path, target: Path
) -> None:
    def ruled(version: str) -> IngestResult:
        return ingest(source, target, run="job", summarise=lambda con: [_Rule(version)])

    def counted(version: str) -> list[tuple[Any, ...]]:
        with store.open(target, summaries={"counted": version}) as con:
            return con.execute("select rank, n, rule from counted order by rank").fetchall()

    ruled("v1")
    assert counted("v1") == [(rank, 20, "v1") for rank in range(3)]
    with pytest.raises(duckdb.CatalogException):
        counted("v2")

    result = ruled("v2")

    assert not result.published
    assert counted("v2") == [(rank, 20, "v2") for rank in range(3)]
