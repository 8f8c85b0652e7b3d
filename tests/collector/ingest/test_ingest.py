"""From folders to a store: published whole, read meanwhile, never read twice for nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest

from npuscope.analysis.summaries import summarise
from npuscope.collector import schema
from npuscope.collector.ingest import digests, read_batch
from npuscope.collector.ingest.ingest import IngestResult, ingest
from npuscope.collector.selection import parse_selection
from npuscope.collector.store import folder_handles, manifest, store, sweep
from npuscope.collector.store.compact_files import torn_advice
from npuscope.errors import StoreError, TraceNotFound, UsageError

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


@pytest.fixture(scope="module")
def once(
    tmp_path_factory: pytest.TempPathFactory, write_profile: WriteProfile
) -> tuple[Path, Path, IngestResult]:
    """A source, the store it was read into, and the ingest's result: never to be changed."""
    folder = tmp_path_factory.mktemp("once")
    for rank in range(3):
        write_profile(folder / "source" / f"host_{rank}_ascend_pt", rank)
    return folder / "source", folder / "store", read(folder / "source", folder / "store")


@pytest.fixture
def once_store(once: tuple[Path, Path, IngestResult]) -> Path:
    """The source that all tests share."""
    return once[0]


@pytest.fixture
def full_store(once: tuple[Path, Path, IngestResult], target: Path) -> Path:
    """A store of this test's own that holds what an ingest of `shared` published."""
    shutil.copytree(once[1], target)
    return target


def kernels_by_rank(path: Path) -> dict[int, int]:
    rows = store.query(path, "select rank, count(*) as n from kernels group by rank order by rank")
    return dict(rows.iter_rows())


def test_every_rank_is_published_with_its_keys(once: tuple[Path, Path, IngestResult]) -> None:
    _, target, result = once

    assert result.is_complete
    assert len(result.publications) == 3
    assert kernels_by_rank(target) == {0: 20, 1: 20, 2: 20}
    rows = store.query(target, "select distinct run, capture, rank from kernels order by rank")
    assert rows.rows() == [("job", "20250109T084754.000Z", rank) for rank in range(3)]


def test_views_are_typed_where_no_rank_has_rows(full_store: Path) -> None:
    with store.open(full_store) as con:
        described = con.execute("describe comm_links").fetchall()
        assert con.execute("select count(*) from comm_links").fetchall() == [(0,)]
    types = {row[0]: row[1] for row in described}
    assert types["rank"] == "INTEGER"
    assert types["packets"] == "STRUCT(size_bytes DOUBLE, packet_count BIGINT, time_ns DOUBLE)[]"


def test_an_unchanged_source_is_not_read_again(once_store: Path, full_store: Path) -> None:
    before = store.version(full_store)

    again = read(once_store, full_store)

    assert not again.publications
    assert len(again.unchanged) == 3
    assert store.version(full_store) == before


def test_touched_files_with_the_same_content_are_not_read_again(source: Path, target: Path) -> None:
    read(source, target)
    touched = next(source.rglob("kernel_details.csv"))
    os.utime(touched, ns=(1, 1))

    assert not read(source, target).publications

    recorded = {s.path: s.mtime_ns for m in manifest.manifests(target) for s in m.sources}
    assert recorded[str(touched)] == 1


def test_what_was_read_outlives_files_that_were_deleted(source: Path, target: Path) -> None:
    heavy = next(source.rglob("host_1_ascend_pt/**/kernel_details.csv"))
    heavy.with_name("step_trace_time.csv").write_text("Step,Computing\n7,210.0\n")
    read(source, target)
    heavy.unlink()

    for _ in range(2):  # it is no settled matter
        [failed] = read(source, target).failures
        assert "kernel_details.csv: is gone since it was read" in (failed.error or "")
        assert "kernels (0 of 20)" in (failed.error or "")
        assert kernels_by_rank(target) == {0: 20, 1: 20, 2: 20}

    assert not read(source, target, force=True).failures
    assert kernels_by_rank(target) == {0: 20, 2: 20}


