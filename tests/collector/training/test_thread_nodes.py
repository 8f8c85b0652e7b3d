"""NUMA nodes of threads: what is read of a real process, and what a capture's metadata becomes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from npuscope.collector.training import profile_session, thread_nodes
from npuscope.collector.training.thread_nodes import ThreadNodes, near_node
from tests.collector.training import fake_torch_npu

SAMPLE = Path(__file__).parents[3] / "sample_traces" / "moe_8_ranks"
TOPOLOGY = """\
           NPU0       NPU1       NPU2       CPU Affinity
NPU0       X          HCCS       HCCS       144-167
NPU1       HCCS       X          HCCS       0-23,96-119
NPU12      HCCS       HCCS       X          0-23
"""


@pytest.fixture
def cores() -> Iterator[list[int]]:
    """Two cores, between which this thread may be moved."""
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("one core only")
    yield sorted(before)[:2]
    os.sched_setaffinity(0, before)


def _spin(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def _spin_until_seen(recorder: ThreadNodes, place: int) -> None:
    """Busy for half a second, and on a busy host until this thread was found twice in the stay of
    that place."""
    began = time.monotonic()
    while time.monotonic() < began + 10:
        _spin(0.25)
        threads = recorder.report()["threads"]
        assert isinstance(threads, dict)
        stays = threads.get(str(os.getpid()), [])
        if time.monotonic() >= began + 0.5 and len(stays) > place and stays[place][2] >= 2:
            return


def test_a_thread_that_moves_is_found_where_it_is(cores: list[int]) -> None:
    os.sched_setaffinity(0, {cores[0]})
    recorder = ThreadNodes({cores[0]: 5, cores[1]: 7})
    before = time.time_ns()
    _spin_until_seen(recorder, 0)
    moved = time.time_ns()
    os.sched_setaffinity(0, {cores[1]})
    _spin_until_seen(recorder, 1)
    found = recorder.report()
    recorder.stop()
    threads, began, interval_ms = found["threads"], found["start_ns"], found["interval_ms"]
    assert isinstance(threads, dict) and isinstance(began, int) and isinstance(interval_ms, int)
    assert abs(began - before) < 50_000_000 and "device_node" not in found
    first, second = threads[str(os.getpid())]
    assert (first[1], second[1]) == (5, 7)
    late_ms = second[0] - (moved - began) / 1e6
    assert first[0] < interval_ms and -interval_ms < late_ms < 3 * interval_ms
    assert min(first[2], second[2]) >= 2


def test_what_would_be_too_long_is_told_of_fewer_readings() -> None:
    recorder = ThreadNodes({})
    recorder.stop()
    recorder._samples = {7: [(50 * one, one // 3 % 2) for one in range(4000)]}
    found = recorder.report()
    assert len(json.dumps(found)) <= 3_900 and found["interval_ms"] != 100
    threads = found["threads"]
    assert isinstance(threads, dict) and sum(stay[2] for stay in threads["7"]) >= 100


def test_a_slow_host_is_read_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_nodes, "_READING_SHARE", 1e-9)  # each reading costs too much
    recorder = ThreadNodes(dict.fromkeys(range(4096), 0))
    time.sleep(0.5)
    recorder.stop()
    recorded = recorder.report()["threads"]
    assert isinstance(recorded, dict) and recorded[str(os.getpid())][0][2] == 1


def test_the_interval_is_that_of_what_was_read() -> None:
    recorder = ThreadNodes({})
    recorder.stop()
    recorder._samples = {7: [(250 * one, 0) for one in range(9)]}
    assert recorder.report()["interval_ms"] == 250


def test_without_a_reading_nothing_is_told() -> None:
    recorder = ThreadNodes({})  # no core has a node
    time.sleep(0.1)
    recorder.stop()
    assert recorder.report() == {}


def test_the_node_of_a_device_is_that_of_its_cores() -> None:
    nodes = {core: core // 48 for core in range(192)}
    assert near_node(TOPOLOGY, 0, nodes) == 3
    assert near_node(TOPOLOGY, 12, nodes) == 0
    assert near_node(TOPOLOGY, 1, nodes) is None  # cores of two nodes
    assert near_node(TOPOLOGY, 2, nodes) is None and near_node("", 0, nodes) is None


def test_hosts_of_one_node_have_no_recorder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_nodes, "cpu_nodes", lambda: {0: 0, 1: 0})
    assert thread_nodes.thread_nodes_here() is None


@pytest.mark.slow
def test_reading_costs_less_than_half_a_percent() -> None:
    ends = threading.Event()
    others = [threading.Thread(target=ends.wait) for _ in range(200)]
    for one in others:
        one.start()
    recorder = ThreadNodes(dict.fromkeys(range(4096), 0))
    period = thread_nodes._LISTED_SECONDS  # in which all threads are listed once
    time.sleep(period)
    recorder.stop()
    ends.set()
    assert recorder.report()["threads"]
    assert recorder.cpu_ns < 0.005 * period * 1e9


def test_a_session_puts_it_into_its_captures(
    tmp_path: Path, cores: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch_npu", None)  # restored to what it was
    fake_torch_npu.install()
    nodes = {core: core == cores[1] for core in cores}
    monkeypatch.setattr(thread_nodes, "cpu_nodes", lambda: nodes)
    os.sched_setaffinity(0, {cores[1]})
    for is_asked in (True, False):
        root = tmp_path / str(is_asked)
        with profile_session(root, every=3, captures=2, rank=0, thread_nodes=is_asked) as session:
            for _ in range(10):
                _spin(0.15)
                session.step()
        captures = sorted(root.glob("*_ascend_pt/profiler_metadata.json"))
        assert len(captures) == 2
        for path in captures:
            told = json.loads(path.read_text()).get("npuscope_threads")
            assert (told is not None) == is_asked
            if is_asked:
                told = json.loads(told) if isinstance(told, str) else told
                stays = told["threads"][str(os.getpid())]
                assert [stay[1] for stay in stays] == [1] and stays[0][2] >= 2
    time.sleep(0.2)
    assert "npuscope-nodes" not in {one.name for one in threading.enumerate()}


def _with_threads(folder: Path, told: object) -> Path:
    """A rank of the sample, with this in its metadata."""
    path = next(one for one in sorted(SAMPLE.rglob("profiler_metadata.json")))
    root = path.relative_to(SAMPLE).parts[0]
    shutil.copytree(SAMPLE / root, folder / root)
    copied = folder / path.relative_to(SAMPLE)
    held = json.loads(copied.read_text())
    copied.write_text(json.dumps({**held, "npuscope_threads": told}))
    return folder


def _query(profiles: Path, store: Path, query: str) -> list[dict[str, object]]:
    done = subprocess.run(
        [sys.executable, "-m", "npuscope", "sql", profiles, query, "--store", store, "--json"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    rows: list[dict[str, object]] = found if isinstance(found, list) else found["rows"]
    return rows


def test_a_captures_metadata_becomes_counters(tmp_path: Path) -> None:
    told = {
        "start_ns": 1_000_000_000, "interval_ms": 50, "device_node": 1,
        "threads": {"4711": [[0, 0, 2], [130, 1, 1]]},
    }  # fmt: skip
    profiles = _with_threads(tmp_path / "p", told)
    rows = _query(
        profiles, tmp_path / "store",
        "select series, timestamp_ns, value from counters where name = 'NUMA node'"
        " order by series, timestamp_ns",
    )  # fmt: skip
    assert [tuple(row.values()) for row in rows] == [
        ("device", 1_000_000_000, 1), ("thread 4711", 1_000_000_000, 0),
        ("thread 4711", 1_050_000_000, 0), ("thread 4711", 1_130_000_000, 1),
    ]  # fmt: skip


@pytest.mark.parametrize("told", ["{", {"threads": 3}, {"start_ns": 1, "interval_ms": 1,
                                  "threads": {"a": []}}])  # fmt: skip
def test_nonsense_in_metadata_is_left_out(tmp_path: Path, told: object) -> None:
    profiles = _with_threads(tmp_path / "p", told)
    rows = _query(profiles, tmp_path / "store",
                  "select count(*) as n from counters where name = 'NUMA node'")  # fmt: skip
    assert rows[0]["n"] == 0
