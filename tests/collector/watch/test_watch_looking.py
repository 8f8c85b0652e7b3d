"""Which profiles are finished, by their marks, by their being quiet, and by what they lack."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from npuscope.collector.watch.folders import (
    Folders,
    Verdict,
    judge,
    look,
    look_around,
    profile_folders,
)
from tests.collector.watch.watched_folders import OUTPUT, kernel_text, write_capture, write_ready


def verdict(folder: Path, *, quiet: bool = False, changed: bool = False) -> Verdict:
    return judge(look(folder), is_quiet=quiet, has_changed=changed)


@pytest.mark.parametrize("mark", ["done", "ready"])
def test_a_marked_profile_is_finished_at_once(tmp_path: Path, mark: str) -> None:
    folder = write_capture(tmp_path / "h_1_ascend_pt", 3, mark=mark)
    assert verdict(folder).kind == "finished"
    assert verdict(folder).rank == (3 if mark == "ready" else None)


def test_without_a_mark_only_a_quiet_profile_is_finished(tmp_path: Path) -> None:
    folder = write_capture(tmp_path / "h_1_ascend_pt", 0, mark=None)
    assert verdict(folder).kind == "waiting"
    assert verdict(folder, quiet=True).kind == "finished"
    (folder / "profiler_info_0.json").unlink()
    told = verdict(folder, quiet=True)
    assert told.kind == "waiting" and "npuscope ingest" in told.reason


def test_a_mark_of_a_former_analysis_does_not_count(tmp_path: Path) -> None:
    folder = write_capture(tmp_path / "h_1_ascend_pt", 0)
    assert verdict(folder, changed=True).kind == "waiting"
    assert verdict(folder, changed=True, quiet=True).kind == "finished"


def test_ready_has_to_be_true(tmp_path: Path) -> None:
    folder = write_capture(tmp_path / "h_1_ascend_pt", 0, mark="ready")
    (folder / OUTPUT / "kernel_details.csv").write_text(kernel_text(0, 10))
    told = verdict(folder)
    assert told.kind == "waiting" and "bytes listed in READY.json" in told.reason
    assert verdict(folder, quiet=True).kind == "broken"
    (folder / OUTPUT / "kernel_details.csv").unlink()
    assert "is not there" in verdict(folder, quiet=True).reason
    (folder / "READY.json").write_text('{"schema_version": 1, "files": [{"pa')
    assert "cannot be read" in verdict(folder, quiet=True).reason
    (folder / "READY.json").write_text(json.dumps({"schema_version": 1, "files": []}))
    assert "lists no file" in verdict(folder, quiet=True).reason
    outside = {"schema_version": 1, "files": [{"path": "../other", "size_bytes": 1}]}
    (folder / "READY.json").write_text(json.dumps({**outside, "rank": -1}))
    assert "Expected `int` >= 0" in verdict(folder, quiet=True).reason
    (folder / "READY.json").write_text(json.dumps(outside))
    assert "outside" in verdict(folder, quiet=True).reason
    outside["files"] = [{"path": "a\0b", "size_bytes": 1}]
    (folder / "READY.json").write_text(json.dumps(outside))
    assert "is not there" in verdict(folder, quiet=True).reason


def test_raw_data_waits_for_its_analysis(tmp_path: Path) -> None:
    folder = tmp_path / "h_1_ascend_pt"
    (folder / "PROF_1" / "host").mkdir(parents=True)
    (folder / "PROF_1" / "host" / "data.bin").write_bytes(b"x" * 10)
    (folder / "profiler_info_0.json").write_text("{}")
    assert verdict(folder) == Verdict("waiting", "still being written")
    write_ready(folder, 0)
    told = verdict(folder)
    assert told.kind == "waiting" and f'analyse("{folder}")' in told.reason
    # READY.json was about the raw data: exports are finished by their own mark.
    (folder / OUTPUT).mkdir()
    (folder / OUTPUT / "kernel_details.csv").write_text(kernel_text(0, 2))
    assert verdict(folder).kind == "waiting"
    (folder / "PROF_1" / "host" / "data.bin").unlink()  # analysis simplifies what it has read
    (folder / OUTPUT / "analyse.done").touch()
    told = verdict(folder)
    assert (told.kind, told.rank) == ("finished", 0)


def test_raw_data_beside_exports_may_go(tmp_path: Path) -> None:
    folder = write_capture(tmp_path / "h_1_ascend_pt", 0, mark=None)
    (folder / "PROF_1").mkdir()
    (folder / "PROF_1" / "data.bin").write_bytes(b"x" * 10)
    write_ready(folder, 0)
    (folder / "PROF_1" / "data.bin").unlink()
    assert verdict(folder).kind == "finished"


def test_a_draft_of_a_killed_process_is_no_mark(tmp_path: Path) -> None:
    folder = write_capture(tmp_path / "h_1_ascend_pt", 0, mark="ready")
    (folder / "READY.json").rename(folder / ".READY.json.4242.tmp")
    assert verdict(folder) == Verdict("waiting", "still being written")
    told = verdict(folder, quiet=True)
    assert (told.kind, told.rank) == ("finished", None)  # as without it
    (folder / ".READY.json.4242.tmp").unlink()
    write_ready(folder, 0)
    (folder / ".READY.json.4242.tmp").write_text('{"schema_ver')
    assert verdict(folder).rank == 0


def test_an_analysis_that_failed_is_broken(tmp_path: Path) -> None:
    folder = tmp_path / "h_1_ascend_pt"
    (folder / OUTPUT).mkdir(parents=True)
    (folder / OUTPUT / "analyse.done").touch()
    told = verdict(folder)
    assert told.kind == "broken" and "ended without results" in told.reason


def test_folders_are_found_at_any_depth_and_once(tmp_path: Path) -> None:
    deep = write_capture(tmp_path / "step_1" / "actor" / "h_1_ascend_pt", 0)
    renamed = write_capture(tmp_path / "renamed", 1)
    write_capture(tmp_path / ".hidden" / "h_2_ascend_pt", 2)
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "link").symlink_to(deep)
    unlisted: dict[str, str] = {}
    roots = (tmp_path, tmp_path / "step_1", tmp_path / "absent")
    found = [path for _, path in profile_folders(roots, unlisted.__setitem__, lambda place: None)]
    assert sorted(found) == sorted([deep, renamed])
    assert unlisted == {str(tmp_path / "absent"): "No such file or directory"}


def test_quiet_is_by_a_clock_that_never_goes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_capture(tmp_path / "h_1_ascend_pt", 0, mark=None)
    for file in folder.rglob("*"):  # of a host whose clock is a day ahead
        os.utime(file, (2_000_000_000, 2_000_000_000))
    seen = look_around(Folders(), (tmp_path,), quiet_s=5, once=True, tell=list[str]().append)
    (waits,) = seen.waits.values()
    assert waits.startswith("still being written, or dated ") and "ahead of this machine" in waits
    now_s = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    folders, told = Folders(), list[str]()

    def finished() -> list[str]:
        seen = look_around(folders, (tmp_path,), quiet_s=5, once=False, tell=told.append)
        return [one.look.path for one in seen.profiles]

    assert finished() == []
    now_s[0] += 4
    (folder / OUTPUT / "step_trace_time.csv").write_text("Step\n")
    assert finished() == []
    now_s[0] += 4
    assert finished() == []
    now_s[0] += 1
    assert finished() == [str(folder)]
    folders.settle(str(folder), folders.profiles[str(folder)].fingerprint)
    assert finished() == []
    (tmp_path / "h_1_ascend_pt").rename(tmp_path / "elsewhere_ascend_pt")
    seen = look_around(folders, (tmp_path,), quiet_s=5, once=False, tell=told.append)
    assert seen.removals == [str(folder)] and told == []


def test_a_root_that_vanishes_is_told_once(tmp_path: Path) -> None:
    root, told = tmp_path / "mounted", list[str]()
    folder = write_capture(root / "h_1_ascend_pt", 0)
    folders = Folders()
    look_around(folders, (root,), quiet_s=5, once=False, tell=told.append)
    folders.settle(str(folder), folders.profiles[str(folder)].fingerprint)
    root.rename(tmp_path / "away")
    for _ in range(3):
        seen = look_around(folders, (root,), quiet_s=5, once=False, tell=told.append)
        assert seen.removals == []
    assert len(told) == 1 and "No such file" in told[0]
    (tmp_path / "away").rename(root)
    seen = look_around(folders, (root,), quiet_s=5, once=False, tell=told.append)
    assert seen.profiles == [] and "again" in told[1]
