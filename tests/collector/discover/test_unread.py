"""What lies beside the profiles is found, named and explained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from npuscope.collector.discover.search import discover
from npuscope.collector.discover.unread_files import UnreadFile, unread
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.selection import parse_selection
from npuscope.collector.store.manifest import manifests


def kinds(found: list[UnreadFile]) -> dict[str, int]:
    return {one.what: one.count for one in found}


@pytest.fixture
def profile(tmp_path: Path, write_profile: Callable[..., Path]) -> Path:
    for rank in range(2):
        write_profile(tmp_path / "job" / f"h{rank}_ascend_pt", rank)
    return tmp_path / "job"


def look(path: Path) -> list[UnreadFile]:
    found = discover(path)
    files = [f.path for one in found.ranks for group in one.files.values() for f in group]
    return unread(path, files, [problem.path for problem in found.problems])


def test_nothing_is_beside_what_was_read(profile: Path) -> None:
    assert look(profile) == []


def test_every_kind_is_told(profile: Path) -> None:
    output = profile / "h0_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    for rank in range(2):
        out = profile / f"h{rank}_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
        (out / "op_statistic.csv").write_text("abc")
        (out / "l2_cache.csv").write_text("abc")
    (output / "operator_details.csv").write_text("abc")
    (profile / "h0_ascend_pt" / "FRAMEWORK").mkdir()
    (profile / "h0_ascend_pt" / "FRAMEWORK" / "torch.op_range").write_bytes(b"0" * 100)
    (profile / "h0_ascend_pt" / "PROF_000001_20250101010101001_ABC" / "device_0").mkdir(
        parents=True
    )
    (profile / "h0_ascend_pt" / "logs").mkdir()
    (profile / "cluster_analysis_output").mkdir()
    (profile / "h0_ascend_pt_op_arg").mkdir()
    (profile / "decode_0.csv").write_text("1,2")
    (profile / "msmonitor_1_2_0.db").write_text("")
    (profile / "notes.TXT").write_text("hello")
    (profile / "deep" / "deeper").mkdir(parents=True)
    (profile / "deep" / "deeper" / "README").write_text("hello")

    found = look(profile)

    assert kinds(found) == {
        "*_statistic*.csv": 2, "l2_cache.csv": 2, "operator_details.csv": 1, "FRAMEWORK/": 1,
        "PROF_*/": 1, "logs/": 1, "cluster_analysis_output/": 1, "*_op_arg/": 1,
        "decode_*.csv, prefill_*.csv": 1, "msmonitor_*.db": 1, "*.txt": 1,
        "files without a suffix": 1,
    }  # fmt: skip
    by_name = {one.what: one for one in found}
    assert by_name["*_statistic*.csv"].size_bytes == 6
    assert by_name["FRAMEWORK/"].size_bytes is None
    assert by_name["l2_cache.csv"].example == str(output / "l2_cache.csv")
    assert "--expert-load" in by_name["decode_*.csv, prefill_*.csv"].why
    assert all(one.why for one in found)


def test_an_older_export_beside_a_newer_one_is_told(tmp_path: Path) -> None:
    output = tmp_path / "PROF_000001_20250101010101001_ABC" / "mindstudio_profiler_output"
    output.mkdir(parents=True)
    for stamp in ("20250101010101", "20250202020202"):
        (output / f"op_summary_{stamp}.csv").write_text("Op Name,Task Start Time(us)\n")
    (one,) = look(tmp_path)
    assert (one.what, one.why) == ("op_summary_*.csv", "an older export next to a newer one")
    assert one.example.endswith("op_summary_20250101010101.csv")


def test_what_is_told_as_a_problem_is_not_told_again(profile: Path) -> None:
    raw = profile / "h9_ascend_pt" / "PROF_000001_20250101010101001_ABC"
    raw.mkdir(parents=True)
    assert look(profile) == []


def test_links_are_not_followed(profile: Path) -> None:
    (profile / "again").symlink_to(profile, target_is_directory=True)
    (profile / "h0_ascend_pt" / "loop").symlink_to(profile / "h0_ascend_pt")
    (profile / "away").symlink_to(profile / "nowhere")
    assert kinds(look(profile)) == {"links": 1}


def test_a_file_stands_for_its_folder_and_a_gone_folder_has_nothing(profile: Path) -> None:
    info = profile / "h0_ascend_pt" / "profiler_info_0.json"
    assert kinds(unread(info, [str(info)])) == {"kernel_details.csv": 1}
    assert unread(profile / "gone" / "deeper", []) == []


def test_real_profiles(real_data: Path) -> None:
    found = look(real_data / "alexnet_ddp_text_level1")
    assert kinds(found) == {"*_statistic*.csv": 4, "operator_details.csv": 2, "l2_cache.csv": 2}


def test_stores_are_not_walked_and_ranks_that_were_not_selected_are_told(profile: Path) -> None:
    ingest(profile, profile / "store", selection=parse_selection(ranks="0"))
    files = [file.path for one in manifests(profile / "store") for file in one.sources]
    found = unread(profile, files)
    assert kinds(found) == {"kernel_details.csv": 1, "profiler_info_*.json": 1}
    assert {one.why for one in found} == {"no rank was read from it: not selected, or incomplete"}
