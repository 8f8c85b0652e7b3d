"""Ten iterations of a real profile in msprof's older layout: every figure of goldens.json."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from npuscope.analysis import query
from npuscope.analysis.summaries import summarise
from npuscope.collector.discover.search import discover
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.store import store
from npuscope.collector.store.manifest import manifests

NAME = "msprof_timeline_2023"
GOLDEN_OF = {
    "computing_ns": "computing",
    "communication_ns": "communication",
    "overlapped_ns": "overlapped",
    "exposed_communication_ns": "comm_not_overlapped",
    "free_ns": "free",
    "stage_ns": "stage",
    "bubble_ns": "bubble",
    "profiler_bubble_ns": "bubble",
    "start_ns": "first_task_start",
    "end_ns": "last_task_end",
    "masking_ratio": "masking_ratio",
}


@pytest.fixture(scope="module")
def folder(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("older") / "store"
    assert ingest(real_data / NAME, out, summarise=summarise).is_complete
    return out


@pytest.fixture(scope="module")
def con(folder: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    opened = store.open(folder)
    yield opened
    opened.close()


def timelines(real_data: Path) -> Path:
    (found,) = (real_data / NAME).glob("PROF_*/device_0/timeline")
    return found


def test_iterations_are_steps(con: duckdb.DuckDBPyConnection, goldens: dict[str, Any]) -> None:
    rows = {row["step"]: row for row in query.steps(con).to_dicts()}

    assert sorted(rows) == list(range(1, 11))
    for number, row in rows.items():
        golden = goldens[NAME]["0"][str(number)]
        assert {n: row[n] for n in GOLDEN_OF} == {
            ours: golden["own_union"][theirs] for ours, theirs in GOLDEN_OF.items()
        }
        length_ns = row["window_end_ns"] - row["window_start_ns"]
        assert length_ns == round(golden["iteration_ns"])
        assert row["window_end_ns"] == round(golden["iter_args"]["Iteration End"] * 1000)
        assert row["preparing_ns"] == row["start_ns"] - row["window_start_ns"] > 0


def test_kernels_and_operations_of_each_iteration(
    con: duckdb.DuckDBPyConnection, goldens: dict[str, Any]
) -> None:
    kernels = con.execute("select step, core, count(*) from kernels group by 1, 2").fetchall()
    operations = con.execute("select step, op_type, count(*) from comm_ops group by 1, 2")
    assert dict.fromkeys(range(1, 11), ("allReduce", 1)) == {
        step: (kind, count) for step, kind, count in operations.fetchall()
    }
    for number in range(1, 11):
        golden = goldens[NAME]["0"][str(number)]
        cores = {core: count for step, core, count in kernels if step == number}
        assert cores == {core: golden["task_types"][core] for core in ("AI_CORE", "AI_CPU")}
        assert sum(cores.values()) == golden["n_compute"]


def test_tasks_of_operations_add_up(con: duckdb.DuckDBPyConnection, real_data: Path) -> None:
    expected: Counter[tuple[str, str, int]] = Counter()
    sizes: Counter[str] = Counter()
    for path in timelines(real_data).glob("msprof_*.json"):
        for event in json.loads(path.read_text()):
            args = event.get("args", {})
            if "task type" in args:
                link = args["link type"]
                expected[args["task type"], link, args["stream id"]] += round(event["dur"] * 1000)
                sizes[link] += args["size(Byte)"]

    found = con.execute(
        """
        select task_type, coalesce(link, 'INVALID_TYPE'), stream_id, sum(dur_ns), sum(size_bytes)
        from comm_tasks group by all"""
    ).fetchall()

    assert {(kind, link, stream): ns for kind, link, stream, ns, _ in found} == expected
    by_link: Counter[str] = Counter()
    for _, link, _, _, size in found:
        by_link[link] += size
    assert by_link == sizes
    assert by_link["PCIE"] > 0


def test_the_rank_and_what_was_met(folder: Path, con: duckdb.DuckDBPyConnection) -> None:
    (row,) = con.execute(
        """select rank, device_id, host_name, framework, chip_name, ai_core_count,
               ai_core_frequency_mhz, clock, source_format from ranks"""
    ).fetchall()
    assert row == (0, 0, "A2007104679", "msprof", "Ascend910A", 32, 1000.0, "device", "text")
    (manifest,) = manifests(folder)
    assert (manifest.warnings, manifest.rows_lost, manifest.failed_files) == ([], 0, {})
    assert manifest.rules["layout"] == "device_N/timeline, one file per iteration"
    assert manifest.rules["steps"] == "iterations of step_trace_*.json"
    assert manifest.capture == "device-56579931060630"  # the session, on the clock of its events


@pytest.mark.slow
def test_timelines_alone_tell_the_same(
    con: duckdb.DuckDBPyConnection, real_data: Path, tmp_path: Path
) -> None:
    """Without step_trace files their slices among the others tell; without msprof files those that
    hold the same by kinds do."""
    told = query.steps(con).drop("run", "capture").to_dicts()
    for kept in ("msprof", "hccl|task_time|step_trace"):
        source = tmp_path / kept.partition("|")[0]
        place = source / "PROF_1" / "device_0" / "timeline"
        place.mkdir(parents=True)
        for path in timelines(real_data).iterdir():
            if path.name.startswith(tuple(f"{kind}_" for kind in kept.split("|"))):
                shutil.copy(path, place)
        result = ingest(source, tmp_path / f"store-{source.name}")
        assert result.is_complete and not result.problems
        with store.open(tmp_path / f"store-{source.name}") as other:
            assert query.steps(other).drop("run", "capture").to_dicts() == told


def test_a_folder_inside_is_enough(real_data: Path) -> None:
    """Users point at what they know."""
    place = timelines(real_data)
    for start in (place, place.parent, place.parent.parent):
        (source,) = discover(start).ranks
        assert (source.rank, source.framework) == (0, "msprof")
        assert len(source.files["trace"]) == len(source.files["iterations"]) == 10
        assert source.window_start_ns == 56579931060630
