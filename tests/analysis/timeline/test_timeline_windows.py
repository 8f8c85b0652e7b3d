"""Windows of a capture's time: the same figures from kept bins, from events, and by hand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import duckdb
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuscope.analysis.timeline import bins, event_details, events, rank_events, shared_axis
from npuscope.analysis.timeline.bins import kept_bins, live_bins
from tests.analysis.tables import Event, connect, fill, insert

MS = 1_000_000
EPOCH_NS = 1_736_405_443_862_052_130
FIGURES = (
    "active_ns", "computing_ns", "communication_ns", "overlapped_ns", "exposed_communication_ns",
    "free_ns", "event_count",
)  # fmt: skip
RANKS = (0, 1, 4)
PLACE = {"run": "job", "capture": "c"}


def scene() -> list[Event]:
    """Some 600 events of three ranks over 90 ms, some of them far longer than a bin."""
    found = []
    for number in range(200):
        for rank in RANKS:
            at = EPOCH_NS + number * 450_000 + rank * 13_577
            kind = "allReduce" if number % 5 == 0 else "compute"
            dur_ns = 3 * MS + 17 if number % 50 == 5 * rank else 250_000 + 997 * number
            found.append(Event(rank, number // 100, kind, at, dur_ns))
    return found


@pytest.fixture(scope="module")
def con() -> Iterable[duckdb.DuckDBPyConnection]:
    opened = connect()
    fill(opened, "ranks", [{"rank": rank, "clock": "epoch"} for rank in RANKS])
    insert(opened, scene())
    yield opened
    opened.close()


def totals(found: bins.Overview) -> dict[int, tuple[int, ...]]:
    summed = found.cells.group_by("rank", maintain_order=True).agg(pl.col(FIGURES).sum())
    return {row[0]: row[1:] for row in summed.rows()}


def test_all_of_the_time_is_shown_whatever_the_width(con: duckdb.DuckDBPyConnection) -> None:
    at = shared_axis.extent(con, **PLACE)
    assert at.notes == (
        ("Clocks are shown as recorded: timestamps of different hosts may be offset."),
    )
    starts = [event.start_ns for event in scene()]
    ends = [event.start_ns + event.dur_ns for event in scene()]
    assert at.window_ns == (min(starts), max(ends))
    whole = totals(bins.overview(con, at))
    assert sum(row[-1] for row in whole.values()) == len(scene())
    for row in whole.values():
        active, computing, communication, overlapped, exposed, free, _ = row
        assert overlapped + exposed == communication
        assert computing + exposed + free == active
    for columns in (1, 3, 40, 1_000):
        found = bins.overview(con, at, columns=columns)
        assert found.columns <= columns
        assert totals(found) == whole


def test_kept_bins_and_bins_from_events_are_the_same(con: duckdb.DuckDBPyConnection) -> None:
    at = shared_axis.extent(con, **PLACE)
    asked = (EPOCH_NS + 20 * MS, EPOCH_NS + 47 * MS)
    kept = kept_bins(con, at, at.of((0, 4)), asked, 0, MS)
    live = live_bins(con, at, at.of((0, 4)), asked, MS)
    assert live.is_from_events and not kept.is_from_events
    assert kept.cells.equals(live.cells)
    assert set(kept.cells["rank"]) == {0, 4} and kept.columns == live.columns == 28


@pytest.mark.slow
@given(st.integers(0, 90 * MS), st.integers(1, 9 * MS))
@settings(max_examples=8)
def test_a_window_has_what_ends_in_it(start_ns: int, length_ns: int) -> None:
    con = connect()
    insert(con, scene())
    at = shared_axis.extent(con, **PLACE)
    window_ns = (EPOCH_NS + start_ns, EPOCH_NS + start_ns + length_ns)
    ends = np.array([one.start_ns + one.dur_ns for one in scene()])

    def ended(around_ns: int) -> int:
        return int(((ends >= window_ns[0] - around_ns) & (ends <= window_ns[1] + around_ns)).sum())

    most = events.most_events(con, at, window_ns=window_ns)
    assert ended(0) <= most <= ended(2 * MS)


def test_clocks_that_are_ahead_are_put_right(con: duckdb.DuckDBPyConnection) -> None:
    at = shared_axis.extent(con, **PLACE)
    # Kept bins move by whole bins, so that nothing is lost.
    for ahead_ns in (3 * MS + 100, 3 * MS + 499_999, 3 * MS + 500_001, 3 * MS - 100):
        ahead = pl.Series([0, 0, ahead_ns], dtype=pl.Int64)
        moved = replace(at, ranks=at.ranks.with_columns(ahead_ns=ahead))
        shown = bins.overview(con, moved, columns=40)
        assert not shown.is_from_events and shown.columns <= 40
        assert totals(shown) == totals(bins.overview(con, at, columns=40))


def test_steps_stand_where_their_ranks_do(con: duckdb.DuckDBPyConnection) -> None:
    found = shared_axis.step_borders(con, run="job", capture="c")
    assert found["step"].to_list() == [0, 1]
    assert found["start_ns"][0] == EPOCH_NS


def test_nothing_recorded_is_no_window() -> None:
    con = connect()
    at = shared_axis.extent(con, **PLACE)
    assert at.window_ns is None
    assert bins.overview(con, at).cells.is_empty()
    assert events.most_events(con, at, window_ns=(0, 10)) == 0


@pytest.mark.slow
def test_events_that_begin_and_end_together_tell_of_themselves_and_what_their_thread_launched() -> (
    None
):
    """A call and the only one it is made of, kernels on two streams, operations of two groups."""
    con = connect()
    fill(con, "ranks", [{"rank": 0, "clock": "epoch"}])
    where = {"start_ns": 5 * MS, "dur_ns": MS, "is_compute": True}
    fill(con, "kernels", [
        {**where, "stream_id": stream, "type": kind, "task_id": 10 * stream + (kind == "Mul")}
        for stream in (2, 3) for kind in ("Add", "Mul")
    ])  # fmt: skip
    del where["is_compute"]
    fill(con, "comm_ops", [
        {**where, "op_type": "send", "name": f"send_{group}", "group_hash": group}
        for group in (None, "1", "2")
    ])  # fmt: skip
    fill(con, "host_ops", [
        {**where, "kind": kind, "name": name, "process_id": process, "thread_id": thread,
         "module": f"{process}/{thread}/{name or kind}"}
        for process, thread in ((1, 1), (1, 2), (None, 2))
        for kind, name in (("api", "launch"), ("operator", "send"), ("python", "f"), ("gc", None))
    ])  # fmt: skip
    # Operators of two threads, whose calls a third one makes later or at once.
    fill(con, "launches", [
        {"operator_start_ns": 5 * MS + 1, "operator_thread_id": of, "api_thread_id": by,
         "api_start_ns": at, "device_start_ns": 8 * MS, "target": "kernel",
         "target_name": f"{of} {by}"}
        for of, by, at in ((1, 2, 5 * MS + 2), (2, 1, 5 * MS + 2), (2, 3, 9 * MS))
    ])  # fmt: skip
    by_thread = {
        "operator": {1: ["1 2"], 2: ["2 1", "2 3"]}, "api": {1: ["2 1"], 2: ["1 2"]},
    }  # fmt: skip
    by_thread["python"] = by_thread["operator"]
    at = shared_axis.extent(con, **PLACE)
    told = set()
    for drawn in (rank_events.device_events(con, at, 0), rank_events.host_events(con, at, 0)):
        track_of = np.repeat(drawn.lane_track, np.diff(drawn.lane_first))
        for number in range(drawn.count):
            track, name = drawn.tracks[track_of[number]], drawn.names[drawn.name[number]]
            if track.kind == "overlap":
                continue
            found = event_details.event_details(
                con, at, 0, track.kind, int(drawn.start[number]), int(drawn.dur[number]),
                key=track.key, name=name,
            )  # fmt: skip
            assert found is not None
            row = found["row"]
            own = row.get("task_id") or row.get("name") if track.kind != "host" else row["module"]
            told.add((track.kind, own))
            if track.kind == "host":
                assert own.replace("None", "") == f"{track.key}/{name}"
                launched = by_thread.get(row["kind"], by_thread["api"])[row["thread_id"]]
                assert sorted(one["name"] for one in found["launched"]) == launched
    assert len(told) == 4 + 3 + 12
