"""One picture of a path from what the machines of a cluster see of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from npuscope.collector.discover.search import Findings, Problem, search
from npuscope.collector.engines.ray_cluster import (
    View,
    by_folder,
    one_picture,
    sees,
    strangers,
    version,
    view,
)
from npuscope.errors import TraceNotFound
from tests.conftest import WriteProfile

PATH = Path("profiles")
NAMES = {"a": "host-a", "b": "host-b"}


@pytest.fixture
def findings(tmp_path: Path, write_profile: WriteProfile) -> Findings:
    """Ranks 0 and 1."""
    for rank in (0, 1):
        write_profile(tmp_path / f"{rank}_ascend_pt", rank)
    return search(tmp_path)


def one(findings: Findings, n: int) -> Findings:
    return Findings(findings.profiles[n : n + 1], ())


def test_what_all_nodes_see_is_everywhere_and_what_one_sees_is_there(findings: Findings) -> None:
    found = one_picture(PATH, {("a",): findings, ("b",): one(findings, 1)}, NAMES)

    assert {source.rank: source.nodes for source in found.ranks} == {0: ("a",), 1: ()}


def test_nodes_that_mount_one_folder_are_asked_once(findings: Findings) -> None:
    shared = View(version(), ("nfs4", 7, 99))
    views = {"a": shared, "b": shared, "c": View(version(), ("own",)), "d": View(version(), None)}

    assert by_folder(views) == [("a", "b"), ("c",)]
    found = one_picture(PATH, {("a", "b"): findings}, NAMES)
    assert [source.nodes for source in found.ranks] == [(), ()]


def test_local_folders_of_two_machines_are_never_taken_for_one(tmp_path: Path) -> None:
    assert len(by_folder({"a": view(tmp_path), "b": view(tmp_path)})) == 2
    assert view(tmp_path / "nothing").folder is None


def test_the_same_path_with_other_files_is_another_rank(findings: Findings) -> None:
    [profile] = one(findings, 0).profiles
    [stranger] = one(findings, 1).profiles
    other = Findings((replace(stranger, folder=profile.folder),), ())

    found = one_picture(PATH, {("a",): one(findings, 0), ("b",): other}, NAMES)

    assert [(source.rank, source.nodes) for source in found.ranks] == [(0, ("a",)), (1, ("b",))]
    assert len({source.root for source in found.ranks}) == 1


def test_ranks_that_no_file_tells_are_numbered_over_all_nodes(
    tmp_path: Path, write_profile: WriteProfile
) -> None:
    for name in ("x", "y"):
        folder = write_profile(tmp_path / f"{name}_ascend_pt", 0)
        (folder / "profiler_info_0.json").rename(folder / "profiler_info.json")
        (folder / "profiler_info.json").write_text(json.dumps({}))
    findings = search(tmp_path)

    found = one_picture(PATH, {("a",): one(findings, 0), ("b",): one(findings, 1)}, NAMES)

    assert sorted(source.rank for source in found.ranks) == [0, 1]


def test_problems_are_told_once_with_the_nodes_that_have_them(findings: Findings) -> None:
    everywhere, local = Problem("x", "raw data only"), Problem("y", "empty")
    found = one_picture(
        PATH,
        {
            ("a",): replace(findings, problems=(everywhere, local)),
            ("b",): replace(findings, problems=(everywhere,)),
        },
        NAMES,
    )

    assert found.problems == (everywhere, Problem("host-a: y", "empty"))


def test_nothing_anywhere_says_so() -> None:
    with pytest.raises(TraceNotFound, match=r"no such folder \(so on each of 2 nodes"):
        one_picture(PATH, {("a",): "no such folder", ("b",): "no such folder"}, NAMES)
    with pytest.raises(TraceNotFound, match="profiles"):
        one_picture(PATH, {}, NAMES)


def test_nodes_with_another_npuscope_are_named() -> None:
    assert strangers({"a": View(version(), None), "b": View("0.0.1", None)}) == ["b"]


def test_a_machine_that_does_not_see_the_mark_does_not_see_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("npuscope.collector.engines.ray_cluster._SHOWS_AFTER_S", 0.1)
    (tmp_path / "mark").touch()

    assert sees(tmp_path, "mark")
    assert not sees(tmp_path, "other")
    assert not sees(tmp_path / "elsewhere", "mark")
