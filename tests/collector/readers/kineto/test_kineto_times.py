"""Instants of a GPU's trace are exact to the ns, in any form, from any zero they count from."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import Raw

from npuscope.collector.readers.chrome_trace.events import instants_ns
from tests.collector.readers.kineto.written_kineto import BASE_NS, HEAD, read_path, rows, write

# ts as it stands in the file, and the ns that it is.
TIMES = {
    "4415025468133.667": 4415025468133667,
    '"4415025468133.667"': 4415025468133667,
    "4415025468133": 4415025468133000,
    "4415025468133.2": 4415025468133200,
    "4415025468133.2225": 4415025468133222,  # half to even
    "4415025468133.2235": 4415025468133224,
    "4.415025468133667e12": 4415025468133667,
    "44150254681336.67E-1": 4415025468133667,
    "4.5e3": 4_500_000,
    "0.001": 1,
    "0.500": 500,
    "-12.250": -12_250,
}
# A double of microseconds is off by 0.1 us here, and by a whole one there.
EPOCH_TIMES = {
    "1736412474730135.222": 1736412474730135222,
    "1.736412474730135222e15": 1736412474730135222,
    "9007199254740993.001": 9007199254740993001,
}


def kernel(ts: str, dur: str = "1.001", name: str = "k", args: str = "{}") -> str:
    return (
        f'{{"ph": "X", "cat": "kernel", "name": "{name}", "pid": 0, "tid": 7, "ts": {ts},'
        f' "dur": {dur}, "args": {args}}}'
    )


@pytest.mark.parametrize(
    ("base_ns", "times"), [(BASE_NS, TIMES), (0, TIMES), (0, EPOCH_TIMES), (None, EPOCH_TIMES)]
)
def test_digits_never_pass_through_a_double(
    tmp_path: Path, base_ns: int | None, times: dict[str, int]
) -> None:
    head = {**HEAD, "baseTimeNanoseconds": base_ns}
    if base_ns is None:
        del head["baseTimeNanoseconds"]
    events = ", ".join(kernel(ts, name=str(n)) for n, ts in enumerate(times))
    con, log = read_path(write(tmp_path / "t.json", events, head=head))

    found = rows(con, "select start_ns, dur_ns from kernels order by cast(name as int)")
    assert found == [(ns + (base_ns or 0), 1001) for ns in times.values()]
    assert log.rules["kineto.clock"] == (
        "baseTimeNanoseconds" if base_ns else "as the events have it"
    )
    assert (log.rows_lost, log.warnings) == (0, [])


@pytest.mark.parametrize("ts", TIMES | EPOCH_TIMES)
def test_one_form_alone_is_exact_too(ts: str) -> None:
    expected = (TIMES | EPOCH_TIMES)[ts]
    assert instants_ns([Raw(ts.encode())] * 3, 5).to_pylist() == [expected + 5] * 3


def test_events_without_a_time_are_lost_and_told(tmp_path: Path) -> None:
    odd = ["null", '"soon"', "true", "{}", "1e40", '"nan"']
    events = ", ".join(kernel(ts) for ts in ("5.000", *odd, "6.000"))
    con, log = read_path(write(tmp_path / "t.json", events))

    assert rows(con, f"select start_ns - {BASE_NS} from kernels") == [(5000,), (6000,)]
    assert log.rows_lost == len(odd)
    assert log.warnings == ["trace: slices without name, time or duration left out"]


def test_durations(tmp_path: Path) -> None:
    durations = {
        "0": 0, "0.0005": 0, "0.0015": 2, "1e-3": 1, "12345678.901": 12345678901, '"3.5"': 3500,
    }  # fmt: skip
    events = ", ".join(kernel("1.5", dur, name=str(n)) for n, dur in enumerate(durations))
    con, _ = read_path(write(tmp_path / "t.json", events))

    found = rows(con, "select dur_ns from kernels order by cast(name as int)")
    assert found == [(ns,) for ns in durations.values()]


def test_numbers_that_json_cannot_have_cost_nothing(tmp_path: Path) -> None:
    """Ratios by an unknown count of multiprocessors: the profiler writes them as it prints them."""
    odd = ("inf", "-inf", "nan", "NaN", "Infinity", "-Infinity", "1.5")
    events = ", ".join(
        kernel(f"{n}.0", args=f'{{"stream": {n}, "blocks per SM": {one}, "x": [{one}, 1]}}')
        for n, one in enumerate(odd)
    )
    con, log = read_path(write(tmp_path / "t.json", events))

    assert rows(con, "select stream_id from kernels order by 1") == [(n,) for n in range(len(odd))]
    assert (log.rows_lost, log.bytes_lost, log.warnings) == (0, 0, [])
