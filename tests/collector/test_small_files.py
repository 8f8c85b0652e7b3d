"""Small files that are none: whoever reads them goes on as if they could not be read."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from npuscope.collector.discover import cluster_outputs, identity
from npuscope.collector.discover.identity import identify
from npuscope.collector.ingest import plan
from npuscope.collector.model import RankSource, ReadLog, SourceFile
from npuscope.collector.readers.cluster.cluster_db import JobFacts
from npuscope.collector.readers.cluster.cluster_parts import _read_groups
from npuscope.collector.readers.expert_load.deployment_json import read_deployment
from npuscope.collector.readers.expert_load.load_files import CONFIG
from npuscope.collector.readers.expert_load.mindie_dump import _config
from npuscope.collector.readers.metadata.profiler_info import read_info
from npuscope.collector.readers.metadata.profiler_metadata import read_metadata
from npuscope.collector.small_files import LIST_BYTES, SMALL_BYTES, read_own, read_small
from npuscope.collector.store import retention
from npuscope.collector.store.cache import cached_stores
from npuscope.collector.store.compact_files import COMPACT_FILE, CompactFiles, read_compacted
from npuscope.collector.store.derived_tier import read_derived
from npuscope.collector.store.manifest import (
    INDEX,
    MANIFEST,
    MARKER,
    capture_manifests,
    check_layout,
    create_store,
    read_index,
    read_manifest,
)
from npuscope.collector.watch.folders import READY, judge, look
from npuscope.collector.watch.follow_logs import Tail, read_on
from npuscope.collector.watch.watch import LOCK, turn
from npuscope.collector.watch.watch_state import WATCH_STATE, WatchState, read_watch_state
from tests.collector.ingest.in_time import end


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_device(path: Path) -> None:
    """Without an end. What is written there is the link alone."""
    path.symlink_to("/dev/zero")


def holes(path: Path) -> None:
    """A file of a terabyte that takes no room."""
    with path.open("wb") as file:
        file.truncate(1 << 40)


def depths(path: Path) -> None:
    path.write_text('{"a":' * 100_000)


def other_letters(path: Path) -> None:
    path.write_bytes(b'{"host": "\xff", "job_name": "\xff", "rank_id": "\xff"}')


def as_source(path: Path) -> SourceFile:
    return SourceFile(str(path), path.stat().st_size, 0)


def verdict_of(path: Path) -> str:
    (path.parent / "ASCEND_PROFILER_OUTPUT").mkdir()
    verdict = judge(look(path.parent), is_quiet=True)
    assert verdict.kind != "finished" or path.name not in look(path.parent).sizes
    return verdict.kind


def identify_file(path: Path) -> None:
    found = identify("pytorch", {"profiler_info": (as_source(path),)})
    assert found.rank == 3 and any("profiler_info" in warning for warning in found.warnings)


READERS: dict[str, Callable[[Path], object]] = {
    WATCH_STATE: lambda path: read_watch_state(path.parent),
    COMPACT_FILE: lambda path: read_compacted(path.parent),
    INDEX: lambda path: read_index(path.parent),
    MANIFEST: lambda path: [read_manifest(path.parent), read_derived(path.parent)],
    f"rank=0/{MANIFEST}": lambda path: capture_manifests(path.parents[1]),
    MARKER: lambda path: check_layout(path.parent),
    retention.DROPPED_CAPTURES: lambda path: retention.read_dropped(path.parent),
    f"run=a/{plan._REQUEST}": lambda path: plan._earlier_selection(path.parents[1], "a", path),
    READY: verdict_of,
    "profiler_info_3.json": identify_file,
    "profiler_info_5.json": lambda path: read_info(str(path), ReadLog()),
    "profiler_metadata.json": lambda path: read_metadata(str(path), ReadLog()),
    "start_info": lambda path: identity.session_ns([str(path)], 0),
    cluster_outputs.GROUPS: lambda path: _read_groups(str(path), JobFacts()),
    "deployment.json": read_deployment,
    CONFIG: lambda path: _config([as_source(path)], []),
}


@pytest.mark.parametrize("spoil", [a_pipe, a_device, holes, depths, other_letters])
@pytest.mark.parametrize("name", READERS)
def test_no_small_file_hangs_its_reader_or_fills_its_memory(
    tmp_path: Path, name: str, spoil: Callable[[Path], None]
) -> None:
    path = tmp_path / "folder" / name
    path.parent.mkdir(parents=True)
    spoil(path)
    end(lambda: READERS[name](path))


@pytest.mark.parametrize("spoil", [a_pipe, a_device])
def test_a_log_that_is_a_pipe_is_not_followed(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    spoil(tmp_path / "log")
    told = end(lambda: read_on(Tail(tmp_path / "log")))
    assert isinstance(told, OSError) and told.strerror == "it is not a regular file"


def test_a_cache_with_a_pipe_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    store = tmp_path / "npuscope" / "0123456789abcdef"
    create_store(store)
    a_pipe(store / "npuscope-source.txt")
    (store / "npuscope-used.txt").write_text("yesterday")
    [one] = end(cached_stores)
    assert (one.source, one.used_at) == ("unknown", 0)


def test_what_a_store_names_is_not_reached_through_a_link(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.json"
    elsewhere.write_text('{"batches": [], "version": 7}')
    (tmp_path / WATCH_STATE).symlink_to(elsewhere)
    (tmp_path / COMPACT_FILE).symlink_to(elsewhere)
    assert read_watch_state(tmp_path) is None
    assert read_compacted(tmp_path) == CompactFiles()
    with pytest.raises(OSError, match="it is a link"):
        read_own(tmp_path / WATCH_STATE, WatchState)
    assert read_small(tmp_path / WATCH_STATE) == elsewhere.read_bytes()

    (tmp_path / LOCK).symlink_to(tmp_path / "made")
    with pytest.raises(OSError), turn(tmp_path):
        pass
    assert not (tmp_path / "made").exists()


def test_the_largest_small_file_is_read_and_one_byte_more_is_not(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(SMALL_BYTES))
    assert len(read_small(path)) == SMALL_BYTES
    with path.open("ab") as file:
        file.write(b"\0")
    with pytest.raises(OSError, match="larger than 16 MiB"):
        read_small(path)

    path.write_bytes(b"{}")  # takes no more memory where more is allowed
    tracemalloc.start()
    assert read_small(path, most_bytes=LIST_BYTES) == b"{}"
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 4 << 20


def test_a_rank_with_a_pipe_for_its_description_is_read(tmp_path: Path) -> None:
    a_pipe(tmp_path / "profiler_info_0.json")
    source = RankSource(
        str(tmp_path),
        "pytorch",
        0,
        "",
        {"profiler_info": (as_source(tmp_path / "profiler_info_0.json"),)},
    )
    log = ReadLog()
    info = end(lambda: read_info(source.paths("profiler_info")[0], log))
    assert info.level is None
    assert log.warnings == ["profiler_info_0.json: opening: it is not a regular file"]
