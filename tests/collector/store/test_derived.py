"""Results over the ranks of a capture: kept whole or not at all, and never for other ranks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from npuscope.analysis.ranks.derive import Table
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.literals import file_literal
from npuscope.collector.store import derived_tier, store
from npuscope.collector.store.compact import compact
from npuscope.collector.store.derived_tier import (
    bring_up_to_date,
    current,
    derived_folder,
    digest_of,
)
from npuscope.collector.store.manifest import MANIFEST, Manifest, manifests
from npuscope.collector.store.retention import drop_capture, stored_captures
from npuscope.collector.store.sweep import sweep
from tests.conftest import WriteProfile


def count(con: duckdb.DuckDBPyConnection) -> Iterator[Table]:
    """A result with rows and one without."""
    yield Table("counts", "select rank, count(*) as kernel_count from kernels group by rank")
    yield Table("nothing", "select 1 as one where false")


@pytest.fixture(scope="module")
def once(
    tmp_path_factory: pytest.TempPathFactory, write_profile: WriteProfile, ranks_alone: None
) -> Path:
    """Three ranks and their store, not to be changed."""
    folder = tmp_path_factory.mktemp("derived")
    for rank in range(3):
        write_profile(folder / "source" / f"r{rank}_ascend_pt", rank)
    ingest(folder / "source", folder / "store", run="job", jobs=1)
    return folder


@pytest.fixture
def target(once: Path, tmp_path: Path) -> Path:
    """A store of this test's own, beside its source."""
    shutil.copytree(once / "source", tmp_path / "source")
    return shutil.copytree(once / "store", tmp_path / "store")


def members(target: Path) -> list[Manifest]:
    return manifests(target)


def bring(target: Path, version: str = "1") -> dict[str, str]:
    return bring_up_to_date(target, members(target), version, count)


def folder_of(target: Path) -> Path:
    one = members(target)[0]
    return derived_folder(target, one.run, one.capture)


def counts(paths: dict[str, str]) -> list[tuple[int, int]]:
    with duckdb.connect() as con:
        read = f"read_parquet({file_literal(paths['counts'])}, hive_partitioning = false)"
        return con.execute(f"from {read} order by rank").fetchall()


def again(target: Path, write_profile: WriteProfile, rank: int, kernel_count: int) -> None:
    """Ingest another profile of a rank."""
    rows = [(7, "aclnnMatmul_MatMulV3", f"17364124740000{n:02}.250", "9.5") for n in
            range(kernel_count)]  # fmt: skip
    write_profile(target.parent / "source" / f"r{rank}_ascend_pt", rank, rows)
    ingest(target.parent / "source", target, run="job", jobs=1)


def test_computed_once_and_then_read(target: Path) -> None:
    paths = bring(target)
    assert counts(paths) == [(0, 20), (1, 20), (2, 20)]
    assert paths["nothing"] == ""

    def never(con: duckdb.DuckDBPyConnection) -> Iterator[Table]:
        raise AssertionError("it was computed before")

    assert bring_up_to_date(target, members(target), "1", never) == paths
    assert current(folder_of(target), digest_of(members(target), "1")) == paths


def test_a_replaced_rank_and_another_rule_make_it_stale(
    target: Path, write_profile: WriteProfile
) -> None:
    before = bring(target)
    again(target, write_profile, 1, 7)
    assert current(folder_of(target), digest_of(members(target), "1")) is None
    after = bring(target)
    assert counts(after) == [(0, 20), (1, 7), (2, 20)]
    assert counts(before) == [(0, 20), (1, 20), (2, 20)], "readers of the moment keep theirs"
    assert current(folder_of(target), digest_of(members(target), "2")) is None
    bring(target, "2")
    assert current(folder_of(target), digest_of(members(target), "1")) is None


@pytest.mark.slow
def test_a_rank_that_is_added_or_gone_makes_it_stale(
    target: Path, write_profile: WriteProfile
) -> None:
    bring(target)
    write_profile(target.parent / "source" / "r3_ascend_pt", 3)
    ingest(target.parent / "source", target, run="job", jobs=1)
    assert [rank for rank, _ in counts(bring(target))] == [0, 1, 2, 3]
    shutil.rmtree(target.parent / "source" / "r0_ascend_pt")
    ingest(target.parent / "source", target, run="job", jobs=1)
    assert [rank for rank, _ in counts(bring(target))] == [1, 2, 3]


@pytest.mark.slow
def test_superseded_results_go_after_the_grace_period(
    target: Path, write_profile: WriteProfile
) -> None:
    before = Path(bring(target)["counts"])
    again(target, write_profile, 1, 7)
    after = Path(bring(target)["counts"])
    sweep(target)
    assert before.is_file() and after.is_file()
    sweep(target, grace_s=-1)
    assert not before.parent.exists() and after.is_file()
    assert counts(bring(target)) == [(0, 20), (1, 7), (2, 20)]


