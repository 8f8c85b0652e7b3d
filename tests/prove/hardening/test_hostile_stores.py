"""Stores that somebody else made: nothing outside of them is read, written or deleted."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from npuscope.analysis.summaries import summaries, summarise
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.store import cache, store
from npuscope.collector.store.compact import compact
from npuscope.collector.store.compact_files import COMPACT_FILE, read_compacted
from npuscope.collector.store.derived_tier import DERIVED_FOLDER, bring_up_to_date, read_derived
from npuscope.collector.store.manifest import (
    INDEX,
    MANIFEST,
    capture_manifests,
    create_store,
    manifests,
    read_manifest,
    write_index,
)
from npuscope.collector.store.retention import drop_capture, stored_captures
from npuscope.collector.store.sweep import sweep
from npuscope.errors import StoreError
from npuscope.profile import reading_warnings
from tests.prove.hardening.captures import write_light
from tests.prove.hardening.cases import Done, run_here

pytestmark = pytest.mark.slow

VERSIONS = {one.name: one.version for one in summaries()}
GENERATION = "20260101T000000-0123456789ab"
MERGED = f"compact-{GENERATION}"
RESULTS = "0123456789abcdef-0123456789ab"


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory, ranks_alone: None) -> Path:
    folder = tmp_path_factory.mktemp("honest")
    write_light(folder / "source")
    ingest(folder / "source", folder / "store", run="job", summarise=summarise, jobs=1)
    return folder


@pytest.fixture
def target(honest: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(honest / "store", tmp_path / "store"))


@pytest.fixture
def capture(target: Path) -> Path:
    (folder,) = target.glob("run=*/capture=*")
    return folder


@pytest.fixture
def elsewhere(honest: Path, tmp_path: Path) -> Path:
    """A folder of somebody's files, some named as ours are; as old as can be."""
    folder = tmp_path / "elsewhere"
    (source,) = (honest / "store").glob("run=*/capture=*/rank=0/2*")
    shutil.copytree(source, folder)
    (folder / "thesis.txt").write_text("years of work")
    for name in (GENERATION, MERGED, RESULTS, f".tmp-{os.uname().nodename}-999999999-0123456789ab"):
        shutil.copytree(source, folder / name)
    for path in [folder, *folder.rglob("*")]:
        os.utime(path, (1e9, 1e9))
    return folder


def state_of(folder: Path) -> dict[str, tuple[int, float]]:
    found = {}
    for path in [folder, *folder.rglob("*")]:
        told = path.lstat()
        found[str(path)] = (told.st_size, told.st_mtime)
    return found


def run(*arguments: object, home: Path) -> Done:
    done = run_here([str(one) for one in arguments], {"XDG_CACHE_HOME": str(home / "cache")}, home)
    assert "Traceback" not in done.errors, done.errors
    return done


def age(capture: Path) -> None:
    for path in [capture, *capture.rglob("*")]:
        os.utime(path, (1e9, 1e9), follow_symlinks=False)