@pytest.mark.parametrize("is_short", [False, True])
def test_ranks_whose_tables_are_damaged_are_read_again(
    once_store: Path, full_store: Path, is_short: bool
) -> None:
    files = [*full_store.rglob("kernels*.parquet")]
    for file in files:
        if is_short:
            file.write_bytes(file.read_bytes()[:-1])
        else:
            file.unlink()
    assert "run job, capture 20250109T084754.000Z: " in torn_advice(str(files[0]))

    again = read(once_store, full_store)

    assert [one.rank for one in again.publications] == [0, 1, 2] and not again.failures
    assert kernels_by_rank(full_store) == {0: 20, 1: 20, 2: 20}
    assert len(read(once_store, full_store).unchanged) == 3


def test_what_is_refused_makes_no_store(once_store: Path, target: Path) -> None:
    with pytest.raises(UsageError, match="none of them is below"):
        read(once_store, target, selection=parse_selection(ranks="99"))
    assert not target.exists()


def test_a_file_of_another_name_with_the_same_rows_is_read(source: Path, target: Path) -> None:
    read(source, target)
    heavy = next(source.rglob("host_1_ascend_pt/**/kernel_details.csv"))
    heavy.rename(heavy.with_name("kernel_details_1.csv"))

    [again] = read(source, target).publications

    assert again.rank == 1
    assert kernels_by_rank(target) == {0: 20, 1: 20, 2: 20}


@pytest.mark.parametrize("had_fast", [False, True])
def test_digests_of_the_other_kind_are_compared_as_what_they_are(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch, had_fast: bool
) -> None:
    pytest.importorskip("xxhash", reason="the extra `fast` is not installed")
    fast = digests.xxh3_128
    monkeypatch.setattr(digests, "xxh3_128", fast if had_fast else None)
    read(source, target)
    kept = [s.digest for m in manifest.manifests(target) for s in m.sources]
    assert {digest.startswith("xxh3-") for digest in kept} == {had_fast}
    touched = next(source.rglob("kernel_details.csv"))
    os.utime(touched, ns=(1, 1))

    monkeypatch.setattr(digests, "xxh3_128", None if had_fast else fast)
    again = read(source, target)
    # Without the extra nobody can tell whether the file is as it was: it is read again.
    assert len(again.publications) == (1 if had_fast else 0)
    touched.write_bytes(touched.read_bytes().replace(b"5", b"6", 1))
    os.utime(touched, ns=(2, 2))
    assert len(read(source, target).publications) == 1


def test_a_change_replaces_its_rank_while_a_reader_works(
    source: Path, target: Path, write_profile: WriteProfile
) -> None:
    read(source, target)
    reader = store.open(target)
    folder = source / "host_1_ascend_pt"
    write_profile(folder, 1, [(7, "new", "1736412474000001.000", "5.000")])

    result = read(source, target)

    assert [outcome.rank for outcome in result.publications] == [1]
    assert kernels_by_rank(target) == {0: 20, 1: 1, 2: 20}
    old = reader.execute("select count(*) from kernels where rank = 1").fetchall()
    assert old == [(20,)], "who opened before keeps what was there"
    reader.close()


def test_a_rank_that_vanished_from_the_source_is_dropped(source: Path, target: Path) -> None:
    read(source, target)
    moved = source / "host_2_ascend_pt"
    moved.rename(source.parent / "elsewhere")

    result = read(source, target)

    assert [m.rank for m in result.drops] == [2]
    assert kernels_by_rank(target) == {0: 20, 1: 20}


def test_two_runs_share_a_store(once_store: Path, full_store: Path) -> None:
    ingest(once_store, full_store, run="other job/ü", summarise=summarise)

    rows = store.query(
        full_store, "select run, count(*) from kernels group by run order by run"
    ).rows()
    assert rows == [("job", 60), ("other job/ü", 60)]


def test_a_rank_that_cannot_be_read_spoils_nothing_else(source: Path, target: Path) -> None:
    for broken in (source / "host_1_ascend_pt").rglob("kernel_details.csv"):
        broken.write_bytes(b"\x00\x01garbage")

    result = read(source, target)

    assert [outcome.rank for outcome in result.failures] == [1]
    assert "kernel_details.csv" in (result.failures[0].error or "")
    assert kernels_by_rank(target) == {0: 20, 2: 20}
    assert not list(target.rglob(".tmp-*")), "nothing half-written is left"


