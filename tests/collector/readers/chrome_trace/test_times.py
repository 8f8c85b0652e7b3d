"""Instants and durations of a timeline as whole nanoseconds."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Raw

from npuscope.collector.model import ReadLog
from npuscope.collector.readers.chrome_trace.events import (
    decode_events,
    durations_ns,
    instants_ns,
)

# What the times of a trace may count from.
BASE_NS = 1790857026000000000

DECIMALS = st.one_of(
    st.decimals(min_value=0, max_value=10**9, places=9).map("{:f}".format),
    st.integers(0, 10**6).map(lambda n: f"{n / 2000:.4f}"),
    st.decimals(min_value=10**15, max_value=9 * 10**15, places=3).map("{:f}".format),
    st.tuples(st.integers(0, 10**15), st.integers(0, 999)).map(lambda p: f"{p[0]}.{p[1]:03d}"),
    st.integers(-(10**15), 10**15).map(str),
    st.floats(0, 1e8, allow_subnormal=False).map(repr),
)


@given(
    st.lists(DECIMALS, min_size=1, max_size=30), st.booleans(), st.sampled_from([0, 1, BASE_NS, -1])
)
@example(["4611686018427387.905", "7432515010854775.808"], False, BASE_NS)
def test_instants_are_exact_and_round_half_to_even(
    texts: list[str], is_quoted: bool, base_ns: int
) -> None:
    sums = [round(Fraction(text) * 1000) + base_ns for text in texts]
    exact = [ns if ns < 2**63 else None for ns in sums]
    written = [Raw((f'"{text}"' if is_quoted else text).encode()) for text in texts]
    assert instants_ns(written, base_ns).to_pylist() == exact


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
    texts = [b'"soon"', b"", b"[1, 2]", b'""', b"1e400", b'"1.2.345"', b"9" * 30, b'"\xff"']
    texts += [b"1.5e1", b"7", b'" 7.5 "']
    values = [None] * 8 + [15_000, 7_000, 7_500]
    assert instants_ns([Raw(text) for text in texts]).to_pylist() == values
    for text, value in zip(texts, values, strict=True):
        assert instants_ns([Raw(text)]).to_pylist() == [value]
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
        assert {str(event.id) for event in events} == {"7"}
