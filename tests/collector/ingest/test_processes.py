"""Tasks in processes: each costs itself alone, and has its time."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import pytest

from npuscope.collector.engines import processes as module
from npuscope.collector.engines.processes import LostWorker, Processes
from tests.collector.engines.dying_task import die


@contextmanager
def open_pool(
    width: int, limit_s: float | None = None
) -> Iterator[tuple[Processes[int, int], list[int]]]:
    told: list[int] = []
    one: Processes[int, int] = Processes(
        die, width, limit_s=lambda task: limit_s, advance=told.append
    )
    with closing(one):
        yield one, told


def test_a_process_that_dies_costs_its_own_task() -> None:
    with open_pool(2) as (processes, told):
        found = dict(processes.map([1, 2, 3, 4]))
        assert found == {1: 10, 2: LostWorker(), 3: 30, 4: 40}
        assert sorted(told) == [1, 3, 4]
        assert dict(processes.map([5, 6], lambda: False)) == {}


def test_a_task_that_takes_too_long_costs_its_own_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MORE_S", 0.0)
    with open_pool(2, limit_s=1.5) as (processes, _):
        found = dict(processes.map([9, 1, 3, 4]))
        assert found == {9: LostWorker(1.5), 1: 10, 3: 30, 4: 40}


def test_what_takes_long_is_left_behind_and_nothing_waits_for_it() -> None:
    with open_pool(1) as (processes, _):
        processes.add([9, 3])
        assert dict(processes.results(patience_s=0.6)) == {}
        assert processes.pending == [3, 9]
        assert dict(processes.map([1])) == {1: 10}  # beside it
        assert processes.pending == [3, 9]


@pytest.mark.slow
def test_threads_that_start_processes_leave_the_script_in_its_place() -> None:
    script = sys.modules["__main__"]

    def one(number: int) -> dict[int, int | LostWorker]:
        with open_pool(1) as (processes, _):
            return dict(processes.map([1]))

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(one, range(4))) == [{1: 10}] * 4
    assert sys.modules["__main__"] is script


@pytest.mark.slow
def test_it_stops_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STOPS_WITHIN_S", 1.0)
    with open_pool(2) as (processes, _):
        processes.add([9, 1, 3])
        came = processes.results(ends=lambda: True)
        began_s = time.monotonic()
        assert dict(came) == {}  # nothing had begun
        processes.add([9, 1])
        assert dict(processes.results(patience_s=0.6)) == {1: 10}
        began_s = time.monotonic()
        assert dict(processes.results(ends=lambda: True)) == {}
        assert 0.9 < time.monotonic() - began_s < 5
        assert processes.pending == []
