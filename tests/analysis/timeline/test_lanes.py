"""Rows of a picture against what a row may hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from npuscope.analysis.timeline.lanes import Interval, flat_lanes, nested_lanes

intervals = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 30), st.integers(0, 12)).map(
        lambda drawn: (drawn[0], drawn[1], drawn[1] + drawn[2])
    ),
    max_size=30,
)


def crossing(one: Interval, other: Interval) -> bool:
    """Whether the later of two begins inside the other and ends after it."""
    (_, _, first_end), (_, second_start, second_end) = sorted([one, other])
    return one[:2] != other[:2] and second_start < first_end < second_end


def rows(placed: Iterable[tuple[int, int, int, int]]) -> dict[tuple[int, int], list[Interval]]:
    found = defaultdict(list)
    for track, start, end, lane in placed:
        found[track, lane].append((track, start, end))
    return found


@given(intervals)
def test_nothing_overlaps_on_flat_rows(drawn: list[Interval]) -> None:
    ordered = sorted(drawn)
    placed = list(flat_lanes(ordered))
    assert [one[:3] for one in placed] == sorted(set(drawn))
    for row in rows(placed).values():
        assert all(one[2] <= other[1] for one, other in pairwise(row))
    for track, start, _, lane in placed:
        # No lower row was free.
        busy = [p for p in placed if p[0] == track and p[1] <= start < p[2] and p[3] < lane]
        assert len(busy) >= lane


@given(intervals)
def test_nothing_partly_overlaps_where_rows_nest(drawn: list[Interval]) -> None:
    longer = [one for one in drawn if one[1] < one[2]]
    placed = list(nested_lanes(sorted(longer, key=lambda one: (one[0], one[1], -one[2]))))
    assert sorted(one[:3] for one in placed) == sorted(set(longer))
    for row in rows(placed).values():
        assert not any(crossing(one, other) for one, other in combinations(row, 2))
    if not any(crossing(*pair) for pair in combinations(longer, 2) if pair[0][0] == pair[1][0]):
        assert {lane for *_, lane in placed} <= {0}


def test_rows_are_used_again() -> None:
    flat = flat_lanes([(1, 0, 10), (1, 2, 6), (1, 5, 20), (1, 6, 8), (2, 0, 5)])
    assert [lane for *_, lane in flat] == [0, 1, 2, 1, 0]
    nested = nested_lanes([(1, 0, 10), (1, 2, 6), (1, 5, 20), (1, 6, 8), (2, 0, 5)])
    assert [lane for *_, lane in nested] == [0, 0, 1, 0, 0]


def test_as_many_rows_as_intervals_take_no_time_to_find() -> None:
    placed = list(flat_lanes((1, start, 10**9) for start in range(50_000)))
    assert placed[-1][3] == 49_999
