"""The same timeline otherwise: shuffled, sliced, of an older producer, among damaged events."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import duckdb
import pytest

from npuscope.errors import TraceFormatError
from tests.collector.readers.trace_view.written_traces import (
    FLOWS,
    NPU,
    OS_PID,
    TRACE,
    everything,
    read_paths,
    rows,
    write,
    x,
)


def test_arrows_that_are_written_twice_launch_once(
    trace_tables: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    """As of slices that both have what crosses their border."""
    path = write(tmp_path / "twice.json", [*TRACE, *FLOWS, *FLOWS])
    con, log = read_paths([path], tmp_path)
    assert everything(con) == everything(trace_tables)
    assert rows(con, "select count(*) from launches") == [(3,)]
    ends = [event for event in FLOWS if event["ph"] == "f" and event["cat"] == "HostToDevice"]
    path = write(tmp_path / "ends.json", [*(e for e in TRACE if e not in FLOWS), *ends, *ends])
    con, log = read_paths([path], tmp_path)
    assert [text for text in log.warnings if "3" in text and "launch" in text], log.warnings


@pytest.mark.parametrize("seed", range(3))
def test_order_and_slices_of_the_file_do_not_matter(
    trace_tables: duckdb.DuckDBPyConnection, tmp_path: Path, seed: int
) -> None:
    events = TRACE.copy()
    random.Random(seed).shuffle(events)
    paths = [
        write(tmp_path / f"msprof_slice_{i}_20250101000000.json", events[i::3]) for i in range(3)
    ]
    con, _ = read_paths(paths, tmp_path)
    assert everything(con) == everything(trace_tables)


def test_numbers_that_json_cannot_have_and_processes_as_text_cost_nothing(
    trace_tables: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    text = json.dumps(TRACE).replace(f'"pid": {OS_PID},', f'"pid": "{OS_PID}",')
    assert f'"pid": "{OS_PID}"' in text
    instant = {**x(OS_PID, 1, "odd", "1.000"), "ph": "i", "args": {"ratio": float("nan")}}
    path = tmp_path / "odd.json"
    path.write_text(f"{text[:-1]}, {json.dumps(instant)}]")
    con, log = read_paths([path], tmp_path)
    assert everything(con) == everything(trace_tables)
    assert (log.rows_lost, log.bytes_lost) == (0, 0)


def test_numbers_as_time_stamps(trace_tables: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    text = json.dumps(TRACE)
    for event in TRACE:
        if "ts" in event:
            text = text.replace(f'"ts": "{event["ts"]}"', f'"ts": {event["ts"]}')
    assert '"ts": "' not in text
    path = tmp_path / "numbers.json"
    path.write_text(text)
    con, _ = read_paths([path], tmp_path)
    assert everything(con) == everything(trace_tables)


def test_older_names_of_processes(trace_tables: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    for name in ("HCCL", "Communication(HCCL)"):
        text = json.dumps(TRACE).replace('"Communication"', f'"{name}"')
        path = tmp_path / "older.json"
        path.write_text(text.replace('"NPU 3"', '"NPU"'))
        con, log = read_paths([path], tmp_path)
        assert log.rules["trace.communication_process"] == name
        for table in ("comm_ops", "launches", "kernels"):
            plain = f"select * replace (null as device_id) from {table} order by all"
            assert rows(con, plain) == rows(trace_tables, plain)


HOSTILE: list[Any] = [
    None, 7, "text", [], {}, {"ph": 1}, {"ph": "X"}, {"ph": "X", "name": "no place"},
    x(NPU, 2, "no time", "soon"), x(NPU, 2, "negative", "1000.000", -1),
    {**x(NPU, 2, "far", "1000.000"), "pid": 2**70}, {**x(NPU, 2, "far", "9" * 40)},
    {**x(NPU, 2, "listed", "1000.000"), "tid": [1]},
    {"ph": "s", "cat": "HostToDevice", "id": None, "pid": 1, "tid": 1, "ts": "1.000"},
    {"ph": "f", "cat": "HostToDevice", "id": "1", "pid": 1, "tid": 1},
    {"ph": "C", "name": "c", "pid": 1, "ts": "1.000", "args": {"value": "many"}},
    {"ph": "C", "name": "c", "pid": 1, "args": {"value": 1}},
]  # fmt: skip
# In two events each, of which one counts.
HALVES = [
    {"ph": "B", "name": "Mul", "pid": NPU, "tid": 2, "ts": "1300.000", "args": {"Task Id": 1}},
    {"ph": "E", "name": "Mul", "pid": NPU, "tid": 2, "ts": "1301.000"},
    {"ph": "B", "name": "aten::mul", "cat": "cpu_op", "pid": OS_PID, "tid": 7, "ts": "1290.000"},
    {"ph": "E", "cat": "cpu_op", "pid": OS_PID, "tid": 7, "ts": "1291.000"},
]


def test_hostile_events_are_counted_and_left_out(
    trace_tables: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    path = write(tmp_path / "hostile.json", [*HOSTILE, *TRACE])
    con, log = read_paths([path], tmp_path)
    assert everything(con) == everything(trace_tables)
    assert log.rows_lost == len(HOSTILE)
    assert log.warnings
    cases: tuple[list[Any], ...] = ([], [None])  # compiled, and event by event
    for odd in cases:
        con, log = read_paths([write(tmp_path / "halves.json", [*HALVES, *odd, *TRACE])], tmp_path)
        assert everything(con) == everything(trace_tables)
        assert log.rows_lost == 2 + len(odd)
        assert any("phases B and E" in warning for warning in log.warnings)


def test_args_of_wrong_types_cost_only_themselves(tmp_path: Path) -> None:
    events = [
        x(OS_PID, 7, "aten::a", "1000.000", cat="cpu_op",
          args={"Sequence number": "x", "Input Dims": "2, 3", "Fwd thread id": 5}),
        x(OS_PID, 7, "aten::b", "1001.000", cat="cpu_op", args=["no", "map"]),
        x(OS_PID, 7, "aten::c", "1002.000", cat="cpu_op", args={"Sequence number": "12"}),
        {"ph": "I", "name": "unknown phase"},
        {"ph": "new", "name": "unknown phase", "args": 3},
    ]  # fmt: skip
    con, log = read_paths([write(tmp_path / "trace_view.json", events)], tmp_path)
    told = "select name, sequence_number, input_shapes, forward_thread_id from host_ops order by 1"
    assert rows(con, told) == [
        ("aten::a", None, "2,3", 5), ("aten::b", None, None, None), ("aten::c", 12, None, None),
    ]  # fmt: skip
    assert log.rows_lost == 0
    assert log.warnings
    # The device's without their type: what is lost is told.
    bare = [{**e, "args": {}} if e["pid"] == NPU and e["ph"] == "X" else e for e in TRACE]
    (tmp_path / "bare").mkdir()
    con, log = read_paths([write(tmp_path / "trace_view.json", bare)], tmp_path / "bare")
    assert rows(con, "select count(*) from kernels") == [(0,)]
    assert (log.rows_lost, log.warnings) == (
        4, ["trace: 4 device tasks without a type left out: whether they compute is unknown"]
    )  # fmt: skip


def test_bytes_that_are_no_utf8(tmp_path: Path) -> None:
    path = tmp_path / "trace_view.json"
    text = json.dumps([x(1, 1, "op-NAME", "1000.000", cat="cpu_op"), *TRACE]).encode()
    path.write_bytes(text.replace(b"op-NAME", b"op-\xff\xfe"))
    con, log = read_paths([path], tmp_path)
    assert rows(con, "select name from host_ops where process_id = 1") == [("op-\ufffd\ufffd",)]
    assert any("UTF-8" in warning for warning in log.warnings)


def test_one_bad_slice_spoils_nothing_else(
    trace_tables: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    bad = tmp_path / "msprof_slice_1_1.json"
    bad.write_text("<html>")
    good = write(tmp_path / "msprof_slice_0_1.json", TRACE)
    con, log = read_paths([good, bad], tmp_path)
    assert everything(con) == everything(trace_tables)
    assert any("msprof_slice_1_1.json" in warning for warning in log.warnings)
    with pytest.raises(TraceFormatError):
        read_paths([bad], tmp_path)
