"""Captures to be damaged: real ones, the committed sample, and a job that is written in no time."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

from npuscope.sample_traces.generate import small, write_job
from tests.conftest import REAL_DATA, REPOSITORY
from tests.prove.hardening.cases import Rank, link_tree, run_ingest

_SAMPLE = REPOSITORY / "sample_traces" / "moe_8_ranks"
REAL = (
    "alexnet_ddp_db_level0", "alexnet_ddp_db_level1", "alexnet_ddp_text_level0",
    "alexnet_ddp_text_level1", "qwen3_pp2_dp2_text_level2",
)  # fmt: skip
# Capture -> ranks of it that are read; two each, so that a good one stands beside the damaged.
SAMPLES = {"sample_text": (1, 7), "sample_both": (0, 7)}


def rank_folders(name: str) -> dict[int, Path]:
    """Where each rank of a capture lies: read only."""
    found = folders_in(_SAMPLE if name in SAMPLES else REAL_DATA / name)
    return {rank: found[rank] for rank in sorted(SAMPLES.get(name, tuple(found)))}


def folders_in(root: Path) -> dict[int, Path]:
    return {
        int(info.stem.rpartition("_")[2]): info.parent
        for info in root.glob("*/profiler_info_*.json")
    }


def write_light(folder: Path) -> Path:
    """Two ranks, 0 and 1, that hold their times per step and nothing else: read in a fifth of the
    time that others take."""
    write_small(folder, "text")
    for path in files_of(folder):
        if not path.name.startswith(("profiler_", "step_trace_time")):
            path.unlink()
    return folder


def beside_light(rank: int, folder: Path, light: Path) -> dict[int, Path]:
    """A rank in its folder and a light one of another number."""
    other = 0 if rank else 1
    return {rank: folder, other: folders_in(light)[other]}


def copy(parts: dict[int, Path], work: Path) -> Path:
    """A copy of rank folders whose files are links, in `work`, which is emptied."""
    shutil.rmtree(work, ignore_errors=True)
    for folder in parts.values():
        link_tree(folder, work / "source" / folder.name)
    return work / "source"


@cache
def truth(folders: tuple[tuple[int, Path], ...], work: Path) -> dict[int, Rank]:
    """What the whole of some ranks tells."""
    told = run_ingest(copy(dict(folders), work), work)
    assert told.code == 0, told
    shutil.rmtree(work)
    return told.ranks


def write_small(folder: Path, *forms: str) -> dict[int, Path]:
    """A job of two ranks, in the forms asked for (text, db); returns their folders."""
    chosen = tuple(form for form in ("db", "text") if form in forms)
    write_job(small(dp=2, ep=1, steps=2), folder, forms=chosen)
    return folders_in(folder)


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())
