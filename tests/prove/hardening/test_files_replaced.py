"""Every file of a profile once empty, unreadable, of another kind, or that of another rank."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from tests.prove.hardening.captures import (
    SAMPLES,
    beside_light,
    copy,
    files_of,
    rank_folders,
    truth,
    write_small,
)
from tests.prove.hardening.cases import Rank, complaints, link_tree, replace_file, run_ingest

Damage = Callable[[Path, Path], None]


def empty(path: Path, _: Path) -> None:
    replace_file(path, b"")


def a_folder(path: Path, _: Path) -> None:
    path.unlink()
    path.mkdir()


def a_link_to_nothing(path: Path, _: Path) -> None:
    path.unlink()
    path.symlink_to("gone")


def a_link_to_itself(path: Path, _: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def a_pipe(path: Path, _: Path) -> None:
    """Whoever opens it waits for a writer who never comes."""
    path.unlink()
    os.mkfifo(path)


def a_socket(path: Path, _: Path) -> None:
    path.unlink()
    here = Path.cwd()
    os.chdir(path.parent)  # the address of a socket is short
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(path.name)
    os.chdir(here)


def forbidden(path: Path, _: Path) -> None:
    """Root reads it nevertheless: then nothing is wrong."""
    replace_file(path, path.read_bytes())
    path.chmod(0)


def noise(path: Path, _: Path) -> None:
    replace_file(path, bytes(range(256)) * 40)


def zeros(path: Path, _: Path) -> None:
    """As large as it was: what a file system leaves of a file whose blocks never came."""
    replace_file(path, bytes(path.stat().st_size))


def prose(path: Path, _: Path) -> None:
    replace_file(path, b"<html>\n<body>502 Bad Gateway, try again</body>\n</html>\n")


def other_json(path: Path, _: Path) -> None:
    replace_file(path, b'{"a": [1, {"b": null}], "traceEvents": 7, "rank_id": {}, "config": []}\n')


def other_table(path: Path, _: Path) -> None:
    replace_file(path, b"Name,Size(KB),Start Time(us)\nx,y,z\n1,2,3\n")


def another_kind(path: Path, _: Path) -> None:
    """The next file of the folder under this one's name."""
    files = [file for file in files_of(path.parent) if file.parent == path.parent]
    others = files or [path]
    replace_file(path, others[(others.index(path) + 1) % len(others)].read_bytes())


def another_ranks(path: Path, other: Path) -> None:
    twin = next((file for file in files_of(other) if kind_of(file) == kind_of(path)), path)
    replace_file(path, twin.read_bytes())


def kind_of(path: Path) -> str:
    return "".join(letter for letter in path.name if not letter.isdigit())


UNREADABLE: tuple[Damage, ...] = (
    a_folder, a_link_to_nothing, a_pipe, a_socket, a_link_to_itself, forbidden,
)  # fmt: skip
WRONG: tuple[Damage, ...] = (noise, prose, other_json, zeros, other_table, another_kind)
QUICK = (empty, a_pipe)
TARGETS = {
    "alexnet_ddp_db_level1": 1, "alexnet_ddp_text_level1": 1, "qwen3_pp2_dp2_text_level2": 0,
    "sample_both": 0,
}  # fmt: skip


# bench/collector/damage_bench.py holds all; a step of five meets each way, for it has no common
# divisor with the three or four ways of a file.
A_FIFTH = 5


def choose(number: int) -> tuple[Damage, ...]:
    """What is done to the n-th file: of many ways to be unreadable or wrong one each, in turns."""
    wrong = WRONG[number % len(WRONG)]
    return (empty, UNREADABLE[number % len(UNREADABLE)], wrong, another_ranks)


def cases(name: str) -> list[tuple[int, Damage]]:
    """Every file of a capture's rank with each damage chosen for it."""
    files = files_of(rank_folders(name)[TARGETS[name]])
    return [
        (number, damage)
        for number in range(len(files))
        for damage in choose(number)
        if damage is not another_ranks or name == "alexnet_ddp_text_level1"
    ]


def is_excused(path: Path, damage: Damage) -> bool:
    """Whether nothing in a rank's own files can tell that this one is not what it was."""
    if path.name == "memory_record.csv" and damage is another_kind:
        return True  # a table of modules' memory has what one of components needs
    return damage in (another_ranks, forbidden)


def damage_and_read(name: str, number: int, damage: Damage, folder: Path, light: Path) -> list[str]:
    """Beside its own second rank, or a light one, which is quicker."""
    work = folder / f"{number}-{damage.__name__}"
    parts = rank_folders(name)
    rank = TARGETS[name]
    if damage is not another_ranks:
        parts = beside_light(rank, parts[rank], light)
    expected = truth(tuple(parts.items()), folder / f"whole-{os.getpid()}")
    source = copy(parts, work)
    places = {one: source / place.name for one, place in parts.items()}
    [other] = [places[one] for one in places if one != rank]
    path = files_of(places[rank])[number]
    damage(path, other)
    told = run_ingest(source, work)
    shutil.rmtree(work)
    found = complaints(told, expected, rank, path, looks_whole=is_excused(path, damage))
    if damage is another_ranks:
        found = [one for one in found if "other figures" not in one]
    return [f"{name}: {path.name} {damage.__name__}: {one}" for one in found]


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_each_file(
    name: str,
    processes: ProcessPoolExecutor,
    light: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    if name not in SAMPLES:
        request.getfixturevalue("real_data")
    running = [
        processes.submit(damage_and_read, name, number, damage, tmp_path, light)
        for number, damage in cases(name)[::A_FIFTH]
    ]
    assert [one for case in running for one in case.result()] == []


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, dict[int, Rank]]:
    """A profile, its folder of rank 1, and what it tells."""
    folder = tmp_path_factory.mktemp("whole")
    folders = write_small(folder / "source", "text")
    return folder / "source", folders[1].name, run_ingest(folder / "source", folder).ranks


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(one, id=one.__name__, marks=[] if one in QUICK else [pytest.mark.slow])
        for one in (empty, *UNREADABLE, *WRONG)
    ],
)
def test_all_files_of_a_rank_at_once(
    damage: Damage, whole: tuple[Path, str, dict[int, Rank]], tmp_path: Path
) -> None:
    """Nothing of rank 1 is left, and rank 0 is what it was."""
    origin, name, expected = whole
    source = link_tree(origin, tmp_path / "work" / "source")
    for path in files_of(source / name):
        damage(path, path)

    told = run_ingest(source, tmp_path / "work")

    if damage is forbidden and os.geteuid() == 0:
        assert (told.code, told.ranks) == (0, expected)
        return
    assert complaints(told, expected, 1) == []
    assert told.code == 4
    assert "kernel_details.csv" in told.errors