def change(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    told = json.loads(path.read_text())
    edit(told)
    path.write_text(json.dumps(told))


def put(told: dict[str, Any], value: dict[str, Any], within: str | None = None) -> None:
    (told[within] if within else told).update(value)


def generation_of(capture: Path, rank: int = 0) -> Path:
    manifest = read_manifest(capture / f"rank={rank}")
    assert manifest
    return capture / f"rank={rank}" / manifest.generation


PLACES = {
    "generation": f"rank=0/{GENERATION}",
    "merged": MERGED,
    "results": f"{DERIVED_FOLDER}/{RESULTS}",
    "rank": "rank=7",
    "derived": DERIVED_FOLDER,
    "staging": f".tmp-{os.uname().nodename}-999999999-ba9876543210",
    "capture": "../capture=other",
    "run": "../../run=other",
}


@pytest.mark.parametrize("place", PLACES)
def test_nothing_is_deleted_through_a_link(
    target: Path, capture: Path, elsewhere: Path, place: str
) -> None:
    link = capture / PLACES[place]
    if place == "results":
        link.parent.mkdir(exist_ok=True)
    link.symlink_to(elsewhere)
    before = state_of(elsewhere)
    age(capture)
    sweep(target, grace_s=0)
    for one in stored_captures(target):
        drop_capture(one)
    sweep(target, grace_s=-1)
    assert state_of(elsewhere) == before


def test_the_current_generation_is_no_link(target: Path, capture: Path, elsewhere: Path) -> None:
    current = generation_of(capture)
    shutil.rmtree(current)
    current.symlink_to(elsewhere)
    before = state_of(elsewhere)
    (capture / INDEX).unlink()
    age(capture)
    sweep(target, grace_s=0)
    with pytest.raises(StoreError, match=f"{current.name}.*maybe a link"):
        store.open(target)
    with pytest.raises(StoreError, match="maybe a link"):
        compact(target)
    done = run("steps", target, home=target.parent)
    assert done.code == 3 and "maybe a link" in done.errors
    assert state_of(elsewhere) == before


@pytest.mark.parametrize("is_current", [True, False])
def test_a_link_put_in_place_while_we_delete_leads_nowhere(
    target: Path, capture: Path, elsewhere: Path, is_current: bool
) -> None:
    """The folder that was looked at is the one in which is deleted, wherever its name leads by now:
    at the first deletion in a folder somebody moves it, and sets a link to another in its place."""
    old = generation_of(capture)
    if not is_current:
        old = shutil.copytree(old, capture / "rank=0" / GENERATION)
    for name in ("kernels.1.parquet", "kernels.2.parquet"):
        (old / name).write_text("superseded")
    age(capture)
    shutil.rmtree(elsewhere)
    shutil.copytree(old, elsewhere)
    before = state_of(elsewhere)
    swapped: list[str] = []

    def swap(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "os.remove" and not swapped and str(arguments[0]).endswith(".parquet"):
            swapped.append(str(arguments[0]))
            old.rename(target.parent / "moved")
            old.symlink_to(elsewhere)

    _watchers.append(swap)
    try:
        sweep(target, grace_s=0)
    finally:
        _watchers.remove(swap)
    assert swapped
    assert state_of(elsewhere) == before
    assert not list((target.parent / "moved").glob("kernels.*.parquet"))


_watchers: list[Callable[[str, tuple[Any, ...]], None]] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    for watcher in [*_watchers]:
        watcher(event, arguments)


sys.addaudithook(_audit)


def test_only_what_is_named_as_ours_is_deleted(target: Path, capture: Path) -> None:
    kept = [
        capture / "rank=0" / "notes" / "a.txt",
        capture / "rank=0" / GENERATION / "thesis.txt",
        capture / "compact-notes" / "kernels-0.parquet",
        generation_of(capture) / "mine.txt",
        capture / DERIVED_FOLDER / "mine" / "a.parquet",
    ]
    gone = capture / "rank=0" / GENERATION / "kernels.parquet"
    for path in [*kept, gone]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    age(capture)
    assert sweep(target, grace_s=0) == 1
    assert not gone.exists()
    assert all(path.exists() for path in kept)


FILES = (
    "../../../../elsewhere/kernels.parquet",
    "/etc/kernels.parquet",
    "{generation}/../../kernels.parquet",
    "{generation}/sub/kernels.parquet",
    "{generation}/steps.parquet",
    "{generation}/kernels.../x.parquet",
    "{generation}/kernels.parquet\n",
    "{generation}/kernels.*.parquet",
    "other/kernels.parquet",
    "{generation}",
)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("is_indexed", [True, False])
def test_a_manifest_names_files_of_its_own_generation(
    target: Path, capture: Path, elsewhere: Path, file: str, is_indexed: bool
) -> None:
    path = capture / "rank=0" / MANIFEST
    generation = generation_of(capture).name
    segment = {"file": file.format(generation=generation), "row_count": 1, "size_bytes": 1}
    change(path, lambda told: told["tables"].update(kernels=segment))
    if is_indexed:
        told, state = json.loads(path.read_text()), path.stat()
        entry = {
            "inode": state.st_ino,
            "size_bytes": state.st_size,
            "mtime_ns": state.st_mtime_ns,
            "manifest": told,
        }
        change(capture / INDEX, lambda index: index["ranks"].update({"rank=0": entry}))
    assert read_manifest(capture / "rank=0") is None
    assert [m.rank for m in manifests(target)] == [1]
    before = state_of(elsewhere)
    compact(target)
    sweep(target, grace_s=0)
    assert state_of(elsewhere) == before


@pytest.mark.parametrize(
    "name",
    [
        "../../x",
        "..",
        "/etc/x",
        "a/b",
        "x\" as select 1; copy (select 42) to '{written}'; --",
        "Kernels",
        "kernels ",
        "a" * 64,
        "",
    ],
)
@pytest.mark.parametrize("kind", ["tables", "summaries"])
def test_a_manifest_names_tables_as_ours_are_named(
    target: Path, capture: Path, name: str, kind: str
) -> None:
    written = target.parent / "written.csv"
    name = name.format(written=written)
    generation = generation_of(capture).name
    for rank in (0, 1):
        file = {"file": f"{generation}/{name}.parquet", "row_count": 1, "size_bytes": 1}
        change(
            capture / f"rank={rank}" / MANIFEST,
            partial(put, within=kind, value={name: {**file, "version": "1"}}),
        )
    assert manifests(target) == []
    with store.open(target) as con:
        assert con.execute("from ranks").fetchall() == []
    assert compact(target) == []
    assert not written.exists()


NESTED: dict[str, Any] = {"template": "a"}
for _ in range(50):
    NESTED = {"template": "{x}", "values": {"x": NESTED}}


@pytest.mark.parametrize(
    "warning",
    [
        3, ["a"], {"template": ["a"]}, {"template": "a", "values": {"x": [1]}},
        {"template": "a", "values": {"x": {"template": "b", "values": {"y": True}}}}, NESTED,
    ],
)  # fmt: skip
def test_a_manifest_warns_in_messages(target: Path, capture: Path, warning: object) -> None:
    change(capture / "rank=0" / MANIFEST, lambda told: told.update(warnings=[warning]))
    assert [m.rank for m in manifests(target)] == [1]


def test_warnings_reach_nothing_and_old_ones_are_sentences(target: Path, capture: Path) -> None:
    steered = {"template": "{x.__class__} {x} {y}", "values": {"x": "{y}", "y": 7}}
    change(
        capture / "rank=0" / MANIFEST,
        lambda told: told.update(warnings=["a sentence of an older manifest", steered]),
    )
    [first, _] = manifests(target)
    assert first.warnings == ["a sentence of an older manifest", "{x.__class__} {y} 7"]


@pytest.mark.parametrize("generation", ["..", ".", "", "a/b", "/etc", ".tmp-a-1-0123456789ab"])
def test_a_generation_is_one_name(target: Path, capture: Path, generation: str) -> None:
    def edit(told: dict[str, Any]) -> None:
        told.update(generation=generation, tables={}, summaries={})

    change(capture / "rank=0" / MANIFEST, edit)
    assert [m.rank for m in manifests(target)] == [1]


@pytest.mark.parametrize("field", [{"rank": 1}, {"capture": "x"}, {"run": "../x"}])
def test_a_manifest_is_of_the_rank_where_it_stands(
    target: Path, capture: Path, field: dict[str, Any]
) -> None:
    change(capture / "rank=0" / MANIFEST, lambda told: told.update(field))
    assert [m.rank for m in manifests(target)] == [1]
    write_index(capture)
    assert [m.rank for m in manifests(target)] == [1]


@pytest.mark.parametrize(
    "edit",
    [
        {"file": "../../../elsewhere/ranks.parquet"},
        {"file": "/etc/x"},
        {"table": 'x" as select 1; --'},
    ],
)
def test_merged_files_are_the_captures_own(
    target: Path, capture: Path, elsewhere: Path, edit: dict[str, str]
) -> None:
    assert compact(target)
    with store.open(target) as con:
        expected = con.execute("from ranks order by rank").fetchall()
    change(
        capture / COMPACT_FILE,
        lambda told: [file.update(edit) for batch in told["batches"] for file in batch["files"]],
    )
    assert not read_compacted(capture).batches
    before = state_of(elsewhere)
    compact(target)
    sweep(target)
    with store.open(target) as con:
        assert con.execute("from ranks order by rank").fetchall() == expected
    assert state_of(elsewhere) == before


def test_results_are_the_captures_own(target: Path, capture: Path, elsewhere: Path) -> None:
    class One:
        name, query = "clocks", "select 1 as a"

    members = capture_manifests(capture)
    one = {"row_count": 1, "size_bytes": 1}
    paths = bring_up_to_date(target, members, "1", lambda con: [One()])
    for file in (
        "../../../../elsewhere/ranks.parquet",
        "/etc/clocks.parquet",
        "../x/clocks.parquet",
    ):
        change(
            capture / DERIVED_FOLDER / MANIFEST,
            partial(put, within="tables", value={"clocks": {**one, "file": file}}),
        )
        assert read_derived(capture / DERIVED_FOLDER) is None, file
        sweep(target, grace_s=0)
        again = bring_up_to_date(target, members, "1", lambda con: [One()])
        assert again["clocks"] != paths["clocks"] and Path(again["clocks"]).is_file()
    Path(again["clocks"]).unlink()
    Path(again["clocks"]).symlink_to(elsewhere / "ranks.parquet")
    with pytest.raises(StoreError, match="maybe a link"):
        bring_up_to_date(target, members, "1", lambda con: [One()])


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "device"])
def test_a_segment_is_a_file(target: Path, capture: Path, elsewhere: Path, kind: str) -> None:
    path = generation_of(capture) / "ranks.parquet"
    path.unlink()
    if kind == "link":
        path.symlink_to(elsewhere / "ranks.parquet")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    done = run("sql", target, "from ranks", home=target.parent)
    assert done.code == 3 and f"{path} is damaged or missing: " in done.errors


