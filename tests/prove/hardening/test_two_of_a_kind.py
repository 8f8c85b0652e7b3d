"""Ranks, captures and clocks that contradict each other."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from pathlib import Path

import pytest

from npuscope.collector.store import store
from npuscope.collector.store.manifest import manifests
from tests.conftest import WriteProfile
from tests.prove.hardening.captures import write_small
from tests.prove.hardening.cases import run_ingest

HOUR_US = 3_600_000_000


def kernels(start_us: int, n: int = 20) -> list[tuple[int, str, str, str]]:
    return [(7, f"k{i}", f"{start_us + 100 * i}.250", "10.500") for i in range(n)]


def captures_of(target: Path) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for manifest in manifests(target):
        found.setdefault(manifest.capture, []).append(manifest.rank)
    return found


@pytest.mark.slow
def test_a_rank_claimed_twice(tmp_path: Path) -> None:
    folders = write_small(tmp_path / "source", "text")
    whole = run_ingest(tmp_path / "source", tmp_path / "truth")
    twin = tmp_path / "source" / "a_copy_ascend_pt"
    shutil.copytree(folders[1], twin)

    told = run_ingest(tmp_path / "source", tmp_path / "work")

    assert told.code == 4
    assert told.ranks == whole.ranks
    assert "rank 1 was also profiled at the same time" in told.errors
    assert str(twin) in told.errors and str(folders[1]) in told.errors


def test_a_number_that_another_rank_has_too(tmp_path: Path, write_profile: WriteProfile) -> None:
    """Two ranks of one job whose files both say 0: one of them is read, and both are named."""
    for name in ("one", "two"):
        write_profile(tmp_path / "source" / f"{name}_ascend_pt", 0, kernels(1_736_412_474_000_000))
    told = run_ingest(tmp_path / "source", tmp_path / "work")
    assert (told.code, sorted(told.ranks)) == (4, [0])
    assert "one_ascend_pt" in told.errors and "two_ascend_pt" in told.errors


@pytest.mark.slow
def test_two_captures_among_each_other(tmp_path: Path, write_profile: WriteProfile) -> None:
    """Folders of two profiling sessions, in turns in one parent, are told apart by time."""
    first, second = 1_736_412_474_000_000, 1_736_412_474_000_000 + HOUR_US
    for rank in range(3):
        for name, start_us in (("early", first), ("late", second)):
            write_profile(
                tmp_path / "source" / f"h{rank}_{name}_ascend_pt", rank,
                kernels(start_us + rank * 7, 20 if name == "early" else 30),
            )  # fmt: skip
    told = run_ingest(tmp_path / "source", tmp_path / "work")
    target = tmp_path / "work" / "store"
    assert told.code == 0
    assert list(captures_of(target).values()) == [[0, 1, 2], [0, 1, 2]]
    counts = store.query(target, "select capture, count(*) as n from kernels group by 1 order by 1")
    assert counts["n"].to_list() == [60, 90]


@pytest.mark.slow
def test_two_captures_in_one_folder(tmp_path: Path) -> None:
    """Databases of two ranks and text of one of them, all in one folder: each is of its rank."""
    folders = write_small(tmp_path / "source", "db")
    whole = run_ingest(tmp_path / "source", tmp_path / "truth")
    one = folders[0] / "ASCEND_PROFILER_OUTPUT"
    (folders[1] / "ASCEND_PROFILER_OUTPUT" / "ascend_pytorch_profiler_1.db").rename(
        one / "ascend_pytorch_profiler_1.db"
    )
    (folders[1] / "profiler_info_1.json").rename(folders[0] / "profiler_info_1.json")
    shutil.rmtree(folders[1])

    told = run_ingest(tmp_path / "source", tmp_path / "work")

    # analysis.db is of nobody known now.
    assert sorted(told.ranks) == [0, 1]
    for rank in (0, 1):
        assert told.ranks[rank].answers["kernels"] == whole.ranks[rank].answers["kernels"]
        assert told.ranks[rank].answers["steps"] == whole.ranks[rank].answers["steps"]


@pytest.mark.slow
def test_a_clock_that_jumps_back(tmp_path: Path) -> None:
    """Half of a rank's kernels an hour before the others: told, and the other rank is exact."""
    folders = write_small(tmp_path / "source", "text")
    whole = run_ingest(tmp_path / "source", tmp_path / "truth")
    for name in ("kernel_details.csv", "trace_view.json"):
        path = folders[1] / "ASCEND_PROFILER_OUTPUT" / name
        text = path.read_text(encoding="utf-8")
        stamps = sorted(set(re.findall(r"\d{16}(?=\.\d{3})", text)))
        middle = int(stamps[len(stamps) // 2])

        def back(match: re.Match[str], middle: int = middle) -> str:
            us = int(match[0])
            return str(us - HOUR_US if us > middle else us)

        path.write_text(re.sub(r"\d{16}(?=\.\d{3})", back, text), encoding="utf-8")

    told = run_ingest(tmp_path / "source", tmp_path / "work")

    assert told.ranks[0] == whole.ranks[0]
    assert told.seconds < 30
    assert "Traceback" not in told.errors
    [warning] = told.ranks[1].warnings
    assert "in step 13 by -3600 s: a clock was adjusted" in warning


def test_a_session_that_ends_before_it_began(tmp_path: Path, write_profile: WriteProfile) -> None:
    folder = write_profile(tmp_path / "source" / "x_ascend_pt", 0)
    (folder / "profiler_info_0.json").write_text(
        '{"rank_id": 0, "start_info": {"start_monotonic": 9000000000},'
        ' "end_info": {"collectionTimeEnd": 1736412474000000000, "MonotonicTimeEnd": 5}}'
    )
    told = run_ingest(tmp_path / "source", tmp_path / "work")
    assert (told.code, told.ranks[0].row_counts["kernels"]) == (0, 20)
    [capture] = captures_of(tmp_path / "work" / "store")
    assert capture.startswith("20250109T")


@pytest.mark.slow
def test_times_and_ranks_that_cannot_be(tmp_path: Path, write_profile: WriteProfile) -> None:
    """Their profiles are placed by what else they say."""
    instants = (10**30, -(10**18), 10**19, "9" * 40, 1e300, True, [1], None)
    for rank, instant in enumerate(instants):
        folder = write_profile(tmp_path / "source" / f"r{rank}_ascend_pt", rank)
        told = {
            "rank_id": 10**12,
            "start_info": {"start_monotonic": 5},
            "end_info": {"collectionTimeEnd": instant, "MonotonicTimeEnd": 50},
        }
        (folder / f"profiler_info_{rank}.json").write_text(json.dumps(told))
    folder = write_profile(tmp_path / "source" / "z_ascend_pt", 99)
    (folder / "profiler_info_99.json").rename(folder / f"profiler_info_{'9' * 60}.json")
    told_all = run_ingest(tmp_path / "source", tmp_path / "work")
    assert told_all.code == 0, told_all.errors
    assert list(captures_of(tmp_path / "work" / "store").values()) == [[*range(8), 99]]


@pytest.mark.slow
def test_files_from_the_future(tmp_path: Path, write_profile: WriteProfile) -> None:
    """The machine's clock went back a week: nothing is swept too early, nothing is read twice."""
    folder = write_profile(tmp_path / "source" / "x_ascend_pt", 0)
    told = run_ingest(tmp_path / "source", tmp_path / "work")
    later = time.time() + 7 * 86_400
    for path in [*(tmp_path / "work" / "store").rglob("*"), *folder.rglob("*")]:
        os.utime(path, (later, later))
    again = run_ingest(tmp_path / "source", tmp_path / "work")
    assert (again.code, again.ranks) == (0, told.ranks)
    assert "0 rank(s) read, 1 unchanged" in again.errors
    write_profile(folder, 0, kernels(1_736_412_474_000_000, 25))
    changed = run_ingest(tmp_path / "source", tmp_path / "work")
    assert changed.ranks[0].row_counts["kernels"] == 25
