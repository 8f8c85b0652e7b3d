"""What stands in a trace, against what stands in the store."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import duckdb
import pytest

from npuscope.analysis.query import steps
from npuscope.analysis.scope import Scope
from npuscope.analysis.views import open_views
from npuscope.collector.store import store
from npuscope.collector.store.export import export as export_tables_of
from npuscope.dashboard.perfetto.choice import TRACKS
from npuscope.errors import StoreError, UsageError
from npuscope.profile import summary_versions
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

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def sample(sample_store: Path) -> Path:
    return sample_store


@pytest.fixture(scope="module")
def con(sample: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    con = store.open(sample, summaries=summary_versions())
    yield con
    con.close()


@pytest.fixture(scope="module")
def whole(sample: Path) -> list[Event]:
    export(sample, sample.parent / "whole.json")
    return file_events(sample.parent / "whole.json")


def zero_ns(path: Path) -> int:
    return int(read_trace(path)["otherData"]["start_ns"])


def test_every_row_is_an_event(whole: list[Event], con: duckdb.DuckDBPyConnection) -> None:
    zero = zero_ns_of(con)
    for category, query in {
        "kernel": "select rank, name, start_ns, dur_ns from kernels where is_compute",
        "task": "select rank, name, start_ns, dur_ns from kernels where not is_compute",
        "communication": "select rank, name, start_ns, dur_ns from comm_ops",
        "operator": "select rank, name, start_ns, dur_ns from host_ops where kind = 'operator'",
        "enqueue": "select rank, name, start_ns, dur_ns from host_ops where kind = 'enqueue'",
        "api": "select rank, name, start_ns, dur_ns from host_ops where kind = 'api'",
        "mark": "select rank, name, start_ns, dur_ns from marks",
        "step": "select rank, 'step ' || step, window_start_ns, window_end_ns - window_start_ns"
        " from steps",
    }.items():
        expected = Counter(con.execute(query).fetchall())
        assert expected
        assert expected == Counter(
            (event["pid"], event["name"], ns(event["ts"]) + zero, ns(event["dur"]))
            for event in of(whole, ph="X", cat=category)
        )
    # Every module that ever held memory, and the framework's curves.
    points = con.execute("""
        select count(*) from memory semi join (
            select rank, source, component from memory group by all
            having bool_or(coalesce(allocated_bytes, 0) <> 0 or reserved_bytes <> 0)
        ) using (rank, source, component)""").fetchall()
    memory = [event for event in of(whole, ph="C") if event["name"].startswith("memory ")]
    assert len(memory) == points[0][0] > 4_000
    frequency = con.execute("select count(*) from counters").fetchall()[0][0]
    assert len(of(whole, ph="C", name="AI Core Freq")) == frequency == 16


def zero_ns_of(con: duckdb.DuckDBPyConnection) -> int:
    """The first instant of the sample: its first memory record."""
    zero: int = con.execute("select min(timestamp_ns) from memory").fetchall()[0][0]
    return zero


def test_overlap_adds_up_to_the_steps(whole: list[Event], con: duckdb.DuckDBPyConnection) -> None:
    sums: Counter[tuple[int, int, str]] = Counter()
    for event in of(whole, cat="overlap"):
        sums[event["pid"], event["args"]["step"], event["name"]] += ns(event["dur"])
    rows = steps(con).to_dicts()
    assert len(rows) == 16
    assert sums == {
        (row["rank"], row["step"], name): row[figure]
        for row in rows
        for name, figure in OVERLAP.items()
    }


def test_slices_of_a_track_nest(whole: list[Event]) -> None:
    assert_nests(whole)


def test_ranks_and_tracks_are_named_and_in_order(whole: list[Event]) -> None:
    processes = {event["pid"]: event["args"]["name"] for event in of(whole, name="process_name")}
    assert list(processes) == list(range(8))
    assert processes[4] == "rank 4 (node01, device 0)"
    tracks = {e["tid"]: e["args"]["name"] for e in of(whole, name="thread_name", pid=4)}
    assert list(tracks) == sorted(tracks) and min(tracks) > 8
    names = list(tracks.values())
    assert names[:8] == [
        "steps", "overlap", "overlap: masked", "overlap (2)", "overlap (2): masked",
        "stream 2", "stream 3", "stream 11",
    ]  # fmt: skip
    assert names[8:12] == [
        "communication dp 4-7", "communication dp_ep 4, 6", "communication ep 4-5",
        "communication pp 0, 4 #061",
    ]  # fmt: skip
    assert names[14].startswith("marks ")
    assert [name.partition(": ")[2] for name in names[15:]] == [
        "operator, enqueue, api", "dequeue, api", "operator, enqueue",
    ]  # fmt: skip


def test_slices_say_what_they_are(whole: list[Event], con: duckdb.DuckDBPyConnection) -> None:
    ((name, rank, size_bytes, algorithm, connection),) = con.execute(
        "select name, rank, size_bytes, algorithm, connection_id from comm_ops"
        " where op_type = 'allToAllV' order by rank, start_ns limit 1"
    ).fetchall()
    event = of(whole, pid=rank, name=name)[0]
    assert event["args"] == {
        "step": 12, "type": "allToAllV", "group": "ep 0-1", "size (bytes)": size_bytes,
        "elements": size_bytes // 2, "data type": "BFP16", "algorithm": algorithm,
        "relay": False, "retry": False, "connection id": connection,
    }  # fmt: skip
    step = of(whole, pid=0, name="step 12")[0]["args"]
    first = steps(con, Scope(rank=0, step=12)).to_dicts()[0]
    assert Decimal(str(step["computing (us)"])) * 1000 == first["computing_ns"]
    assert step["start (ns)"] == str(first["window_start_ns"])


def test_arrows_lead_from_the_call_to_what_it_launched(
    whole: list[Event], con: duckdb.DuckDBPyConnection
) -> None:
    tails = {event["bind_id"]: event for event in of(whole, flow_out=True)}
    assert len(tails) == len(of(whole, flow_out=True))
    heads = of(whole, flow_in=True)
    assert Counter(head["cat"] for head in heads) == Counter(
        kernel=2096, task=16, communication=408, dequeue=2520
    )
    for head in heads:
        tail = tails[head["bind_id"]]
        assert tail["pid"] == head["pid"]
        assert tail["args"]["connection id"] == head["args"]["connection id"]
        assert tail["cat"] == ("enqueue" if head["cat"] == "dequeue" else "api")


def test_one_step_of_two_ranks(
    sample: Path, whole: list[Event], con: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    out = tmp_path / "step.json"
    export(sample, out, ranks="2,5", steps="13")
    events = file_events(out)
    assert {event["pid"] for event in events} == {2, 5}
    assert_nests(events)
    sums: Counter[tuple[int, str]] = Counter()
    for event in of(events, cat="overlap"):
        assert event["args"] == {"step": 13}
        sums[event["pid"], event["name"]] += ns(event["dur"])
    for rank in (2, 5):
        (row,) = steps(con, Scope(rank=rank, step=13)).to_dicts()
        for name, figure in OVERLAP.items():
            assert sums[rank, name] == row[figure]
        # All of the step, and of its neighbour what runs beside it.
        kernels = of(events, pid=rank, cat="kernel")
        own = [event for event in kernels if event["args"]["step"] == 13]
        expected = of(of(whole, pid=rank, cat="kernel"), ph="X")
        assert len(own) == sum(event["args"]["step"] == 13 for event in expected)
    assert {event["name"] for event in of(events, cat="step")} == {"step 13"}
    # Times count from the start of the earlier one's step.
    assert min(event["ts"] for event in of(events, cat="step")) == 0


def test_a_window_cuts_what_crosses_its_edge(
    sample: Path, whole: list[Event], con: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    out = tmp_path / "window.json"
    export(sample, out, ranks="0", window="5.0005-9")
    events = file_events(out)
    capture_start = con.execute("select min(window_start_ns) from ranks").fetchall()[0][0]
    assert zero_ns(out) == capture_start + 5_000_500
    shift = zero_ns(out) - zero_ns_of(con)
    for category in ("kernel", "communication", "operator", "api", "mark", "overlap", "step"):
        expected: Counter[tuple[str, int, int]] = Counter()
        for event in of(whole, pid=0, cat=category):
            start, length = ns(event["ts"]) - shift, ns(event["dur"])
            end = start + length
            if start < 3_999_500 and (end > 0 or start >= 0):
                cut = (event["name"], max(start, 0), min(end, 3_999_500))
                expected[cut] += 1
        found = of(events, cat=category)
        assert expected == Counter(
            (event["name"], ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])) for event in found
        )
    (mark,) = of(events, cat="mark")
    assert (mark["ts"], mark["dur"]) == (0, 3999.5)
    assert mark["args"]["whole duration (us)"] == of(whole, pid=0, cat="mark")[0]["dur"]
    assert not any("whole duration (us)" in event["args"] for event in whole if "args" in event)
    # Curves begin with what was true before.
    for name in {event["name"] for event in of(whole, pid=0, ph="C")}:
        before = [e for e in of(whole, pid=0, ph="C", name=name) if ns(e["ts"]) < shift]
        first = min(of(events, ph="C", name=name), key=lambda event: event["ts"])
        assert (first["ts"], first["args"]) == (0, max(before, key=lambda e: e["ts"])["args"])


@pytest.mark.slow
def test_one_file_and_one_compressed_file_hold_the_same(
    sample: Path, con: duckdb.DuckDBPyConnection, whole: list[Event], tmp_path: Path
) -> None:
    open_views(con)
    export_tables_of(con, "duckdb", tmp_path / "x.duckdb", summaries=summary_versions())
    export(tmp_path / "x.duckdb", tmp_path / "x.json")
    written = export(sample, tmp_path / "x.json.gz")
    # A file of tables has no order; a compressed trace is the same text.
    assert sorted(map(json.dumps, file_events(tmp_path / "x.json"))) == sorted(
        map(json.dumps, whole)
    )
    assert file_events(tmp_path / "x.json.gz") == whole
    assert sum(written.event_counts.values()) == len(whole)
    assert written.size_bytes == (tmp_path / "x.json.gz").stat().st_size
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.duckdb", "x.json", "x.json.gz"]


@pytest.mark.parametrize("track", TRACKS)
def test_tracks_can_be_chosen(sample: Path, tmp_path: Path, track: str) -> None:
    export(sample, tmp_path / "x.json", tracks=track, ranks="0")
    events = file_events(tmp_path / "x.json")
    phases = {event["ph"] for event in events}
    assert phases == {"M", "C" if track in ("memory", "counters") else "X"}
    # An arrow needs both its ends.
    assert not any("bind_id" in event for event in events) or track == "host"


def test_only_a_trace_is_replaced(sample: Path, tmp_path: Path) -> None:
    for name in ("x.json", "x.json.gz"):
        out = tmp_path / name
        export(sample, out, ranks="0", tracks="steps")
        export(sample, out, ranks="1", tracks="steps")
        assert {event["pid"] for event in file_events(out)} == {1}
        out.write_text('{"traceEvents": []}')
        with pytest.raises(UsageError, match="no earlier trace"):
            export(sample, out, ranks="0")
        assert out.read_text() == '{"traceEvents": []}'


def test_folders_are_made_and_workshops_go(sample: Path, tmp_path: Path) -> None:
    export(sample, tmp_path / "a" / "b" / "x.json", tracks="steps", ranks="0")
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["x.json"]
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"x\.json: cannot be written \(Not a directory\)"):
        export(sample, tmp_path / "file" / "x.json", tracks="steps", ranks="0")
