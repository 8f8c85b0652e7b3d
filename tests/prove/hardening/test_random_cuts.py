"""Any file of a profile cut at any place: what is whole is exact, what is lost is named."""

from __future__ import annotations

import os
import random
import shutil
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
from tests.prove.hardening.cases import complaints, link_tree, replace_file, run_ingest

# 300 in all, which bench/collector/damage_bench.py holds; a tenth of each capture's here.
CASES = {
    "alexnet_ddp_db_level0": 40, "alexnet_ddp_db_level1": 40, "alexnet_ddp_text_level0": 50,
    "alexnet_ddp_text_level1": 50, "qwen3_pp2_dp2_text_level2": 60, "sample_text": 40,
    "sample_both": 20,
}  # fmt: skip
A_TENTH = 10
APART = 20  # one of so many by a process of its own, as a user would


def cut_anywhere(folder: Path, chance: random.Random) -> tuple[Path, str, bool]:
    """Cut one file; returns it, what was done, and whether it still looks like a whole one."""
    path = chance.choice(files_of(folder))
    content = path.read_bytes()
    kept = chance.randrange(len(content)) if content else 0
    replace_file(path, content[:kept])
    looks_whole = path.suffix == ".csv" and content[:kept].endswith(b"\n")
    return path, f"{path.name}, {kept} of {len(content)} bytes", looks_whole


def cut_and_read(name: str, number: int, folder: Path, light: Path) -> list[str]:
    """Every third beside its own second rank, others beside a light one, which is quicker."""
    chance = random.Random(f"{name} {number}")
    parts = rank_folders(name)
    rank = min(parts)
    if number % 3 != 0:
        parts = beside_light(rank, parts[rank], light)
    elif name not in SAMPLES:
        rank = chance.choice(sorted(parts))
    work = folder / str(number)
    expected = truth(tuple(parts.items()), folder / f"whole-{os.getpid()}")
    source = copy(parts, work)
    path, done, looks_whole = cut_anywhere(source / parts[rank].name, chance)
    told = run_ingest(source, work, apart=number % APART == 0)
    shutil.rmtree(work)
    found = complaints(told, expected, rank, path, looks_whole=looks_whole)
    return [f"{name} {number}: rank {rank}, {done}: {one}" for one in found]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_cuts(
    name: str,
    processes: ProcessPoolExecutor,
    light: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    if name not in SAMPLES:
        request.getfixturevalue("real_data")
    running = [
        processes.submit(cut_and_read, name, number, tmp_path, light)
        for number in range(CASES[name] // A_TENTH)
    ]
    assert [one for case in running for one in case.result()] == []


@pytest.mark.slow
@pytest.mark.parametrize("form", ["text", "db"])
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
