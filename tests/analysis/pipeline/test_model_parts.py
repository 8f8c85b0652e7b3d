"""What passes are made of: layers that repeat, and two passes beside each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuscope.analysis.pipeline.model_parts import repetition
from npuscope.analysis.pipeline.orders.pairs import Turns, length_ns


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("abcabcabc", (0, 3, 3)),
        ("eabcabcabch", (1, 3, 3)),
        ("aabaabaab", (0, 3, 3)),  # not the run of two
        ("abcdefgh", None),
        ("abcdefghaa", None),  # two kernels that repeat are no layers
    ],
)
def test_the_part_that_repeats(word: str, expected: tuple[int, int, int] | None) -> None:
    assert repetition(np.frombuffer(word.encode(), np.uint8).astype(np.int32)) == expected


def turns(work: list[list[int]], moved: list[int]) -> Turns:
    """A pass whose ranks all meet each other."""
    every = np.ones((len(work), len(moved)), np.int64)
    return Turns(np.array(work), 0 * every, every * moved, every * np.arange(len(moved)))


def test_passes_in_turns_hide_what_one_moves_behind_what_the_other_computes() -> None:
    alike = turns([[10, 10, 10]], [10, 10])
    assert length_ns([alike]) == 50
    assert length_ns([alike, alike]) == 60  # of 100: all that moves is hidden
    assert length_ns([turns([[10]], []), turns([[10]], [])]) == 20
    # What moves waits for what moves.
    assert length_ns([turns([[1, 1]], [20]), turns([[1, 1]], [20])]) == 42
    # A meeting waits for its last member, and who waits for it computes the other pass.
    skewed, other = turns([[10, 5], [2, 5]], [4]), turns([[2, 5], [10, 5]], [4])
    assert length_ns([skewed]) == 19
    assert length_ns([skewed, other]) == 24  # each rank computes 22 of it
    early = replace(skewed, early=np.array([[6], [0]]))  # the slow one came before it had to wait
    assert length_ns([early]) == 15


@given(
    st.integers(1, 3).flatmap(
        lambda ranks: st.lists(
            st.tuples(
                st.lists(st.integers(0, 9), min_size=ranks, max_size=ranks), st.integers(0, 9)
            ),
            min_size=1,
            max_size=4,
        )
    )
)
@settings(max_examples=50)
def test_in_turns_takes_no_less_than_all_computing_and_no_more_than_one_behind_the_other(
    parts: list[tuple[list[int], int]],
) -> None:
    one = turns(np.array([its for its, _ in parts]).T.tolist(), [ns for _, ns in parts[:-1]])
    alone, both = length_ns([one]), length_ns([one, one])
    busy = max(2 * int(one.work.sum(axis=1).max()), 2 * int(one.transfer.sum(axis=1).max()))
    assert max(alone, busy) <= both <= 2 * alone
