"""Rows of tracks as the engine finds them, against what a row may hold."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuscope.dashboard.perfetto.slice_rows import place

EPOCH_NS = 1_736_405_443_862_052_130
# Process or device, thread or stream, start, duration; equal ones come in the small range.
Slice = tuple[int | None, int | None, int, int]
slices = st.lists(
    st.tuples(
        st.sampled_from([None, 5]), st.sampled_from([None, 1, 2]), st.integers(0, 25),
        st.integers(0, 12),
    ),
    max_size=30,
)  # fmt: skip
CON = duckdb.connect(config={"threads": 2})
CON.execute("create table slices (key_a bigint, key_b bigint, start_ns bigint, end_ns bigint)")
CON.execute("set variable timeline_zero_ns = ?", [EPOCH_NS])


def put(
    drawn: list[Slice], *, nested: bool
) -> dict[tuple[int | None, int | None, int], set[Slice]]:
    """Slices by track and lane."""
    CON.execute("delete from slices")
    for key_a, key_b, start, length in drawn:
        row = [key_a, key_b, EPOCH_NS + start, EPOCH_NS + start + length]
        CON.execute("insert into slices values (?, ?, ?, ?)", row)
    place(CON, "select * from slices", is_nested=nested)
    rows = CON.execute(f"""
        select s.key_a, s.key_b, s.start_ns - {EPOCH_NS}, s.end_ns - s.start_ns,
            coalesce(m.lane, 0)
        from slices as s join timeline_keys as k
            on k.key_a is not distinct from s.key_a and k.key_b is not distinct from s.key_b
        left join timeline_moved as m
            on m.track = k.track and m.start_ns = s.start_ns and m.end_ns = s.end_ns""").fetchall()
    assert len(rows) == len(drawn)  # a slice stands once
    found = defaultdict(set)
    for *one, lane in rows:
        found[one[0], one[1], lane].add((one[0], one[1], one[2], one[3]))
    return found


def crossing(one: Slice, other: Slice) -> bool:
    (first, first_length), (second, second_length) = sorted([one[2:], other[2:]])
    return first < second < first + first_length < second + second_length


def overlap_of(one: Slice, other: Slice) -> bool:
    """Whether the later begins before the other has ended; at one instant, the shorter is later."""
    (first, first_length), (second, _) = sorted([one[2:], other[2:]], key=lambda s: (s[0], -s[1]))
    return second < first + first_length


@pytest.mark.slow
@given(slices)
@settings(max_examples=100)
def test_host_calls_never_partly_overlap_on_a_row(drawn: list[Slice]) -> None:
    tracks = put(drawn, nested=True)
    for found in tracks.values():
        assert not any(crossing(one, other) for one, other in combinations(found, 2))
    crosses = {
        one[:2] for one, other in combinations(drawn, 2)
        if one[:2] == other[:2] and crossing(one, other)
    }  # fmt: skip
    assert crosses == {track[:2] for track in tracks if track[2]}


@pytest.mark.slow
@given(slices)
@settings(max_examples=100)
def test_kernels_never_overlap_on_a_row(drawn: list[Slice]) -> None:
    tracks = put(drawn, nested=False)
    for found in tracks.values():
        assert not any(overlap_of(one, other) for one, other in combinations(found, 2))
    overlaps = {
        one[:2] for one, other in combinations(set(drawn), 2)
        if one[:2] == other[:2] and overlap_of(one, other)
    }  # fmt: skip
    assert overlaps == {track[:2] for track in tracks if track[2]}


@pytest.mark.parametrize("nested", [False, True])
def test_long_runs_are_placed_in_batches(monkeypatch: pytest.MonkeyPatch, nested: bool) -> None:
    monkeypatch.setattr("npuscope.dashboard.perfetto.slice_rows._BATCH", 7)
    drawn: list[Slice] = [(5, 1, 10 * n, 15) for n in range(100)]
    tracks = put(drawn, nested=nested)
    assert {lane: len(found) for (_, _, lane), found in tracks.items()} == {0: 50, 1: 50}
