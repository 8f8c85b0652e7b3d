"""The profiler's overhead from logged step times."""

from __future__ import annotations

import pytest

from npuscope.analysis.doctor.doctor import Overhead, profiler_overhead

# Steps take 1 s; warm-up 1.2, profiled 1.5, the writing one 9.
LOG = dict.fromkeys(range(100), 1.0) | {49: 1.2, 50: 1.5, 51: 1.5, 52: 9.0}


def test_profiled_steps_against_their_neighbours() -> None:
    found = profiler_overhead(LOG, [50, 51], warmup=1)
    assert found == Overhead(0.5, 1.5, 1.0, 2, 20)


def test_only_near_steps_count_and_none_that_the_profiler_touched() -> None:
    far = dict.fromkeys(range(30), 5.0) | {step: LOG[step] for step in range(30, 70)}
    assert profiler_overhead(far, [50, 51]).ratio == 0.5
    assert profiler_overhead({**LOG, **dict.fromkeys(range(40, 50), 7.0)}, [50], warmup=10) == (
        Overhead(0.5, 1.5, 1.0, 1, 20)
    )


def test_steps_between_two_windows_count() -> None:
    log = dict.fromkeys(range(10, 21), 2.0) | {10: 3.0, 20: 3.0}
    assert profiler_overhead(log, [10, 20]) == Overhead(0.5, 3.0, 2.0, 2, 7)


@pytest.mark.parametrize(
    ("log", "profiled", "reason"),
    [
        (
            {},
            [5],
            "no step times from the training log: `npuscope ingest PATH --train-log FILE`",
        ),
        ({1: 1.0}, [], "no profiled step has a number"),
        ({1: 1.0, 9: 1.0}, [5], "the training log has no times for the profiled steps"),
        ({5: 1.0}, [5], "the training log has only the profiled steps"),
        ({4: 1.0, 5: 1.0, 6: 1.0}, [5], "the training log has only the profiled steps"),
        ({5: 0.0, 9: 1.0}, [5], "the training log has no times for the profiled steps"),
    ],
)
def test_what_cannot_be_estimated_is_unknown(
    log: dict[int, float], profiled: list[int], reason: str
) -> None:
    assert profiler_overhead(log, profiled) == Overhead(reason=reason)
