"""Captures to be damaged: real ones, the committed sample, and a job that is written in no time."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

from npuscope.sample_traces.generate import small, write_job
from tests.conftest import REAL_DATA, REPOSITORY

from .cases import Rank, link_tree, run_ingest

_SAMPLE = REPOSITORY / "sample_traces" / "moe_8_ranks"
# Capture -> ranks of it that are read; two each, so that a good one stands beside the damaged.
REAL = (
    "alexnet_ddp_db_level0", "alexnet_ddp_db_level1", "alexnet_ddp_text_level0",
    "alexnet_ddp_text_level1", "qwen3_pp2_dp2_text_level2",
)  # fmt: skip
SAMPLES = {"sample_text": (1, 7), "sample_both": (0, 7)}
_LIGHT = "qwen3_pp2_dp2_text_level2"


def rank_folders(name: str) -> dict[int, Path]:
    """Where each rank of a capture lies: read only."""
    root = _SAMPLE if name in SAMPLES else REAL_DATA / name
    found = {
        int(info.stem.rpartition("_")[2]): info.parent
        for info in root.glob("*/profiler_info_*.json")
    }
    return {rank: found[rank] for rank in sorted(SAMPLES.get(name, tuple(found)))}


def parts_of(name: str, *, beside_light: bool) -> dict[int, Path]:
    """Folders of the ranks to read: all of the capture, or its first beside a light rank of
    another one, which is read in a third of the time."""
    found = rank_folders(name)
    if not beside_light:
        return found
    rank = min(found)
    return {rank: found[rank], rank + 1: rank_folders(_LIGHT)[1]}


def copied(parts: dict[int, Path], work: Path) -> Path:
    """A copy of rank folders whose files are links, in `work`, which is emptied."""
    shutil.rmtree(work, ignore_errors=True)
    for folder in parts.values():
        link_tree(folder, work / "source" / folder.name)
    return work / "source"


@cache
def truth(name: str, work: Path, *, beside_light: bool = False) -> dict[int, Rank]:
    """What the whole capture tells."""
    told = run_ingest(copied(parts_of(name, beside_light=beside_light), work), work)
    assert told.code == 0, told
    shutil.rmtree(work)
    return told.ranks


def write_small(folder: Path, *forms: str) -> dict[int, Path]:
    """A job of two ranks, in the forms asked for (text, db); returns their folders."""
    chosen = tuple(form for form in ("db", "text") if form in forms)
    write_job(small(dp=2, ep=1, steps=2), folder, forms=chosen)
    return {
        int(info.stem.rpartition("_")[2]): info.parent
        for info in folder.glob("*/profiler_info_*.json")
    }


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())