def test_a_lost_file_is_computed_again(target: Path) -> None:
    Path(bring(target)["counts"]).unlink()
    assert len(counts(bring(target))) == 3


@pytest.mark.parametrize("content", [b"", b"{", b'{"digest": 3}'])
def test_a_damaged_manifest_is_as_good_as_none(target: Path, content: bytes) -> None:
    bring(target)
    (folder_of(target) / MANIFEST).write_bytes(content)
    assert len(counts(bring(target))) == 3


def test_it_goes_with_its_capture(target: Path) -> None:
    kept = Path(bring(target)["counts"])
    (one,) = stored_captures(target)
    assert one.size_bytes > kept.stat().st_size
    drop_capture(one)
    assert not (folder_of_capture(one.folder) / MANIFEST).exists()
    assert kept.is_file(), "for readers of the moment"
    sweep(target, grace_s=-1)
    assert not kept.exists()


@pytest.mark.slow
def test_it_goes_when_its_last_rank_goes(target: Path) -> None:
    kept = Path(bring(target)["counts"])
    for one in members(target):
        store.drop(target, one)
    sweep(target)
    assert kept.is_file() and not (kept.parent.parent / MANIFEST).exists()
    sweep(target, grace_s=-1)
    assert not kept.exists()


def folder_of_capture(folder: str) -> Path:
    return Path(folder) / derived_tier.DERIVED_FOLDER


@pytest.mark.slow
def test_compaction_and_readers_pass_it_by(target: Path) -> None:
    before = bring(target)
    version = store.version(target)
    (done,) = compact(target)
    assert done.rank_count == 3
    assert store.version(target) != version
    assert bring(target) == before, "the same rows in other files change nothing"
    with store.open(target) as con:
        assert con.execute("select count(*) from kernels").fetchall() == [(60,)]


_DIES = """
import os, signal, sys
from pathlib import Path
from npuscope.analysis.ranks.derive import Table
from npuscope.collector.store import derived_tier, store
from npuscope.collector.store.manifest import manifests

def some(con):
    yield Table("counts", "select rank from kernels")
    if sys.argv[2] == "computing":
        os.kill(os.getpid(), signal.SIGKILL)

def dies(path, content):
    os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[2] == "publishing":
    derived_tier.write_atomically = dies
target = Path(sys.argv[1])
derived_tier.bring_up_to_date(target, manifests(target), "1", some)
"""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["computing", "publishing"])
def test_killed_midway_nothing_is_visible(target: Path, moment: str) -> None:
    command = [sys.executable, "-c", _DIES, str(target), moment]
    assert subprocess.run(command, check=False).returncode == -9
    folder = folder_of(target)
    (left,) = folder.iterdir()
    assert left.name.startswith(".tmp-") == (moment == "computing")
    assert current(folder, digest_of(members(target), "1")) is None
    assert len(counts(bring(target))) == 3
    sweep(target, grace_s=-1)
    assert not left.exists()
    assert len(counts(bring(target))) == 3


def test_processes_that_race_do_no_harm(target: Path) -> None:
    """Both have begun before either publishes; then one more reads what is there."""
    barrier = threading.Barrier(2, timeout=60)
    results: list[dict[str, str]] = []

    def met(con: duckdb.DuckDBPyConnection) -> Iterator[Table]:
        yield from count(con)
        barrier.wait()

    def run() -> None:
        results.append(bring_up_to_date(target, members(target), "1", met))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first, second = results
    assert first != second
    assert counts(first) == counts(second) == [(0, 20), (1, 20), (2, 20)]
    assert bring(target) in (first, second)
    assert len(list(folder_of(target).glob(f"*{os.sep}*.parquet"))) == 2
    sweep(target, grace_s=-1)
    assert len(list(folder_of(target).glob(f"*{os.sep}*.parquet"))) == 1


def test_a_failure_leaves_nothing_behind(target: Path) -> None:
    def fails(con: duckdb.DuckDBPyConnection) -> Iterator[Table]:
        yield Table("counts", "select rank from kernels")
        yield Table("wrong", "select no_such_column from kernels")

    with pytest.raises(duckdb.BinderException):
        bring_up_to_date(target, members(target), "1", fails)
    assert list(folder_of(target).iterdir()) == []


def test_what_was_opened_stays_what_it_was_opened_over(target: Path) -> None:
    """Another look would find other ranks than its views have."""
    before = members(target)
    with store.open(target) as con, store.open(target) as later:
        manifest = next(target.glob("run=*/capture=*/rank=2/manifest.json"))
        manifest.unlink()
        assert store.opened_over(con, target) == before
        assert con.execute("select count(distinct rank) from ranks").fetchall() == [(3,)]
        with later.cursor() as other:
            assert store.opened_over(other, target) == members(target) == before[:2]
    with store.open(target) as con:
        assert store.opened_over(con, target) == before[:2]
