"""Instants and durations of a timeline as whole nanoseconds."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from npuscope.collector.readers.trace_events import nanoseconds


@given(
    st.lists(
        st.one_of(
            st.decimals(min_value=0, max_value=10**9, places=9),
            st.integers(0, 10**6).map(lambda n: Fraction(n, 2000)),
            st.decimals(min_value=10**15, max_value=9 * 10**15, places=3),
            st.floats(0, 1e8, allow_subnormal=False),
        ),
        min_size=1,
        max_size=30,
    ),
    st.booleans(),
)
def test_times_are_exact_and_round_half_to_even(values: list[Any], quoted: bool) -> None:
    texts = [
        repr(value) if isinstance(value, float)
        else f"{float(value):.4f}" if isinstance(value, Fraction)
        else f"{value:f}"
        for value in values
    ]  # fmt: skip
    raws = [Raw((f'"{text}"' if quoted else text).encode()) for text in texts]
    assert nanoseconds(raws).to_pylist() == [round(Fraction(text) * 1000) for text in texts]


def test_times_that_are_none() -> None:
    texts = ['"soon"', "null", "[1, 2]", '""', "1e400", '"1.2.345"', "9" * 30, "1.5e1", '"7"']
    raws = [Raw(text.encode()) for text in texts]
    assert nanoseconds(raws).to_pylist() == [None] * 7 + [15_000, 7_000]
    for raw, value in zip(raws, [None] * 7 + [15_000, 7_000], strict=True):
        assert nanoseconds([raw]).to_pylist() == [value]
    assert nanoseconds([]).to_pylist() == []
