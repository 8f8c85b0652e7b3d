"""Instants of a GPU's trace are exact to the ns, whatever their form and the zero they count from."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from npuscope.collector.readers.kineto_events import instants_ns
from tests.collector.written_kineto import BASE_NS, HEAD, read_path, rows, write

# ts as it stands in the file, base in ns, and the instant that it is.
TIMES = [
    ("4415025468133.667", BASE_NS, BASE_NS + 4415025468133667),
    ("9007199254740993.001", 0, 9007199254740993001),  # a double of microseconds is off by 1.001
    ("1736412474730135.222", 0, 1736412474730135222),
    ('"1736412474730135.222"', 0, 1736412474730135222),
    ("1736412474730135", 0, 1736412474730135000),
    ("1736412474730135.2", 0, 1736412474730135200),
    ("1736412474730135.2225", 0, 1736412474730135222),  # half to even
    ("1736412474730135.2235", 0, 1736412474730135224),
    ("1.736412474730135222e15", 0, 1736412474730135222),
    ("17364124747301352.22E-1", 0, 1736412474730135222),
    ("4.5e3", BASE_NS, BASE_NS + 4_500_000),
    ("0.001", BASE_NS, BASE_NS + 1),
    ("0.500", 0, 500),
    ("-12.250", BASE_NS, BASE_NS - 12_250),
]


@pytest.mark.parametrize(("ts", "base_ns", "expected"), TIMES)
def test_digits_never_pass_through_a_double(
    tmp_path: Path, ts: str, base_ns: int, expected: int
) -> None:
    event = (
        f'{{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": {ts}, "dur": 1.001,'
        ' "args": {"device": 0, "stream": 7}}'
    )
    path = write(tmp_path / "t.json", event, head={**HEAD, "baseTimeNanoseconds": base_ns})
    con, log = read_path(path)

    assert rows(con, "select start_ns, dur_ns from kernels") == [(expected, 1001)]
    assert log.rows_lost == 0


def test_without_a_base_times_are_as_they_stand(tmp_path: Path) -> None:
    head = {name: value for name, value in HEAD.items() if name != "baseTimeNanoseconds"}
    event = '{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":12.345,"dur":1,"args":{}}'
    con, log = read_path(write(tmp_path / "t.json", event, head=head))

    assert rows(con, "select start_ns from kernels") == [(12_345,)]
    assert log.rules["kineto.clock"] == "as the events have it"


@pytest.mark.parametrize("ts", ["null", '"soon"', "true", "{}", "1e40", '"nan"'])
def test_an_event_without_a_time_is_lost_and_told(tmp_path: Path, ts: str) -> None:
    events = ", ".join(
        f'{{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": {one}, "dur": 1}}'
        for one in ("5.000", ts, "6.000")
    )
    con, log = read_path(write(tmp_path / "t.json", events))

    assert rows(con, "select start_ns - (?::bigint) from kernels".replace("?", str(BASE_NS))) == [
        (5000,), (6000,),
    ]  # fmt: skip
    assert log.rows_lost == 1
    assert log.warnings == ["trace: slices without name, time or duration left out"]


@pytest.mark.parametrize(
    ("dur", "expected"),
    [("0", 0), ("0.0005", 0), ("0.0015", 2), ("1e-3", 1), ("12345678.901", 12345678901),
     ('"3.5"', 3500)],
)  # fmt: skip
def test_durations(tmp_path: Path, dur: str, expected: int) -> None:
    event = f'{{"ph": "X", "cat": "kernel", "name": "k", "ts": 1.5, "dur": {dur}}}'
    con, _ = read_path(write(tmp_path / "t.json", event))

    assert rows(con, "select dur_ns from kernels") == [(expected,)]


def test_numbers_that_json_cannot_have_cost_nothing(tmp_path: Path) -> None:
    """Ratios by an unknown count of multiprocessors: the profiler writes them as it prints them."""
    events = ", ".join(
        f'{{"ph": "X", "cat": "kernel", "name": "k, inf", "ts": {n}.0, "dur": 1, "args":'
        f' {{"stream": {n}, "blocks per SM": {odd}, "list": [{odd}, 1]}}}}'
        for n, odd in enumerate(("inf", "-inf", "nan", "NaN", "Infinity", "-Infinity", "1.5"))
    )
    con, log = read_path(write(tmp_path / "t.json", events))

    assert rows(con, "select stream_id, name from kernels order by 1") == [
        (n, "k, inf") for n in range(7)
    ]
    assert (log.rows_lost, log.bytes_lost, log.warnings) == (0, 0, [])


TEXTS = st.one_of(
    st.tuples(st.integers(0, 10**16), st.integers(0, 999)).map(lambda p: f"{p[0]}.{p[1]:03d}"),
    st.integers(-(10**15), 10**15).map(str),
    st.decimals(-(10**15), 10**15, allow_nan=False, places=6).map(lambda d: f"{d:f}"),
    st.floats(0, 1e15).map(repr),
)


@given(st.lists(TEXTS, min_size=1, max_size=30), st.sampled_from([0, 1, BASE_NS]))
def test_any_mixture_of_forms_is_exact(texts: list[str], base_ns: int) -> None:
    found = instants_ns([Raw(text.encode()) for text in texts], base_ns).to_pylist()
    whole = [Decimal(t).scaleb(3).to_integral_value(ROUND_HALF_EVEN) + base_ns for t in texts]

    assert found == whole
