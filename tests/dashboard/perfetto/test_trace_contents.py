"""Traces of tables that are made for it, and of real profiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from npuscope.analysis.query import steps
from npuscope.collector.store import store
from npuscope.collector.store.export import export as write_file
from npuscope.dashboard.perfetto.trace_file import stream_lines
from npuscope.profile import summary_versions
from tests.analysis.tables import connect, fill, kernel, op
from tests.dashboard.perfetto.traces import (
    OVERLAP,
    Event,
    assert_nests,
    export,
    file_events,
    ns,
    of,
    read_trace,
)

EPOCH_NS = 1_736_405_443_862_052_130


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    """Canonical tables of a rank, to fill."""
    con = connect()
    fill(con, "ranks", [{"window_start_ns": EPOCH_NS, "clock": "epoch"}])
    yield con
    con.close()


def made_trace(
    con: duckdb.DuckDBPyConnection, folder: Path, **options: str
) -> tuple[dict[str, Any], list[Event]]:
    write_file(con, "duckdb", folder / "made.duckdb", summaries={})
    export(folder / "made.duckdb", folder / "made.json", **options)
    trace = read_trace(folder / "made.json")
    return trace, trace["traceEvents"]


def test_names_from_a_profile_are_text(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    hostile = "a\"b\\c\nd\te\x01f,{'}\u2028\U0001f600 内核"
    fill(con, "kernels", [kernel(EPOCH_NS, 10, name=hostile, type=hostile, input_shapes='"1,2"')])
    fill(con, "comm_ops", [op(EPOCH_NS, 5, name=hostile, group_hash=hostile, op_type=hostile)])
    fill(con, "host_ops", [
        {"kind": hostile, "name": hostile, "start_ns": EPOCH_NS, "dur_ns": 1, "thread_id": 7,
         "process_id": 7, "call_stack": "a.py(1)\nb.py(2)"},
    ])  # fmt: skip
    fill(con, "counters", [
        {"name": hostile, "series": hostile, "timestamp_ns": EPOCH_NS, "value": 1e300},
        {"name": "x", "series": "y", "timestamp_ns": EPOCH_NS, "value": float("inf")},
    ])  # fmt: skip
    fill(con, "memory", [
        {"component": hostile, "source": "record", "timestamp_ns": EPOCH_NS, "allocated_bytes": 2},
    ])  # fmt: skip
    _, events = made_trace(con, tmp_path)
    (shown,) = of(events, cat="kernel")
    assert shown["name"] == shown["args"]["type"] == hostile
    assert shown["args"]["input shapes"] == '"1,2"'
    (operation,) = of(events, cat="communication")
    assert operation["args"]["group"] == f"group {hostile}"
    (call,) = of(events, cat=hostile)
    assert call["args"] == {"call stack": "a.py(1)\nb.py(2)"}
    points = of(events, ph="C")
    assert [point["name"] for point in points] == [f"memory {hostile}", hostile]
    assert points[1]["args"] == {hostile: 1e300}


def test_instants_years_apart_are_exact(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    late_ns = EPOCH_NS + 400 * 86_400 * 10**9 + 1
    fill(con, "kernels", [kernel(EPOCH_NS, 10_001), kernel(late_ns, 2)])
    made_trace(con, tmp_path)
    text = (tmp_path / "made.json").read_text()
    assert '"ts":0.000,"dur":10.001,' in text
    assert '"ts":34560000000000.001,"dur":0.002,' in text


def test_what_has_no_time_is_no_event(con: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    fill(con, "kernels", [
        kernel(EPOCH_NS, 5, name="good"), kernel(EPOCH_NS, None, name="open"),
        kernel(EPOCH_NS, -3, name="torn"), {"name": "lost", "is_compute": True},
        kernel(EPOCH_NS + 9, 0, name="instant"),
    ])  # fmt: skip
    _, events = made_trace(con, tmp_path)
    assert [event["name"] for event in of(events, cat="kernel")] == ["good", "instant"]


def test_kernels_that_overlap_on_a_stream_stand_on_rows(
    con: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    spans = {"a": (0, 10), "b": (2, 3), "c": (4, 10), "d": (14, 5), "e": (14, 5)}
    fill(con, "kernels", [
        kernel(EPOCH_NS + start, length, name=name, stream_id=3)
        for name, (start, length) in spans.items()
    ])  # fmt: skip
    _, events = made_trace(con, tmp_path)
    tracks = {event["tid"]: event["args"]["name"] for event in of(events, name="thread_name")}
    rows = {event["name"]: tracks[event["tid"]] for event in of(events, cat="kernel")}
    assert rows == {
        "a": "stream 3", "b": "stream 3 (2)", "c": "stream 3 (3)", "d": "stream 3",
        "e": "stream 3",
    }  # fmt: skip


def test_a_full_disk_is_an_error_of_the_file(con: duckdb.DuckDBPyConnection) -> None:
    query = "select repeat('x', 1000) from range(10000)"
    with Path("/dev/full").open("wb", buffering=0) as full, pytest.raises(OSError, match="space"):
        stream_lines(con, query, full)
    with Path("/dev/null").open("wb") as null:
        assert stream_lines(con, query, null) == 10_000
        with pytest.raises(duckdb.Error, match="torn"):
            stream_lines(con, "select error('torn') from range(10)", null)


REAL = [
    ("alexnet_ddp_db_level1", 2), ("alexnet_ddp_text_level1", 2), ("alexnet_ddp_db_level0", 2),
    ("alexnet_ddp_text_level0", 2), ("qwen3_pp2_dp2_text_level2", 2),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("name", "ranks"), REAL)
def test_real_profiles(
    real_stores: Callable[[str], Path], tmp_path: Path, name: str, ranks: int
) -> None:
    export(real_stores(name), tmp_path / "x.json")
    events = file_events(tmp_path / "x.json")
    assert len({event["pid"] for event in events}) == ranks
    assert_nests(events)
    con = store.open(real_stores(name), summaries=summary_versions())
    sums: Counter[tuple[int, int | None, str]] = Counter()
    for event in of(events, cat="overlap"):
        sums[event["pid"], event["args"].get("step"), event["name"]] += ns(event["dur"])
    rows = steps(con).to_dicts()
    assert rows
    for row in rows:
        if row["basis"] != "events":
            continue
        for piece, figure in OVERLAP.items():
            assert sums[row["rank"], row["step"], piece] == row[figure]
    shown = Counter(event.get("cat") for event in events)
    counted = "select count(*) from {} where dur_ns >= 0"
    for table, categories in {
        "kernels": ("kernel", "task"),
        "comm_ops": ("communication",),
    }.items():
        found = con.execute(counted.format(table)).fetchall()[0][0]
        assert found == sum(shown[category] for category in categories)
    con.close()
