"""Folders with counts of tokens, wherever they lie below the profiles, and whose they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from npuscope.collector.discover.expert_choice import chosen_folders
from npuscope.collector.discover.expert_folders import folder_files, holds_counts, joined_files
from npuscope.collector.discover.search import lone_loads, search
from tests.collector.readers.expert_load.expert_dumps import line

LINE = line(1, 0, [1, 2])


def hook(folder: Path, text: str = LINE) -> Path:
    folder.mkdir(parents=True)
    (folder / "rank0.jsonl").write_text(text)
    return folder


def profile(folder: Path) -> str:
    """Enough of one to be found: it has raw data only."""
    (folder / "host_1_20250101_ascend_pt" / "PROF_1").mkdir(parents=True)
    return str(folder / "host_1_20250101_ascend_pt")


@pytest.mark.parametrize(
    "place", ["tokens_per_expert", "a/b/tokens_per_expert", "saved/counts",
              "host_1_20250101_ascend_pt/tokens_per_expert"]
)  # fmt: skip
def test_a_hooks_folder_is_found_at_any_depth(tmp_path: Path, place: str) -> None:
    profile(tmp_path)
    assert search(tmp_path).load_folders == ()
    hook(tmp_path / place)
    assert search(tmp_path).load_folders == (str(tmp_path.resolve() / place),)


@pytest.mark.parametrize("text", ['{"loss": 1.0}\n', "", '{"iter": 1}\n'])
def test_other_logs_of_ranks_are_no_counts(tmp_path: Path, text: str) -> None:
    profile(tmp_path)
    folder = hook(tmp_path / "logs", text)
    assert not holds_counts(folder, ["rank0.jsonl"])
    assert search(tmp_path).load_folders == ()
    # One that is named as the hook names it is read, and what is wrong with it is told.
    assert search(hook(tmp_path / "x" / "tokens_per_expert", text).parents[1]).load_folders


def test_each_capture_has_the_nearest(tmp_path: Path) -> None:
    roots = {"one": [profile(tmp_path / "one")], "two": [profile(tmp_path / "two")],
             "none": [profile(tmp_path / "three")]}  # fmt: skip
    first = hook(tmp_path / "one" / "tokens_per_expert")
    found = search(tmp_path).load_folders
    assert chosen_folders(tmp_path, found, roots) == (dict.fromkeys(roots, (first,)), {})
    second = hook(tmp_path / "two" / "counts")
    found = search(tmp_path).load_folders
    chosen, unclear = chosen_folders(tmp_path, found, roots)
    assert chosen == {"one": (first,), "two": (second,)}
    assert list(unclear) == ["none"]
    assert "2 folders count tokens per expert" in unclear["none"]
    assert "--expert-load DIR" in unclear["none"]
    here = hook(tmp_path / "tokens_per_expert")
    chosen, unclear = chosen_folders(tmp_path, search(tmp_path).load_folders, roots)
    assert chosen == {"one": (first,), "two": (second,), "none": (here,)} and unclear == {}


def parts(*folders: Path) -> list[Path]:
    """One file of another rank in each."""
    for rank, folder in enumerate(folders):
        folder.mkdir(parents=True)
        (folder / f"rank{rank}.jsonl").write_text(line(1, 0, [rank, 2]))
    return list(folders)


@pytest.mark.parametrize("place", ["host{}/job_ascend_pt/tokens_per_expert",
                                   "host{}/tokens_per_expert", "counts{}"])  # fmt: skip
def test_folders_of_other_ranks_are_one(tmp_path: Path, place: str) -> None:
    """Inside each rank's profile, beside those of a host, or side by side."""
    roots = []
    for host in (0, 1):
        root = tmp_path / f"host{host}" / "job_ascend_pt"
        (root / "PROF_1").mkdir(parents=True)
        roots.append(str(root))
    first, second = parts(*(tmp_path / place.format(host) for host in (0, 1)))
    found = search(tmp_path).load_folders
    chosen, notes = chosen_folders(tmp_path, found, {"job": roots})
    assert chosen == {"job": (first, second)}
    assert "2 folders" in notes["job"] and "read as one" in notes["job"]
    files = joined_files(chosen["job"])
    assert files and [Path(file.path).name for file in files] == ["rank0.jsonl", "rank1.jsonl"]
    # What both of them tell alike counts once; what they tell otherwise is of no one knows whom.
    (second / "rank0.jsonl").write_bytes((first / "rank0.jsonl").read_bytes())
    assert joined_files(chosen["job"]) == files
    (second / "rank0.jsonl").write_text(line(1, 0, [7, 2]))
    chosen, notes = chosen_folders(tmp_path, found, {"job": roots})
    assert chosen == {} and "none is read" in notes["job"]


def test_profiles_of_two_times_have_their_own(tmp_path: Path) -> None:
    roots: dict[str, list[str]] = {}
    folders = []
    for name in ("a_0", "a_1", "b_0", "b_1"):
        root = tmp_path / f"{name}_ascend_pt"
        (root / "PROF_1").mkdir(parents=True)
        roots.setdefault(name[0], []).append(str(root))
        folders.append(root / "tokens_per_expert")
    parts(*folders)
    chosen, _ = chosen_folders(tmp_path, search(tmp_path).load_folders, roots)
    assert chosen == {"a": tuple(folders[:2]), "b": tuple(folders[2:])}


def test_dumps_are_no_parts(tmp_path: Path) -> None:
    first, second = parts(tmp_path / "a", tmp_path / "b")
    (second / "decode_0.csv").write_text("1,2\n")
    assert joined_files([first, second]) is None
    assert joined_files([second]) == folder_files(second)


def test_counts_without_any_profile(tmp_path: Path) -> None:
    first = hook(tmp_path / "deep" / "counts")
    assert lone_loads(tmp_path) == (first.resolve(),)
    assert lone_loads(first / "rank0.jsonl") == ()
    profile(tmp_path)
    assert lone_loads(tmp_path) == ()
