"""Many small segments become few large ones, and nobody can tell by the rows."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from npuscope.analysis.summaries import Summary, summaries, summarise
from npuscope.collector import schema
from npuscope.collector.ingest.ingest import IngestResult, ingest
from npuscope.collector.store import compact_files, manifest, store
from npuscope.collector.store.compact import Compaction, compact
from npuscope.collector.store.segments import rebuild_summaries
from npuscope.collector.store.sweep import sweep
from npuscope.errors import StoreError
from npuscope.sample_traces.generate import Form, small, write_job
from npuscope.selects import lock_down, run_select

pytestmark = pytest.mark.slow

WriteProfile = Callable[..., Path]
VERSIONS = {summary.name: summary.version for summary in summaries()}
FORMS: dict[int, tuple[Form, ...]] = {0: ("db",), 1: ("text",), 2: ("db", "text"), 3: ("text",)}


def read(source: Path, into: Path, **options: Any) -> IngestResult:
    return ingest(source, into, run="job", summarise=summarise, **options)


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory, ranks_alone: None) -> Path:
    """A store of four ranks with rows in nearly every table: not to be changed."""
    folder = tmp_path_factory.mktemp("compact")
    write_job(small(dp=4), folder / "source", forms=FORMS)
    read(folder / "source", folder / "store")
    return folder


@pytest.fixture
def target(once: Path, tmp_path: Path) -> Path:
    """A store of this test's own."""
    return shutil.copytree(once / "store", tmp_path / "store")


