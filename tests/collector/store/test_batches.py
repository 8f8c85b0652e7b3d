"""Ranks that are read together: the same rows as of each alone, in files of all of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pytest

from npuscope.analysis.summaries import summarise
from npuscope.collector.ingest import read_batch
from npuscope.collector.ingest.ingest import Progress, ingest
from npuscope.collector.readers.trace_view import trace_view
from npuscope.collector.store import store
from npuscope.collector.store.batches import LISTING
from npuscope.collector.store.compact import compact
from npuscope.collector.store.manifest import manifests, write_index
from npuscope.collector.store.sweep import sweep
from npuscope.sample_traces.generate import Form, small, write_job
from tests.collector.store.stores_compared import assert_equal_stores

WriteProfile = Callable[..., Path]
RANKS = 4
KERNELS = "select rank, count(*) from kernels group by rank order by rank"


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory, write_profile: WriteProfile) -> Path:
    folder = tmp_path_factory.mktemp("batches")
    for rank in range(RANKS):
        write_profile(folder / "source" / f"r{rank}_ascend_pt", rank)
    ingest(folder / "source", folder / "store", run="job", jobs=1)
    return folder


@pytest.fixture
def target(once: Path, tmp_path: Path) -> Path:
    """A store of this test's own; its source is shared."""
    return shutil.copytree(once / "store", tmp_path / "store")


def capture_of(target: Path) -> Path:
    (folder,) = target.glob("run=*/capture=*")
    return folder


def kernels(target: Path) -> dict[int, int]:
    return dict(store.query(target, KERNELS).iter_rows())


def test_one_file_for_each_table(target: Path) -> None:
    [batch] = {m.batch for m in manifests(target)}
    files = list(target.rglob("*.parquet"))
    assert {p.parent.name for p in files} == {batch}
    tables = {name for m in manifests(target) for name in m.tables}
    assert len(files) == len(tables)
    (found,) = capture_of(target).glob("batch-*/kernels-0.parquet")
    ranks = [r for (r,) in duckdb.read_parquet(str(found)).project("rank").fetchall()]
    assert ranks == sorted(ranks) and kernels(target) == dict.fromkeys(range(RANKS), 20)


@pytest.mark.slow
def test_the_same_rows_as_of_each_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks of all forms, with rows in nearly every table."""
    forms: dict[int, tuple[Form, ...]] = {0: ("db",), 1: ("text",), 2: ("db", "text"), 3: ("db",)}
    write_job(small(dp=4), tmp_path / "source", forms=forms)
    ingest(tmp_path / "source", tmp_path / "one", run="job", summarise=summarise)
    monkeypatch.setattr(read_batch, "MOST_RANKS", 1)
    ingest(tmp_path / "source", tmp_path / "other", run="job", summarise=summarise)

    assert assert_equal_stores(tmp_path / "one", tmp_path / "other") > 1000
    one, other = (len([*(tmp_path / n).rglob("*.parquet")]) for n in ("one", "other"))
    assert one * 3 < other
    here, there = manifests(tmp_path / "one"), manifests(tmp_path / "other")
    for mine, theirs in zip(here, there, strict=True):
        assert {n: s.row_count for n, s in mine.tables.items()} == {
            n: s.row_count for n, s in theirs.tables.items()
        }
        assert (mine.warnings, mine.rules, mine.unverified, mine.sources) == (
            theirs.warnings, theirs.rules, theirs.unverified, theirs.sources
        )  # fmt: skip


def test_words_of_one_rank_leave_room_for_those_of_the_next(
    written_job: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Devices in one large timeline are small ranks each, whose tables hold enumerations."""
    source = written_job(small(), "text")
    monkeypatch.setattr(trace_view, "WORDS_FROM_BYTES", 0)

    read = ingest(source, tmp_path / "store", run="job", jobs=1)

    assert read.is_complete and len(read.publications) > 1
    held = "select count(distinct rank) from {}"
    for table in ("counters", "host_ops"):
        [[found]] = store.query(tmp_path / "store", held.format(table)).iter_rows()
        assert found == len(read.publications)


def test_a_rank_that_cannot_be_read_leaves_its_batch(once: Path, tmp_path: Path) -> None:
    source = shutil.copytree(once / "source", tmp_path / "source")
    for file in (source / "r2_ascend_pt").rglob("*.csv"):
        file.write_bytes(b"\x00 no table")

    result = ingest(source, tmp_path / "store", run="job", jobs=1)

    assert [o.rank for o in result.failures] == [2] and len(result.publications) == RANKS - 1
    assert len({m.batch for m in manifests(tmp_path / "store")}) == 1
    assert kernels(tmp_path / "store") == {0: 20, 1: 20, 3: 20}
    assert not [*tmp_path.rglob(".tmp-*")]


