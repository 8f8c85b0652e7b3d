"""steps and what is outside of them against twins that count nanoseconds one by one."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analysis.tables import Event, answer, clear, connect, grid, insert

EPOCH_NS = 1_736_405_443_862_052_130  # where a double no longer tells nanoseconds apart

events = st.lists(
    st.builds(
        Event,
        rank=st.integers(0, 2),
        step=st.sampled_from([None, 7, 8]),
        kind=st.sampled_from(["compute", "compute", "allReduce", "receive"]),
        start_ns=st.integers(0, 60),
        dur_ns=st.integers(-2, 25),
    ),
    max_size=40,
)
Figures = dict[str, int | None]
CON = connect()


def twin(found: list[Event]) -> dict[tuple[int, int | None], Figures]:
    """steps of `found` by rank and step, from sets of nanoseconds."""
    answers: dict[tuple[int, int | None], Figures] = {}
    for rank in {event.rank for event in found}:
        mine = [event for event in found if event.rank == rank]
        compute = grid(event for event in mine if event.kind == "compute")
        steps: set[int | None] = {event.step for event in mine if event.step is not None}
        for step in steps or {None}:
            own = [event for event in mine if event.step == step and event.dur_ns > 0]
            if not own:
                continue
            computing = grid(event for event in own if event.kind == "compute")
            communication = grid(event for event in own if event.kind != "compute")
            receives = [event for event in own if event.kind == "receive"]
            busy = computing | communication
            span = max(busy) + 1 - min(busy)
            bubble = sum(event.dur_ns for event in receives)
            knows_compute = bool(compute)
            answers[rank, step] = {
                "start_ns": min(busy),
                "end_ns": max(busy) + 1,
                "computing_ns": len(computing) if knows_compute else None,
                "communication_ns": len(communication),
                "overlapped_ns": len(communication & compute) if knows_compute else None,
                "exposed_communication_ns": (
                    len(communication - compute) if knows_compute else None
                ),
                "free_ns": span - len(busy) if knows_compute else None,
                "stage_ns": span - bubble,
                "bubble_ns": len(grid(receives) - compute) if knows_compute else None,
                "profiler_bubble_ns": bubble,
            }
    return answers


def measure(found: list[Event], *, shift_ns: int = 0) -> dict[tuple[int, int | None], Figures]:
    """What steps.sql says, instants moved back by `shift_ns`."""
    clear(CON)
    insert(CON, found, shift_ns=shift_ns)
    answers: dict[tuple[int, int | None], Figures] = {}
    for row in answer(CON, "steps"):
        place = (row["rank"], row["step"])
        figures = {
            name: value
            for name, value in row.items()
            if name.endswith("_ns") and not name.startswith(("window", "preparing", "host", "idle"))
        }
        assert place not in answers
        answers[place] = {
            name: value - shift_ns if name in ("start_ns", "end_ns") else value
            for name, value in figures.items()
        }
    return answers


def steps_are_counted_nanoseconds(found: list[Event]) -> None:
    assert measure(found, shift_ns=EPOCH_NS) == twin(found)


test_steps_equals_counting_nanoseconds = settings(max_examples=60)(
    given(events)(steps_are_counted_nanoseconds)
)
test_steps_equals_counting_nanoseconds_of_many = pytest.mark.slow(
    settings(max_examples=300)(given(events)(steps_are_counted_nanoseconds))
)


@pytest.mark.slow
@given(events, st.randoms(use_true_random=False), st.integers(-(10**18), 10**18))
@settings(max_examples=50)
def test_neither_order_nor_time_zero_matters(
    found: list[Event], random: Random, shift_ns: int
) -> None:
    shuffled = list(found)
    random.shuffle(shuffled)
    assert measure(shuffled, shift_ns=shift_ns) == measure(found)


@pytest.mark.slow
@given(events)
@settings(max_examples=50)
def test_rows_given_twice_change_only_the_profilers_sums(found: list[Event]) -> None:
    once, twice = measure(found), measure(found + found)
    sums = ("profiler_bubble_ns", "stage_ns")
    for place, figures in once.items():
        bubble, stage = figures["profiler_bubble_ns"], figures["stage_ns"]
        assert bubble is not None and stage is not None
        figures |= {"profiler_bubble_ns": 2 * bubble, "stage_ns": stage - bubble}
        assert {name: figures[name] for name in sums} == {n: twice[place][n] for n in sums}
    assert twice == once


@given(events)
@settings(max_examples=80)
def test_outside_steps_equals_counting_nanoseconds(found: list[Event]) -> None:
    clear(CON)
    insert(CON, found, shift_ns=EPOCH_NS)
    expected = []
    for rank in sorted({event.rank for event in found}):
        mine = [event for event in found if event.rank == rank]
        out = [event for event in mine if event.step is None and event.dur_ns > 0]
        if out and any(event.step is not None for event in mine):
            kernels = [event for event in out if event.kind == "compute"]
            ops = [event for event in out if event.kind != "compute"]
            expected.append([rank, len(kernels), len(grid(kernels)), len(ops), len(grid(ops))])
    assert [list(row.values())[2:] for row in answer(CON, "outside_steps")] == expected
