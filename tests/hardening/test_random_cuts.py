"""Any file of a profile cut at any place: what is whole is exact, what is lost is named."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from .captures import SAMPLES, copied, files_of, parts_of, truth, write_small
from .cases import complaints, link_tree, replace_file, run_ingest

# 300 in all; the first few of each by a process of its own, as a user would.
CASES = {
    "alexnet_ddp_db_level0": 40, "alexnet_ddp_db_level1": 40, "alexnet_ddp_text_level0": 50,
    "alexnet_ddp_text_level1": 50, "qwen3_pp2_dp2_text_level2": 60, "sample_text": 40,
    "sample_both": 20,
}  # fmt: skip
APART = 2


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), context) as pool:
        yield pool


def cut_anywhere(folder: Path, chance: random.Random) -> tuple[Path, str, bool]:
    """Cut one file; returns it, what was done, and whether it still looks like a whole one."""
    path = chance.choice(files_of(folder))
    content = path.read_bytes()
    kept = chance.randrange(len(content)) if content else 0
    replace_file(path, content[:kept])
    looks_whole = path.suffix == ".csv" and content[:kept].endswith(b"\n")
    return path, f"{path.name}, {kept} of {len(content)} bytes", looks_whole


def cut_and_read(name: str, number: int, folder: Path) -> list[str]:
    """Beside its own second rank, or a light one, which is quicker; rank 1 of both is good then."""
    chance = random.Random(f"{name} {number}")
    beside_light = name not in SAMPLES and number % 3 != 0
    parts = parts_of(name, beside_light=beside_light)
    expected = truth(name, folder / f"whole-{os.getpid()}", beside_light=beside_light)
    work = folder / str(number)
    source = copied(parts, work)
    rank = min(parts) if beside_light or name in SAMPLES else chance.choice(sorted(parts))
    path, done, looks_whole = cut_anywhere(source / parts[rank].name, chance)
    told = run_ingest(source, work, apart=number < APART)
    shutil.rmtree(work)
    found = complaints(told, expected, rank, path, looks_whole=looks_whole)
    return [f"{name} {number}: rank {rank}, {done}: {one}" for one in found]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_cuts(
    name: str, processes: ProcessPoolExecutor, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if name not in SAMPLES:
        request.getfixturevalue("real_data")
    running = [
        processes.submit(cut_and_read, name, number, tmp_path) for number in range(CASES[name])
    ]
    assert [one for case in running for one in case.result()] == []


@pytest.mark.parametrize("form", ["text", pytest.param("db", marks=pytest.mark.slow)])
def test_some_cuts(form: str, tmp_path: Path) -> None:
    folders = write_small(tmp_path / "whole", form)
    expected = run_ingest(tmp_path / "whole", tmp_path / "truth").ranks
    found = []
    for number in range(2):
        work = tmp_path / str(number)
        source = link_tree(tmp_path / "whole", work / "source")
        path, done, looks_whole = cut_anywhere(
            source / folders[1].name, random.Random(f"{form} {number}")
        )
        told = run_ingest(source, work)
        found += [
            f"{done}: {one}" for one in complaints(told, expected, 1, path, looks_whole=looks_whole)
        ]
    assert found == []