@dataclass(frozen=True, slots=True)
class Asked:
    """A summary that fails where ranks stand together."""

    name: str = "told"
    version: str = "1"
    query: str = """
        select any_value(run) as run, any_value(capture) as capture, rank,
            case when (select count(distinct rank) from kernels) > 1 then error('too many') end as x
        from kernels group by rank"""
    rows_from: tuple[str, ...] = ()


def test_where_all_together_fail_each_is_read_alone(once: Path, tmp_path: Path) -> None:
    def summed(con: object) -> Iterable[Asked]:
        yield Asked()

    told: list[int] = []
    result = ingest(
        once / "source", tmp_path / "s", run="job", jobs=1, summarise=summed,
        progress=Progress(advance=told.append),
    )  # fmt: skip

    assert result.is_complete and {m.batch for m in manifests(tmp_path / "s")} == {""}
    assert kernels(tmp_path / "s") == dict.fromkeys(range(RANKS), 20)
    assert sum(told) == sum(s.size_bytes for m in manifests(tmp_path / "s") for s in m.sources)
    assert not [*tmp_path.rglob("batch-*")] and not [*tmp_path.rglob(".tmp-*")]


def test_a_rank_read_again_supersedes_its_rows(
    once: Path, tmp_path: Path, write_profile: WriteProfile
) -> None:
    source = shutil.copytree(once / "source", tmp_path / "source")
    target = tmp_path / "store"
    ingest(source, target, run="job", jobs=1)
    former = manifests(target)[0].batch
    write_profile(source / "r1_ascend_pt", 1, [(7, "new", "1736412474000001.000", "5.000")])
    result = ingest(source, target, run="job", jobs=1)

    assert [o.rank for o in result.publications] == [1] and len(result.unchanged) == RANKS - 1
    assert kernels(target) == {0: 20, 1: 1, 2: 20, 3: 20}
    store.drop(target, manifests(target)[3])
    sweep(target, grace_s=-1)
    assert kernels(target) == {0: 20, 1: 1, 2: 20}
    for rank in (0, 2):
        write_profile(source / f"r{rank}_ascend_pt", rank, [(7, "n", "1736412474000001.0", "5.0")])
    shutil.rmtree(source / "r3_ascend_pt")
    ingest(source, target, run="job", jobs=1)
    assert (capture_of(target) / former).is_dir(), "for readers of the moment"
    sweep(target)
    assert (capture_of(target) / former).is_dir()
    sweep(target, grace_s=-1)
    assert not (capture_of(target) / former).exists()
    assert kernels(target) == {0: 1, 1: 1, 2: 1}


def test_batches_are_merged_and_swept(
    once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_batch, "MOST_RANKS", 2)
    target = tmp_path / "store"
    ingest(once / "source", target, run="job", jobs=1)
    assert len({m.batch for m in manifests(target)}) == 2
    (done,) = compact(target)
    assert done.rank_count == RANKS and kernels(target) == dict.fromkeys(range(RANKS), 20)
    sweep(target, grace_s=-1)
    assert kernels(target) == dict.fromkeys(range(RANKS), 20)
    assert {p.parent.name[:8] for p in target.rglob("*.parquet")} == {"compact-"}
    assert compact(target) == []


@pytest.mark.parametrize("text", ["", "{}", "outside", "another's generation"])
def test_ranks_whose_listing_is_damaged_are_missing_until_they_are_read_again(
    once: Path, target: Path, text: str
) -> None:
    (listing,) = capture_of(target).glob(f"batch-*/{LISTING}")
    told = json.loads(listing.read_text())
    if text == "outside":
        told["files"][0]["file"] = "../../elsewhere/kernels-0.parquet"
        text = json.dumps(told)
    elif text:
        told["generations"] = dict.fromkeys(told["generations"], "20260101T000000-0123456789ab")
        text = json.dumps(told) if text != "{}" else text
    listing.write_text(text)

    assert manifests(target) == []
    write_index(capture_of(target))
    assert kernels(target) == {}
    result = ingest(once / "source", target, run="job", jobs=1)
    assert result.is_complete and len(result.publications) == RANKS
    assert kernels(target) == dict.fromkeys(range(RANKS), 20)


@pytest.mark.parametrize("batch", ["../../elsewhere", "batch-../x", "rank=0", "batch-absent"])
def test_a_manifest_names_a_batch_of_its_capture(target: Path, batch: str) -> None:
    path = capture_of(target) / "rank=1" / "manifest.json"
    told = json.loads(path.read_text())
    path.write_text(json.dumps({**told, "batch": batch}))
    assert [m.rank for m in manifests(target)] == [0, 2, 3]
    assert kernels(target) == {0: 20, 2: 20, 3: 20}