@pytest.mark.parametrize("name", ["run=job", "capture", "rank=0", MANIFEST])
def test_nothing_is_read_or_written_through_a_link(
    honest: Path, target: Path, capture: Path, tmp_path: Path, name: str
) -> None:
    """Not though what the link leads to is a store's own; what is read again stays in the store."""
    place = {
        "run=job": capture.parent,
        "capture": capture,
        "rank=0": capture / "rank=0",
        MANIFEST: capture / "rank=0" / MANIFEST,
    }[name]
    place.rename(tmp_path / "outside")
    place.symlink_to(tmp_path / "outside")
    before = state_of(tmp_path / "outside")
    assert {m.rank for m in manifests(target)} <= {1}
    done = run("ingest", honest / "source", "--store", target, "--run", "job", home=tmp_path)
    if name == MANIFEST:  # replaced, not followed
        assert done.code == 0 and not place.is_symlink()
        assert {m.rank for m in manifests(target)} == {0, 1}
    else:
        assert done.code in (3, 4), done.errors
        assert "Not a directory" in done.errors or "cannot" in done.errors
    assert state_of(tmp_path / "outside") == before


@pytest.mark.parametrize("name", ["run=x", "run=job/capture=x", "rank=0"])
def test_what_is_not_read_is_told(target: Path, capture: Path, elsewhere: Path, name: str) -> None:
    assert reading_warnings(target) == []
    link = capture / name if name == "rank=0" else target / name
    if link.exists():
        change(link / MANIFEST, partial(put, value={"generation": ".."}))
    else:
        link.symlink_to(elsewhere)
    [told] = reading_warnings(target)
    assert told.startswith(
        f"{link.relative_to(target)}: not read: a link, or its manifest is damaged"
    )
    done = run("steps", target, "--json", home=target.parent)
    assert done.code == 0 and any("not read" in note for note in json.loads(done.out)["notes"])


