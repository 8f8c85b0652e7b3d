"""Pace of the host: against a count of every nanosecond between a step's first and last launch."""

from __future__ import annotations

import random
from statistics import median

import pytest

from npuscope.analysis.host.free_time import host_notes
from tests.analysis.tables import answer, connect, fill, kernel


@pytest.mark.slow
def test_the_pace_leaves_out_every_nanosecond_of_waiting_once() -> None:
    """Launches fill the device's queue and operators the framework's; both threads are blocked, and
    a third waits for the device, at overlapping times and beyond the last launch."""
    chance = random.Random(11)
    full = 1000
    con = connect()
    fill(con, "steps", [{"step": 1, "window_start_ns": 1000, "window_end_ns": 40_000}])
    fill(con, "kernels", [kernel(90_000, 10, 1)])
    queues: dict[str, list[tuple[int, int]]] = {"device": [], "framework": []}
    for calls in queues.values():
        at = 1000 + chance.randrange(5)
        for _ in range(full):
            calls.append((at, at + 4))
            at += 5 + chance.randrange(3)
        for _ in range(40):
            dur_ns = chance.choice((4, 30, 41, 90, 400))
            calls.append((at, at + dur_ns))
            at += dur_ns + chance.randrange(1, 60)
        calls.append((at, at + 5000))
    outside = [(200, 204), (50_000, 50_004), (50_100, 50_104)]
    launches = [*queues["device"], *outside]
    fill(con, "launches", [
        {"target": "kernel", "api_start_ns": a, "api_end_ns": b, "device_start_ns": 90_000 + a}
        for a, b in launches
    ])  # fmt: skip
    syncs = [(a, a + chance.randrange(1, 900)) for a in chance.choices(range(5000, 13_000), k=12)]
    fill(con, "host_ops", [
        *({"kind": "enqueue", "start_ns": a, "dur_ns": b - a} for a, b in queues["framework"]),
        *({"kind": "api", "name": ("aclrtSynchronizeStream", "aclrtMemcpy")[a % 2], "start_ns": a,
           "dur_ns": b - a} for a, b in syncs),
    ])  # fmt: skip

    first, last = queues["device"][0][0], queues["device"][-1][0]
    waiting = {t for a, b in syncs for t in range(max(a, first), min(b, last))}
    blocked: set[int] = set()
    for name, calls in queues.items():
        least_ns = 10 * median(b - a for a, b in calls)
        before = sum(1 for a, _ in outside if a < first) if name == "device" else 0
        for number, (a, b) in enumerate(calls):
            if before + number >= full and b - a > least_ns:
                blocked |= set(range(max(a + int(least_ns), first), min(b, last)))
    rows = {row["step"]: row for row in answer(con, "host_pace")}
    assert waiting & blocked
    assert (rows[1]["launch_count"], rows[1]["host_wait_ns"], rows[1]["queue_full_ns"]) == (
        len(queues["device"]), len(waiting), len(blocked),
    )  # fmt: skip
    held_ns = last - first - len(waiting | blocked)
    assert rows[1]["pace_ns"] == held_ns / (len(queues["device"]) - 1)
    # Before the first window and behind the last one.
    assert rows[None]["launch_count"] == len(outside)
    assert any("where what a launch starts takes less" in note for note in host_notes(con))