def content(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table and summary, in the order of ranks and as they stand in each."""
    with store.open(path, summaries=VERSIONS) as con:
        names = [n for (n,) in con.execute(
            "select view_name from duckdb_views() where not internal order by 1"
        ).fetchall()]  # fmt: skip
        rows = {}
        for name in names:
            found = con.execute(f'select * from "{name}"').fetchall()
            rows[name] = sorted(found, key=lambda row: row[:3])
        return rows


def in_any_order(rows: dict[str, list[tuple[Any, ...]]]) -> dict[str, list[str]]:
    return {name: sorted(map(repr, found)) for name, found in rows.items()}


def rows_by_table(path: Path) -> dict[str, list[str]]:
    return in_any_order(content(path))


def files(path: Path) -> list[str]:
    return sorted(str(p.relative_to(path)) for p in path.rglob("*.parquet"))


def capture_folder(path: Path) -> Path:
    (folder,) = path.glob("run=*/capture=*")
    return folder


def test_the_same_rows_in_fewer_files(target: Path) -> None:
    before = content(target)
    assert {"step_summary", "kernel_summary", *schema.tables()} <= before.keys()
    version = store.version(target)

    (done,) = compact(target)

    assert content(target) == before
    assert (done.run, done.rank_count) == ("job", 4)
    assert done.files_after < done.files_before / 2
    merged = [file for file in files(target) if "/compact-" in file]
    assert len(merged) == done.files_after
    assert store.version(target) != version, "connections that were kept for the rows go"


def test_what_was_changed_behind_our_back_is_found_and_not_merged(once: Path, target: Path) -> None:
    def change(file: Path) -> None:
        content = bytearray(file.read_bytes())
        content[len(content) // 3] ^= 4
        file.write_bytes(content)

    def damaged() -> set[int]:
        found = compact_files.torn(target, manifest.manifests(target), with_content=True)
        assert not compact_files.torn(target, manifest.manifests(target))  # sizes are as they were
        return {rank for _, _, rank in found}

    assert damaged() == set()
    file = next(capture_folder(target).glob("rank=2/*/kernels.parquet"))
    whole = file.read_bytes()
    change(file)
    assert damaged() == {2}
    before = files(target)
    with pytest.raises(StoreError, match=r"nothing is merged: .*rank=2/.*kernels\.parquet"):
        compact(target)
    assert files(target) == before
    ingest(once / "source", target, run="later", summarise=summarise)
    with pytest.raises(StoreError, match=r"^nothing is merged: .*rank=2/.*kernels\.parquet"):
        compact(target)
    merged = {file.split("/")[0] for file in files(target) if "/compact-" in file}
    assert merged == {"run=later"}, "one that is damaged keeps no other from being merged"
    shutil.rmtree(target / "run=later")
    file.write_bytes(whole)
    compact(target)
    assert damaged() == set()
    change(next(capture_folder(target).glob("compact-*/kernels-*.parquet")))
    assert damaged() == {0, 1, 2, 3}


def test_again_there_is_nothing_to_do(target: Path) -> None:
    compact(target)
    state = (capture_folder(target) / compact_files.COMPACT_FILE).read_bytes()

    assert compact(target) == []
    assert (capture_folder(target) / compact_files.COMPACT_FILE).read_bytes() == state


def test_rows_of_a_rank_stand_together_and_in_their_order(target: Path) -> None:
    with store.open(target) as con:
        before = con.execute(
            "select list(start_ns) from kernels group by rank order by rank"
        ).fetchall()
    compact(target)

    (file,) = capture_folder(target).glob("compact-*/kernels-*.parquet")
    with store.open(target) as con:
        found = con.execute(f"select rank, start_ns from '{file}'").fetchall()
    ranks = [rank for rank, _ in found]
    assert ranks == sorted(ranks)
    assert [([t for r, t in found if r == rank],) for rank in range(4)] == before


def test_segments_that_were_merged_go_after_the_grace_period(target: Path) -> None:
    before = content(target)
    for path in target.rglob("*.parquet"):
        os.utime(path, (0, 0))  # published long ago
    reader = store.open(target)
    compact(target)

    sweep(target)
    kernels = reader.execute("select count(*) from kernels").fetchall()
    assert kernels == [(len(before["kernels"]),)], "who opened before goes on"
    reader.close()
    freed = sweep(target, grace_s=-1)

    assert freed > 0
    assert content(target) == before
    assert all("/compact-" in file for file in files(target))
    assert compact(target) == []


@pytest.mark.slow
def test_a_rank_read_again_replaces_its_rows_exactly(once: Path, target: Path) -> None:
    before = content(target)
    compact(target)
    sweep(target, grace_s=-1)
    moved = [m for m in manifest.manifests(target) if m.rank == 2]

    read(once / "source", target, force=True)  # four new generations with the same rows
    assert rows_by_table(target) == in_any_order(before)
    assert compact(target)
    sweep(target, grace_s=-1)
    assert rows_by_table(target) == in_any_order(before)
    assert len(list(capture_folder(target).glob("compact-*"))) == 1, "the old files are gone"
    assert moved[0].generation not in "".join(files(target))


@pytest.mark.slow
def test_one_changed_rank_among_merged_ones(
    tmp_path: Path, write_profile: WriteProfile, ranks_alone: None
) -> None:
    source, target = tmp_path / "source", tmp_path / "store"
    for rank in range(5):
        write_profile(source / f"r{rank}_ascend_pt", rank)
    read(source, target)
    compact(target)
    write_profile(source / "r3_ascend_pt", 3, [(7, "new", "1736412474000001.000", "5.000")])
    read(source, target)

    names = "select rank, count(*), max(name) from kernels group by rank order by rank"
    expected = [(rank, 1, "new") if rank == 3 else (rank, 20, "aclnnMatmul_MatMulV3")
                for rank in range(5)]  # fmt: skip
    assert store.query(target, names).rows() == expected
    for _ in range(2):
        compact(target)
        sweep(target, grace_s=-1)
        assert store.query(target, names).rows() == expected
    assert len([f for f in files(target) if "kernels" in f]) == 1


def test_a_dropped_rank_stays_away(target: Path) -> None:
    compact(target)
    gone = next(m for m in manifest.manifests(target) if m.rank == 1)

    store.drop(target, gone)
    sweep(target, grace_s=-1)

    assert {row[2] for row in content(target)["kernels"]} == {0, 2, 3}
    compact(target)
    assert {row[2] for row in content(target)["kernels"]} == {0, 2, 3}


def test_files_are_cut_at_the_target_and_at_ranks(target: Path) -> None:
    before = content(target)
    sizes = [m.tables["kernels"].size_bytes for m in manifest.manifests(target)]

    compact(target, target_bytes=2 * max(sizes) + 1)

    kernels = list(capture_folder(target).glob("compact-*/kernels-*.parquet"))
    assert len(kernels) == 2
    assert content(target) == before
    again = compact(target, target_bytes=1 << 30)
    assert again and len(list(capture_folder(target).glob("compact-*"))) == 2
    assert content(target) == before


def test_large_segments_are_left_alone(target: Path) -> None:
    before = content(target)
    sizes = sorted(s.size_bytes for m in manifest.manifests(target) for s in m.tables.values())

    compact(target, target_bytes=sizes[len(sizes) // 2])

    left = [file for file in files(target) if "/compact-" not in file]
    sweep(target, grace_s=-1)
    kept = [file for file in files(target) if "/compact-" not in file]
    assert kept and len(kept) < len(left), "of a generation only what was merged goes"
    assert content(target) == before


@pytest.mark.slow
def test_summaries_of_merged_ranks_can_be_made_anew(target: Path) -> None:
    before = content(target)
    compact(target)
    sweep(target, grace_s=-1)

    def newer(con: object) -> list[Summary]:
        return [replace(summary, version="newer") for summary in summaries()]

    for folder in capture_folder(target).glob("rank=*"):
        current = manifest.read_manifest(folder)
        assert current is not None
        assert rebuild_summaries(target, current, newer, 1 << 28)

    with store.open(target) as con:
        for name in VERSIONS.keys() & before.keys():
            rows = con.execute(f'select * from "{name}"').fetchall()
            assert sorted(rows, key=lambda row: row[:3]) == before[name], name
        assert compact(target), "the new summaries are small files again"
    for folder in capture_folder(target).glob("rank=*"):
        current = manifest.read_manifest(folder)
        assert current is not None
        assert rebuild_summaries(target, current, summarise, 1 << 28)
    assert content(target) == before


def test_strangers_sql_reads_merged_files_and_no_others(target: Path, tmp_path: Path) -> None:
    compact(target)
    (tmp_path / "other.csv").write_text("a\n1\n")
    with store.open(target) as con:
        lock_down(con, target)
        assert run_select(con, "select count(*) from kernels").read_all().num_rows == 1
        with pytest.raises(Exception, match=r"(?i)permission|disabled"):
            run_select(con, f"from '{tmp_path}/other.csv'").read_all()


@pytest.mark.parametrize("name", ["a[b]c", "a*c", "a?c"])
def test_a_shut_store_may_have_a_pattern_for_its_name(
    target: Path, tmp_path: Path, name: str
) -> None:
    place = tmp_path / name
    shutil.copytree(target, place)
    with store.open(place) as con:
        lock_down(con, place)
        rows = run_select(con, "select count(*) from kernels").read_all()
        assert rows.num_rows == 1
        with pytest.raises(Exception, match=r"(?i)permission|disabled"):
            run_select(con, f"from read_text('{tmp_path}/{name}/*')").read_all()


def test_the_index_may_be_missing(target: Path) -> None:
    before = content(target)
    compact(target)
    for index in target.rglob("index.json"):
        index.unlink()

    assert content(target) == before


def test_lost_rows_stop_it(target: Path) -> None:
    before = content(target)
    one = manifest.manifests(target)[0]
    told = {**one.tables}
    told["kernels"] = msgspec.structs.replace(told["kernels"], row_count=10**6)
    store.replace_manifest(target, msgspec.structs.replace(one, tables=told))

    with pytest.raises(StoreError, match=r"kernels: .* rows expected in the merged file"):
        compact(target)
    assert content(target) == before
    assert not list(target.rglob(".tmp-*"))


def test_older_programs_are_refused_and_older_stores_are_not(target: Path) -> None:
    marker = target / manifest.MARKER
    marker.write_bytes(msgspec.json.encode({"layout": 1}))
    before = content(target)

    compact(target)

    assert msgspec.json.decode(marker.read_bytes()) == {"layout": 3}
    assert content(target) == before
    marker.write_bytes(msgspec.json.encode({"layout": 4}))
    with pytest.raises(StoreError, match="store layout 4, this npuscope reads 3"):
        compact(target)


def test_two_that_merged_the_same_count_once(target: Path) -> None:
    """The second of two compactions at the same time: its files are passed over."""
    before = content(target)
    original = shutil.copytree(target, target.parent / "copy")
    compact(target)
    compact(original)
    (theirs,) = capture_folder(original).glob("compact-*")
    shutil.move(theirs, capture_folder(target))
    one, other = (compact_files.read_compacted(capture_folder(p)) for p in (target, original))
    both = compact_files.CompactFiles("both", [*one.batches, *other.batches])
    compact_files.exchange_compacted(capture_folder(target), lambda former: both)

    assert content(target) == before


def test_ranks_of_an_older_schema_are_not_mixed_with_newer(target: Path) -> None:
    before = content(target)
    one = manifest.manifests(target)[0]
    store.replace_manifest(target, msgspec.structs.replace(one, schema_digest="older"))
    with store.open(target) as con:
        expected = con.execute("select * from kernels order by all").fetchall()

    done: list[Compaction] = []
    compact(target, done=done.append)

    with store.open(target) as con:
        assert con.execute("select * from kernels order by all").fetchall() == expected
    assert sorted(expected, key=lambda r: r[:3]) != [] and len(expected) == len(before["kernels"])
    assert len(files(capture_folder(target))) > 0
    own = [f for f in files(target) if "rank=0/" in f and "kernels" in f]
    sweep(target, grace_s=-1)
    assert [f for f in files(target) if "rank=0/" in f and "kernels" in f] == own
