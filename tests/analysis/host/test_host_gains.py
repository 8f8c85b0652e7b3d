"""Gains of the host's causes: planted faults, and what placement makes of launches."""

from __future__ import annotations

import pytest

from npuscope.analysis.host.gains import host_gains
from npuscope.sample_traces.frames import canonical_frames
from npuscope.sample_traces.generate import small
from tests.analysis.host.host_jobs import FAULTS, TABLES, verdict
from tests.analysis.pipeline.random_jobs import opened_frames
from tests.analysis.tables import answer, connect, fill


def test_a_collection_of_garbage_comes_back_whole() -> None:
    job = small(gc_every=12, gc_ns=6_000_000, comm_tasks=False, memory=False)
    with opened_frames(canonical_frames(job, tables=TABLES, pipes=False)) as con:
        first = host_gains(con).row(0, named=True)
    assert (first["cause"], first["basis"]) == ("garbage_collection", "replay")
    # It is in one of two steps; the device has work for a part of it.
    assert 2_000_000 < first["gain_ns"] <= 3_000_000


def test_a_call_within_an_operator_that_waits_is_the_operators() -> None:
    con = connect()
    fill(con, "host_ops", [
        {"kind": "operator", "name": "aten::item", "start_ns": 10, "dur_ns": 50,
         "call_stack": "torch/_tensor.py(9): item\ntrain.py(31): step"},
        {"kind": "operator", "name": "aten::is_nonzero", "start_ns": 12, "dur_ns": 3,
         "thread_id": 2},  # another thread's, over before the first one's call begins
        {"kind": "api", "name": "aclrtSynchronizeStream", "start_ns": 20, "dur_ns": 30,
         "thread_id": 3},
        {"kind": "api", "name": "aclrtSynchronizeDevice", "start_ns": 80, "dur_ns": 5},
    ])  # fmt: skip
    told = [(row["operator"], row["location"], row["total_ns"]) for row in
            answer(con, "host_calls")]  # fmt: skip
    assert told == [
        ("aten::item", "train.py(31): step", 50), ("aclrtSynchronizeDevice", None, 5),
        ("aten::is_nonzero", None, 3),
    ]  # fmt: skip


def test_a_call_within_another_of_its_cause_and_thread_is_counted_once() -> None:
    con = connect()
    calls = (
        ("operator", "aten::item", 10, 50, 1),
        ("operator", "aten::_local_scalar_dense", 12, 40, 1),
        ("api", "aclrtSynchronizeStream", 10, 50, 1),  # as long as the operator that waits
        ("api", "aclrtMemcpy", 55, 4, 1),  # still within the outer one
        ("operator", "aten::_local_scalar_dense", 70, 20, 1),
        ("python", "torch/utils/data/dataloader.py(625): __next__", 100, 80, 1),
        ("operator", "enumerate(DataLoader)#_Next", 110, 60, 1),
        ("operator", "enumerate(DataLoader)#_Next", 120, 10, 2),  # another thread's
        ("gc", "Python GC", 130, 5, 1),  # another cause's
    )
    fill(con, "host_ops", [
        dict(zip(("kind", "name", "start_ns", "dur_ns", "thread_id"), call, strict=True))
        for call in calls
    ])  # fmt: skip
    told = [(row["operator"], row["count"], row["total_ns"]) for row in answer(con, "host_calls")]
    assert told == [
        ("torch/utils/data/dataloader.py(625): __next__", 1, 80), ("aten::item", 1, 50),
        ("aten::_local_scalar_dense", 1, 20), ("enumerate(DataLoader)#_Next", 1, 10),
        ("Python GC", 1, 5),
    ]  # fmt: skip


def test_launches_on_far_cores_take_as_much_longer_as_they_do() -> None:
    con = connect()
    fill(con, "counters", [
        {"name": "NUMA node", "series": series, "timestamp_ns": at, "value": node}
        for series, at, node in (("device", 0, 1), ("thread 7", 0, 1), ("thread 7", 4_000, 0))
    ])  # fmt: skip
    times = [*range(0, 4_000, 100), *range(4_000, 16_000, 300)]
    fill(con, "launches", [
        {"api_start_ns": at, "operator_name": "aten::add", "target": "kernel"} for at in times
    ])  # fmt: skip
    (row,) = answer(con, "host_placement")
    names = ("slow_ratio", "slow_low_ratio", "slow_high_ratio", "migration_count", "far_ratio")
    assert [row[name] for name in names] == [3, 3, 3, 1, 0.5]


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_comes_first_with_the_gain_of_its_end(fault: str) -> None:
    told = verdict(fault, 0)
    assert told.is_first
    assert told.error < 0.1


@pytest.mark.slow
def test_nothing_is_found_in_a_healthy_job() -> None:
    assert max(verdict("clean", 0).shares.values()) < 0.01
