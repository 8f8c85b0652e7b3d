"""What options select, what covers what, and what two selections make together."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npuscope.collector import schema
from npuscope.collector.selection import (
    LIGHT,
    Selection,
    contains,
    merge_spans,
    parse_numbers,
    parse_selection,
    spans_of,
    spans_text,
)
from npuscope.errors import UsageError


def test_options_become_a_selection() -> None:
    chosen = parse_selection(
        ranks="0,7,8-15", steps="12-14", tables=" comm_ops,kernels", light=True, stacks=True
    )

    assert chosen == Selection(((0, 0), (7, 15)), ((12, 14),), ("comm_ops", "kernels"), True, True)
    assert [rank for rank in range(20) if chosen.has_rank(rank)] == [0, *range(7, 16)]
    assert parse_selection() == Selection()


@pytest.mark.parametrize(
    ("option", "told"),
    [
        (("ranks", "a"), "--ranks a: give numbers and ranges"),
        (("ranks", ""), "--ranks : give numbers"),
        (("ranks", "1,,2"), "--ranks"),
        (("steps", "14-12"), "--steps 14-12: 14-12 ends before it begins"),
        (("steps", "-3"), "--steps -3"),
        (("tables", "kernel"), "no table 'kernel'; there are ranks, groups, steps, kernels"),
        (("tables", ""), "--tables"),
    ],
)
def test_a_slip_names_its_option(option: tuple[str, str], told: str) -> None:
    name, value = option
    with pytest.raises(UsageError) as error:
        parse_selection(
            ranks=value if name == "ranks" else None,
            steps=value if name == "steps" else None,
            tables=value if name == "tables" else None,
        )
    assert told in str(error.value)


@given(st.sets(st.integers(0, 60)))
def test_spans_are_their_numbers(numbers: set[int]) -> None:
    spans = spans_of(numbers)

    assert {n for n in range(62) if contains(spans, n)} == numbers
    assert merge_spans(reversed(spans)) == spans
    assert not numbers or parse_numbers("--ranks", spans_text(spans)) == spans


def test_a_huge_range_costs_nothing() -> None:
    assert parse_numbers("--steps", "0-999999999999") == ((0, 999999999999),)


SELECTIONS = st.builds(
    Selection,
    ranks=st.none(),
    steps=st.none() | st.sets(st.integers(0, 6), min_size=1).map(spans_of),
    tables=st.none()
    | st.sets(st.sampled_from(sorted(schema.tables())), min_size=1).map(sorted).map(tuple),
    light=st.just(False),
    stacks=st.booleans(),
) | st.builds(
    Selection, steps=st.none() | st.sets(st.integers(0, 6), min_size=1).map(spans_of),
    light=st.just(True),
)  # fmt: skip


@given(SELECTIONS, SELECTIONS)
def test_what_is_joined_covers_both(one: Selection, other: Selection) -> None:
    both = one.union(other)

    assert both.covers(one)
    assert both.covers(other)
    assert one.covers(one)
    assert Selection(stacks=True).covers(both)
    assert msgspec.json.decode(msgspec.json.encode(both), type=Selection) == both


def test_less_does_not_cover_more() -> None:
    whole = Selection()
    kernels = Selection(tables=("kernels",))
    light = whole.lightly()

    assert whole.covers(kernels)
    assert whole.covers(light)
    assert not kernels.covers(light)
    assert not light.covers(kernels)
    assert not light.covers(Selection(tables=("steps",))), "steps of a light reading know less"
    assert not Selection(steps=((1, 3),)).covers(Selection(steps=((3, 4),)))
    assert Selection(steps=((1, 3),)).covers(Selection(steps=((2, 2),)))
    assert not whole.covers(Selection(stacks=True))
    assert kernels.covers(Selection(tables=("kernels",), stacks=True)), "kernels have no stacks"


def test_what_a_table_needs_is_read() -> None:
    assert Selection().inputs == set(schema.tables())
    assert Selection(light=True).inputs == LIGHT
    assert "steps" in Selection(tables=("kernels",)).inputs
    assert {"groups", "comm_times", "steps"} <= Selection(tables=("comm_tasks",)).inputs
    assert "kernels" in Selection(tables=("memory",), steps=((1, 1),)).inputs
    assert "host_ops" not in Selection(tables=("kernels", "comm_ops")).inputs
