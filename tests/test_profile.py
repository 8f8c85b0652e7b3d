"""What an opened store tells of its reading: of the run and capture that are looked at."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from npuscope.analysis.scope import ALL, Scope
from npuscope.collector.store.manifest import MANIFEST, rank_folder
from npuscope.profile import Source, open_tables, reading_warnings
from npuscope.sample_traces.job import Job, small
from tests.dashboard.app.published_jobs import publish_job


def warn(store: Path, job: Job, capture: str, note: str) -> None:
    """Publish a capture in which rank 1 was read with a warning."""
    publish_job(store, job, capture, published_s=1.0, ranks=(0, 1))
    path = rank_folder(store, job.name, capture, 1) / MANIFEST
    manifest = msgspec.json.decode(path.read_bytes())
    path.write_bytes(msgspec.json.encode(manifest | {"warnings": [note]}))


def test_warnings_are_of_the_run_and_capture_that_are_looked_at(tmp_path: Path) -> None:
    warn(tmp_path, small(steps=1, layers=1, name="moe"), "c1", "rows left out")
    warn(tmp_path, small(steps=1, layers=1, name="moe"), "c2", "no clock")
    warn(tmp_path, small(steps=1, layers=1, name="dense"), "c1", "rows left out")

    def told(scope: Scope) -> list[str]:
        with open_tables(Source(tmp_path), is_command=False, scope=scope) as data:
            assert data.warnings == reading_warnings(tmp_path, scope=scope)
            return data.warnings

    assert told(Scope("dense")) == ["rank 1: rows left out"]
    assert told(Scope("moe", "c2", rank=0)) == ["rank 1: no clock"]
    assert told(ALL) == [
        "run dense, rank 1: rows left out",
        "run moe, rank 1: rows left out",
        "run moe, rank 1: no clock",
    ]


@pytest.mark.slow
def test_a_damaged_rank_of_another_run_is_none_of_this_one(tmp_path: Path) -> None:
    for name in ("moe", "dense"):
        publish_job(tmp_path, small(steps=1, layers=1, name=name), "c1", published_s=1.0)
    (rank_folder(tmp_path, "moe", "c1", 1) / MANIFEST).write_bytes(b"{")
    assert reading_warnings(tmp_path, scope=Scope("dense")) == []
    assert reading_warnings(tmp_path, scope=Scope("moe", "c2")) == []
    [told] = reading_warnings(tmp_path, scope=Scope("moe", "c1"))
    assert told.startswith("run=moe/capture=c1/rank=1: not read")


@pytest.mark.slow
def test_a_page_tells_the_warnings_of_its_capture_only(tmp_path: Path) -> None:
    pytest.importorskip("streamlit")
    from npuscope.dashboard.app import sources

    warn(tmp_path, small(steps=1, layers=1, name="moe"), "c1", "rows left out")
    publish_job(tmp_path, small(steps=1, layers=1, name="dense"), "c1", published_s=1.0)
    version = sources.version_of(str(tmp_path))
    assert "rank 1: rows left out" in sources.warnings(str(tmp_path), version, "moe", "c1")
    assert not sources.warnings(str(tmp_path), version, "dense", "c1")
