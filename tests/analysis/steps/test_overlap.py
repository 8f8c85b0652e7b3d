"""Pieces of a rank's time against twins that count nanoseconds one by one, and against steps."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from npuscope.analysis.timeline.lanes import prepare_overlap
from tests.analysis.steps.test_steps_properties import EPOCH_NS, events
from tests.analysis.tables import Event, answer, clear, connect, grid, insert

CON = connect()
Piece = tuple[int | None, str, int, int]
FIGURES = {
    "computing": "computing_ns",
    "exposed communication": "exposed_communication_ns",
    "masked communication": "overlapped_ns",
    "free": "free_ns",
}
EVER = (-(10**6), 10**6)


def pieces(
    found: list[Event], rank: int, window: tuple[int, int] = EVER
) -> tuple[list[Piece], dict[tuple[int, bool], list[Piece]]]:
    """Pieces of a rank; and again by lane, masked ones apart from the others."""
    clear(CON)
    insert(CON, found, shift_ns=EPOCH_NS)
    query = prepare_overlap(CON, ("job", "c", rank), window[0] + EPOCH_NS, window[1] + EPOCH_NS)
    rows = CON.execute(
        f"select step, name, start_ns, end_ns, lane from ({query}) join overlap_labels"
        " as l (label, step, lane, from_ns, until_ns) using (label)"
    ).fetchall()
    everything: list[Piece] = []
    lanes = defaultdict(list)
    for step, name, start_ns, end_ns, lane in rows:
        piece = (step, name, start_ns - EPOCH_NS, end_ns - EPOCH_NS)
        everything.append(piece)
        lanes[lane, name == "masked communication"].append(piece)
    return everything, lanes


def instants(found: list[Piece], step: int | None, name: str) -> set[int]:
    """Nanoseconds of a step's pieces of a name; they do not overlap."""
    chosen = [piece for piece in found if piece[:2] == (step, name)]
    covered = {t for _, _, start, end in chosen for t in range(start, end)}
    assert len(covered) == sum(end - start for _, _, start, end in chosen)
    return covered


def twin(found: list[Event], rank: int) -> dict[tuple[int | None, str], set[int]]:
    mine = [event for event in found if event.rank == rank and event.dur_ns > 0]
    compute = grid(event for event in mine if event.kind == "compute")
    # As steps.sql has it: an event without duration, too, tells that the rank has steps.
    has_steps = any(event.step is not None for event in found if event.rank == rank)
    answers: dict[tuple[int | None, str], set[int]] = {}
    for step in {event.step for event in mine}:
        own = [event for event in mine if event.step == step]
        computing = grid(event for event in own if event.kind == "compute")
        communication = grid(event for event in own if event.kind != "compute")
        busy = computing | communication
        answers[step, "computing"] = computing
        if not compute:
            answers[step, "communication"] = communication
            continue
        answers[step, "exposed communication"] = communication - compute
        answers[step, "masked communication"] = communication & compute
        if step is not None or not has_steps:
            answers[step, "free"] = set(range(min(busy), max(busy) + 1)) - busy
    return {key: covered for key, covered in answers.items() if covered}


ONLY_STEP_IS_EMPTY = [
    Event(0, None, "compute", 0, 1), Event(0, None, "compute", 2, 1), Event(0, 7, "compute", 0, 0),
]  # fmt: skip


@pytest.mark.slow
@given(events, st.integers(0, 2))
@example(ONLY_STEP_IS_EMPTY, 0)
@settings(max_examples=60)
def test_pieces_equal_counting_nanoseconds(found: list[Event], rank: int) -> None:
    everything, lanes = pieces(found, rank)
    keys = {piece[:2] for piece in everything}
    assert {key: instants(everything, *key) for key in keys} == twin(found, rank)
    for lane in lanes.values():
        lane.sort(key=lambda piece: piece[2:])
        assert all(one[3] <= other[2] for one, other in pairwise(lane))
        # As long as can be: what goes on is one piece.
        assert not any(one[:2] == other[:2] and one[3] == other[2] for one, other in pairwise(lane))


@pytest.mark.slow
@given(events, st.integers(0, 2))
@settings(max_examples=40)
def test_pieces_add_up_to_the_figures_of_steps(found: list[Event], rank: int) -> None:
    everything, _ = pieces(found, rank)
    for row in answer(CON, "steps"):
        if row["rank"] == rank:
            for name, figure in FIGURES.items():
                assert len(instants(everything, row["step"], name)) == (row[figure] or 0)


@pytest.mark.slow
@given(events, st.integers(0, 2), st.integers(-5, 90), st.integers(1, 60))
@settings(max_examples=40)
def test_a_window_cuts_pieces_and_changes_none(
    found: list[Event], rank: int, first: int, length: int
) -> None:
    inside = set(range(first, first + length))
    everything, _ = pieces(found, rank, (first, first + length))
    expected = {key: covered & inside for key, covered in twin(found, rank).items()}
    keys = {piece[:2] for piece in everything}
    assert {key: instants(everything, *key) for key in keys} == {
        key: covered for key, covered in expected.items() if covered
    }


def test_steps_that_overlap_lie_apart() -> None:
    found = [
        Event(0, 7, "compute", 0, 10),
        Event(0, 8, "compute", 0, 10),  # as long as the one before
        Event(0, 9, "allReduce", 5, 15),
        Event(0, 10, "compute", 10, 5),
        Event(0, None, "compute", 30, 5),
    ]
    _, lanes = pieces(found, 0)
    assert {key: sorted(lane, key=lambda piece: piece[2]) for key, lane in lanes.items()} == {
        (0, False): [(7, "computing", 0, 10), (10, "computing", 10, 15)],
        (1, False): [(8, "computing", 0, 10)],
        (2, False): [(9, "exposed communication", 15, 20)],
        (2, True): [(9, "masked communication", 5, 15)],
        (3, False): [(None, "computing", 30, 35)],
    }
