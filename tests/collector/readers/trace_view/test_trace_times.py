"""Instants and durations of a timeline as whole nanoseconds."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from npuscope.collector.model import ReadLog
from npuscope.collector.readers.trace_view.trace_events import (
    decode_events,
    durations_ns,
    instants_ns,
)

DECIMALS = st.one_of(
    st.decimals(min_value=0, max_value=10**9, places=9).map("{:f}".format),
    st.integers(0, 10**6).map(lambda n: f"{n / 2000:.4f}"),
    st.decimals(min_value=10**15, max_value=9 * 10**15, places=3).map("{:f}".format),
    st.floats(0, 1e8, allow_subnormal=False).map(repr),
)


@given(st.lists(DECIMALS, min_size=1, max_size=30))
def test_instants_are_exact_and_round_half_to_even(texts: list[str]) -> None:
    assert instants_ns(texts).to_pylist() == [round(Fraction(text) * 1000) for text in texts]


@given(st.lists(DECIMALS, min_size=1, max_size=30))
def test_durations_round_half_to_even_by_their_shortest_digits(texts: list[str]) -> None:
    values = [float(text) for text in texts]
    exact = [round(Fraction(repr(value)) * 1000) for value in values]
    assert durations_ns(values).to_pylist() == exact


@given(
    st.lists(
        st.decimals(min_value=0, max_value=10**8, places=6).map("{:f}".format),
        min_size=1,
        max_size=30,
    )
)
def test_durations_of_up_to_15_digits_are_exact(texts: list[str]) -> None:
    exact = [round(Fraction(text) * 1000) for text in texts]
    assert durations_ns([float(text) for text in texts]).to_pylist() == exact


def test_instants_that_are_none() -> None:
    texts = ["soon", None, "[1, 2]", "", "1e400", "1.2.345", "9" * 30, "1.5e1", "7", " 7.5 "]
    values = [None] * 7 + [15_000, 7_000, 7_500]
    assert instants_ns(texts).to_pylist() == values
    for text, value in zip(texts, values, strict=True):
        assert instants_ns([text]).to_pylist() == [value]
    assert instants_ns([]).to_pylist() == []


def test_durations_that_are_none() -> None:
    values = [None, 1.5, 1e300, float("inf"), float("nan"), 0.0]
    assert durations_ns(values).to_pylist() == [None, 1500, None, None, None, 0]
    assert durations_ns([None]).to_pylist() == [None]
    assert durations_ns([]).to_pylist() == []


def test_the_same_time_in_any_notation() -> None:
    """Numbers, strings and both in one array, as producers of different years write them."""
    notations = [
        (b'"1736412474730135.222"', b"12.5"),
        (b"1736412474730135.222", b'"12.5"'),
        (b'"1736412474730135.2220"', b"1.25e1"),
        (b"1736412474730135.222", b"12.5"),
    ]
    told = [b'{"ph": "X", "id": 7, "ts": %s, "dur": %s}' % notation for notation in notations]
    for text in (*(b"[" + event + b"]" for event in told), b"[" + b",".join(told) + b"]"):
        events = decode_events(text, ReadLog())
        instants = instants_ns([event.ts for event in events]).to_pylist()
        assert set(instants) == {1736412474730135222}
        assert set(durations_ns([event.dur for event in events]).to_pylist()) == {12_500}
        assert {event.id for event in events} == {7}