def test_nothing_readable_says_what_was_tried(tmp_path: Path, write_profile: WriteProfile) -> None:
    folder = write_profile(tmp_path / "a_ascend_pt", 0)
    next(folder.rglob("kernel_details.csv")).write_bytes(b"")

    with pytest.raises(TraceNotFound, match="a_ascend_pt"):
        read(tmp_path, tmp_path.parent / f"{tmp_path.name}-store")


def test_what_a_killed_process_left_in_the_stores_folder_goes(
    once_store: Path, target: Path
) -> None:
    read(once_store, target)
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    rest = [
        target / f".tmp-{folder_handles.process_space()}-{pid}-0123456789ab.watch-state.json"
        for pid in (ended.pid, os.getpid())
    ]
    for file in rest:
        file.write_bytes(b"{}")
    assert sweep.sweep(target) == 2
    assert [file.exists() for file in rest] == [False, True]  # who writes the other one still runs
    assert kernels_by_rank(target) == {0: 20, 1: 20, 2: 20}


# So many ranks are read together, so many files of kernels the store of three has.
TOGETHER = [
    pytest.param(1, 3, marks=pytest.mark.slow), (2, 2), pytest.param(3, 1, marks=pytest.mark.slow)
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("most", "count"), TOGETHER)
def test_superseded_generations_stay_for_a_grace_period(
    once_store: Path, target: Path, monkeypatch: pytest.MonkeyPatch, most: int, count: int
) -> None:
    monkeypatch.setattr(read_batch, "MOST_RANKS", most)
    read(once_store, target)
    for path in target.rglob("*"):
        os.utime(path, (0, 0))  # published long ago
    read(once_store, target, force=True)
    assert len(list(target.rglob("kernels*.parquet"))) == 2 * count

    sweep.sweep(target)
    assert len(list(target.rglob("kernels*.parquet"))) == 2 * count

    sweep.sweep(target, grace_s=-1)
    assert len(list(target.rglob("kernels*.parquet"))) == count
    assert kernels_by_rank(target) == {0: 20, 1: 20, 2: 20}


def test_a_query_survives_a_generation_swept_under_its_feet(
    once_store: Path, full_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = store.open
    calls: list[Path] = []

    def open_then_sweep(path: Path) -> duckdb.DuckDBPyConnection:
        con = original(path)
        if not calls:
            read(once_store, full_store, force=True)
            sweep.sweep(full_store, grace_s=-1)
        calls.append(path)
        return con

    monkeypatch.setattr(store, "open", open_then_sweep)

    assert kernels_by_rank(full_store) == {0: 20, 1: 20, 2: 20}
    assert len(calls) == 2


def test_the_index_is_a_cache_only(once_store: Path, full_store: Path) -> None:
    (index,) = full_store.rglob("index.json")
    version = msgspec.json.decode(index.read_bytes())["version"]

    index.write_bytes(b"{ damaged")
    assert kernels_by_rank(full_store) == {0: 20, 1: 20, 2: 20}

    index.unlink()
    read(once_store, full_store, force=True)
    assert kernels_by_rank(full_store) == {0: 20, 1: 20, 2: 20}
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


def test_a_folder_with_other_things_is_no_store(once_store: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("")

    with pytest.raises(StoreError, match="not empty"):
        read(once_store, tmp_path / "mine")
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
        self.rows_from = ("kernels",)
        self.query = (
            f"select run, capture, rank, count(*) as n, '{version}' as rule "
            "from kernels group by all"
        )


def test_a_changed_rule_rebuilds_summaries_without_reading_sources(
    once_store: Path, target: Path
) -> None:
    def ruled(version: str) -> IngestResult:
        return ingest(once_store, target, run="job", summarise=lambda con: [_Rule(version)])

    def counted(version: str) -> list[tuple[Any, ...]]:
        with store.open(target, summaries={"counted": version}) as con:
            return con.execute("select rank, n, rule from counted order by rank").fetchall()

    ruled("v1")
    assert counted("v1") == [(rank, 20, "v1") for rank in range(3)]
    with pytest.raises(duckdb.CatalogException):
        counted("v2")

    result = ruled("v2")

    assert not result.publications
    assert counted("v2") == [(rank, 20, "v2") for rank in range(3)]


def test_a_corrected_reader_reads_old_ranks_again(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read(source, target)
    monkeypatch.setattr(schema, "reading_digest", lambda: "corrected")

    assert len(read(source, target).publications) == 3
    assert not read(source, target).publications
