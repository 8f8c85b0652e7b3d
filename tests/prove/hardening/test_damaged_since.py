"""Profiles that were read whole, and are damaged or still written when they are read again."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from npuscope.collector.ingest.ingest import Progress, ingest
from npuscope.collector.ingest.plan import Plan
from npuscope.collector.store.manifest import manifests
from tests.prove.hardening.captures import folders_in, write_small
from tests.prove.hardening.cases import Rank, Told, run_ingest


@dataclass(frozen=True, slots=True)
class Whole:
    """A profile that was read whole, and what its store tells."""

    place: Path
    ranks: dict[int, Rank]

    @property
    def folders(self) -> dict[int, Path]:
        return folders_in(self.place / "source")


@pytest.fixture(scope="module")
def copy_of_whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Whole]:
    """A copy of all of it, and where it belongs: a store knows files by their paths and times."""
    folder = tmp_path_factory.mktemp("since")
    assert sorted(write_small(folder / "place" / "source", "text")) == [0, 1]
    told = again(folder / "place")
    shutil.copytree(folder / "place", folder / "copy")
    return folder / "copy", Whole(folder / "place", told.ranks)


@pytest.fixture
def whole(copy_of_whole: tuple[Path, Whole]) -> Whole:
    copy, one = copy_of_whole
    shutil.rmtree(one.place)
    shutil.copytree(copy, one.place)
    return one


@pytest.fixture
def folders(tmp_path: Path) -> dict[int, Path]:
    return write_small(tmp_path / "source", "text")


def again(place: Path, *options: str) -> Told:
    return run_ingest(place / "source", place, *options)


def output(folders: dict[int, Path], name: str) -> Path:
    return folders[1] / "ASCEND_PROFILER_OUTPUT" / name


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "kernel_details.csv",
        pytest.param("trace_view.json", marks=pytest.mark.slow),
        pytest.param("communication.json", marks=pytest.mark.slow),
    ],
)
def test_what_was_whole_stays_until_force(whole: Whole, name: str) -> None:
    path = output(whole.folders, name)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])

    for _ in range(2):  # it is no settled matter
        told = again(whole.place)
        assert (told.code, told.ranks) == (4, whole.ranks)
        assert "damaged after it was read" in told.errors
        assert name in told.errors
        assert "--force" in told.errors

    forced = again(whole.place, "--force")
    assert forced.code == 4
    assert forced.ranks[0] == whole.ranks[0]
    assert forced.ranks[1].row_counts != whole.ranks[1].row_counts
    assert list(forced.ranks[1].failed_files) == [str(path)]

    settled = again(whole.place)
    assert (settled.code, settled.ranks) == (4, forced.ranks)
    assert "0 rank(s) read, 2 unchanged" in settled.errors

    path.write_bytes(content)
    mended = again(whole.place)
    assert (mended.code, mended.ranks) == (0, whole.ranks)


@pytest.mark.slow
def test_a_file_that_cannot_be_opened_any_more(whole: Whole) -> None:
    path = output(whole.folders, "kernel_details.csv")
    path.rename(path.with_name("away"))
    path.symlink_to("gone")
    told = again(whole.place)
    assert (told.code, told.ranks) == (4, whole.ranks)
    assert "kernel_details.csv" in told.errors and "--force" in told.errors
    path.unlink()  # now it is meant
    told = again(whole.place)
    assert told.code == 0
    assert told.ranks[1].answers["kernels"] != whole.ranks[1].answers["kernels"]


@pytest.mark.slow
def test_less_in_whole_files_is_believed(whole: Whole) -> None:
    """A new export with fewer rows, none of them damaged, is what the user wanted."""
    path = output(whole.folders, "memory_record.csv")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: len(lines) // 2]))
    told = again(whole.place)
    assert told.code == 0
    assert told.ranks[1].row_counts["memory"] < whole.ranks[1].row_counts["memory"]


@pytest.mark.slow
def test_damage_that_costs_no_row_is_damage(whole: Whole) -> None:
    """How a rank was recorded is no row of a table, and would be unknown then."""
    path = whole.folders[1] / "profiler_info_1.json"
    path.write_bytes(b"{")
    told = again(whole.place)
    assert (told.code, told.ranks) == (4, whole.ranks)
    assert "profiler_info_1.json" in told.errors


@pytest.mark.slow
def test_a_file_that_is_still_being_written_may_bring_more(
    folders: dict[int, Path], tmp_path: Path
) -> None:
    path = output(folders, "kernel_details.csv")
    lines = path.read_bytes().splitlines(keepends=True)
    counts = []
    for n, torn in ((20, 0), (40, 7), (30, 7), (60, 7)):
        path.write_bytes(b"".join(lines[:n]) + lines[n][:torn])
        told = again(tmp_path)
        assert told.code == (4 if torn else 0)
        counts.append(told.ranks[1].row_counts["kernels"])
    assert counts[0] < counts[1] == counts[2] < counts[3]


@pytest.mark.slow
def test_a_rank_that_was_damaged_from_the_start_may_get_better_or_worse(
    folders: dict[int, Path], tmp_path: Path
) -> None:
    path = output(folders, "kernel_details.csv")
    content = path.read_bytes()
    counts = []
    for kept in (0.5, 0.7, 0.3):
        path.write_bytes(content[: int(len(content) * kept)])
        told = again(tmp_path)
        assert told.code == 4
        counts.append(told.ranks[1].row_counts["kernels"])
    assert counts[0] < counts[1] == counts[2]


@pytest.mark.slow
def test_a_file_that_grows_while_it_is_read_is_told(
    folders: dict[int, Path], tmp_path: Path
) -> None:
    path = output(folders, "trace_view.json")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] + b"\n")

    def write_on(_: Plan) -> None:
        path.write_bytes(content)

    result = ingest(
        tmp_path / "source", tmp_path / "store", progress=Progress(plan=write_on), jobs=1
    )

    [(rank, file, reason)] = result.unread_files
    assert (rank, file) == (1, str(path))
    assert "changed while being read" in reason
    after = again(tmp_path)
    assert after.code == 0
    assert [m.failed_files for m in manifests(tmp_path / "store")] == [{}, {}]


@pytest.mark.slow
def test_a_file_that_goes_while_it_is_read_is_told(
    folders: dict[int, Path], tmp_path: Path
) -> None:
    path = output(folders, "trace_view.json")

    def remove(_: Plan) -> None:
        path.unlink()

    result = ingest(tmp_path / "source", tmp_path / "store", progress=Progress(plan=remove), jobs=1)
    [(rank, file, reason)] = result.unread_files
    assert (rank, file) == (1, str(path))
    assert "removed while being read" in reason or "No such file" in reason