def test_columns_of_other_types_are_told(target: Path, capture: Path) -> None:
    with store.open(target) as con:
        path = generation_of(capture) / "profiler_steps.parquet"
        assert path.exists()
        con.execute(f"copy (select {{'a': 1}} as step, 'x' as rank) to '{path}' (format parquet)")
    as_large = {"size_bytes": path.stat().st_size}  # what is not would be told as torn

    def edit(told: dict[str, Any]) -> None:
        put(told["tables"], as_large, "profiler_steps")

    change(capture / "rank=0" / MANIFEST, edit)
    done = run("steps", target, home=target.parent)
    assert done.code == 3 and "the query engine failed" in done.errors


def test_times_that_are_none_keep_a_capture(target: Path, capture: Path) -> None:
    for rank in (0, 1):
        edit = {"published_at": "yesterday", "window_end_ns": None}
        change(capture / f"rank={rank}" / MANIFEST, partial(put, value=edit))
    done = run("compact", target, "--keep-days", "1", home=target.parent)
    assert done.code == 0, done.errors
    assert len(manifests(target)) == 2


def test_the_cache_deletes_stores_of_its_own_only(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = cache.cache_folder()
    own = cache.store_of(tmp_path / "some profile")
    own.parent.mkdir(parents=True)
    create_store(own)
    cache.remember_use(own, tmp_path)
    link, named = folder / "0123456789abcdef", folder / "my store"
    link.symlink_to(target)
    shutil.copytree(target, named)
    before = state_of(target), state_of(named)
    assert [one.name for one in cache.cached_stores()] == [own.name]
    cache.keep_within_limit(tmp_path, limit_bytes=-1)
    assert not own.exists()
    assert (state_of(target), state_of(named)) == before
