"""What passes are made of: layers that repeat, and two passes beside each other."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuscope.analysis.pipeline.model_parts import beside_each_other, repeated


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
    assert repeated(np.frombuffer(word.encode(), np.uint8).astype(np.int32)) == expected


def by_every_choice(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    """Counting ticks over all choices of who goes on; what has begun is not interrupted."""

    @cache
    def left(i: int, p: int, j: int, q: int) -> int:
        while i < len(first) and p >= first[i]:
            i, p = i + 1, 0
        while j < len(second) and q >= second[j]:
            j, q = j + 1, 0
        if i == len(first) and j == len(second):
            return 0
        best = 10**6
        for a, b in ((0, 1), (1, 0), (1, 1)):
            ends = (a and i == len(first)) or (b and j == len(second))
            stops = (not a and p > 0) or (not b and q > 0)
            if not ends and not stops and not (a and b and i % 2 == j % 2):
                best = min(best, 1 + left(i, p + a, j, q + b))
        return best

    return left(0, 0, 0, 0)


stretches = st.sampled_from((1, 3, 5)).flatmap(
    lambda count: st.tuples(*[st.integers(0, 4)] * count)
)


@given(stretches, stretches)
@settings(max_examples=100)
def test_two_passes_beside_each_other_take_the_least_of_all_ways(
    first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    found = beside_each_other(np.array(first), np.array(second))
    assert found == by_every_choice(first, second)


def test_communication_of_one_is_hidden_by_computing_of_the_other() -> None:
    assert beside_each_other(np.array([10, 10, 10]), np.array([10, 10, 10])) == 40
    assert beside_each_other(np.array([10]), np.array([10])) == 20
